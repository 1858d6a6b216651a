package conformance

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A volume that fills, the log's or the database's: the process ends with exit code 1 and one line that names the
// file, and with room again it starts with everything that was acknowledged.
func TestFullVolume(t *testing.T) {
	for name, c := range map[string]struct {
		mib   int
		place func(dir, full string) (data, wal string)
		text  string
	}{
		"log": {150, func(dir, full string) (string, string) { return dir, filepath.Join(full, "wal") }, ".wal"},
		"database": {40, func(dir, full string) (string, string) {
			return filepath.Join(full, "data"), filepath.Join(dir, "wal")
		}, "snap/db"},
	} {
		t.Run(name, func(t *testing.T) {
			full := volume(t, c.mib)
			data, wal := c.place(t.TempDir(), full)
			d := sluice(t, "--wal-dir="+wal)
			d.Dir = data
			start(t, d)
			s := attach(t, d)
			value := strings.Repeat("v", 1<<20)
			var sure []string
			for i := range 400 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				key := fmt.Sprintf("k%03d", i)
				_, err := s.c.Put(ctx, key, value)
				cancel()
				if err != nil {
					break
				}
				sure = append(sure, key)
			}
			select {
			case <-d.Exited():
			case <-time.After(30 * time.Second):
				t.Fatalf("the daemon goes on with a full volume, after %d puts", len(sure))
			}
			if code := d.State().ExitCode(); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			var told []string
			for line := range strings.Lines(d.Log()) {
				if strings.Contains(line, `"level":"fatal"`) || !strings.HasPrefix(line, "{") {
					told = append(told, line)
				}
			}
			if len(told) != 1 || !strings.Contains(told[0], "no space left on device") || !strings.Contains(told[0], c.text) {
				t.Errorf("the end says %q", told)
			}
			if err := syscall.Mount("tmpfs", full, "tmpfs", syscall.MS_REMOUNT, "size=2000m"); err != nil {
				t.Fatal(err)
			}
			start(t, d)
			s = attach(t, d)
			for _, key := range sure {
				if r := s.get(t, key); len(r.Kvs) != 1 || string(r.Kvs[0].Value) != value {
					t.Errorf("%s was acknowledged and is not there", key)
				}
			}
			t.Logf("%d acknowledged keys are there", len(sure))
			s.put(t, "after", "v")
		})
	}
}

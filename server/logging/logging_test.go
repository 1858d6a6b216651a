package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"sluice/server/config"
)

func TestMain(m *testing.M) {
	// lumberjack never ends the goroutine that it starts with the first rotation.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

func open(t *testing.T, std Streams, change func(*config.Config)) *Log {
	t.Helper()
	c := config.Default()
	change(c)
	l, err := New(c, std)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestJSONForm(t *testing.T) {
	var stderr, stdout bytes.Buffer
	l := open(t, Streams{&stdout, &stderr}, func(*config.Config) {})
	l.Debug("not at this level")
	l.Named("raft").Info("hello", zap.Duration("took", 7*time.Second), zap.Strings("urls", []string{"a"}))
	l.Error("bad", zap.Error(errors.New("why")))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if stdout.Len() != 0 || len(lines) != 2 {
		t.Fatalf("stdout %q, stderr %q", stdout.String(), stderr.String())
	}
	form := regexp.MustCompile(`^\{"level":"info","ts":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d{4})","logger":"raft",` +
		`"caller":"logging/logging_test.go:\d+","msg":"hello","took":"7s","urls":\["a"\]\}$`)
	if !form.MatchString(lines[0]) {
		t.Errorf("line %s", lines[0])
	}
	var entry map[string]any
	if err := json.Unmarshal([]byte(lines[1]), &entry); err != nil || entry["level"] != "error" ||
		entry["stacktrace"] == nil {
		t.Errorf("error line %s: %v", lines[1], err)
	}
}

func TestConsoleFormAndFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, Streams{}, func(c *config.Config) {
		c.LogOutputs, c.LogFormat, c.LogLevel = []string{path}, "console", "warn"
	})
	l.Info("no")
	l.Warn("yes", zap.Int("n", 1))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if parts := strings.Split(string(text), "\t"); len(parts) != 5 || parts[1] != "warn" || parts[3] != "yes" ||
		parts[4] != "{\"n\": 1}\n" {
		t.Errorf("console line %q", text)
	}
}

func TestRotation(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Streams{}, func(c *config.Config) {
		c.LogOutputs, c.LogRotation = []string{filepath.Join(dir, "log")}, true
		c.LogRotationJSON = `{"maxsize":1}`
	})
	for i := range 3 {
		l.Info(fmt.Sprint("line ", i, strings.Repeat("x", 600<<10)))
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) < 2 {
		t.Errorf("%d files, want the file and rotated ones: %v", len(files), err)
	}
}

func TestSettingsThatFail(t *testing.T) {
	for _, c := range []struct {
		output, want string
	}{
		{"/nodir/x", `open sink "/nodir/x": open /nodir/x: no such file or directory`},
		{"", `open sink "": open : no such file or directory`},
	} {
		cfg := config.Default()
		cfg.LogOutputs = []string{c.output}
		if _, err := New(cfg, Streams{}); err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.output, err, c.want)
		}
	}
	if _, err := dialJournal(filepath.Join(t.TempDir(), "none")); err == nil ||
		!strings.HasPrefix(err.Error(), "can't find journal (dial unixgram ") {
		t.Errorf("journal: %v", err)
	}
}

func TestNullOutputDropsAll(t *testing.T) {
	var stderr bytes.Buffer
	l := open(t, Streams{Stderr: &stderr}, func(c *config.Config) { c.LogOutputs = []string{"stderr", os.DevNull} })
	l.Error("nothing")
	if err := l.Close(); err != nil || stderr.Len() != 0 {
		t.Errorf("%v, %q", err, stderr.String())
	}
}

func TestSampling(t *testing.T) {
	var stderr bytes.Buffer
	l := open(t, Streams{Stderr: &stderr}, func(*config.Config) {})
	for range 1000 {
		l.Info("again")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// 100, then every 100th of the 900 others; a second boundary in between may double it.
	if n := strings.Count(stderr.String(), "again"); n < 100 || n > 220 {
		t.Errorf("%d lines of 1000", n)
	}
}

func TestJournal(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "journal")
	in, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	j, err := dialJournal(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := j.Write([]byte("{\"level\":\"error\",\"msg\":\"a\"}\n{\"level\":\"info\"}\n")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for _, want := range []string{
		"MESSAGE\n\x1b\x00\x00\x00\x00\x00\x00\x00{\"level\":\"error\",\"msg\":\"a\"}\nPRIORITY\n\x01\x00\x00\x00\x00\x00\x00\x003\n",
		"MESSAGE\n\x10\x00\x00\x00\x00\x00\x00\x00{\"level\":\"info\"}\nPRIORITY\n\x01\x00\x00\x00\x00\x00\x00\x006\n",
	} {
		n, err := in.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), want) {
			t.Errorf("datagram %q, want it to begin with %q: %v", buf[:n], want, err)
		}
	}
	if _, err := j.Write([]byte("plain\n")); err == nil {
		t.Error("a line without level was taken")
	}
}

// gate is an output that blocks until it is opened.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	text bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

// TestBlockedOutput: loggers go on, whole lines are dropped and counted, Sync gives up, and after the output
// works again one line says what is missing.
func TestBlockedOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		l := open(t, Streams{Stderr: g}, func(*config.Config) {})
		value := strings.Repeat("v", 1<<20)
		for i := range 10 {
			l.Info(fmt.Sprint("line ", i), zap.String("value", value))
			synctest.Wait()
		}
		if got := l.Dropped(); got < 4 || got > 7 {
			t.Errorf("%d lines of 1 MiB dropped, want those beyond one in work and %d bytes", got, queueBytesMax)
		}
		start := time.Now()
		if err := l.Sync(); !errors.Is(err, errFlush) || time.Since(start) != flushMax {
			t.Errorf("sync of a blocked output: %v after %v", err, time.Since(start))
		}
		close(g.open)
		if err := l.Sync(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		dropped := 0
		for _, line := range strings.Split(strings.TrimSpace(g.text.String()), "\n") {
			var entry struct {
				Msg   string
				Lines int
			}
			if err := json.Unmarshal([]byte(line), &entry); err != nil {
				t.Errorf("a broken line of %d bytes: %v", len(line), err)
			}
			dropped += entry.Lines
		}
		if dropped != int(l.Dropped()) {
			t.Errorf("lines tell of %d dropped, counted were %d", dropped, l.Dropped())
		}
	})
}

// TestFailingOutput: an output that returns errors costs lines, nothing else.
func TestFailingOutput(t *testing.T) {
	in, out := io.Pipe()
	in.Close()
	l := open(t, Streams{Stderr: out}, func(*config.Config) {})
	l.Info("lost")
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if l.Dropped() != 1 {
		t.Errorf("%d lines counted as dropped, want the lost one", l.Dropped())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

package wal_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/persist/wal"
	"sluice/stages/wire"
)

// etcd is a running member of the real thing.
type etcd struct {
	t      *testing.T
	cmd    *exec.Cmd
	client string
}

// startEtcd starts the binary that SLUICE_ETCD names on dir, and waits until it serves.
func startEtcd(t *testing.T, dir string) *etcd {
	t.Helper()
	binary := os.Getenv("SLUICE_ETCD")
	client, peer := freeURL(t), freeURL(t)
	e := &etcd{t: t, client: client, cmd: exec.Command(binary, "--name", "m1", "--data-dir", dir, "--snapshot-count", "20",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "m1="+peer)}
	logs, err := e.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.stop(syscall.SIGKILL) })
	lines := bufio.NewScanner(logs)
	lines.Buffer(nil, 1<<20)
	var seen []string
	for lines.Scan() {
		seen = append(seen, lines.Text())
		if strings.Contains(lines.Text(), "ready to serve client requests") {
			go io.Copy(io.Discard, logs)
			return e
		}
	}
	t.Fatalf("etcd does not start:\n%s", strings.Join(seen, "\n"))
	return nil
}

func freeURL(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func (e *etcd) stop(sig os.Signal) {
	if e.cmd.ProcessState == nil {
		e.cmd.Process.Signal(sig)
		e.cmd.Wait()
	}
}

// call posts to the JSON gateway.
func (e *etcd) call(path string, in, out any) {
	e.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		e.t.Fatal(err)
	}
	resp, err := http.Post(e.client+path, "application/json", bytes.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		e.t.Fatalf("%s: %s %s, %v", path, resp.Status, answer, err)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		e.t.Fatal(err)
	}
}

func (e *etcd) put(key string, size int) {
	e.t.Helper()
	encode := base64.StdEncoding.EncodeToString
	e.call("/v3/kv/put", map[string]string{
		"key": encode([]byte(key)), "value": encode(bytes.Repeat([]byte(key[:1]), size)),
	}, &struct{}{})
}

func (e *etcd) count() string {
	e.t.Helper()
	var out struct{ Count string }
	zero := base64.StdEncoding.EncodeToString([]byte{0})
	e.call("/v3/kv/range", map[string]any{"key": zero, "range_end": zero, "count_only": true}, &out)
	return out.Count
}

// lastSnapshot returns what a member boots from.
func lastSnapshot(t *testing.T, dir string) wal.Snapshot {
	t.Helper()
	snaps, err := wal.ValidSnapshots(wal.Disk{}, dir, nil)
	if err != nil || len(snaps) == 0 {
		t.Fatalf("valid snapshots %v, %v", snaps, err)
	}
	return snaps[len(snaps)-1]
}

// A log of the real etcd, killed over several segments, opens here; appended to here it opens there; and a
// log written wholly here, with segments and snapshot records, does as well.
func TestLogsOfEtcd(t *testing.T) {
	if os.Getenv("SLUICE_ETCD") == "" {
		t.Skip("SLUICE_ETCD does not name an etcd binary")
	}
	data := filepath.Join(t.TempDir(), "etcd")
	dir := filepath.Join(data, "member", "wal")
	e := startEtcd(t, data)
	for i := range 50 { // 70 MB: past the border of the first segment
		e.put(fmt.Sprintf("big%d", i), 1_400_000)
		e.put(fmt.Sprintf("small%d", i), 10)
	}
	e.stop(syscall.SIGKILL)

	at := lastSnapshot(t, dir)
	w, c, err := wal.Open(wal.Config{Dir: dir}, at)
	if err != nil {
		t.Fatal(err)
	}
	last := c.Entries[len(c.Entries)-1]
	if at.Index < 80 || last.GetIndex() < 104 || c.HardState.Term < 2 || w.Segments() < 1 {
		t.Fatalf("snapshot %d, last entry %d, %+v", at.Index, last.GetIndex(), c.HardState)
	}
	w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, last.GetTerm(), last.GetIndex()+1, nil))
	w.AppendState(wal.HardState{Term: c.HardState.Term, Vote: c.HardState.Vote, Commit: last.GetIndex() + 1})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	e = startEtcd(t, data)
	if got := e.count(); got != "100" {
		t.Fatalf("%s keys on the log appended to", got)
	}
	e.put("after", 10)
	e.stop(syscall.SIGTERM)

	rewriteLog(t, dir)
	e = startEtcd(t, data)
	if got := e.count(); got != "101" {
		t.Fatalf("%s keys on the log written here", got)
	}
	e.put("again", 10)
	e.stop(syscall.SIGKILL)
	before := last.GetIndex()
	_, c, err = wal.Open(wal.Config{Dir: dir}, lastSnapshot(t, dir))
	if err != nil || c.Entries[len(c.Entries)-1].GetIndex() <= before+3 {
		t.Fatalf("%d entries, %v", len(c.Entries), err)
	}
}

// rewriteLog replaces a log by one written here, with the same records in larger batches.
func rewriteLog(t *testing.T, dir string) {
	t.Helper()
	c, err := wal.Read(wal.Disk{}, dir, wal.Snapshot{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	snaps, err := wal.ValidSnapshots(wal.Disk{}, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	w, err := wal.Create(wal.Config{Dir: dir}, c.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range c.Entries {
		w.AppendEntry(e)
		w.AppendState(wal.HardState{Term: e.GetTerm(), Vote: c.HardState.Vote, Commit: e.GetIndex()})
		for _, s := range snaps {
			if s.Index == e.GetIndex() {
				w.AppendSnapshot(s)
			}
		}
		if i%7 == 0 {
			flush(t, w, true)
		}
	}
	w.AppendState(c.HardState)
	if w.Segments() < 2 {
		t.Fatal("one segment only")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"sluice/mailbox"
	"sluice/stages/persist"
	"sluice/stages/propose"
	"sluice/stages/wire"
)

// writer puts growing numbers under one key until it is refused.
type writer struct {
	key        string
	sent, sure int
}

// write runs the writer. each is called after every acknowledged put.
func (w *writer) write(t *testing.T, m *Member, value string, each func()) {
	for {
		w.sent++
		r, err := m.Propose(context.Background(), request(w.key, strconv.Itoa(w.sent)+value), propose.Client)
		if err != nil {
			if !errors.Is(err, propose.ErrStopped) {
				t.Errorf("%s: put %d: %v", w.key, w.sent, err)
			}
			return
		}
		if r.Err != nil {
			t.Errorf("%s: put %d: %v", w.key, w.sent, r.Err)
		}
		w.sure = w.sent
		each()
	}
}

// check finds what the writer knows to be there.
func (w *writer) check(t *testing.T, m *Member) {
	t.Helper()
	have := 0
	if v := get(m, w.key); v != "" {
		digits, _, _ := strings.Cut(v, "-")
		have, _ = strconv.Atoi(digits)
	}
	if have < w.sure || have > w.sent {
		t.Errorf("%s: found %d, acknowledged %d, sent %d", w.key, have, w.sure, w.sent)
	}
}

// failing runs writers against a member until something that arm did has stopped it, and returns how it
// ended. Then it looks whether the next life, on a sound disk, has all that was acknowledged.
func failing(t *testing.T, cfg Config, disk *faultyDisk, arm func(m *Member)) *StageError {
	t.Helper()
	m := run(t, cfg)
	writers := []*writer{{key: "a"}, {key: "b"}, {key: "c"}, {key: "d"}}
	var clients sync.WaitGroup
	var acknowledged atomic.Int64
	value := "-" + strings.Repeat("v", 1000)
	for _, w := range writers {
		clients.Go(func() {
			w.write(t, m, value, func() {
				if acknowledged.Add(1) == 100 {
					arm(m)
				}
			})
		})
	}
	select {
	case <-m.Done():
	case <-time.After(time.Minute):
		_ = m.Stop(context.Background())
		t.Fatal("the member did not stop")
	}
	clients.Wait() // nobody is left waiting
	if err := m.Barrier(t.Context()); !errors.Is(err, propose.ErrStopped) {
		t.Errorf("a barrier after the failure: %v", err)
	}
	if _, err := m.Propose(t.Context(), request("late", "v"), propose.System); !errors.Is(err, propose.ErrStopped) {
		t.Errorf("a put after the failure: %v", err)
	}
	var failure *StageError
	if err := m.Stop(t.Context()); !errors.As(err, &failure) {
		t.Fatalf("Stop: %v, want a StageError", err)
	}
	if err := m.Stop(t.Context()); !errors.Is(err, failure) {
		t.Errorf("the second Stop: %v", err)
	}
	if !errors.Is(m.Err(), failure) {
		t.Errorf("Err: %v", m.Err())
	}
	disk.heal()
	m = run(t, cfg)
	for _, w := range writers {
		w.check(t, m)
	}
	put(t, m, "after", "v")
	stop(t, m)
	return failure
}

// failOn fails the nth operation on a path with part in it, and every one after it.
func failOn(op, part string, n int64, err error) func(string, string) error {
	var seen atomic.Int64
	return func(o, path string) error {
		if o == op && strings.Contains(path, part) && seen.Add(1) >= n {
			return err
		}
		return nil
	}
}

// A disk that fails ends the member with the stage's name and the operation, is not tried again, and has not
// taken away what was acknowledged.
func TestDiskFails(t *testing.T) {
	everySize(t, func(t *testing.T, cfg Config, disk *faultyDisk) {
		cfg.SegmentBytes = 64 << 10
		for name, c := range map[string]struct {
			hook func(op, path string) error
			err  error
			text string
		}{
			"sync":              {failOn("sync", "/wal/", 1, syscall.EIO), syscall.EIO, "sync segment"},
			"later sync":        {failOn("sync", "/wal/", 20, syscall.EIO), syscall.EIO, "sync segment"},
			"write":             {failOn("write", "/wal/", 1, syscall.ENOSPC), syscall.ENOSPC, "append to segment"},
			"torn write":        {failOn("write", "/wal/", 3, torn{syscall.ENOSPC}), syscall.ENOSPC, "append to segment"},
			"name of a segment": {failOn("rename", ".tmp", 1, syscall.EIO), syscall.EIO, "name segment"},
			"next segment":      {failOn("open", ".tmp", 1, syscall.ENOSPC), syscall.ENOSPC, "cut segment"},
			"snapshot file":     {failOn("sync", ".snap", 1, syscall.EIO), syscall.EIO, "snap"},
		} {
			t.Run(name, func(t *testing.T) {
				cfg := cfg
				cfg.DataDir = filepath.Join(t.TempDir(), "data")
				failure := failing(t, cfg, disk, func(*Member) { disk.hook(c.hook) })
				if failure.Stage != "persist" && failure.Stage != "persist-prepare" || failure.Stack != nil {
					t.Errorf("stage %s failed", failure.Stage)
				}
				if !errors.Is(failure, c.err) || !strings.Contains(failure.Error(), c.text) {
					t.Errorf("failure %q, want %q", failure, c.text)
				}
				if strings.Contains(failure.Error(), "\n") {
					t.Errorf("more than a line: %q", failure)
				}
			})
		}
	})
}

// swapDescriptor puts one that cannot write in the place of every descriptor that this process has of path:
// the kernel itself then fails what is done with them.
func swapDescriptor(t *testing.T, path string) {
	t.Helper()
	readOnly, err := os.Open(path)
	if err != nil {
		t.Error(err)
		return
	}
	defer readOnly.Close()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Error(err)
		return
	}
	swapped := 0
	for _, fd := range fds {
		n, _ := strconv.Atoi(fd.Name())
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil || target != path || n == int(readOnly.Fd()) {
			continue
		}
		if err := unix.Dup3(int(readOnly.Fd()), n, unix.O_CLOEXEC); err != nil {
			t.Error(err)
		}
		swapped++
	}
	if swapped == 0 {
		t.Errorf("no descriptor of %s", path)
	}
}

// A commit of the database that fails ends the member as a failed log does: what is acknowledged lies in the
// log. The writer's stage is named, whoever learns of the failure first.
func TestCommitFails(t *testing.T) {
	everySize(t, func(t *testing.T, cfg Config, disk *faultyDisk) {
		failure := failing(t, cfg, disk, func(*Member) { swapDescriptor(t, cfg.dbPath()) })
		if failure.Stage != "backend" || !errors.Is(failure, syscall.EBADF) {
			t.Errorf("stage %q failed: %v", failure.Stage, failure)
		}
		if text := failure.Error(); !strings.Contains(text, cfg.dbPath()) || strings.Contains(text, "\n") {
			t.Errorf("failure %q", text)
		}
	})
}

// A broken invariant in any stage stops the member: its name, the numbers and the stack are in the error,
// every goroutine ends, and the next life has what was acknowledged.
func TestStagePanics(t *testing.T) {
	for stage, breakIt := range map[string]func(m *Member) error{
		"watch": func(m *Member) error { return m.watch.Events(context.Background(), wire.EventBatch{Revision: -1}) },
		"expire": func(m *Member) error {
			return m.expireIn.Sender(mailbox.Wait).Send(context.Background(), nil)
		},
		"apply": func(m *Member) error {
			g := m.log.Core().(*gate)
			g.shut(func() {
				g.pass.Store(nil)
				panic("a log that panics")
			})
			return nil
		},
		"persist": func(m *Member) error {
			ahead := &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(1 << 40))}}
			return m.persistIn.Sender(mailbox.Wait).Send(context.Background(), persist.Checkpoint{Snapshot: ahead})
		},
		"replicate": func(m *Member) error { return m.replicate.Propose(context.Background(), nil) },
		"disk": func(m *Member) error {
			m.cfg.Disk.(*faultyDisk).hook(func(op, _ string) error {
				if op == "sync" {
					panic("a disk that panics")
				}
				return nil
			})
			return nil
		},
		"any": func(m *Member) error {
			m.loops.run("any", func(context.Context) error { panic(errors.New("any value")) })
			return nil
		},
	} {
		t.Run(stage, func(t *testing.T) {
			everySize(t, func(t *testing.T, cfg Config, disk *faultyDisk) {
				cfg.Logger, cfg.WarningDuration = zap.New(&gate{LevelEnabler: zap.WarnLevel}), -1
				failure := failing(t, cfg, disk, func(m *Member) {
					if err := breakIt(m); err != nil {
						t.Error(err)
					}
				})
				want := []string{stage}
				if stage == "disk" {
					want = []string{"persist", "persist-prepare"}
				}
				if !slices.Contains(want, failure.Stage) {
					t.Errorf("stage %s failed, want %s", failure.Stage, want)
				}
				if !strings.Contains(string(failure.Stack), ".go:") {
					t.Errorf("no stack: %q", failure.Stack)
				}
				if head := fmt.Sprintf("stage %s: panic: ", failure.Stage); !strings.HasPrefix(failure.Error(), head) {
					t.Errorf("error %.100q", failure.Error())
				}
			})
		})
	}
}

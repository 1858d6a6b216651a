package persist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"sluice/mailbox"
	"sluice/stages/persist/snap"
	"sluice/stages/persist/wal"
	"sluice/stages/persist/wal/fault"
	"sluice/stages/wire"
	"sluice/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	walDir  = "/member/wal"
	snapDir = "/member/snap"
)

// acks collects what the stage acknowledges.
type acks struct {
	mu  sync.Mutex // the stage appends, the test reads
	all []Ack
}

func (a *acks) Acknowledge(ack Ack) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, ack)
	return nil
}

// sum adds all acknowledgements up.
func (a *acks) sum() Ack {
	a.mu.Lock()
	defer a.mu.Unlock()
	var s Ack
	for _, ack := range a.all {
		s.Appends += ack.Appends
		s.Responses = append(s.Responses, ack.Responses...)
		s.LastIndex = max(s.LastIndex, ack.LastIndex)
		s.CheckpointIndex = max(s.CheckpointIndex, ack.CheckpointIndex)
	}
	return s
}

// rig is a stage on a faulty disk.
type rig struct {
	disk  *fault.Disk
	box   *mailbox.Mailbox[Message]
	send  mailbox.Sender[Message]
	acks  *acks
	meter *tracing.Stage
	logs  *observer.ObservedLogs
	stage *Stage
	ended chan error
}

// start opens or creates the log on disk and runs a stage on it. now is the stage's clock; nil is zero.
func start(t testing.TB, ctx context.Context, disk *fault.Disk, capacity int, now func() int64) *rig {
	t.Helper()
	if now == nil {
		now = func() int64 { return 0 }
	}
	core, logs := observer.New(zapcore.InfoLevel)
	conf := wal.Config{Disk: disk, Dir: walDir, SegmentBytes: 1 << 20, Clock: now}
	var w *wal.WAL
	var err error
	if wal.Exists(disk, walDir) {
		w, _, err = wal.Open(conf, wal.Snapshot{})
	} else {
		w, err = wal.Create(conf, wal.Metadata{NodeID: 1, ClusterID: 2})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.MkdirAll(snapDir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := &rig{disk: disk, acks: &acks{}, meter: tracing.NewStage("persist"), logs: logs, ended: make(chan error, 1)}
	r.box = mailbox.NewSized(mailbox.Config{Name: "persist", Capacity: capacity}, SizeOf)
	r.send = r.box.Sender(mailbox.Wait)
	r.stage = New(Config{
		In: r.box.Receiver(), Out: r.acks, WAL: w, Log: zap.New(core), Meter: r.meter, Now: now,
		Snap: snap.Open(snap.Config{Disk: disk, Path: snapDir}), MaxWALs: 1, MaxSnapshots: 2,
	})
	go func() { r.ended <- r.stage.Run(ctx) }()
	return r
}

func (r *rig) put(t testing.TB, messages ...Message) {
	t.Helper()
	for _, m := range messages {
		if err := r.send.Send(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
}

// stop closes the mailbox and waits for the orderly end.
func (r *rig) stop(t testing.TB) {
	t.Helper()
	r.box.Close()
	if err := <-r.ended; !errors.Is(err, mailbox.ErrClosed) {
		t.Fatalf("the stage ended with %v", err)
	}
}

func appendOf(first, last uint64, commit uint64, responses int) Append {
	m := Append{HardState: &raftpb.HardState{Term: new(uint64), Vote: new(uint64), Commit: &commit}}
	*m.HardState.Term, *m.HardState.Vote = 1, 1
	for i := first; i <= last; i++ {
		m.Entries = append(m.Entries, wire.NewEntry(raftpb.EntryNormal, 1, i, fmt.Appendf(nil, "data %d", i)))
	}
	for i := range responses {
		index := first*1000 + uint64(i)
		m.Responses = append(m.Responses, &raftpb.Message{Index: &index})
	}
	return m
}

func read(t testing.TB, disk *fault.Disk) wal.Contents {
	t.Helper()
	c, err := wal.Read(disk, walDir, wal.Snapshot{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Every append is acknowledged once, responses keep their order, whatever the mailbox's capacity, and the
// orderly end leaves the last commit index in the log.
func TestEveryAppendIsAcknowledged(t *testing.T) {
	for _, capacity := range []int{1, 3, 1000} {
		t.Run(fmt.Sprint("capacity ", capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, context.Background(), fault.New(), capacity, nil)
				for i := uint64(1); i <= 50; i++ {
					r.put(t, appendOf(2*i-1, 2*i, 2*i-2, int(i%3)), appendOf(1, 0, 2*i, 0))
				}
				r.stop(t)
				got := r.acks.sum()
				if got.Appends != 100 || got.LastIndex != 100 || len(got.Responses) != 51 {
					t.Fatalf("%d appends, last %d, %d responses", got.Appends, got.LastIndex, len(got.Responses))
				}
				ordered := slices.IsSortedFunc(got.Responses, func(a, b *raftpb.Message) int {
					return int(a.GetIndex()) - int(b.GetIndex())
				})
				if !ordered {
					t.Fatal("responses out of order")
				}
				if c := read(t, r.disk); len(c.Entries) != 100 || c.HardState.Commit != 100 {
					t.Fatalf("%d entries, %+v", len(c.Entries), c.HardState)
				}
				if m := r.meter.Read(); m.Items != 100 {
					t.Fatalf("%d entries metered", m.Items)
				}
			})
		})
	}
}

// While the disk syncs, what comes waits, and then goes out in one write and one sync; nothing of it is
// acknowledged before.
func TestWaitingAppendsShareOneSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, context.Background(), fault.New(), 100, nil)
		synctest.Wait()
		release := make(chan struct{})
		r.disk.Before(func(op fault.Op) error {
			if op.Kind == fault.Sync {
				<-release
			}
			return nil
		})
		r.put(t, appendOf(1, 1, 0, 1))
		synctest.Wait()
		syncs, writes := r.disk.Counts()
		for i := uint64(2); i <= 65; i++ {
			r.put(t, appendOf(i, i, i-1, 1))
		}
		synctest.Wait()
		if got := r.acks.sum(); got.Appends != 0 || len(got.Responses) != 0 {
			t.Fatalf("acknowledged before the sync: %+v", got)
		}
		close(release)
		synctest.Wait()
		if got := r.acks.sum(); got.Appends != 65 || got.LastIndex != 65 {
			t.Fatalf("acknowledged: %d, last %d", got.Appends, got.LastIndex)
		}
		if s, w := r.disk.Counts(); s-syncs != 2 || w-writes != 1 {
			t.Fatalf("%d syncs and %d writes behind the first write, want 2 and 1", s-syncs, w-writes)
		}
		r.stop(t)
	})
}

// design.md section 3: a commit-only hard state is neither synced nor flushed, but acknowledged.
func TestCommitOnlyStateStaysInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, context.Background(), fault.New(), 10, nil)
		r.put(t, appendOf(1, 3, 0, 0))
		synctest.Wait()
		syncs, writes := r.disk.Counts()
		r.put(t, appendOf(1, 0, 3, 0))
		synctest.Wait()
		if s, w := r.disk.Counts(); s != syncs || w != writes {
			t.Fatalf("%d syncs, %d writes for a commit index", s-syncs, w-writes)
		}
		if got := r.acks.sum(); got.Appends != 2 {
			t.Fatalf("%d appends acknowledged", got.Appends)
		}
		if c := read(t, r.disk); c.HardState.Commit != 0 {
			t.Fatalf("commit %d on disk", c.HardState.Commit)
		}
		// Many of them are flushed once they fill the buffer, so that it stays bounded.
		for i := range uint64(10_000) {
			r.put(t, appendOf(1, 0, 4+i, 0))
		}
		synctest.Wait()
		if s, w := r.disk.Counts(); s != syncs || w == writes {
			t.Fatalf("%d syncs, %d writes for ten thousand", s-syncs, w-writes)
		}
		r.stop(t)
		if c := read(t, r.disk); c.HardState.Commit != 10_003 {
			t.Fatalf("commit %d after the orderly end", c.HardState.Commit)
		}
	})
}

// A failed write or sync ends the stage with an error that says what failed; nothing of the batch is
// acknowledged, then or later, and the rest of the mailbox is not touched.
func TestDiskErrorEndsTheStage(t *testing.T) {
	for name, c := range map[string]struct {
		kind fault.Kind
		err  error
	}{"full": {fault.Write, syscall.ENOSPC}, "fsync": {fault.Sync, syscall.EIO}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, context.Background(), fault.New(), 10, nil)
				r.put(t, appendOf(1, 2, 0, 1))
				synctest.Wait()
				failures := 0
				r.disk.Before(func(op fault.Op) error {
					if op.Kind == c.kind {
						failures++
						return c.err
					}
					return nil
				})
				r.put(t, appendOf(3, 4, 2, 1), appendOf(5, 6, 4, 1))
				err := <-r.ended
				if !errors.Is(err, c.err) || !strings.Contains(err.Error(), "segment "+walDir) {
					t.Fatalf("ended with %v", err)
				}
				if got := r.acks.sum(); got.Appends != 1 || len(got.Responses) != 1 || got.LastIndex != 2 {
					t.Fatalf("acknowledged %+v", got)
				}
				if failures != 1 {
					t.Fatalf("%d attempts", failures)
				}
				r.disk.Before(nil)
				again := start(t, context.Background(), r.disk.Crash(rand.New(rand.NewPCG(1, 2))), 10, nil)
				again.stop(t)
				if c := read(t, again.disk); len(c.Entries) < 2 {
					t.Fatalf("%d entries, 2 acknowledged", len(c.Entries))
				}
			})
		})
	}
}

// Cancelling is the hard stop: what is buffered is not written.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		r := start(t, ctx, fault.New(), 10, nil)
		r.put(t, appendOf(1, 1, 0, 0))
		synctest.Wait()
		r.put(t, appendOf(1, 0, 1, 0))
		synctest.Wait()
		cancel()
		if err := <-r.ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("ended with %v", err)
		}
		if c := read(t, r.disk); c.HardState.Commit != 0 || len(c.Entries) != 1 {
			t.Fatalf("%d entries, %+v", len(c.Entries), c.HardState)
		}
	})
}

// A sync of more than a second is a warning with etcd's words.
func TestSlowSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		r := start(t, context.Background(), fault.New(), 10, func() int64 { return int64(time.Since(begin)) })
		delay := time.Second
		r.disk.Before(func(op fault.Op) error {
			if op.Kind == fault.Sync {
				time.Sleep(delay)
			}
			return nil
		})
		r.put(t, appendOf(1, 1, 0, 0))
		synctest.Wait()
		time.Sleep(time.Minute)
		if n := r.logs.FilterMessage("slow fdatasync").Len(); n != 0 {
			t.Fatalf("%d warnings for a sync of exactly a second", n)
		}
		delay = 1500 * time.Millisecond
		r.put(t, appendOf(2, 2, 0, 0))
		time.Sleep(time.Minute)
		warnings := r.logs.FilterMessage("slow fdatasync").All()
		if len(warnings) != 1 || warnings[0].ContextMap()["took"] != 1500*time.Millisecond ||
			warnings[0].ContextMap()["expected-duration"] != time.Second {
			t.Fatalf("warnings %v", warnings)
		}
		r.disk.Before(nil)
		r.stop(t)
	})
}

// A checkpoint leaves the .snap file, a valid snapshot record, no older database copies, and lets the purge
// take the segments before it.
func TestCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, context.Background(), fault.New(), 1, nil)
		r.disk.Put(snapDir+"/0000000000000005.snap.db", []byte("old"))
		r.disk.Put(snapDir+"/0000000000000fff.snap.db", []byte("new"))
		big := appendOf(1, 20, 0, 0)
		for _, e := range big.Entries {
			e.Data = bytes.Repeat([]byte("x"), 1<<20) // more than a segment each
		}
		r.put(t, big, appendOf(21, 21, 20, 0), appendOf(22, 22, 20, 0))
		r.put(t, Checkpoint{Snapshot: snapshotAt(t, "22@1")})
		synctest.Wait()
		if got := r.acks.sum(); got.CheckpointIndex != 22 || got.Appends != 3 {
			t.Fatalf("acknowledged %+v", got)
		}
		snaps, err := wal.ValidSnapshots(r.disk, walDir, nil)
		if err != nil || len(snaps) != 2 || snaps[1].Index != 22 {
			t.Fatalf("valid snapshots %v, %v", snaps, err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		purged := make(chan error, 1)
		go func() { purged <- r.stage.Purge(ctx) }()
		synctest.Wait()
		names, _ := r.disk.List(walDir)
		if len(names) != 1 {
			t.Fatalf("log files %v after a purge", names)
		}
		names, _ = r.disk.List(snapDir)
		if !slices.Equal(names, []string{"0000000000000001-0000000000000016.snap", "0000000000000fff.snap.db"}) {
			t.Fatalf("snapshot files %v", names)
		}
		for i := uint64(23); i <= 25; i++ {
			r.put(t, appendOf(i, i, i-1, 0), Checkpoint{Snapshot: snapshotAt(t, fmt.Sprintf("%d@1", i))})
		}
		synctest.Wait()
		time.Sleep(PurgeInterval)
		synctest.Wait()
		names, _ = r.disk.List(snapDir)
		if len(names) != 3 || names[1] != "0000000000000001-0000000000000019.snap" {
			t.Fatalf("snapshot files %v after the second pass", names)
		}
		cancel()
		if err := <-purged; !errors.Is(err, context.Canceled) {
			t.Fatalf("Purge ended with %v", err)
		}
		r.stop(t)
	})
}

// An incoming snapshot is durable, as .snap file and valid record, before its responses go; the log opens
// behind it.
func TestIncomingSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, context.Background(), fault.New(), 1, nil)
		r.put(t, appendOf(1, 3, 2, 0))
		incoming := appendOf(51, 52, 52, 1)
		incoming.Snapshot = snapshotAt(t, "50@1")
		r.put(t, incoming)
		synctest.Wait()
		if got := r.acks.sum(); got.LastIndex != 52 || len(got.Responses) != 1 || got.CheckpointIndex != 0 {
			t.Fatalf("acknowledged %+v", got)
		}
		for seed := range uint64(20) {
			disk := r.disk.Crash(rand.New(rand.NewPCG(seed, 0)))
			snaps, err := wal.ValidSnapshots(disk, walDir, nil)
			if err != nil || len(snaps) != 2 || snaps[1].Index != 50 || len(snaps[1].ConfState.GetVoters()) != 1 {
				t.Fatalf("valid snapshots %v, %v", snaps, err)
			}
			w, c, err := wal.Open(wal.Config{Disk: disk, Dir: walDir, SegmentBytes: 1 << 20}, snaps[1])
			if err != nil || len(c.Entries) != 2 || c.Entries[0].GetIndex() != 51 || c.HardState.Commit != 52 {
				t.Fatalf("opened: %d entries, %+v, %v", len(c.Entries), c.HardState, err)
			}
			w.Abandon()
			if disk.Content(filepath.Join(snapDir, snap.Name(1, 50))) == nil {
				t.Fatal("no .snap file")
			}
		}
		r.stop(t)
	})
}

// A write with an incoming snapshot torn anywhere leaves a log that opens: behind the snapshot when its record
// and a commit index for it are there, else as before.
func TestIncomingSnapshotTorn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, context.Background(), fault.New(), 1, nil)
		r.put(t, appendOf(1, 3, 2, 0))
		incoming := appendOf(51, 60, 60, 1)
		incoming.Snapshot = snapshotAt(t, "50@1")
		for _, e := range incoming.Entries {
			e.Data = bytes.Repeat([]byte("y"), 100)
		}
		r.put(t, incoming)
		r.stop(t)
		path := walDir + "/0000000000000000-0000000000000000.wal"
		content := r.disk.Content(path)
		end := len(bytes.TrimRight(content, "\x00"))
		for cut := 64; cut < end; cut += 3 {
			disk := fault.New()
			disk.Put(path, content[:cut:cut])
			snaps, err := wal.ValidSnapshots(disk, walDir, nil)
			if err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			var at wal.Snapshot
			if len(snaps) > 0 {
				at = snaps[len(snaps)-1]
			}
			w, _, err := wal.Open(wal.Config{Disk: disk, Dir: walDir, SegmentBytes: 4096}, at)
			if err != nil {
				t.Fatalf("cut at %d, from %d: %v", cut, at.Index, err)
			}
			w.Abandon()
		}
	})
}

// One append larger than the buffer may grow is written in parts, and acknowledged once.
func TestHugeAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, context.Background(), fault.New(), 1, nil)
		m := appendOf(1, 20, 0, 1)
		for _, e := range m.Entries {
			e.Data = make([]byte, 1<<20)
		}
		largest := 0
		r.disk.Before(func(op fault.Op) error {
			if op.Kind == fault.Write {
				largest = max(largest, op.Bytes)
			}
			return nil
		})
		r.put(t, m)
		r.stop(t)
		if largest > wal.FlushBytesMax+2<<20 {
			t.Fatalf("a write of %d bytes", largest)
		}
		if got := r.acks.sum(); got.Appends != 1 || got.LastIndex != 20 || len(r.acks.all) != 1 {
			t.Fatalf("acknowledged %+v in %d parts", got, len(r.acks.all))
		}
		if c := read(t, r.disk); len(c.Entries) != 20 {
			t.Fatalf("%d entries", len(c.Entries))
		}
	})
}

// Prepare ends in order when the stage has.
func TestPrepareEndsWithTheStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, context.Background(), fault.New(), 1, nil)
		prepared, purged := make(chan error, 1), make(chan error, 1)
		go func() { prepared <- r.stage.Prepare(context.Background()) }()
		go func() { purged <- r.stage.Purge(context.Background()) }()
		synctest.Wait()
		r.stop(t)
		if err := <-prepared; !errors.Is(err, mailbox.ErrClosed) {
			t.Fatalf("Prepare ended with %v", err)
		}
		if err := <-purged; !errors.Is(err, mailbox.ErrClosed) {
			t.Fatalf("Purge ended with %v", err)
		}
	})
}

// A batch costs the stage a constant number of allocations, whatever it holds.
func TestBatchAllocations(t *testing.T) {
	w, err := wal.Create(wal.Config{Dir: filepath.Join(t.TempDir(), "wal"), UnsafeNoFsync: true}, wal.Metadata{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abandon()
	s := New(Config{Out: discard{}, WAL: w, Log: zap.NewNop(), Meter: tracing.NewStage("persist")})
	var m Message = appendOf(1, 64, 0, 1)
	allocs := testing.AllocsPerRun(100, func() {
		s.core.last = 0
		s.core.merge(&s.plan, m)
		if err := s.execute(0, 1); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 3 {
		t.Fatalf("%v allocations per batch of 64 entries", allocs)
	}
}

type discard struct{}

func (discard) Acknowledge(Ack) error { return nil }

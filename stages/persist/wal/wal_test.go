package wal_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"sluice/stages/persist/wal"
	"sluice/stages/persist/wal/fault"
	"sluice/stages/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func create(t testing.TB, c wal.Config) *wal.WAL {
	t.Helper()
	w, err := wal.Create(c, goldenMetadata)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Abandon)
	return w
}

func flush(t testing.TB, w *wal.WAL, sync bool) wal.Timing {
	t.Helper()
	timing, err := w.Flush(sync)
	if err != nil {
		t.Fatal(err)
	}
	return timing
}

// fill appends entries of one segment's size each, up to last, so that each flush cuts.
func fill(t testing.TB, w *wal.WAL, last uint64) {
	t.Helper()
	for w.LastIndex() < last {
		w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, 1, w.LastIndex()+1, bytes.Repeat([]byte("x"), 8192)))
		if !flush(t, w, true).Cut {
			t.Fatal("no cut")
		}
	}
}

// Contract 1.2 and 2.7: a log in use cannot be opened or created a second time; a closed one can.
func TestLocks(t *testing.T) {
	for name, disk := range map[string]wal.FS{"real": wal.Disk{}, "fault": fault.New()} {
		t.Run(name, func(t *testing.T) {
			c := wal.Config{Disk: disk, Dir: filepath.Join(t.TempDir(), "wal"), SegmentBytes: 8192}
			w := create(t, c)
			fill(t, w, 2)
			if _, _, err := wal.Open(c, wal.Snapshot{}); !errors.Is(err, wal.ErrLocked) {
				t.Fatalf("second open: %v, want ErrLocked", err)
			}
			if _, err := wal.Create(c, goldenMetadata); !errors.Is(err, os.ErrExist) {
				t.Fatalf("second create: %v, want ErrExist", err)
			}
			if c, err := wal.Read(disk, c.Dir, wal.Snapshot{}, nil); err != nil || len(c.Entries) != 2 {
				t.Fatalf("reading beside the writer: %d entries, %v", len(c.Entries), err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatalf("second close: %v", err)
			}
			w, _, err := wal.Open(c, wal.Snapshot{})
			if err != nil {
				t.Fatal(err)
			}
			w.Abandon()
			if _, err := w.Flush(true); !errors.Is(err, wal.ErrClosed) {
				t.Fatalf("flush after close: %v, want ErrClosed", err)
			}
		})
	}
}

// Contract 1.4: a snapshot at index i releases all segments older than the last one whose name index is
// below i; a purge removes the oldest released ones, keeping the newest, and stops at one that is held.
func TestReleaseAndPurge(t *testing.T) {
	disk := fault.New()
	w := create(t, config(disk))
	fill(t, w, 9) // segments named 0, 2, 3 ... 10
	names := func() string {
		var out []string
		all, err := disk.List(walDir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range all {
			out = append(out, strings.TrimLeft(strings.TrimSuffix(name, ".wal")[17:], "0"))
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		release uint64
		keep    uint
		left    string
	}{
		{0, 1, " 2 3 4 5 6 7 8 9 a"},
		{1, 1, " 2 3 4 5 6 7 8 9 a"},
		{3, 0, " 2 3 4 5 6 7 8 9 a"},
		{3, 1, "2 3 4 5 6 7 8 9 a"},
		{4, 9, "2 3 4 5 6 7 8 9 a"},
		{6, 5, "5 6 7 8 9 a"},
		{100, 5, "6 7 8 9 a"},
		{100, 1, "a"},
		{100, 1, "a"},
	} {
		w.Release(c.release)
		if err := w.Purge(c.keep); err != nil {
			t.Fatal(err)
		}
		if got := names(); got != c.left {
			t.Fatalf("released %d, keep %d: %q left, want %q", c.release, c.keep, got, c.left)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// The head of the last segment is enough to go on, from a snapshot at or above its name's index - 1.
	w, c, err := wal.Open(config(disk), wal.Snapshot{Index: 10, Term: 1})
	if err != nil || c.Metadata != goldenMetadata || len(c.Entries) != 0 {
		t.Fatalf("open: %+v, %v", c, err)
	}
	w.Abandon()
}

// Contract 2.1: the next segment is named after the last entry, or the last snapshot record if higher.
func TestSegmentNames(t *testing.T) {
	disk := fault.New()
	w := create(t, config(disk))
	w.AppendEntry(entry(3))
	w.AppendSnapshot(wal.Snapshot{Index: 0x50, Term: 1, ConfState: &raftpb.ConfState{Voters: []uint64{1}}})
	w.AppendState(wal.HardState{Term: 1, Commit: 0x50, Vote: uint64(len(bytes.Repeat([]byte("x"), 9000)))})
	for w.Segments() == 1 {
		w.AppendState(w.State())
		flush(t, w, true)
	}
	if disk.Content(segmentPath(1, 0x51)) == nil {
		names, _ := disk.List(walDir)
		t.Fatalf("files %v, want sequence 1 and index 51", names)
	}
}

// Contract 2.2: the writer refuses a snapshot record without ConfState.
func TestSnapshotRecordNeedsConfState(t *testing.T) {
	w := create(t, config(fault.New()))
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	w.AppendSnapshot(wal.Snapshot{Index: 3, Term: 1})
}

// Contract 2.5: nothing reaches the disk before a flush, a flush without sync does not sync, a sync without
// anything new does nothing, and one batch is one write and one sync.
func TestWritesAndSyncsPerFlush(t *testing.T) {
	disk := fault.New()
	w := create(t, config(disk))
	step := func(name string, syncs, writes int, fn func()) {
		t.Helper()
		s0, w0 := disk.Counts()
		fn()
		if s1, w1 := disk.Counts(); s1-s0 != syncs || w1-w0 != writes {
			t.Errorf("%s: %d syncs, %d writes, want %d, %d", name, s1-s0, w1-w0, syncs, writes)
		}
	}
	step("append", 0, 0, func() {
		for i := uint64(1); i <= 5; i++ {
			w.AppendEntry(entry(i))
		}
		w.AppendState(wal.HardState{Term: 1, Vote: 1, Commit: 20})
	})
	step("flush and sync", 1, 1, func() { flush(t, w, true) })
	step("nothing new", 0, 0, func() { flush(t, w, true) })
	w.AppendState(wal.HardState{Term: 1, Vote: 1, Commit: 21})
	step("flush only", 0, 1, func() { flush(t, w, false) })
	step("sync what was flushed", 1, 0, func() { flush(t, w, true) })
	w.AppendState(wal.HardState{Term: 1, Vote: 1, Commit: 22})
	step("close", 1, 1, func() {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	})
	w2, c, err := wal.Open(config(disk), wal.Snapshot{})
	if err != nil || c.HardState.Commit != 22 {
		t.Fatalf("state %v, %v", c.HardState, err)
	}
	w2.Abandon()
	unsafe := config(fault.New())
	unsafe.UnsafeNoFsync = true
	disk = unsafe.Disk.(*fault.Disk)
	w = create(t, unsafe)
	step("unsafe", 0, 1, func() {
		w.AppendEntry(entry(1))
		flush(t, w, true)
	})
	if syncs, _ := disk.Counts(); syncs != 0 {
		t.Errorf("%d syncs with unsafe-no-fsync", syncs)
	}
}

// A full disk costs the preallocation, not the start (BC-65): segments then grow by appending.
func TestNoSpaceToPreallocate(t *testing.T) {
	disk := fault.New()
	disk.Before(func(op fault.Op) error {
		if op.Kind == fault.Allocate {
			return syscall.ENOSPC
		}
		return nil
	})
	w := create(t, config(disk))
	fill(t, w, 3)
	w.AppendEntry(entry(4))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w, c, err := wal.Open(config(disk), wal.Snapshot{})
	if err != nil || len(c.Entries) != 4 {
		t.Fatalf("%d entries, %v", len(c.Entries), err)
	}
	w.Abandon()
	if size := len(disk.Content(segmentPath(3, 4))); size >= 8192 {
		t.Fatalf("the last segment has %d bytes", size)
	}
}

// performance.md 3.2: Prepare keeps a spare and fills it and the active segment with written zeros; the next
// cut takes the spare without making a file; names alternate; Close removes the spare.
func TestPrepare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fault.New()
		c := config(disk)
		c.SegmentBytes = 4 << 20
		w := create(t, c)
		ended := make(chan error, 1)
		go func() { ended <- w.Prepare(context.Background()) }()
		synctestIdle(t)
		if size := len(disk.Content(walDir + "/0.tmp")); size != 4<<20 {
			t.Fatalf("the spare has %d bytes", size)
		}
		syncs, writes := disk.Counts()
		if writes < 16+11 || syncs < 16+11 {
			t.Fatalf("%d writes and %d syncs are too few to have zeroed two segments", writes, syncs)
		}
		w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, 1, 1, bytes.Repeat([]byte("x"), 4<<20)))
		if !flush(t, w, true).Cut {
			t.Fatal("no cut")
		}
		synctestIdle(t)
		names, _ := disk.List(walDir)
		if len(names) != 3 || names[2] != "1.tmp" {
			t.Fatalf("files %v, want two segments and 1.tmp", names)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, wal.ErrClosed) {
			t.Fatalf("Prepare ended with %v", err)
		}
		if names, _ := disk.List(walDir); len(names) != 2 {
			t.Fatalf("files %v after Close, want the segments only", names)
		}
		w, contents, err := wal.Open(c, wal.Snapshot{})
		if err != nil || len(contents.Entries) != 1 || contents.Wiped != 0 {
			t.Fatalf("%d entries, wiped %d, %v", len(contents.Entries), contents.Wiped, err)
		}
		w.Abandon()
	})
}

// The zeros never run over records, however the log and Prepare interleave.
func TestPrepareBesideWrites(t *testing.T) {
	disk := fault.New()
	c := config(disk)
	c.SegmentBytes = 1 << 20
	w := create(t, c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Prepare(ctx) }()
	var want []*raftpb.Entry
	for i := range uint64(400) {
		e := wire.NewEntry(raftpb.EntryNormal, 1, i+1, bytes.Repeat([]byte{byte(i + 1)}, int(i*97%50_000)))
		want = append(want, e)
		w.AppendEntry(e)
		flush(t, w, true)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("Prepare ended with %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, got, err := wal.Open(c, wal.Snapshot{})
	if err != nil || len(got.Entries) != len(want) {
		t.Fatalf("%d entries, %v, want %d", len(got.Entries), err, len(want))
	}
	for i, e := range got.Entries {
		if !bytes.Equal(e.Data, want[i].Data) {
			t.Fatalf("entry %d differs", i+1)
		}
	}
}

// A spare that cannot be made is no failure, and is not tried again before the next cut; an error under the
// active segment is one.
func TestPrepareErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fault.New()
		c := config(disk)
		c.SegmentBytes = 4 << 20
		w := create(t, c)
		spares := 0
		disk.Before(func(op fault.Op) error {
			if op.Kind == fault.Write && strings.HasSuffix(op.Path, ".tmp") {
				spares++
				return syscall.EIO
			}
			return nil
		})
		ended := make(chan error, 1)
		go func() { ended <- w.Prepare(context.Background()) }()
		synctestIdle(t)
		if names, _ := disk.List(walDir); spares != 1 || len(names) != 1 {
			t.Fatalf("%d attempts, files %v", spares, names)
		}
		disk.Before(func(op fault.Op) error {
			// The second file made, by the cut itself; its handles keep the name that they were opened by.
			if op.Kind == fault.Write && op.Bytes == 256<<10 && op.Path == walDir+"/1.tmp" {
				return syscall.EIO
			}
			return nil
		})
		w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, 1, 1, bytes.Repeat([]byte("x"), 4<<20)))
		flush(t, w, true)
		if err := <-ended; !errors.Is(err, syscall.EIO) {
			t.Fatalf("Prepare ended with %v, want EIO", err)
		}
	})
}

// synctestIdle lets the bubble's clock run until Prepare waits for more to do.
func synctestIdle(t *testing.T) {
	t.Helper()
	time.Sleep(time.Minute) // of the bubble's time
	synctest.Wait()
}

// Zero allocations per record: a batch of 64 entries costs a constant number, whatever its size.
func TestAppendAllocations(t *testing.T) {
	w := create(t, wal.Config{Dir: filepath.Join(t.TempDir(), "wal"), Log: zap.NewNop()})
	batch := make([]*raftpb.Entry, 64)
	for i := range batch {
		batch[i] = wire.NewEntry(raftpb.EntryNormal, 1, uint64(i+1), make([]byte, 256))
	}
	allocs := testing.AllocsPerRun(100, func() {
		for _, e := range batch {
			w.AppendEntry(e)
		}
		w.AppendState(wal.HardState{Term: 1, Vote: 1, Commit: 64})
		flush(t, w, true)
	})
	if allocs > 2 {
		t.Fatalf("%v allocations per batch of 64 entries", allocs)
	}
}

// A buffer grown by big entries is let go.
func TestBufferShrinks(t *testing.T) {
	w := create(t, config(fault.New()))
	w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, 1, 1, make([]byte, 10<<20)))
	flush(t, w, true)
	if got := w.BufferCap(); got > 1<<20 {
		t.Fatalf("the buffer keeps %d bytes", got)
	}
}

func BenchmarkFlush(b *testing.B) {
	for _, n := range []int{1, 64, 512} {
		b.Run(map[int]string{1: "entries=1", 64: "entries=64", 512: "entries=512"}[n], func(b *testing.B) {
			w := create(b, wal.Config{Dir: filepath.Join(b.TempDir(), "wal")})
			batch := make([]*raftpb.Entry, n)
			for i := range batch {
				batch[i] = wire.NewEntry(raftpb.EntryNormal, 1, uint64(i+1), make([]byte, 300))
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, e := range batch {
					w.AppendEntry(e)
				}
				if _, err := w.Flush(true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFlushZeroed is one small batch on blocks that Prepare has written, to compare with entries=1 above,
// whose blocks are only reserved.
func BenchmarkFlushZeroed(b *testing.B) {
	w := create(b, wal.Config{Dir: filepath.Join(b.TempDir(), "wal")})
	if err := w.PrepareAll(); err != nil {
		b.Fatal(err)
	}
	e := wire.NewEntry(raftpb.EntryNormal, 1, 1, make([]byte, 300))
	for b.Loop() {
		w.AppendEntry(e)
		if _, err := w.Flush(true); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	c := wal.Config{Dir: filepath.Join(b.TempDir(), "wal"), UnsafeNoFsync: true}
	w := create(b, c)
	e := wire.NewEntry(raftpb.EntryNormal, 1, 1, make([]byte, 300))
	b.ReportAllocs()
	for b.Loop() {
		w.AppendEntry(e)
		if w.Buffered() > 512<<10 {
			if _, err := w.Flush(false); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// Contract 17.30: the lock is an open-file-description one; flock would not keep the real etcd out.
func TestLockIsOfOpenFileDescriptions(t *testing.T) {
	create(t, wal.Config{Dir: filepath.Join(t.TempDir(), "wal"), SegmentBytes: 8192})
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil || len(infos) == 0 {
		t.Skip("no /proc/self/fdinfo here")
	}
	for _, info := range infos {
		if b, err := os.ReadFile(info); err == nil && bytes.Contains(b, []byte("OFDLCK ADVISORY  WRITE")) {
			return
		}
	}
	t.Fatal("no open file holds an OFD write lock")
}

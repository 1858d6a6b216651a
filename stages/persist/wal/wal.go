package wal

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"sluice/stages/wire"
	"sluice/tracing"
)

const (
	// bufferBytesKeep is the largest buffer kept between two flushes; one grown by big entries is let go.
	bufferBytesKeep = 1 << 20
	// BufferBytesMax is how much may wait for a flush at the most: hard states whose only news is the
	// commit index are not flushed by themselves.
	BufferBytesMax = 128 << 10
	// FlushBytesMax is how much the owner lets the buffer grow before it flushes and syncs, one record more
	// at the most. It bounds what may be unsynced when a process dies, see confirm.
	FlushBytesMax = 8 << 20
)

// Config is what every operation on a log needs.
type Config struct {
	Disk FS     // nil is the real one
	Dir  string // the directory of the segments
	Log  *zap.Logger
	// Clock returns monotonic nanoseconds, to time writes and syncs; nil is tracing.Clock.
	Clock func() int64
	// UnsafeNoFsync skips every sync: what was acknowledged may be lost with the machine.
	UnsafeNoFsync bool
	// SegmentBytes is for tests and simulations; 0 is the format's SegmentBytes.
	SegmentBytes int64
}

func (c Config) filled() Config {
	if c.Disk == nil {
		c.Disk = Disk{}
	}
	if c.Clock == nil {
		c.Clock = tracing.Clock
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = SegmentBytes
	}
	c.Log = orNop(c.Log)
	c.Dir = filepath.Clean(c.Dir)
	return c
}

// WAL is a log open for writing. One goroutine uses it; only Prepare runs on another.
//
// Append* encode into the buffer, Flush moves the buffer to the disk. The first error is final: what the
// disk holds is then unknown until the log is opened again, so every later call returns the same error.
type WAL struct {
	// Fixed at Create or Open.
	disk         FS
	dir          string
	log          *zap.Logger
	clock        func() int64
	noFsync      bool
	segmentBytes int64
	metadata     []byte

	// Owned by the writing goroutine.
	enc    encoder
	segs   []segment // locked ones in order; the last is written to
	tail   int64     // offset in the last segment behind everything written
	synced bool      // nothing has been written since the last sync
	state  HardState // last appended
	last   uint64    // index of the last entry, or of the last snapshot if higher
	failed error

	prep preparation
}

// Timing says what one Flush did.
type Timing struct {
	Bytes int           // written
	Write time.Duration // of the write
	Sync  time.Duration // of the fdatasync of the batch, 0 when there was none
	Cut   bool          // a new segment was begun
}

func newWAL(c Config, metadata []byte, segs []segment) *WAL {
	return &WAL{
		disk: c.Disk, dir: c.Dir, log: c.Log, clock: c.Clock, noFsync: c.UnsafeNoFsync,
		segmentBytes: c.SegmentBytes, metadata: metadata, segs: segs, synced: true,
		prep: preparation{wake: make(chan struct{}, 1), done: make(chan struct{})},
	}
}

// AppendEntry encodes e. Its Data is read now and not kept.
func (w *WAL) AppendEntry(e *raftpb.Entry) {
	n := wire.EntrySize(e)
	w.enc.end(recordEntry, n, wire.AppendEntry(w.enc.begin(n), e))
	w.last = e.GetIndex()
}

// AppendState encodes s.
func (w *WAL) AppendState(s HardState) {
	n := s.size()
	w.enc.end(recordState, n, s.append(w.enc.begin(n)))
	w.state = s
}

// AppendSnapshot encodes s. Everything up to its index must be in a durable database, or be about to come
// with a durable database file.
func (w *WAL) AppendSnapshot(s Snapshot) {
	if s.Index > 0 && s.ConfState == nil {
		panic(fmt.Sprintf("wal: snapshot record %d (term %d) without ConfState", s.Index, s.Term))
	}
	w.enc.record(recordSnapshot, s.append(nil))
	w.last = max(w.last, s.Index)
}

// Buffered returns how many encoded bytes wait for a Flush.
func (w *WAL) Buffered() int { return len(w.enc.buf) }

// State returns the hard state appended or read last.
func (w *WAL) State() HardState { return w.state }

// LastIndex returns the index of the last entry, or of the last snapshot if higher.
func (w *WAL) LastIndex() uint64 { return w.last }

// Flush writes the buffer, and with sync makes durable all that was ever appended. Once the segment has
// reached its size the next one is begun.
func (w *WAL) Flush(sync bool) (Timing, error) {
	if w.failed != nil {
		return Timing{}, w.failed
	}
	t, err := w.flush(sync)
	if err == nil && w.tail >= w.segmentBytes {
		t.Cut = true
		err = w.cut()
	}
	if err != nil {
		w.failed = err
	}
	return t, err
}

func (w *WAL) flush(sync bool) (Timing, error) {
	t := Timing{Bytes: len(w.enc.buf)}
	seg := &w.segs[len(w.segs)-1]
	start := w.clock()
	if t.Bytes > 0 {
		w.prep.active.claim(w.tail + int64(t.Bytes))
		if _, err := seg.file.WriteAt(w.enc.buf, w.tail); err != nil {
			return t, fmt.Errorf("append to segment %s: %w", seg.path, err)
		}
		w.tail += int64(t.Bytes)
		w.synced = false
		w.enc.buf = w.enc.buf[:0]
		if cap(w.enc.buf) > bufferBytesKeep {
			w.enc.buf = nil
		}
	}
	written := w.clock()
	t.Write = time.Duration(written - start)
	if !sync || w.synced {
		return t, nil
	}
	if err := w.sync(seg.file); err != nil {
		return t, fmt.Errorf("sync segment %s: %w", seg.path, err)
	}
	w.synced = true
	t.Sync = time.Duration(w.clock() - written)
	return t, nil
}

func (w *WAL) sync(f File) error {
	if w.noFsync {
		return nil
	}
	return f.Sync()
}

// cut begins the next segment. The old one is trimmed to what is in it; the new one gets its name only when
// its head is durable, so that a crash leaves the log as it was or with a whole new segment.
func (w *WAL) cut() error {
	old := &w.segs[len(w.segs)-1]
	s, err := w.take()
	if err != nil {
		return fmt.Errorf("cut segment %s: %w", old.path, err)
	}
	if err = old.file.Truncate(w.tail); err == nil {
		err = w.sync(old.file)
	}
	if err != nil {
		return fmt.Errorf("trim segment %s: %w", old.path, err)
	}
	next := segment{seq: old.seq + 1, index: w.last + 1, file: s.file}
	next.path = filepath.Join(w.dir, segmentName(next.seq, next.index))
	w.segs, w.tail = append(w.segs, next), 0
	if err = w.writeHead(); err != nil {
		return err
	}
	if err = w.disk.Rename(s.path, next.path); err != nil {
		return fmt.Errorf("name segment %s: %w", next.path, err)
	}
	if err = w.syncDir(w.dir); err != nil {
		return err
	}
	w.log.Info("created a new WAL segment", zap.String("path", next.path))
	w.prep.signal()
	return nil
}

// writeHead makes durable what every segment but the first begins with.
func (w *WAL) writeHead() error {
	w.enc.checksum()
	w.enc.record(recordMetadata, w.metadata)
	if !w.state.IsZero() {
		w.AppendState(w.state)
	}
	_, err := w.flush(true)
	return err
}

func (w *WAL) syncDir(dir string) error {
	if w.noFsync {
		return nil
	}
	if err := w.disk.SyncDir(dir); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// Release gives up the locks of the segments that a reader from a snapshot at index does not need, for
// Purge to remove. Call it when that snapshot, and a hard state whose commit is at or above it, are durable.
func (w *WAL) Release(index uint64) {
	keep := 0
	for i := range w.segs {
		if w.segs[i].index < index {
			keep = i
		}
	}
	closeSegments(w.segs[:keep])
	w.segs = append(w.segs[:0], w.segs[keep:]...)
}

// Segments returns how many segments are locked, the one being written included.
func (w *WAL) Segments() int { return len(w.segs) }

// Closed is closed once the log is: the sign for workers beside it. Any goroutine may wait for it.
func (w *WAL) Closed() <-chan struct{} { return w.prep.done }

// Close writes and syncs what is buffered, unless the log has failed, and ends the use of all files.
func (w *WAL) Close() error {
	if errors.Is(w.failed, ErrClosed) {
		return nil
	}
	_, err := w.Flush(true)
	w.Abandon()
	return err
}

// Abandon ends the use of all files and writes nothing: what a crash would leave.
func (w *WAL) Abandon() {
	w.prep.stop(w.disk)
	closeSegments(w.segs)
	if w.failed == nil {
		w.failed = ErrClosed
	}
}

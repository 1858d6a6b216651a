package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"sluice/mailbox"
	"sluice/tracing"
)

// Config is fixed at Open.
type Config struct {
	Path           string        // of the database; its directory exists
	QuotaBytes     int64         // --quota-backend-bytes; sizes the mapping
	MappingBytes   int64         // overrides the size of the first mapping; 0 means max(10 GiB, 1.1 x quota, 2 x file)
	FreelistType   string        // --backend-bbolt-freelist-type: "array", anything else means map
	UnsafeNoFsync  bool          // --unsafe-no-fsync
	Mlock          bool          // --memory-mlock
	BatchInterval  time.Duration // --backend-batch-interval; 0 means 100 ms
	BatchLimit     int           // --backend-batch-limit, in changes; 0 means 10000
	BufferBytesMax int64         // of unsealed changes, when the disk is slow, before apply must wait; 0 means 64 MiB
	DefragBytes    int64         // --bootstrap-defrag-threshold-megabytes, in bytes; 0 means off
	Capacity       int           // of the writer's mailbox; 0 means 16
	Logger         *zap.Logger
	Metrics        Metrics
	Meter          *tracing.Stage // one stamp per commit
}

// Metrics are the meters that the backend feeds.
type Metrics struct {
	CommitSeconds    tracing.Observer // etcd_disk_backend_commit_duration_seconds
	RebalanceSeconds tracing.Observer // etcd_debugging_disk_backend_commit_rebalance_duration_seconds
	SpillSeconds     tracing.Observer // etcd_debugging_disk_backend_commit_spill_duration_seconds
	WriteSeconds     tracing.Observer // etcd_debugging_disk_backend_commit_write_duration_seconds
	DefragSeconds    tracing.Observer // etcd_disk_backend_defrag_duration_seconds
	SnapshotSeconds  tracing.Observer // etcd_disk_backend_snapshot_duration_seconds
	DefragInflight   tracing.Gauge    // etcd_disk_defrag_inflight
}

const (
	batchInterval  = 100 * time.Millisecond
	batchLimit     = 10000
	bufferBytesMax = 64 << 20
	capacity       = 16
	sealedMax      = 2 // sealed buffers that are not in the file yet
	promiseAfter   = 5 * time.Second
)

// Backend is the database of one member. See the package comment for who may call what.
type Backend struct {
	cfg          Config // fixed at Open
	log          *zap.Logger
	in           *mailbox.Mailbox[message] // requests
	send         mailbox.Sender[message]
	seals        *mailbox.Mailbox[*buffer] // sealed buffers; never more than sealedMax
	promiseAfter time.Duration             // a commit that takes longer may wait for a remap
	slots        chan struct{}             // a token for each sealed buffer that is not in the file, or is held back
	wanted       chan struct{}             // capacity 1
	jobs         chan *defragment          // unbuffered: one runs, the others wait
	ended        chan struct{}             // closed when Run has ended or never will; err is set before

	current     *buffer // owned by apply
	last        Seal    // owned by apply: the newest seal
	acquired    *base   // owned by apply: of its newest snapshot, to compare only
	index, term uint64  // owned by apply: on disk at Open or Install

	file                      *file // owned by Run
	flushedIndex, flushedTerm uint64
	copying                   *journal // of the running defragmentation, nil when there is none
	heldSlots                 int      // not given back to apply until the journal is taken

	mu                        sync.Mutex // guards the rest: written by apply, Run and Close, read by apply
	err                       error
	base                      *base // nil after Close
	sealed                    []*buffer
	sealedCount, flushedCount uint64          // of buffers, since Open
	demands                   []chan struct{} // each closed by the next Seal
	durable                   Seal
	flushing                  bool          // a commit may be under way
	changed                   chan struct{} // closed and replaced with every change of base or sealed
	started                   bool

	pending      atomic.Bool  // published by apply: current has changes
	due          atomic.Bool  // published by Run: they have waited for a batch interval
	demanded     atomic.Bool  // published by whoever demands a seal
	total, inUse atomic.Int64 // published by Run
}

// Writer is apply's side of the current buffer.
func (b *Backend) Writer() Writer { return writer{b} }

type writer struct{ b *Backend }

var emptyValue = []byte{} // a value that is there, unlike nil

func (w writer) Put(bucket Bucket, key, value []byte) {
	if value == nil {
		value = emptyValue
	}
	w.add(bucket, key, value)
}

func (w writer) Delete(bucket Bucket, key []byte) { w.add(bucket, key, nil) }

func (w writer) add(bucket Bucket, key, value []byte) {
	if len(key) == 0 || len(key) > KeyBytesMax {
		panic(fmt.Sprintf("backend: key of %d bytes for bucket %s, want 1 to %d", len(key), bucket, KeyBytesMax))
	}
	if w.b.current.ops == 0 {
		w.b.pending.Store(true)
	}
	w.b.current.add(bucket, key, value)
}

// Acquire returns a snapshot of everything written so far, with one hold. Apply alone calls it, once per
// batch, and shares it through its view.
func (b *Backend) Acquire() *Snapshot {
	s := &Snapshot{}
	s.holds.Store(1)
	s.layers = s.room[:0]
	if l := b.current.layer(); !l.empty() {
		s.layers = append(s.layers, l)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.base == nil {
		panic("backend: Acquire after Close")
	}
	s.base = b.base.retain()
	b.acquired = s.base
	for i := len(b.sealed) - 1; i >= 0; i-- {
		if l := b.sealed[i].layer(); !l.empty() {
			s.layers = append(s.layers, l)
		}
	}
	return s
}

// ErrStale is returned by Seal, Flush and Install while the writer waits for the read transactions of old
// snapshots, and apply has published none since that wait began: it must publish a fresh view, releasing
// the old one, and call again. Else the two would wait for each other.
var ErrStale = errors.New("backend: publish a fresh view first")

// Seal hands the changes since the last one to the writer, which commits them together with the seal. It
// waits while two sealed buffers are not in the file. A seal that says nothing new is not committed.
//
// Apply alone calls it, between two entries: when SealWanted says so, and when it needs a Flush. It returns
// ErrStale, the error that ended Run, or ErrClosed after Close.
func (b *Backend) Seal(ctx context.Context, s Seal) error {
	if s.Index < b.last.Index || s.Term < b.last.Term {
		panic(fmt.Sprintf("backend: seal at index %d term %d after index %d term %d",
			s.Index, s.Term, b.last.Index, b.last.Term))
	}
	if b.current.ops == 0 && s.ConfState == nil && s.Index == b.last.Index && s.Term == b.last.Term {
		b.settle()
		return b.failure()
	}
	if err := b.takeSlot(ctx); err != nil {
		return err
	}
	full := b.current
	full.seal = s
	full.layer() // the last clone is made here, by the buffer's owner: now it is immutable
	b.mu.Lock()
	b.sealed = append(b.sealed, full)
	b.sealedCount++
	b.mu.Unlock()
	b.current, b.last = newBuffer(min(len(full.run), b.cfg.BatchLimit)), s
	b.due.Store(false)
	b.pending.Store(false)
	err := b.seals.Sender(mailbox.Refuse).Send(ctx, full)
	if errors.Is(err, mailbox.ErrFull) {
		panic(fmt.Sprintf("backend: more than %d sealed buffers", sealedMax))
	}
	b.settle()
	return b.because(err)
}

// takeSlot waits for a place among the sealed buffers.
func (b *Backend) takeSlot(ctx context.Context) error {
	for {
		changed := b.change()
		select {
		case b.slots <- struct{}{}:
			return nil
		default:
		}
		if b.stale() {
			return ErrStale
		}
		select {
		case b.slots <- struct{}{}:
			return nil
		case <-changed:
		case <-b.ended:
			return b.failure()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stale reports whether apply's newest snapshot may be one that the writer waits for.
func (b *Backend) stale() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.base != nil && b.base.txn.Load() == nil && b.acquired != nil && b.acquired != b.base
}

// settle answers those who demanded a seal: all that they may ask for is on its way to the writer.
func (b *Backend) settle() {
	b.mu.Lock()
	demands := b.demands
	b.demands = nil
	b.demanded.Store(false)
	b.mu.Unlock()
	for _, d := range demands {
		close(d)
	}
}

// SealWanted reports whether apply should seal now: changes have waited for a batch interval, there are as
// many as the batch limit, or somebody needs them in the file. While the writer is behind it says no, so
// that apply goes on and the next commit is larger, up to BufferBytesMax. Apply alone calls it.
func (b *Backend) SealWanted() bool {
	c := b.current
	wanted := b.demanded.Load() || c.ops > 0 && (b.due.Load() || c.ops >= b.cfg.BatchLimit)
	return wanted && len(b.slots) < sealedMax || c.bytes >= b.cfg.BufferBytesMax
}

// Wanted yields a token when an idle apply should look at SealWanted and publish a new view: its present
// one keeps buffers and a read transaction that are no longer needed.
func (b *Backend) Wanted() <-chan struct{} { return b.wanted }

// signal wakes apply, idle or waiting in a call, and everybody else who waits in Flushed.
func (b *Backend) signal() {
	select {
	case b.wanted <- struct{}{}:
	default:
	}
	b.mu.Lock()
	close(b.changed)
	b.changed = make(chan struct{})
	b.mu.Unlock()
}

// change returns what is closed with the next change of base or sealed. Take it before looking at them.
func (b *Backend) change() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// Flush waits until everything sealed so far is durable. Apply alone calls it. Errors as Seal.
func (b *Backend) Flush(ctx context.Context) error {
	return b.flushed(ctx, b.stale)
}

// Flushed is Flush for others than apply: when the writer waits for apply's newest snapshot, it waits along,
// because apply will be told. Any goroutine may call it.
func (b *Backend) Flushed(ctx context.Context) error {
	return b.flushed(ctx, func() bool { return false })
}

func (b *Backend) flushed(ctx context.Context, stale func() bool) error {
	b.mu.Lock()
	target := b.sealedCount // what is sealed later is not waited for
	b.mu.Unlock()
	for {
		b.mu.Lock()
		done, err, changed := b.flushedCount >= target, b.err, b.changed
		b.mu.Unlock()
		if done && errors.Is(err, mailbox.ErrClosed) {
			return nil
		}
		if done || err != nil {
			return err
		}
		if stale() {
			return ErrStale
		}
		select {
		case <-changed:
		case <-b.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Durable returns the consistent index and term of the last commit. Any goroutine may call it.
func (b *Backend) Durable() (index, term uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.durable.Index, b.durable.Term
}

// ConsistentIndex returns the index and term that the file had at Open, or after the last Install.
// Apply alone calls it.
func (b *Backend) ConsistentIndex() (index, term uint64) { return b.index, b.term }

// Size returns the bytes of the file as of the last commit, etcd's "db size", and how many of them are in
// use. Any goroutine may call it.
func (b *Backend) Size() (total, inUse int64) { return b.total.Load(), b.inUse.Load() }

// ReadTransactions returns how many read transactions are open on the present file; 1 when idle. Any
// goroutine may call it.
func (b *Backend) ReadTransactions() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.base == nil {
		return 0
	}
	t := b.base.txn.Load()
	if t == nil || t.err != nil {
		return 0
	}
	return t.file.open.Load()
}

// Mailbox returns the writer's mailbox for meters and settings.
func (b *Backend) Mailbox() mailbox.Metered { return b.in }

// ask sends m to the writer and waits for its answer in done.
func (b *Backend) ask(ctx context.Context, m message, done <-chan error) error {
	if err := b.send.Send(ctx, m); err != nil {
		return b.because(err)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-b.ended:
		return b.answerOrFailure(done)
	}
}

// answerOrFailure is for after the end: the answer that came just before it, or why it ended.
func (b *Backend) answerOrFailure(done <-chan error) error {
	select {
	case err := <-done:
		return err
	default:
		return b.failure()
	}
}

// demand asks apply for a seal and waits for it.
func (b *Backend) demand(ctx context.Context) error {
	d := make(chan struct{})
	b.mu.Lock()
	b.demands = append(b.demands, d)
	b.demanded.Store(true)
	b.mu.Unlock()
	b.signal()
	select {
	case <-d:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-b.ended:
		return b.failure()
	}
}

// failure returns what ended Run, nil while it has not.
func (b *Backend) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// because replaces a closed mailbox's error by its reason.
func (b *Backend) because(err error) error {
	if errors.Is(err, mailbox.ErrClosed) {
		if failure := b.failure(); failure != nil {
			return failure
		}
	}
	return err
}

// Close ends the backend in order: the writer commits what was sealed, then Run ends. What was not sealed
// is left to the log. The file stays open for the snapshots that are still held; the last one closes it.
//
// Whoever stops in order seals and flushes first, so that nothing is left to commit here: a commit that must
// wait for held snapshots would make Close wait as well.
func (b *Backend) Close() error {
	b.in.Close()
	b.seals.Close()
	b.mu.Lock()
	if !b.started {
		b.started = true
		b.err = mailbox.ErrClosed
		close(b.ended)
	}
	b.mu.Unlock()
	<-b.ended
	b.mu.Lock()
	old, err := b.base, b.err
	b.base = nil
	b.mu.Unlock()
	if old != nil {
		old.release()
		b.file.leave()
	}
	if errors.Is(err, mailbox.ErrClosed) {
		return nil
	}
	return err
}

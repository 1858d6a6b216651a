package backend

import (
	"bytes"
	"context"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"sluice/tracing"
)

// pinned is a hold on the last commit's read transaction, on its way from the writer to somebody who may
// have stopped waiting.
type pinned struct {
	state atomic.Int32
	ready chan struct{} // closed by the writer after base was set
	base  *base
}

const (
	pinWaiting int32 = iota
	pinDelivered
	pinGivenUp
)

// deliver is the writer's: b comes with a hold.
func (p *pinned) deliver(b *base) {
	p.base = b
	if !p.state.CompareAndSwap(pinWaiting, pinDelivered) {
		b.release()
	}
	close(p.ready)
}

// giveUp is the receiver's. It reports false if the delivery came first.
func (p *pinned) giveUp() bool { return p.state.CompareAndSwap(pinWaiting, pinGivenUp) }

// pin returns the read transaction of the last commit, after everything sealed before, with a hold.
func (b *Backend) pin(ctx context.Context) (*base, error) {
	p := &pinned{ready: make(chan struct{})}
	if err := b.send.Send(ctx, pin{p}); err != nil {
		return nil, b.because(err)
	}
	var why error
	select {
	case <-p.ready:
		return p.base, nil
	case <-ctx.Done():
		why = ctx.Err()
	case <-b.ended:
		why = b.failure()
	}
	if p.giveUp() {
		return nil, why
	}
	<-p.ready
	return p.base, nil
}

// SnapshotStream is a whole database as of one commit.
type SnapshotStream struct {
	Index, Term uint64 // the consistent index in it, and its term
	Size        int64  // in bytes
	base        *base
	start       time.Time
	seconds     tracing.Observer
	closed      atomic.Bool
}

// Snapshot has apply seal, waits until that is durable, and pins the state of that commit. Writes and reads
// go on; only when the file outgrows its mapping (10 GiB at least) the writer waits for the stream to end.
//
// The seal is apply's: Snapshot demands one, Wanted and SealWanted tell apply, and the next Seal answers.
// The stream's Index is that of the commit that holds it, or of a later one.
func (b *Backend) Snapshot(ctx context.Context) (*SnapshotStream, error) {
	start := time.Now()
	if err := b.demand(ctx); err != nil {
		return nil, err
	}
	base, err := b.pin(ctx)
	if err != nil {
		return nil, err
	}
	t := base.wait()
	return &SnapshotStream{
		Index: t.index, Term: t.term, Size: t.tx.Size(),
		base: base, start: start, seconds: b.cfg.Metrics.SnapshotSeconds,
	}, nil
}

// WriteTo writes Size bytes: a bbolt file.
func (s *SnapshotStream) WriteTo(w io.Writer) (int64, error) {
	n, err := s.base.wait().tx.WriteTo(w)
	if err != nil {
		return n, fmt.Errorf("snapshot of the database, %d of %d bytes: %w", n, s.Size, err)
	}
	return n, nil
}

// Close releases the pinned state. Closing twice is harmless.
func (s *SnapshotStream) Close() error {
	if s.closed.CompareAndSwap(false, true) {
		s.base.release()
		s.seconds.Observe(time.Since(s.start).Seconds())
	}
	return nil
}

// Hash returns the checksum that etcd's Hash gives: over every bucket except what members keep differently.
// What apply has written before the call is in it. Writes and reads go on.
//
// Rule: contract/disk-and-peer.md 10.3.
func (b *Backend) Hash(ctx context.Context) (uint32, error) {
	if b.pending.Load() {
		if err := b.demand(ctx); err != nil {
			return 0, err
		}
	}
	base, err := b.pin(ctx)
	if err != nil {
		return 0, err
	}
	defer base.release()
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	err = hashTx(base.wait().tx, h)
	return h.Sum32(), err
}

// hashTx feeds h with the name and the pairs of every bucket.
func hashTx(tx *bolt.Tx, h hash.Hash32) error {
	return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		h.Write(name)
		meta := string(name) == Meta.String()
		return b.ForEach(func(k, v []byte) error {
			if meta && (bytes.Equal(k, metaTerm) || bytes.Equal(k, metaIndex) || bytes.Equal(k, metaStorageVersion)) {
				return nil
			}
			h.Write(k)
			h.Write(v)
			return nil
		})
	})
}

package backend

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.uber.org/zap"

	"sluice/tracing"
)

// Seal says up to which entry a sealed buffer reaches. It is committed together with the buffer's changes.
type Seal struct {
	Index     uint64 // of the last entry whose effects are in; 0 only before the first entry
	Term      uint64 // of that entry
	ConfState []byte // JSON for meta/confState if a conf change was applied since the last seal, else nil
}

const keyFill = 0.9 // bucket key grows at its end only, so its pages need little room

var (
	metaIndex     = []byte("consistent_index")
	metaTerm      = []byte("term")
	metaConfState = []byte("confState")
)

// pairs returns the entries of bucket meta that a commit up to s writes.
func (s Seal) pairs() []pair {
	var p []pair
	if s.Index > 0 {
		p = append(p, pair{metaIndex, binary.BigEndian.AppendUint64(nil, s.Index)})
	}
	if s.Term > 0 {
		p = append(p, pair{metaTerm, binary.BigEndian.AppendUint64(nil, s.Term)})
	}
	if s.ConfState != nil {
		p = append(p, pair{metaConfState, s.ConfState})
	}
	return p
}

// commit writes the buffers, oldest first, to f in one transaction. keep chooses among their changes; nil
// takes all.
func (f *file) commit(set []*buffer, keep func(c change) bool) (bolt.TxStats, error) {
	return f.update(func(tx *bolt.Tx) error {
		var into [buckets]*bolt.Bucket
		for _, b := range set {
			err := b.changes(func(c change) error {
				if keep != nil && !keep(c) {
					return nil
				}
				if into[c.bucket] == nil {
					bucket := tx.Bucket([]byte(c.bucket.String()))
					if bucket == nil {
						return fmt.Errorf("bucket %q is missing", c.bucket)
					}
					if c.bucket == Key {
						bucket.FillPercent = keyFill
					}
					into[c.bucket] = bucket
				}
				return c.write(into[c.bucket])
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// update runs fn in a write transaction and commits it. A panic of bbolt, its answer to a broken page, is
// an error like any other.
func (f *file) update(fn func(tx *bolt.Tx) error) (stats bolt.TxStats, err error) {
	var tx *bolt.Tx
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		err = fmt.Errorf("bbolt: %v", p)
		f.failed.Store(true) // bbolt's locks may be held for ever, unless the transaction can be ended
		defer func() { _ = recover() }()
		if tx != nil {
			ended := tx.Rollback()
			f.failed.Store(ended != nil && !errors.Is(ended, bolterrors.ErrTxClosed))
		}
	}()
	if tx, err = f.db.Begin(true); err != nil {
		return stats, err
	}
	if err := fn(tx); err != nil {
		return stats, errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return stats, err
	}
	return tx.Stats(), nil
}

func (c change) write(b *bolt.Bucket) error {
	if c.value == nil {
		if err := b.Delete(c.key); err != nil {
			return fmt.Errorf("delete a key of %d bytes from %s: %w", len(c.key), c.bucket, err)
		}
		return nil
	}
	if err := b.Put(c.key, c.value); err != nil {
		return fmt.Errorf("put %d + %d bytes into %s: %w", len(c.key), len(c.value), c.bucket, err)
	}
	return nil
}

// flush makes the sealed buffers durable, in one transaction with the index of the last one.
//
// bbolt replaces its mapping when the file outgrows it, and for that waits until no read transaction is
// open, while it lets no new one begin. Views that follow each other would keep the old one open for ever.
// So before a flush that could outgrow the mapping, snapshots are given out without a read transaction, the
// older ones are waited for, and only then bbolt is asked. The estimate can be too low (a delete rewrites
// a leaf with large neighbours); then the same promise, made late by a timer, lets the old ones drain.
func (b *Backend) flush(ctx context.Context, set []*buffer) error {
	if len(set) == 0 {
		return nil
	}
	in := tracing.Clock()
	last := set[len(set)-1].seal
	f := b.file
	b.mu.Lock()
	b.flushing = true
	b.mu.Unlock()
	if b.outgrows(set) {
		b.promise()
		if err := b.drain(ctx, f); err != nil {
			return err
		}
	}
	late := time.AfterFunc(b.promiseAfter, b.promise)
	start := time.Now()
	stats, err := f.commit(set, nil)
	took := time.Since(start)
	late.Stop()
	if err != nil {
		return fmt.Errorf("commit to %s up to index %d: %w", b.cfg.Path, last.Index, err)
	}
	b.cfg.Metrics.observe(took, &stats)
	t, err := f.begin(max(last.Index, b.flushedIndex), max(last.Term, b.flushedTerm))
	if err != nil {
		return fmt.Errorf("commit to %s up to index %d: %w", b.cfg.Path, last.Index, err)
	}
	f.mapped = max(f.mapped, mappingBytes(t.tx.Size()+int64(f.db.Info().PageSize)))
	b.flushedIndex, b.flushedTerm = t.index, t.term
	b.record(set)
	b.publish(t, len(set))
	b.stamp(in, set)
	return nil
}

func (b *Backend) stamp(in int64, set []*buffer) {
	last := set[len(set)-1].seal
	st := tracing.Stamp{Term: last.Term, Last: last.Index, In: in, Out: tracing.Clock(), Depth: int32(len(set))}
	for _, s := range set {
		st.Count += int32(s.ops)
		st.Bytes += s.bytes
	}
	b.cfg.Meter.Record(st)
}

// outgrows estimates whether a commit of set could need a larger mapping.
func (b *Backend) outgrows(set []*buffer) bool {
	page := int64(b.file.db.Info().PageSize)
	need := b.total.Load() + 64*page
	for _, s := range set {
		need += 2 * s.bytes // pages are at worst half full
		if s.rest != nil {
			need += 4 * page * int64(s.rest.Len()) // a change in the middle rewrites its way to the root
		}
	}
	return need >= b.file.mapped
}

// promise gives out snapshots whose read transaction is still to come, and asks apply to publish one, so
// that the transactions of older snapshots end.
func (b *Backend) promise() {
	b.mu.Lock()
	old := b.base
	if !b.flushing || old.txn.Load() == nil {
		b.mu.Unlock() // the timer was late, or the promise is made
		return
	}
	b.base = newBase()
	b.mu.Unlock()
	old.release()
	b.signal()
}

// drain waits until no read transaction is open on f.
func (b *Backend) drain(ctx context.Context, f *file) error {
	slow := time.AfterFunc(drainPatience, func() {
		b.log.Warn("database mapping must grow; waiting for open read transactions (snapshot streams, long reads)",
			zap.String("path", b.cfg.Path), zap.Int64("read-transactions", f.open.Load()))
	})
	defer slow.Stop()
	for f.open.Load() > 0 {
		select {
		case <-f.drained:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

const drainPatience = time.Second

// publish makes t what snapshots read from the file, instead of the last and of the n oldest sealed buffers.
func (b *Backend) publish(t *txn, n int) {
	total, inUse := t.file.pages(t.tx)
	b.total.Store(total)
	b.inUse.Store(inUse)
	b.mu.Lock()
	b.flushing = false
	old := b.base
	if old.txn.Load() == nil {
		old.fill(t)
		old = nil
	} else {
		b.base = newBase()
		b.base.fill(t)
	}
	b.sealed = slices.Delete(b.sealed, 0, n)
	b.flushedCount += uint64(n)
	b.durable = Seal{Index: t.index, Term: t.term}
	b.mu.Unlock()
	if old != nil {
		old.release()
	}
	b.free(n)
	b.signal()
}

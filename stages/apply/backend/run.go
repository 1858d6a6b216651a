package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/mailbox"
)

// message is what the writer receives.
type message interface{ isMessage() }

type (
	sealed  struct{ buffer *buffer }    // from apply
	barrier struct{ done chan<- error } // everything sealed before it is durable when done is answered
	pin     struct{ *pinned }           // asks for the read transaction of the last commit
	round   struct {                    // from the defragmentation: asks for the next state to copy from
		first bool
		reply chan<- roundReply
	}
	finish struct { // the copy is complete up to the last round's state
		copy *copier
		done chan<- error
	}
	abandon struct{} // the defragmentation has ended without finish
	install struct { // the file at path replaces the database
		path string
		done chan<- error
	}
)

func (barrier) isMessage() {}
func (pin) isMessage()     {}
func (round) isMessage()   {}
func (finish) isMessage()  {}
func (abandon) isMessage() {}
func (install) isMessage() {}

// Run is the writer's loop. It ends with ErrClosed after Close, and with any other error when a commit has
// failed: then nothing more is written, and the member must stop.
func (b *Backend) Run(ctx context.Context) error {
	b.mu.Lock()
	again := b.started
	b.started = true
	b.mu.Unlock()
	if again {
		return mailbox.ErrClosed
	}
	worker := make(chan struct{})
	go func() {
		defer close(worker)
		b.defragmenter(ctx)
	}()
	err := b.loop(ctx)
	b.stop(err)
	<-worker
	return err
}

func (b *Backend) loop(ctx context.Context) error {
	tick := time.NewTicker(b.cfg.BatchInterval)
	defer tick.Stop()
	in, seals := b.in.Receiver(), b.seals.Receiver()
	var batch []message
	for {
		select {
		case <-seals.Ready():
			if err := b.flushSealed(ctx); err != nil {
				return err
			}
		case <-in.Ready():
			var closed error
			batch, closed = in.TryReceive(batch[:0])
			for _, m := range batch {
				if err := b.flushSealed(ctx); err != nil {
					return err
				}
				if err := b.handle(m); err != nil {
					return err
				}
			}
			clear(batch)
			if closed != nil {
				if err := b.flushSealed(ctx); err != nil {
					return err
				}
				return closed
			}
		case <-tick.C:
			if b.pending.Load() {
				b.due.Store(true)
				b.signal()
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// flushSealed commits the sealed buffers that wait, together. It comes before every request, so that a
// request finds in the file what was sealed before it was sent.
func (b *Backend) flushSealed(ctx context.Context) error {
	set, err := b.seals.Receiver().TryReceive(nil)
	if err != nil && !errors.Is(err, mailbox.ErrClosed) {
		return err
	}
	return b.flush(ctx, set)
}

func (b *Backend) handle(m message) error {
	switch m := m.(type) {
	case barrier:
		m.done <- nil
	case pin:
		m.deliver(b.newest())
	case round:
		m.reply <- b.nextRound(m.first)
	case finish:
		return b.finish(m)
	case abandon:
		b.endCopying()
	case install:
		return b.install(m)
	default:
		panic(fmt.Sprintf("backend: unknown message %T", m))
	}
	return nil
}

// newest returns the last commit's read transaction with a hold for the receiver.
func (b *Backend) newest() *base {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.base.retain()
}

// stop records why Run ends. Readers that were promised a transaction get one of the last state that was
// committed: with the buffers above it they still see what they should.
func (b *Backend) stop(err error) {
	b.in.Close()
	b.seals.Close()
	b.mu.Lock()
	b.flushing = false
	if b.base.txn.Load() == nil {
		t := &txn{err: err}
		if !b.file.failed.Load() {
			var beginErr error
			if t, beginErr = b.file.begin(b.flushedIndex, b.flushedTerm); beginErr != nil {
				t = &txn{err: errors.Join(err, beginErr)}
			}
		}
		b.base.fill(t)
	}
	b.err = err
	if !errors.Is(err, mailbox.ErrClosed) {
		b.err = &FailedError{err}
	}
	b.mu.Unlock()
	close(b.ended)
}

// FailedError is what callers get when the writer has ended with Err: the fault is the writer's, not theirs.
type FailedError struct{ Err error }

func (e *FailedError) Error() string { return e.Err.Error() }

// Unwrap returns what Run has returned.
func (e *FailedError) Unwrap() error { return e.Err }

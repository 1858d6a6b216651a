package propose

import (
	"context"
	"sync"
)

// reads is the barrier under its lock: readers join, Run asks, replicate confirms, apply publishes, each
// on its own goroutine, so that an answer wakes its readers without another hop. The lock is held for a
// few instructions; no round is woken under it.
type reads struct {
	mu      sync.Mutex
	core    barrier
	stopped bool
}

func newDone() chan struct{} { return make(chan struct{}) }

// wakeRounds lets those go on who wait for the rounds.
func wakeRounds(rounds []*round) {
	for _, r := range rounds {
		close(r.done)
	}
}

// Barrier waits until a read is linearizable: until a read index that was asked for after the call is
// known and a view of at least that index is published. It returns ErrLeaderChanged when another leader
// appears while it waits, ErrTimeout after the request timeout, ErrStopped, or ctx.Err().
func (s *Stage) Barrier(ctx context.Context) error {
	s.reads.mu.Lock()
	if s.reads.stopped {
		s.reads.mu.Unlock()
		return ErrStopped
	}
	r, first := s.reads.core.join(s.cfg.Clock(), newDone)
	s.reads.mu.Unlock()
	if first {
		s.wake()
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ReadIndexed tells that every read of the rounds up to round may read at index. It never waits.
func (s *Stage) ReadIndexed(round, index uint64) {
	s.reads.mu.Lock()
	full := s.reads.core.onTheWay >= roundsMax
	done := s.reads.core.confirm(round, index, nil)
	s.reads.mu.Unlock()
	wakeRounds(done)
	if full {
		s.wake() // rounds may wait for their turn
	}
}

// Published tells that a view of index is published. It never waits.
func (s *Stage) Published(index uint64) {
	s.reads.mu.Lock()
	done := s.reads.core.publish(index, nil)
	s.reads.mu.Unlock()
	wakeRounds(done)
}

func (r *reads) ask(now int64, number func() uint64) (round uint64, reads int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.ask(now, number)
}

func (r *reads) stand(st Standing) (again uint64) {
	r.mu.Lock()
	failed, again := r.core.stand(st, nil)
	r.mu.Unlock()
	wakeRounds(failed)
	return again
}

func (r *reads) tick(now int64) (again uint64, slow, failed int) {
	r.mu.Lock()
	out, again := r.core.tick(now, nil)
	slow, failed = r.core.slow, r.core.failed
	r.core.slow, r.core.failed = 0, 0
	r.mu.Unlock()
	wakeRounds(out)
	return again, slow, failed
}

func (r *reads) stop() {
	r.mu.Lock()
	r.stopped = true
	out := r.core.stop(nil)
	r.mu.Unlock()
	wakeRounds(out)
}

package replicate

import (
	"math"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
)

// published is what anybody may read at any time. Run alone writes it.
type published struct {
	committed atomic.Uint64
	standing  atomic.Pointer[Standing]
	changed   atomic.Pointer[chan struct{}] // closed when the leader or the term changes
	status    atomic.Pointer[raft.Status]   // as of the last tick or change of leader
	tick      atomic.Int64                  // clock of the last tick handled, 0 before the first
	fresh     atomic.Bool                   // no freeze since leadership was last confirmed
	index     atomic.Uint64                 // first index in the log
	last      atomic.Uint64
}

func (p *published) init(c *core) {
	p.standing.Store(&Standing{})
	p.changed.Store(new(make(chan struct{})))
	p.status.Store(new(c.node.Status()))
	p.update(c)
}

// update brings everything but status to the state of c.
func (p *published) update(c *core) {
	p.committed.Store(c.commit)
	p.tick.Store(c.lastTick)
	p.fresh.Store(!c.frozen)
	p.index.Store(c.log.index + 1)
	p.last.Store(c.log.last())
	was := p.standing.Load()
	if *was == c.standing {
		return
	}
	p.standing.Store(new(c.standing))
	if was.Leader != c.standing.Leader || was.Term != c.standing.Term {
		p.status.Store(new(c.node.Status()))
		close(*p.changed.Swap(new(make(chan struct{}))))
	}
}

func (p *published) tickAge(now int64) time.Duration {
	at := p.tick.Load()
	if at == 0 {
		return math.MaxInt64
	}
	return time.Duration(now - at)
}

// Committed returns the commit index.
func (s *Stage) Committed() uint64 { return s.published.committed.Load() }

// Log returns the first and last index of the in-memory log.
func (s *Stage) Log() (first, last uint64) { return s.published.index.Load(), s.published.last.Load() }

// Standing returns who leads in which term.
func (s *Stage) Standing() Standing { return *s.published.standing.Load() }

// Changed returns a channel that is closed when leader or term change after this call. Read Standing
// after calling it.
func (s *Stage) Changed() <-chan struct{} { return *s.published.changed.Load() }

// Status returns raft's status as of the last tick or change of leader, with the progress of the peers
// when this member leads. The caller must not change it.
func (s *Stage) Status() raft.Status { return *s.published.status.Load() }

// Fresh says whether this member's time may be trusted for leases: the last tick is at most three ticks
// old, and since any longer pause the leadership was confirmed by a read round. A process that was frozen
// may have been deposed meanwhile, and the first tick after it woke up must not hide that.
func (s *Stage) Fresh() bool {
	return s.published.fresh.Load() && s.TickAge() <= freshTicks*s.cfg.Tick
}

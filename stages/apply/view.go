package apply

import (
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/stages/apply/auth"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/lease"
	"sluice/stages/apply/members"
	"sluice/stages/apply/mvcc"
)

// View is the whole state after one applied entry. It is immutable; whoever acquired it may read it on any
// goroutine until Release, and should release soon: a view holds back the reuse of memory and of file pages.
type View struct {
	KV             *mvcc.View
	Leases         *lease.Table
	Members        *members.Table
	Auth           *auth.Table
	Alarms         []*pb.AlarmMember
	StorageVersion string // of the local database, such as "3.7.0"; empty while unknown
	Index, Term    uint64 // of the last applied entry

	reader     *backend.Snapshot
	generation int // counts installed snapshots: a compaction does not outlive its database
	hold       *hold
}

// hold counts the readers of one view. It is a value of its own so that the list of holds does not keep the
// views of long ago reachable.
type hold struct {
	refs atomic.Int64 // the stage's own while the view is the published one, and one per reader; never up from 0
	born time.Time
}

func (h *hold) acquire() bool {
	for {
		n := h.refs.Load()
		if n == 0 {
			return false
		}
		if h.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release gives the view back, once for each time it was acquired.
func (v *View) Release() {
	switch n := v.hold.refs.Add(-1); {
	case n == 0:
		if v.reader != nil {
			v.reader.Release()
		}
	case n < 0:
		panic("apply: view released more often than acquired")
	}
}

// published is where readers find the current view. Apply's goroutine sets it, any number of readers acquire.
type published struct {
	current atomic.Pointer[View]
	closed  atomic.Bool

	mu    sync.Mutex // guards holds: appended by apply, read for the metric
	holds []*hold    // of views that may still have readers, oldest first
}

// acquire returns the published view. The stage's own reference may fall between the load and the acquisition,
// but only when a newer view is already in its place, or at close. Who comes after that, such as a last scrape of
// the meters, gets the last tables with nothing behind them: what lies in memory can be read, the backend not.
func (p *published) acquire() *View {
	for {
		v := p.current.Load()
		if v.hold.acquire() {
			return v
		}
		if p.closed.Load() {
			last := *v
			last.reader, last.hold = nil, &hold{}
			last.hold.refs.Store(1)
			return &last
		}
	}
}

// close gives the published view back.
func (p *published) close() {
	if v := p.current.Load(); v != nil && !p.closed.Swap(true) {
		v.Release()
	}
}

// set publishes v, whose first reference passes to p, and drops the view before.
func (p *published) set(v *View) {
	p.mu.Lock()
	if len(p.holds) >= 2*holdsKept {
		p.holds = pruned(p.holds)
	}
	for len(p.holds) > 0 && p.holds[0].refs.Load() == 0 {
		p.holds = p.holds[1:]
	}
	p.holds = append(p.holds, v.hold)
	p.mu.Unlock()
	if old := p.current.Swap(v); old != nil {
		old.Release()
	}
}

// holdsKept is how many holds may pile up behind one that is still held before the released ones are dropped.
const holdsKept = 1024

func pruned(holds []*hold) []*hold {
	kept := make([]*hold, 0, holdsKept)
	for _, h := range holds {
		if h.refs.Load() > 0 {
			kept = append(kept, h)
		}
	}
	return kept
}

// oldest returns how long ago the oldest view was published that still has a reader. The published view itself
// counts only once it has a reader beside the stage.
func (p *published) oldest(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, h := range p.holds {
		own := int64(0)
		if i == len(p.holds)-1 {
			own = 1
		}
		if h.refs.Load() > own {
			return now.Sub(h.born)
		}
	}
	return 0
}

package propose

import (
	"context"
	"sync"
	"sync/atomic"

	"sluice/stages/wire"
)

// cell is the place where one request waits for its result. It is used again and again; id says for whom.
//
// A request's life: acquire sets id; hand marks it as given to raft; whoever first has an outcome - apply,
// a refusal, the deadline, the stop - completes it, under mu and by id, and puts one token into wake; the
// waiter takes the token and releases the cell. A waiter whose context ends releases it without a
// token. So a free cell never holds one, and whoever comes late finds another id.
type cell struct {
	id       atomic.Uint64 // 0: free; written under mu, read without it to pass by
	mu       sync.Mutex    // guards all below
	started  int64
	deadline int64                   // 0: none of our own
	bytes    int64                   // of the encoded request
	handed   bool                    // given to raft: it may take effect
	done     bool                    // result and err are set
	abort    context.CancelCauseFunc // ends the wait for room in a lane, while there is one
	result   wire.Result
	err      error
	wake     chan struct{} // capacity 1
}

// ring is cells in a power of two; an id's cell is the one at its low bits.
type ring struct {
	mask  uint64
	cells []cell
}

func newRing(n int) *ring {
	r := &ring{mask: uint64(n - 1), cells: make([]cell, n)}
	for i := range r.cells {
		r.cells[i].wake = make(chan struct{}, 1)
	}
	return r
}

// cells is the request registry. Ids are sequential, so that the newest ring fills in order; an id whose
// cell is still taken is skipped. When a ring is nearly full, one of twice its size takes the new requests
// while the old one runs empty; at cellsMax requests wait for a cell, in order.
type cells struct {
	ids  *idGenerator
	max  int          // cells in the newest ring at most, a power of two
	used atomic.Int64 // taken cells
	held atomic.Int64 // bytes of their requests

	rings atomic.Pointer[[]*ring] // newest first; replaced under mu
	mu    sync.Mutex              // guards growth, parked and stopped
	// parked are those who wait for a cell, oldest first.
	parked  []*parked
	stopped bool
}

type parked struct {
	deadline int64
	wake     chan error // capacity 1
}

func newCells(ids *idGenerator, first, most int) *cells {
	c := &cells{ids: ids, max: ceilPower(max(first, most))}
	c.rings.Store(&[]*ring{newRing(ceilPower(first))})
	return c
}

func ceilPower(n int) int {
	p := 1
	for p < n {
		p <<= 1
	}
	return p
}

// acquire takes a cell for a new request. It waits only when all cells that there may be are taken: then
// until one is free, the deadline has passed (ErrTimeout) or ctx ends.
func (c *cells) acquire(ctx context.Context, now, deadline int64) (*cell, uint64, error) {
	for {
		if cl, id := c.take(now, deadline); cl != nil {
			return cl, id, nil
		}
		p := &parked{deadline: deadline, wake: make(chan error, 1)}
		c.mu.Lock()
		if c.stopped {
			c.mu.Unlock()
			return nil, 0, ErrStopped
		}
		c.parked = append(c.parked, p)
		c.mu.Unlock()
		if c.used.Load() < int64(c.size()) {
			c.unpark() // one was freed between the look and the parking
		}
		select {
		case err := <-p.wake:
			if err != nil {
				return nil, 0, err
			}
		case <-ctx.Done():
			c.leave(p)
			return nil, 0, ctx.Err()
		}
	}
}

// leave takes p out of the parked; if it was woken meanwhile, the next one is woken in its place.
func (c *cells) leave(p *parked) {
	c.mu.Lock()
	for i, x := range c.parked {
		if x == p {
			c.parked = append(c.parked[:i], c.parked[i+1:]...)
			c.mu.Unlock()
			return
		}
	}
	c.mu.Unlock()
	c.unpark()
}

func (c *cells) unpark() {
	c.mu.Lock()
	if len(c.parked) > 0 {
		c.parked[0].wake <- nil
		c.parked = append(c.parked[:0], c.parked[1:]...)
	}
	c.mu.Unlock()
}

func (c *cells) size() int { return len((*c.rings.Load())[0].cells) }

// take finds a free cell for the next id whose place is free, nil when every cell is taken.
func (c *cells) take(now, deadline int64) (*cell, uint64) {
	for {
		newest := (*c.rings.Load())[0]
		n := len(newest.cells)
		if used := c.used.Load(); used >= int64(n-n/8) && n < c.max {
			c.grow(n)
			continue
		} else if used >= int64(n) && n >= c.max {
			return nil, 0
		}
		for range n {
			id := c.ids.next()
			if cl := &newest.cells[id&newest.mask]; cl.claim(id, now, deadline) {
				c.used.Add(1)
				return cl, id
			}
		}
		if n >= c.max {
			return nil, 0 // the others are in older rings or were taken meanwhile
		}
	}
}

func (cl *cell) claim(id uint64, now, deadline int64) bool {
	if cl.id.Load() != 0 {
		return false
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.id.Load() != 0 {
		return false
	}
	cl.id.Store(id)
	cl.started, cl.deadline = now, deadline
	return true
}

func (c *cells) grow(from int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := *c.rings.Load()
	if len(old[0].cells) != from {
		return
	}
	c.rings.Store(new(append([]*ring{newRing(2 * from)}, old...)))
}

// find returns id's cell, locked, or nil when nobody waits for id.
func (c *cells) find(id uint64) *cell {
	if id == 0 {
		return nil
	}
	for _, r := range *c.rings.Load() {
		cl := &r.cells[id&r.mask]
		if cl.id.Load() != id {
			continue
		}
		cl.mu.Lock()
		if cl.id.Load() == id {
			return cl
		}
		cl.mu.Unlock()
	}
	return nil
}

// complete gives id its outcome. It says false when nobody waits for id, or it has one.
func (c *cells) complete(id uint64, result wire.Result, err error) bool {
	cl := c.find(id)
	if cl == nil {
		return false
	}
	defer cl.mu.Unlock()
	return cl.complete(result, err)
}

// complete is called under mu.
func (cl *cell) complete(result wire.Result, err error) bool {
	if cl.done {
		return false
	}
	cl.done, cl.result, cl.err = true, result, err
	if cl.abort != nil {
		cl.abort(err)
	}
	cl.wake <- struct{}{}
	return true
}

// hand marks id as given to raft, unless nobody waits for it any more.
func (c *cells) hand(id uint64) bool {
	cl := c.find(id)
	if cl == nil {
		return false
	}
	defer cl.mu.Unlock()
	if cl.done {
		return false
	}
	cl.handed = true
	return true
}

// unhand takes the mark back: the request was refused before it reached a log and may be handed again.
func (c *cells) unhand(id uint64) {
	if cl := c.find(id); cl != nil {
		cl.handed = false
		cl.mu.Unlock()
	}
}

// await waits for the outcome of cl, which its caller acquired, and releases it. When ctx ends first, it
// returns ctx.Err() and whether the request had been given to raft.
func (c *cells) await(ctx context.Context, cl *cell) (result wire.Result, err error, started int64, handed bool) {
	select {
	case <-cl.wake:
		cl.mu.Lock()
		result, err = cl.result, cl.err
	case <-ctx.Done():
		cl.mu.Lock()
		if cl.done {
			<-cl.wake // it is there: both happen under mu
			result, err = cl.result, cl.err
		} else {
			err = ctx.Err()
		}
	}
	started, handed = cl.started, cl.handed
	c.free(cl)
	return result, err, started, handed
}

// release gives up a cell that nobody will await.
func (c *cells) release(cl *cell) {
	cl.mu.Lock()
	if cl.done {
		<-cl.wake
	}
	c.free(cl)
}

// free is called with cl.mu held and unlocks it.
func (c *cells) free(cl *cell) {
	c.held.Add(-cl.bytes)
	cl.started, cl.deadline, cl.bytes = 0, 0, 0
	cl.handed, cl.done, cl.abort, cl.err = false, false, nil, nil
	cl.result = wire.Result{}
	cl.id.Store(0)
	cl.mu.Unlock()
	c.used.Add(-1)
	c.unparkIfAny()
}

func (c *cells) unparkIfAny() {
	if c.size() >= c.max { // nobody parks before
		c.unpark()
	}
}

// expire completes the requests whose deadline has passed with what failure says about each. It passes
// over every cell, which costs one load for a free one: 0.1 ms at 100,000 cells, once per tick.
func (c *cells) expire(now int64, failure func(started int64, handed bool) error) (expired int) {
	c.each(func(cl *cell) {
		if cl.deadline != 0 && cl.deadline <= now && !cl.done {
			cl.complete(wire.Result{}, failure(cl.started, cl.handed))
			expired++
		}
	})
	c.mu.Lock()
	rest := c.parked[:0]
	for _, p := range c.parked {
		if p.deadline != 0 && p.deadline <= now {
			p.wake <- ErrTimeout
			expired++
			continue
		}
		rest = append(rest, p)
	}
	clear(c.parked[len(rest):])
	c.parked = rest
	c.mu.Unlock()
	return expired
}

// stop completes everybody who waits with err; whoever asks for a cell and finds none gets ErrStopped.
func (c *cells) stop(err error) (failed int) {
	c.mu.Lock()
	c.stopped = true
	for _, p := range c.parked {
		p.wake <- err
	}
	c.parked = nil
	c.mu.Unlock()
	c.each(func(cl *cell) {
		if cl.complete(wire.Result{}, err) {
			failed++
		}
	})
	return failed
}

// each calls fn with every taken cell, locked.
func (c *cells) each(fn func(*cell)) {
	for _, r := range *c.rings.Load() {
		for i := range r.cells {
			cl := &r.cells[i]
			if cl.id.Load() == 0 {
				continue
			}
			cl.mu.Lock()
			if cl.id.Load() != 0 {
				fn(cl)
			}
			cl.mu.Unlock()
		}
	}
}

// stopUnhanded completes those with err whose request was not given to raft.
func (c *cells) stopUnhanded(err error) {
	c.each(func(cl *cell) {
		if !cl.handed {
			cl.complete(wire.Result{}, err)
		}
	})
}

package rpc

import (
	"container/list"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
)

const (
	// readBudgetDefault bounds the bytes of answers that are being made or sent.
	readBudgetDefault = 256 << 20
	// smallAnswerBytes is the bound up to which an answer does not count.
	smallAnswerBytes = 64 << 10
	// stallDefault is how long a counted answer may make no progress before its connection is closed.
	stallDefault = time.Minute
	// stallContended is the part of that time that it may when others wait for its share: otherwise a few clients
	// that do not read keep all others from large answers, for the whole time each.
	stallContended = 12
)

// budget admits answers by their size, first come first served, before they take a view. An answer above
// the whole budget is admitted when it is alone.
//
// Without it a handful of clients that list a large store at once hold the store several times over in
// memory. Taking the whole share at once, not chunk by chunk, is what keeps two half-made answers from
// waiting for each other.
type budget struct {
	stall time.Duration
	now   func() time.Time

	mu      sync.Mutex // guards all below; held by handlers, by grpc's writers as they free, by sweep
	max     int64
	free    int64 // may be below zero after charge
	waiting list.List
	shares  map[*share]struct{}
}

// waiter is an answer that waits for its share.
type waiter struct {
	bytes int64
	ready chan struct{} // closed, under mu, when the share is taken
}

func newBudget(bytesMax int64, stall time.Duration, now func() time.Time) *budget {
	return &budget{stall: stall, now: now, max: bytesMax, free: bytesMax, shares: make(map[*share]struct{})}
}

// acquire waits for a share of n bytes. pool is where the answer's chunks come from and return to. If the
// connection closes, the share is free at once, whatever becomes of the chunks.
func (b *budget) acquire(ctx context.Context, n int64, pool mem.BufferPool) (*grant, error) {
	n = min(n, b.max)
	b.mu.Lock()
	if b.waiting.Len() == 0 && b.free >= n {
		b.free -= n
		b.mu.Unlock()
		return b.grant(ctx, n, pool), nil
	}
	w := &waiter{bytes: n, ready: make(chan struct{})}
	place := b.waiting.PushBack(w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		return b.grant(ctx, n, pool), nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready:
		b.free += n
	default:
		b.waiting.Remove(place)
	}
	b.admit()
	return nil, ctx.Err()
}

// admit lets in who waits, in order, as far as the free bytes go. mu is held.
func (b *budget) admit() {
	for front := b.waiting.Front(); front != nil; front = b.waiting.Front() {
		w := front.Value.(*waiter)
		if b.free < w.bytes {
			return
		}
		b.free -= w.bytes
		b.waiting.Remove(front)
		close(w.ready)
	}
}

func (b *budget) release(n int64) {
	b.mu.Lock()
	b.free += n
	b.admit()
	b.mu.Unlock()
}

func (b *budget) grant(ctx context.Context, n int64, pool mem.BufferPool) *grant {
	s := &share{budget: b, pool: pool, conn: connOf(ctx)}
	s.left.Store(n)
	s.progress.Store(b.now().UnixNano())
	b.mu.Lock()
	b.shares[s] = struct{}{}
	b.mu.Unlock()
	if s.conn != nil {
		s.conn.onClose(s)
	}
	g := &grant{s}
	runtime.AddCleanup(g, (*share).abandon, s)
	return g
}

// sweep closes the connections whose answers have made no progress for the stall time, or, when others wait, for
// a part of it. grpc cannot reset
// one stream from outside, and a client that leaves a whole answer unread for so long has stopped reading.
func (b *budget) sweep() (stalled []*clientConn) {
	b.mu.Lock()
	stall := b.stall
	if b.waiting.Len() > 0 {
		stall /= stallContended
	}
	limit := b.now().Add(-stall).UnixNano()
	for s := range b.shares {
		if s.sealed.Load() && s.progress.Load() < limit && s.conn != nil {
			stalled = append(stalled, s.conn)
		}
	}
	b.mu.Unlock()
	for _, c := range stalled {
		c.Close()
	}
	return stalled
}

// grant is an answer's hold of its share. It is the pool of the answer's chunks, so that freeing a chunk gives
// its part of the share back. grpc does not free data that it meets when its stream has just been cancelled;
// then the chunks and, being theirs alone, the grant are garbage, and the share is given back as they are
// collected. So nothing else may keep a grant.
type grant struct{ *share }

// share is what one answer holds of the budget. Handler, grpc's writer and the connection's close may call it
// at once.
type share struct {
	budget   *budget
	pool     mem.BufferPool
	conn     *clientConn // nil in tests
	left     atomic.Int64
	progress atomic.Int64 // unix nanoseconds of the last chunk that was freed
	sealed   atomic.Bool  // the answer is complete: only sending is left
}

// Get takes a chunk.
func (s *share) Get(n int) *[]byte { return s.pool.Get(n) }

// Put takes a chunk back when its bytes are sent or dropped.
func (s *share) Put(b *[]byte) {
	n := int64(len(*b))
	s.pool.Put(b)
	s.giveBack(n)
}

// seal reduces the share to the answer's true size, which is at most what was asked for.
func (s *share) seal(size int) {
	s.progress.Store(s.budget.now().UnixNano())
	s.sealed.Store(true)
	s.giveBack(s.left.Load() - int64(size))
}

// charge adds n bytes to the share without waiting: for an answer that outgrew its bound between the
// admission and its view. Waiting here, with a share in hand, could wait for ever.
func (s *share) charge(n int64) {
	s.left.Add(n)
	s.budget.mu.Lock()
	s.budget.free -= n
	s.budget.mu.Unlock()
}

// abandon gives back all that is left.
func (s *share) abandon() { s.giveBack(s.left.Load()) }

// giveBack returns n bytes of the share, never more than is left.
func (s *share) giveBack(n int64) {
	for {
		left := s.left.Load()
		n = min(n, left)
		if n < 0 || left == 0 {
			return
		}
		if !s.left.CompareAndSwap(left, left-n) {
			continue
		}
		s.progress.Store(s.budget.now().UnixNano())
		if n == left {
			s.end()
		}
		s.budget.release(n)
		return
	}
}

func (s *share) end() {
	s.budget.mu.Lock()
	delete(s.budget.shares, s)
	s.budget.mu.Unlock()
	if s.conn != nil {
		s.conn.forget(s)
	}
}

// loose is a grant for bytes that are in no pool: freeing them only gives the share back.
type loose struct{ *grant }

// Put gives the share of b back.
func (l loose) Put(b *[]byte) { l.giveBack(int64(len(*b))) }

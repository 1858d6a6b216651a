// Package mailbox is the only way in to a stage: a bounded queue with a capacity in messages and, where
// sizes differ, in bytes, a policy for what a sender meets at a full one, and meters.
//
// Owns:       the queue between one or more senders and one receiver.
// Invariants: messages leave in the order in which they entered. A sender that waits enters in the order
//
//	in which it began to wait. After Close nothing more enters, what waits is still received, then
//	Receive returns ErrClosed. A message larger than the byte limit passes an empty mailbox.
//
// When full:  what the sender's policy says, see Full.
package mailbox

import (
	"context"
	"errors"
	"sync"
	"time"
)

var (
	// ErrClosed is returned by Send after Close, and by Receive once a closed mailbox is empty.
	ErrClosed = errors.New("mailbox: closed")
	// ErrFull is returned by Send with the policy Refuse when there is no room.
	ErrFull = errors.New("mailbox: full")
)

// Full is what a sender meets at a full mailbox.
type Full int

const (
	Wait   Full = iota // until there is room, ctx ends or the mailbox closes: forward between stages
	Refuse             // ErrFull at once: for senders that keep what was refused and try again
	Drop               // discard and count: only what the protocol sends again, such as peer messages
	Latest             // replace what waits: levels ("the leader is 3"), never events
)

// Config names a mailbox and sets its limits.
type Config struct {
	Name     string // as in flags and metrics: "propose", "persist" ...
	Capacity int    // messages that may wait, at least 1; 0 means 1
	BytesMax int64  // bytes that may wait by the size function; 0 means unlimited
}

// Mailbox is a bounded FIFO with one receiver. Create it with New or NewSized.
type Mailbox[T any] struct {
	name string        // fixed at New
	size func(T) int   // fixed at New; nil when messages have no size
	wake chan struct{} // fixed at New; capacity 1, a token means "look again"
	now  func() int64  // fixed at New; monotonic nanoseconds
	base time.Time     // fixed at New; origin of now

	mu       sync.Mutex // guards all below; held for a few instructions only
	capacity int
	batchMax int
	bytesMax int64
	ring     []item[T]
	head, n  int
	granted  int   // places given to waiting senders that have not filled them yet
	slots    int   // places held by Reserve
	bytes    int64 // of waiting messages and granted senders
	closed   bool
	waiters  []*waiter
	meter    Stats
}

type item[T any] struct {
	msg  T
	size int64
	at   int64
}

type waiter struct {
	granted chan struct{} // closed under mu when room was reserved or the mailbox closed
	size    int64
	ok      bool // room was reserved; read after granted
	closed  bool
}

// Stats is a reading of a mailbox's meters. Counters only grow.
type Stats struct {
	Name        string
	Capacity    int
	BytesMax    int64
	Depth       int                 // messages waiting now
	Bytes       int64               // bytes waiting now
	HighWater   int                 // largest depth seen since the last ResetHighWater
	Enqueued    uint64              // messages accepted
	Received    uint64              // messages handed to the receiver
	Batches     uint64              // non-empty Receives
	Rejected    uint64              // refused or dropped messages, replaced ones for Latest
	Waited      uint64              // sends that had to wait for room
	WaitTotal   time.Duration       // time that received messages spent waiting in the mailbox
	WaitBuckets [WaitBuckets]uint64 // received messages by wait: bucket i counts waits below 1us<<i, the last all others
}

// WaitBuckets is the number of wait-time buckets of Stats: 1us, 2us ... about 17 minutes, and the rest.
const WaitBuckets = 31

// New makes a mailbox whose messages are counted, not sized.
func New[T any](c Config) *Mailbox[T] { return NewSized[T](c, nil) }

// NewSized makes a mailbox that also limits the sum of size(message).
func NewSized[T any](c Config, size func(T) int) *Mailbox[T] {
	m := &Mailbox[T]{
		name: c.Name, size: size, capacity: max(c.Capacity, 1), bytesMax: c.BytesMax,
		wake: make(chan struct{}, 1), base: time.Now(),
	}
	m.now = func() int64 { return int64(time.Since(m.base)) }
	return m
}

// Sender is the sending end with its policy at a full mailbox. The zero Sender is invalid.
type Sender[T any] struct {
	m    *Mailbox[T]
	full Full
}

// Sender returns a sending end. Any number of goroutines may use it.
func (m *Mailbox[T]) Sender(full Full) Sender[T] { return Sender[T]{m, full} }

// Receiver is the receiving end; one goroutine uses it.
type Receiver[T any] struct{ m *Mailbox[T] }

// Receiver returns the receiving end.
func (m *Mailbox[T]) Receiver() Receiver[T] { return Receiver[T]{m} }

// Send hands msg over. With Wait it returns when there was room, ctx.Err() when ctx ended first;
// ErrFull with Refuse and no room; nil with Drop and Latest. ErrClosed after Close.
func (s Sender[T]) Send(ctx context.Context, msg T) error {
	m := s.m
	var size int64
	if m.size != nil {
		size = int64(m.size(msg))
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrClosed
	}
	if s.full == Latest && m.n > 0 {
		last := &m.ring[(m.head+m.n-1)%len(m.ring)]
		m.bytes += size - last.size
		*last = item[T]{msg, size, m.now()}
		m.meter.Rejected++
		m.mu.Unlock()
		return nil
	}
	if len(m.waiters) == 0 && m.room(size) {
		m.push(msg, size)
		m.mu.Unlock()
		return nil
	}
	switch s.full {
	case Refuse:
		m.meter.Rejected++
		m.mu.Unlock()
		return ErrFull
	case Drop:
		m.meter.Rejected++
		m.mu.Unlock()
		return nil
	}
	w := &waiter{granted: make(chan struct{}), size: size}
	m.waiters = append(m.waiters, w)
	m.meter.Waited++
	m.mu.Unlock()
	if err := m.await(ctx, w); err != nil {
		return err
	}
	m.mu.Lock()
	m.granted--
	m.bytes -= size
	m.push(msg, size)
	m.mu.Unlock()
	return nil
}

// await blocks until w was granted room (nil), the mailbox closed, or ctx ended.
func (m *Mailbox[T]) await(ctx context.Context, w *waiter) error {
	select {
	case <-w.granted:
	case <-ctx.Done():
		m.mu.Lock()
		select {
		case <-w.granted: // granted meanwhile: give the room back
			if w.ok {
				m.granted--
				m.bytes -= w.size
				m.grant()
				m.signal()
			}
		default:
			for i, x := range m.waiters {
				if x == w {
					m.waiters = append(m.waiters[:i], m.waiters[i+1:]...)
					break
				}
			}
			m.grant() // a smaller one behind may fit
		}
		m.mu.Unlock()
		return ctx.Err()
	}
	if w.closed {
		return ErrClosed
	}
	return nil
}

// Slot is a reserved place: Put fills it and never waits, Cancel gives it back. Use one of them, once.
type Slot[T any] struct{ m *Mailbox[T] }

// Reserve waits for a place for one message and holds it, so that an answer that flows back always finds
// room. Bytes are not reserved: a slot's message may exceed the byte limit. Errors as Send with Wait.
func (s Sender[T]) Reserve(ctx context.Context) (Slot[T], error) {
	m := s.m
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return Slot[T]{}, ErrClosed
	}
	if len(m.waiters) == 0 && m.room(0) {
		m.slots++
		m.mu.Unlock()
		return Slot[T]{m}, nil
	}
	if s.full != Wait {
		m.meter.Rejected++
		m.mu.Unlock()
		return Slot[T]{}, ErrFull
	}
	w := &waiter{granted: make(chan struct{})}
	m.waiters = append(m.waiters, w)
	m.meter.Waited++
	m.mu.Unlock()
	if err := m.await(ctx, w); err != nil {
		return Slot[T]{}, err
	}
	m.mu.Lock()
	m.granted--
	m.slots++
	m.mu.Unlock()
	return Slot[T]{m}, nil
}

// Put fills the slot. After Close the message is discarded and ErrClosed returned.
func (s Slot[T]) Put(msg T) error {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slots--
	if m.closed {
		return ErrClosed
	}
	var size int64
	if m.size != nil {
		size = int64(m.size(msg))
	}
	m.push(msg, size)
	return nil
}

// Cancel gives the place back unused.
func (s Slot[T]) Cancel() {
	s.m.mu.Lock()
	s.m.slots--
	s.m.grant()
	s.m.mu.Unlock()
}

func (m *Mailbox[T]) room(size int64) bool {
	if m.n+m.granted+m.slots >= m.capacity {
		return false
	}
	return m.bytesMax == 0 || m.bytes+size <= m.bytesMax || m.n+m.granted == 0
}

func (m *Mailbox[T]) push(msg T, size int64) {
	if m.n == len(m.ring) {
		grown := make([]item[T], max(8, 2*len(m.ring)))
		for i := range m.n {
			grown[i] = m.ring[(m.head+i)%len(m.ring)]
		}
		m.ring, m.head = grown, 0
	}
	m.ring[(m.head+m.n)%len(m.ring)] = item[T]{msg, size, m.now()}
	m.n++
	m.bytes += size
	m.meter.Enqueued++
	m.meter.HighWater = max(m.meter.HighWater, m.n)
	m.signal()
}

func (m *Mailbox[T]) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// grant reserves room for the waiters at the front as far as it goes.
func (m *Mailbox[T]) grant() {
	for len(m.waiters) > 0 && m.room(m.waiters[0].size) {
		w := m.waiters[0]
		m.waiters = m.waiters[1:]
		m.granted++
		m.bytes += w.size
		w.ok = true
		close(w.granted)
	}
}

// Ready yields a token when there may be something to receive, for a select over several inboxes; after
// it, call TryReceive. Receive and Ready must not be waited on by two goroutines at once.
func (r Receiver[T]) Ready() <-chan struct{} { return r.m.wake }

// Receive waits for one message, then appends all that waits, up to the batch limit, to dst.
// ctx.Err() when ctx ended first; ErrClosed when the mailbox is closed and empty.
func (r Receiver[T]) Receive(ctx context.Context, dst []T) ([]T, error) {
	for {
		out, err := r.TryReceive(dst)
		if err != nil || len(out) > len(dst) {
			return out, err
		}
		select {
		case <-r.m.wake:
		case <-ctx.Done():
			return dst, ctx.Err()
		}
	}
}

// TryReceive appends all that waits, up to the batch limit, to dst without waiting.
// ErrClosed when the mailbox is closed and empty.
func (r Receiver[T]) TryReceive(dst []T) ([]T, error) {
	m := r.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n == 0 {
		if m.closed && m.granted == 0 {
			m.signal() // every later look sees the end too
			return dst, ErrClosed
		}
		return dst, nil
	}
	take := m.n
	if m.batchMax > 0 {
		take = min(take, m.batchMax)
	}
	now := m.now()
	for range take {
		it := &m.ring[m.head]
		dst = append(dst, it.msg)
		m.bytes -= it.size
		wait := now - it.at
		m.meter.WaitTotal += time.Duration(wait)
		m.meter.WaitBuckets[bucket(wait)]++
		*it = item[T]{}
		m.head = (m.head + 1) % len(m.ring)
	}
	m.n -= take
	m.meter.Received += uint64(take)
	m.meter.Batches++
	m.grant()
	if m.n > 0 || m.closed {
		m.signal()
	}
	return dst, nil
}

// bucket returns the index of the first bucket whose upper bound, 1us<<i, exceeds ns.
func bucket(ns int64) int {
	i := 0
	for limit := int64(1000); ns >= limit && i < WaitBuckets-1; limit <<= 1 {
		i++
	}
	return i
}

// Close ends sending; waiting senders get ErrClosed. What waits can still be received. A place
// that Reserve still holds no longer counts: its Put returns ErrClosed. Closing twice is harmless.
func (m *Mailbox[T]) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.closed = true
	for _, w := range m.waiters {
		w.closed = true
		close(w.granted)
	}
	m.waiters = nil
	m.signal()
}

// SetCapacity changes the limit in messages, at least 1, while running. What waits above it stays.
func (m *Mailbox[T]) SetCapacity(n int) {
	m.mu.Lock()
	m.capacity = max(n, 1)
	m.grant()
	m.mu.Unlock()
}

// SetBytesMax changes the limit in bytes while running; 0 is unlimited.
func (m *Mailbox[T]) SetBytesMax(n int64) {
	m.mu.Lock()
	m.bytesMax = n
	m.grant()
	m.mu.Unlock()
}

// SetBatchMax changes how many messages one Receive takes at most; 0 is all that waits.
func (m *Mailbox[T]) SetBatchMax(n int) {
	m.mu.Lock()
	m.batchMax = n
	m.mu.Unlock()
}

// Stats reads the meters.
func (m *Mailbox[T]) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.meter
	s.Name, s.Capacity, s.BytesMax, s.Depth, s.Bytes = m.name, m.capacity, m.bytesMax, m.n, m.bytes
	return s
}

// ResetHighWater starts a new high-water reading at the present depth.
func (m *Mailbox[T]) ResetHighWater() {
	m.mu.Lock()
	m.meter.HighWater = m.n
	m.mu.Unlock()
}

// Metered is a mailbox of any message type, as meters and settings see it.
type Metered interface {
	Stats() Stats
	SetCapacity(n int)
	SetBytesMax(n int64)
	SetBatchMax(n int)
	ResetHighWater()
}

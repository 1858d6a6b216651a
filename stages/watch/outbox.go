package watch

import (
	"sync"
	"sync/atomic"

	"sluice/stages/wire"
)

// Message is one WatchResponse in pieces: the header field, made by the caller from Revision, then Head, then
// all of Events. Head and Events are shared between watchers and must not be changed.
type Message struct {
	Revision int64    // header.revision
	Head     []byte   // the encoded fields watch_id, created, canceled, compact_revision, cancel_reason, fragment
	Events   [][]byte // each one complete field 11, tag and length included
	Bytes    int      // of Head and Events together
}

// AppendTo appends the whole WatchResponse, with header, to b.
func (m *Message) AppendTo(b []byte, header wire.Header) []byte {
	header.Revision = m.Revision
	b = append(header.AppendField(b), m.Head...)
	for _, ev := range m.Events {
		b = append(b, ev...)
	}
	return b
}

// item is a message that waits in an outbox.
type item struct {
	Message
	control bool // an answer to a request: its place was reserved, and counts towards no limit
}

// outboxKept is the largest ring that an empty outbox keeps: an idle stream must stay small.
const outboxKept = 8

// outbox is the queue of one stream's responses. The stage pushes and never waits; the stream's sender pops.
type outbox struct {
	bytesMax int64         // fixed at Open
	wake     chan struct{} // fixed at Open; capacity 1, a token means "look again"
	pending  *atomic.Int64 // fixed at Open; events in all outboxes

	mu          sync.Mutex // guards all below; held for a few instructions only
	ring        []item
	head, n     int
	messagesMax int
	messages    int   // waiting, without answers to requests
	bytes       int64 // of those
	events      int   // in those
	refused     bool  // a push found no room; cleared by the pop that makes room
	closed      bool
}

// widen makes room for one response for each of the stream's n watchers: with less, one change that all of
// them see would make cursors of some every time. The limit in bytes stays.
func (o *outbox) widen(n int) {
	o.mu.Lock()
	o.messagesMax = max(o.messagesMax, n)
	o.mu.Unlock()
}

// push appends its in order, all or none. False: there is no room, and the pop that makes room will say so.
// One push larger than the limits passes when nothing waits. A closed outbox discards.
func (o *outbox) push(its []item) bool {
	var bytes int64
	events, messages := 0, 0
	for i := range its {
		if !its[i].control {
			messages++
			bytes += int64(its[i].Bytes)
			events += len(its[i].Events)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return true
	}
	if messages > 0 && o.messages > 0 && (o.messages+messages > o.messagesMax || o.bytes+bytes > o.bytesMax) {
		o.refused = true
		return false
	}
	o.messages += messages
	o.bytes += bytes
	o.events += events
	o.pending.Add(int64(events))
	for i := range its {
		if o.n == len(o.ring) {
			o.grow()
		}
		o.ring[(o.head+o.n)%len(o.ring)] = its[i]
		o.n++
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true
}

func (o *outbox) grow() {
	ring := make([]item, max(1, 2*len(o.ring)))
	for i := range o.n {
		ring[i] = o.ring[(o.head+i)%len(o.ring)]
	}
	o.ring, o.head = ring, 0
}

// pop takes the first message. drained says that the stage waits for room and there is some again.
func (o *outbox) pop() (it item, ok, drained bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == 0 {
		return item{}, false, false
	}
	it = o.ring[o.head]
	o.ring[o.head] = item{}
	o.head = (o.head + 1) % len(o.ring)
	o.n--
	if !it.control {
		o.messages--
		o.bytes -= int64(it.Bytes)
		o.events -= len(it.Events)
		o.pending.Add(-int64(len(it.Events)))
	}
	if o.refused && o.messages <= o.messagesMax/2 && o.bytes <= o.bytesMax/2 {
		o.refused, drained = false, true
	}
	if o.n == 0 && len(o.ring) > outboxKept {
		o.ring, o.head = nil, 0
	}
	return it, true, drained
}

// close discards what waits and everything that comes. False: it was closed before.
func (o *outbox) close() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.closed = true
	o.pending.Add(-int64(o.events))
	o.ring, o.head, o.n, o.messages, o.bytes, o.events = nil, 0, 0, 0, 0, 0
	return true
}

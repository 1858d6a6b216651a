package watch

import (
	"fmt"
	"time"

	"sluice/stages/wire"
)

// class is what else than its span decides which bytes a watcher gets.
type class uint8

const (
	withPrev class = 1 << iota
	noPut
	noDelete
)

type state uint8

const (
	live      state = iota // every matching event up to the stage's revision is in its outbox
	future                 // live as well, but its start is beyond the stage's revision
	late                   // a cursor: catching up
	compacted              // cancelled by the stage; its id is kept until the client cancels it
	states    = iota
)

// watcher is one watcher, live or a cursor.
type watcher struct {
	st    *Stream
	id    int64
	head  []byte // the encoded field watch_id
	group *group // nil once compacted
	class class
	state state
	dead  bool  // cancelled or its stream closed: lists may still hold it
	pos   int   // in its member list, while live or future
	next  int64 // no event below it was or will be delivered; for a cursor the next revision that it needs

	fragment, notify bool
	received         bool // events since the last progress tick
}

// group is all watchers of one span.
type group struct {
	span    span
	watched int       // watchers of any state but compacted
	members []members // the live and future ones by class
	pending []*entry  // of the revision at hand
}

type members struct {
	class    class
	watchers []*watcher
}

// core is the state machine of the stage: no goroutine, clock or disk. Its outputs are the pushes into the
// streams' outboxes, which never wait, and the jobs of nextJob.
type core struct {
	// Fixed.
	chunkBytes    int
	fragmentBytes int
	spotEvents    int
	scanEvents    int

	rev     int64 // of the last event batch processed
	compact int64 // the highest compaction revision known

	spans   index[*group]
	window  window
	encoder encoder
	timers  timers
	ready   []*watcher           // cursors that wait for a scan, FIFO; may hold dead ones
	futures []*watcher           // may hold dead ones
	wakeAt  int64                // no future watcher starts below it
	slow    map[*Stream]struct{} // streams with cursors that wait for room

	total      int         // watchers
	counts     [states]int // watchers by state
	wantsPrev  int         // watchers with prev_kv that are not compacted
	wantsPlain int         // and without
	delivered  int         // events pushed since takeDelivered

	touched []*group // scratch of one revision
	matched []*group
	items   []item
	settled []*watcher // cursors made while events are dispatched; settled after the batch
}

func newCore(cfg Config) *core {
	c := &core{
		rev: cfg.Revision, compact: cfg.CompactRevision, chunkBytes: int(cfg.ChunkBytes),
		spotEvents: spotEvents, scanEvents: scanEvents, slow: make(map[*Stream]struct{}), wakeAt: maxRevision,
		fragmentBytes: int(cfg.RequestBytesMax) + fragmentOverhead,
	}
	c.window.revsMax, c.window.bytesMax = cfg.WindowRevisions, cfg.WindowBytes
	c.window.reset(c.rev + 1)
	return c
}

// step applies one message.
func (c *core) step(m Inbound, now time.Time) {
	switch m := m.(type) {
	case eventsMsg:
		c.events(&m.batch)
	case createMsg:
		c.create(m.st, &m.req, now)
	case cancelMsg:
		c.cancel(m.st, m.id)
	case progressMsg:
		c.progress(m.st)
	case drainedMsg:
		c.drained(m.st)
	case *result:
		c.scanned(m)
	default:
		panic(fmt.Sprintf("watch: unknown message %T", m))
	}
}

// events dispatches one applied batch.
func (c *core) events(b *wire.EventBatch) {
	if b.Revision < c.rev {
		panic(fmt.Sprintf("watch: event batch at revision %d after %d", b.Revision, c.rev))
	}
	for evs := b.Events; len(evs) > 0; {
		rev := evs[0].Rev
		if rev <= c.rev || rev > b.Revision {
			panic(fmt.Sprintf("watch: event at revision %d after %d in a batch up to %d", rev, c.rev, b.Revision))
		}
		if rev > c.rev+1 {
			c.jump(rev - 1)
		}
		n := 1
		for n < len(evs) && evs[n].Rev == rev {
			n++
		}
		c.revision(rev, evs[:n])
		evs = evs[n:]
	}
	if b.Revision > c.rev {
		c.jump(b.Revision)
	}
	if c.rev >= c.wakeAt {
		c.wakeFutures()
	}
	if b.CompactRevision > c.compact {
		c.compactedAt(b.CompactRevision)
	}
	c.settle()
}

// revision dispatches the events of one revision.
func (c *core) revision(rev int64, evs []wire.Event) {
	want := forms{plain: c.wantsPlain > 0, full: c.wantsPrev > 0}
	for i := range evs {
		e := c.encoder.encode(&evs[i], want)
		c.window.add(e)
		c.matched = c.spans.match(e.key, c.matched[:0])
		for _, g := range c.matched {
			if len(g.members) == 0 {
				continue
			}
			if len(g.pending) == 0 {
				c.touched = append(c.touched, g)
			}
			g.pending = append(g.pending, e)
		}
	}
	c.window.trim()
	for i, g := range c.touched {
		for j := len(g.members) - 1; j >= 0; j-- { // from behind: lists may vanish meanwhile
			c.dispatch(g, j, rev)
		}
		clear(g.pending)
		g.pending = g.pending[:0]
		c.touched[i] = nil
	}
	c.touched = c.touched[:0]
	c.rev = rev
}

// dispatch sends a group's events of one revision to the members of one class. Who cannot take them, or
// wants a previous value that is not at hand, becomes a cursor.
func (c *core) dispatch(g *group, list int, rev int64) {
	k := collector{class: g.members[list].class}
	known := true
	if len(g.pending) == 1 { // the ordinary case shares the entry's own slice
		e := g.pending[0]
		if !e.wanted(k.class) {
			return
		}
		form := e.form(k.class&withPrev != 0)
		if known = form != nil; known {
			k.out = append(k.out, response{events: form, bytes: len(form[0]), first: rev, last: rev, revs: 1})
		}
	} else {
		for _, e := range g.pending {
			known = known && k.add(e)
		}
		k.finish()
	}
	if known && len(k.out) == 0 {
		return
	}
	ws := g.members[list].watchers
	for i := len(ws) - 1; i >= 0; i-- { // from behind: a cursor leaves the list
		w := ws[i]
		if w.next > rev {
			continue
		}
		if !known || !c.deliver(w, &k.out[0], rev) {
			c.demote(w, rev)
		}
	}
}

// jump moves to rev without having seen the events up to it: a snapshot was installed. Live watchers read
// them from the store.
func (c *core) jump(rev int64) {
	from := c.rev + 1
	c.rev = rev
	c.window.reset(rev + 1)
	for _, g := range c.spans.all() {
		for i := len(g.members) - 1; i >= 0; i-- {
			ws := g.members[i].watchers
			for j := len(ws) - 1; j >= 0; j-- {
				if w := ws[j]; w.next <= rev {
					c.demote(w, max(w.next, from))
				}
			}
		}
	}
}

// deliver pushes one response to w, cut into fragments if it asked for that. False: no room.
func (c *core) deliver(w *watcher, r *response, revision int64) bool {
	c.items = c.items[:0]
	if w.fragment && r.bytes+headBytesMax >= c.fragmentBytes && len(r.events) > 1 {
		c.fragments(w, r, revision)
	} else {
		c.items = append(c.items, item{Message: Message{
			Revision: revision, Head: w.head, Events: r.events, Bytes: len(w.head) + r.bytes,
		}})
	}
	if !w.st.out.push(c.items) {
		w.st.blocked = true
		return false
	}
	w.received = true
	c.delivered += len(r.events)
	return true
}

// headBytesMax bounds header, watch_id and fragment flag of a response, ids that clients choose aside.
const headBytesMax = 40

// fragments cuts r between events so that each part stays below the limit, if it holds more than one.
func (c *core) fragments(w *watcher, r *response, revision int64) {
	more := wire.AppendBoolField(append([]byte(nil), w.head...), 7, true)
	for evs := r.events; len(evs) > 0; {
		n, bytes := 1, len(evs[0])
		for n < len(evs) && headBytesMax+bytes+len(evs[n]) < c.fragmentBytes {
			bytes += len(evs[n])
			n++
		}
		head := more
		if n == len(evs) {
			head = w.head
		}
		c.items = append(c.items, item{Message: Message{
			Revision: revision, Head: head, Events: evs[:n:n], Bytes: len(head) + bytes,
		}})
		evs = evs[n:]
	}
}

// takeDelivered returns how many events were pushed since the last call.
func (c *core) takeDelivered() int {
	n := c.delivered
	c.delivered = 0
	return n
}

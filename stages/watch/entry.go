package watch

import (
	"google.golang.org/protobuf/encoding/protowire"

	"sluice/stages/wire"
)

// fieldEvents is the field number of WatchResponse.events.
const fieldEvents = 11

// entry is one event as it goes out, encoded once for all watchers. It is immutable.
type entry struct {
	rev  int64
	typ  wire.EventType
	key  []byte    // part of plain or full
	one  [1][]byte // a complete field of WatchResponse, without prev_kv; nil when nobody wanted that: see form
	full [1][]byte // with prev_kv; the same bytes as one when there was no previous value; nil when unknown
}

// form returns the event as a watcher wants it, as a slice of one that may be shared. Nil: the previous value
// is not at hand.
func (e *entry) form(prev bool) [][]byte {
	if prev {
		if e.full[0] == nil {
			return nil
		}
		return e.full[:]
	}
	if e.one[0] == nil {
		return [][]byte{e.derive()}
	}
	return e.one[:]
}

// derive cuts prev_kv, the last field, off the full form.
func (e *entry) derive() []byte {
	_, _, n := protowire.ConsumeTag(e.full[0])
	body, _ := protowire.ConsumeBytes(e.full[0][n:])
	ev := wire.Event{Type: e.typ}
	for len(body) > 0 {
		num, typ, n := protowire.ConsumeTag(body)
		size := protowire.ConsumeFieldValue(num, typ, body[n:])
		if num == 2 {
			ev.KV, _ = protowire.ConsumeBytes(body[n:])
		}
		body = body[n+size:]
	}
	n = wire.EventSize(&ev, false)
	b := wire.AppendBytesHead(make([]byte, 0, wire.SizeBytesField(fieldEvents, n)), fieldEvents, n)
	return wire.AppendEvent(b, &ev, false)
}

// size is what the entry costs in memory, roughly.
func (e *entry) size() int64 {
	n := int64(entryOverhead + len(e.one[0]))
	if len(e.full[0]) > len(e.one[0]) {
		n += int64(len(e.full[0]))
	}
	return n
}

func (e *entry) wanted(c class) bool {
	if e.typ == wire.EventDelete {
		return c&noDelete == 0
	}
	return c&noPut == 0
}

const (
	entryOverhead = 128
	// slabBytes is the piece of memory that small events are encoded into. It stays alive as long as one of its
	// events waits in an outbox, so it is small.
	slabBytes = 4096
)

// encoder makes entries. It copies everything that it keeps.
type encoder struct {
	slab []byte
}

// forms says which encodings of an event somebody wants.
type forms struct{ plain, full bool }

func (c *encoder) encode(ev *wire.Event, want forms) *entry {
	e := &entry{rev: ev.Rev, typ: ev.Type}
	known := !ev.PrevUnknown
	if !want.full || !known || ev.Prev == nil {
		want.plain = true
	}
	if want.plain {
		e.one[0] = c.field(ev, false)
	}
	switch {
	case known && ev.Prev == nil:
		e.full[0] = e.one[0]
	case known && want.full:
		e.full[0] = c.field(ev, true)
	}
	e.key = c.copy(ev.Key)
	return e
}

func (c *encoder) field(ev *wire.Event, prev bool) []byte {
	n := wire.EventSize(ev, prev)
	b := c.take(wire.SizeBytesField(fieldEvents, n))
	b = wire.AppendBytesHead(b, fieldEvents, n)
	return wire.AppendEvent(b, ev, prev)
}

func (c *encoder) copy(p []byte) []byte { return append(c.take(len(p)), p...) }

// take returns an empty slice with room for n bytes.
func (c *encoder) take(n int) []byte {
	if n > slabBytes/4 {
		return make([]byte, 0, n)
	}
	if n > cap(c.slab)-len(c.slab) {
		c.slab = make([]byte, 0, slabBytes)
	}
	at := len(c.slab)
	c.slab = c.slab[:at+n]
	return c.slab[at : at : at+n]
}

// response is the events of one WatchResponse of one class.
type response struct {
	events      [][]byte
	bytes       int
	first, last int64 // the revisions of its events
	revs        int
}

// collector gathers the responses of watchers that want the same and stand at the same revision.
type collector struct {
	class   class
	compact int64 // previous values of revisions up to here are compacted: absent, whether at hand or not
	bytes   int   // at most about so many per response, but never less than a revision
	out     []response
	current response
}

// revsMax is how many revisions one catch-up response covers at most (contract/client-api.md 7.4).
const revsMax = 1000

// add appends e, whose key matches. False: its previous value is not at hand.
func (k *collector) add(e *entry) bool {
	if !e.wanted(k.class) {
		return true
	}
	form := e.form(k.class&withPrev != 0 && e.rev > k.compact)
	if form == nil {
		return false
	}
	c := &k.current
	if c.last != e.rev {
		if c.revs == revsMax || c.revs > 0 && c.bytes >= k.bytes {
			k.out = append(k.out, *c)
			*c = response{}
		}
		if c.revs == 0 {
			c.first = e.rev
		}
		c.revs++
		c.last = e.rev
	}
	c.events = append(c.events, form[0])
	c.bytes += len(form[0])
	return true
}

// finish completes out.
func (k *collector) finish() {
	if k.current.revs > 0 {
		k.out = append(k.out, k.current)
		k.current = response{}
	}
}

package watch

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"sluice/stages/wire"
)

// Field numbers of WatchResponse.
const (
	fieldWatchID         = 2
	fieldCreated         = 3
	fieldCanceled        = 4
	fieldCompactRevision = 5
	fieldCancelReason    = 6
)

// broadcastID is the watch id of failures and of answers that concern the whole stream.
const broadcastID = -1

// create answers one create request; contract/client-api.md 7.2 gives the order of checks.
func (c *core) create(st *Stream, req *CreateRequest, now time.Time) {
	if st.closed {
		st.release()
		return
	}
	s, reason := spanOf(req.Key, req.End)
	switch {
	case req.Start < 0:
		reason = reasonCompacted
	case req.Refuse != "":
		reason = req.Refuse
	case reason == "" && req.ID != 0 && st.watchers[req.ID] != nil:
		reason = reasonDuplicate
	}
	if reason != "" {
		head := wire.AppendIntField(nil, fieldWatchID, broadcastID)
		head = wire.AppendBoolField(head, fieldCreated, true)
		head = wire.AppendBoolField(head, fieldCanceled, true)
		head = protowire.AppendTag(head, fieldCancelReason, protowire.BytesType)
		c.answer(st, protowire.AppendString(head, reason))
		return
	}
	w := c.newWatcher(st, req, s)
	c.answer(st, wire.AppendBoolField(w.head[:len(w.head):len(w.head)], fieldCreated, true))
	if w.notify {
		c.timers.start(st, now)
	}
	switch {
	case req.Start == 0:
		w.next = c.rev + 1
		c.enter(w, live)
	case req.Start > c.rev:
		w.next = req.Start
		c.enter(w, future)
	default:
		w.next = req.Start
		c.count(w, 1, late)
		c.settled = append(c.settled, w)
		c.settle()
	}
}

func (c *core) newWatcher(st *Stream, req *CreateRequest, s span) *watcher {
	id := req.ID
	if id == 0 {
		for st.watchers[st.nextID] != nil {
			st.nextID++
		}
		id = st.nextID
		st.nextID++
	}
	w := &watcher{
		st: st, id: id, head: wire.AppendIntField(nil, fieldWatchID, id),
		fragment: req.Fragment, notify: req.ProgressNotify,
	}
	if req.PrevKV {
		w.class |= withPrev
	}
	if req.NoPut {
		w.class |= noPut
	}
	if req.NoDelete {
		w.class |= noDelete
	}
	if st.watchers == nil {
		st.watchers = make(map[int64]*watcher)
	}
	st.watchers[id] = w
	st.out.widen(len(st.watchers))
	if w.notify {
		st.notify++
	}
	g, ok := c.spans.get(s)
	if !ok {
		g = &group{span: s}
		c.spans.put(s, g)
	}
	g.watched++
	w.group = g
	c.wants(w.class, 1)
	return w
}

// spanOf reads key and range_end as they stand in a request.
func spanOf(key, end []byte) (s span, reason string) {
	s.key = string(key)
	if len(key) == 0 {
		s.key = "\x00"
	}
	switch {
	case len(end) == 0:
		s.kind = single
	case len(end) == 1 && end[0] == 0:
		s.kind = open
	default:
		s.kind, s.end = bounded, string(end)
		if s.key >= s.end {
			return s, reasonEmpty
		}
	}
	return s, ""
}

func (c *core) wants(cl class, n int) {
	if cl&withPrev != 0 {
		c.wantsPrev += n
	} else {
		c.wantsPlain += n
	}
}

// count moves the counters for n watchers of w's stream in state s.
func (c *core) count(w *watcher, n int, s state) {
	w.state = s
	w.st.counts[s] += n
	c.counts[s] += n
	c.total += n
}

// move takes w from its state to s.
func (c *core) move(w *watcher, s state) {
	c.count(w, -1, w.state)
	c.count(w, 1, s)
}

// enter puts a new watcher among the live ones.
func (c *core) enter(w *watcher, s state) {
	c.count(w, 1, s)
	w.group.add(w)
	if s == future {
		if len(c.futures) == 0 || w.next < c.wakeAt {
			c.wakeAt = w.next
		}
		c.futures = append(c.futures, w)
	}
}

// wakeFutures turns future watchers into live ones once the store has reached their start.
func (c *core) wakeFutures() {
	kept := c.futures[:0]
	c.wakeAt = 0
	for _, w := range c.futures {
		switch {
		case w.dead || w.state != future:
		case w.next <= c.rev:
			c.move(w, live)
			c.answerProgress(w.st)
		default:
			kept = append(kept, w)
			if c.wakeAt == 0 || w.next < c.wakeAt {
				c.wakeAt = w.next
			}
		}
	}
	clear(c.futures[len(kept):])
	c.futures = kept
	if len(kept) == 0 {
		c.wakeAt = maxRevision
	}
}

const maxRevision = 1<<63 - 1

func (g *group) list(cl class) *members {
	for i := range g.members {
		if g.members[i].class == cl {
			return &g.members[i]
		}
	}
	g.members = append(g.members, members{class: cl})
	return &g.members[len(g.members)-1]
}

func (g *group) add(w *watcher) {
	l := g.list(w.class)
	w.pos = len(l.watchers)
	l.watchers = append(l.watchers, w)
}

func (g *group) drop(w *watcher) {
	l := g.list(w.class)
	last := len(l.watchers) - 1
	moved := l.watchers[last]
	l.watchers[w.pos], moved.pos = moved, w.pos
	l.watchers[last] = nil
	l.watchers = l.watchers[:last]
}

// leave takes w out of its group, which it may have been the last of.
func (c *core) leave(w *watcher) {
	g := w.group
	if g == nil {
		return
	}
	if w.state == live || w.state == future {
		g.drop(w)
	}
	if g.watched--; g.watched == 0 {
		c.spans.remove(g.span)
	}
	w.group = nil
	c.wants(w.class, -1)
}

// cancel ends a watcher at its client's request. An unknown id is met with silence.
func (c *core) cancel(st *Stream, id int64) {
	if st.closed {
		st.release()
		return
	}
	w := st.watchers[id]
	if w == nil {
		st.release()
		return
	}
	c.end(w)
	delete(st.watchers, id)
	if w.notify {
		st.notify--
	}
	c.answer(st, wire.AppendBoolField(w.head[:len(w.head):len(w.head)], fieldCanceled, true))
	if st.notify == 0 {
		c.timers.stop(st)
	}
	c.answerProgress(st)
}

// end removes w from everything but its stream's map.
func (c *core) end(w *watcher) {
	c.leave(w)
	c.count(w, -1, w.state)
	w.dead = true
}

// closeStream ends a stream whose client is gone.
func (c *core) closeStream(st *Stream) {
	st.closed, st.asked = true, false
	for _, id := range st.ids() {
		c.end(st.watchers[id])
	}
	st.watchers, st.behind = nil, nil
	delete(c.slow, st)
	c.timers.stop(st)
}

// ids lists the stream's watchers in order: what the stage does must not depend on the order of a map.
func (st *Stream) ids() []int64 { return slices.Sorted(maps.Keys(st.watchers)) }

// compactedMessage is what a watcher that compaction has overtaken gets.
func compactedMessage(w *watcher, rev int64) Message {
	head := wire.AppendBoolField(w.head[:len(w.head):len(w.head)], fieldCanceled, true)
	head = wire.AppendIntField(head, fieldCompactRevision, rev)
	return Message{Head: head, Bytes: len(head)}
}

// answer pushes the answer to a request; its place is reserved.
func (c *core) answer(st *Stream, head []byte) {
	c.items = append(c.items[:0], item{
		Message: Message{Revision: c.rev, Head: head, Bytes: len(head)}, control: true,
	})
	st.out.push(c.items)
}

// progress answers a progress request, keeps it while a watcher of the stream is catching up, or forgets it
// (contract/client-api.md 7.7).
func (c *core) progress(st *Stream) {
	if st.closed {
		st.release()
		return
	}
	if st.asked || c.mute(st) {
		st.release() // nothing to say, or the answer to an earlier request says it all
		return
	}
	st.asked = true
	c.answerProgress(st)
}

// mute says whether a progress request is met with silence.
func (c *core) mute(st *Stream) bool {
	return len(st.watchers) == 0 || st.counts[future] > 0 || st.counts[compacted] > 0
}

// answerProgress answers or forgets a kept progress request, if the time has come.
func (c *core) answerProgress(st *Stream) {
	switch {
	case !st.asked || st.counts[late] > 0:
	case c.mute(st):
		st.asked = false
		st.release()
	default:
		st.asked = false
		c.answer(st, broadcastHead)
	}
}

var broadcastHead = wire.AppendIntField(nil, fieldWatchID, broadcastID)

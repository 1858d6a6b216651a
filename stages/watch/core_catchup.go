package watch

import "fmt"

// How a cursor becomes live again, in short: settle looks at every cursor that may move. If its stream has no
// room it waits in Stream.behind; if little is missing and the window has it, it is caught up on the spot; else
// it waits in core.ready for a scan, which a worker carries out over the window or over a view, and whose
// result brings it back to settle. Cursors that want the same and stand at the same revision, a cohort, share
// one pass over the events and the responses made from it.
//
// Example: 1000 watchers of /registry/ start 50 000 revisions back. They are one cohort; a scan collects the
// first MiB of events once and pushes it to the 1000 streams. Those with room stand at the same revision
// again and go on together; a slow one waits until its client has read, and follows with scans of its own.

const (
	// spotEvents is how many events settle looks at on the spot before it leaves the rest to workers.
	spotEvents = 2048
	// scanEvents is how many events one scan looks at, so that views are held briefly and workers shared.
	scanEvents = 16384
)

// cohort is cursors that want the same bytes and stand at the same revision.
type cohort struct {
	span    span
	class   class
	next    int64
	members []*watcher // never touched by a worker
	found   collector
}

type cohortKey struct {
	group *group
	class class
	next  int64
}

// cohorts groups ws, in order.
func cohorts(ws []*watcher) []*cohort {
	var out []*cohort
	var byKey map[cohortKey]*cohort
	for _, w := range ws {
		k := cohortKey{w.group, w.class, w.next}
		co := byKey[k]
		if co == nil {
			co = &cohort{span: w.group.span, class: w.class, next: w.next}
			out = append(out, co)
			if len(ws) > 1 {
				if byKey == nil {
					byKey = make(map[cohortKey]*cohort)
				}
				byKey[k] = co
			}
		}
		co.members = append(co.members, w)
	}
	return out
}

// demote makes a live watcher a cursor at next. settle must follow.
func (c *core) demote(w *watcher, next int64) {
	w.group.drop(w)
	c.move(w, late)
	w.next = next
	c.settled = append(c.settled, w)
}

// settle brings every cursor in c.settled to where it belongs now.
func (c *core) settle() {
	ws := c.settled[:0]
	for _, w := range c.settled {
		switch {
		case w.dead:
		case w.next < c.compact:
			c.cancelCompacted(w)
		case w.st.blocked:
			c.block(w)
		default:
			ws = append(ws, w)
		}
	}
	spot := c.spotEvents
	for _, co := range cohorts(ws) {
		missing := c.window.n - c.window.from(co.next)
		switch {
		case co.next > c.rev:
			for _, w := range co.members {
				c.join(w)
			}
		case c.window.covers(co.next, co.class) && missing <= spot:
			spot -= missing
			c.replay(co)
		default:
			c.ready = append(c.ready, co.members...)
		}
	}
	clear(c.settled)
	c.settled = c.settled[:0]
}

// join makes a cursor live: it has seen everything up to the stage's revision.
func (c *core) join(w *watcher) {
	c.move(w, live)
	w.group.add(w)
	c.answerProgress(w.st)
}

// block makes a cursor wait for room in its stream's outbox.
func (c *core) block(w *watcher) {
	w.st.behind = append(w.st.behind, w)
	c.slow[w.st] = struct{}{}
}

// replay catches a cohort up from the window, on the spot.
func (c *core) replay(co *cohort) {
	k := collector{class: co.class, compact: c.compact, bytes: c.chunkBytes}
	for i := c.window.from(co.next); i < c.window.n; i++ {
		if e := c.window.at(i); co.span.holds(e.key) && !k.add(e) {
			panic(fmt.Sprintf("watch: no previous value at %d in a window that has them from %d", e.rev, c.window.floorPV))
		}
	}
	k.finish()
	for _, w := range co.members {
		if c.deliverAll(w, k.out, c.rev) {
			w.next = c.rev + 1
			c.join(w)
		} else {
			c.block(w)
		}
	}
}

// deliverAll pushes responses until one finds no room; w's cursor follows.
func (c *core) deliverAll(w *watcher, rs []response, revision int64) bool {
	for i := range rs {
		if !c.deliver(w, &rs[i], revision) {
			w.next = rs[i].first
			return false
		}
	}
	return true
}

// cancelCompacted ends a cursor that needs events that are gone. Its id stays taken until the client
// cancels it (contract/client-api.md 7.2).
func (c *core) cancelCompacted(w *watcher) {
	c.items = append(c.items[:0], item{Message: compactedMessage(w, c.compact)})
	if !w.st.out.push(c.items) {
		w.st.blocked = true
		c.block(w)
		return
	}
	c.leave(w)
	c.move(w, compacted)
	c.answerProgress(w.st)
}

// compactedAt learns of a compaction: cursors below it end. Those in a scan are looked at when it is back,
// those of a full stream when it has room.
func (c *core) compactedAt(rev int64) {
	c.compact = rev
	kept := c.ready[:0]
	for _, w := range c.ready {
		if !w.dead && w.next < rev {
			c.settled = append(c.settled, w)
		} else {
			kept = append(kept, w)
		}
	}
	clear(c.ready[len(kept):])
	c.ready = kept
}

// drained goes on with the cursors of a stream that has room again.
func (c *core) drained(st *Stream) {
	st.blocked = false
	c.settled = append(c.settled, st.behind...)
	st.behind = nil
	delete(c.slow, st)
	c.settle()
}

// job is one scan for a worker: the events in [from, to] for some cohorts, read from entries or, without
// them, from a view.
type job struct {
	worker     *Worker
	from, to   int64
	compact    int64
	entries    []*entry
	window     bool
	upTo       int64 // with entries: the last revision that they cover
	cohorts    []*cohort
	eventsMax  int // to look at
	chunkBytes int // to collect
}

// result is what a scan found: everything up to upTo is in its cohorts' collectors.
type result struct {
	job     *job
	upTo    int64
	compact int64 // the view's compaction revision; cohorts below it were left out
}

// nextJob makes the next scan, nil when none is waited for. The first cursor that waits decides where it
// starts; all others that it comes by are taken along.
func (c *core) nextJob() *job {
	for len(c.ready) > 0 && (c.ready[0].dead || c.ready[0].st.blocked) {
		if w := c.ready[0]; !w.dead {
			c.block(w)
		}
		c.ready[0] = nil
		c.ready = c.ready[1:]
	}
	if len(c.ready) == 0 {
		return nil
	}
	first := c.ready[0]
	j := &job{from: first.next, to: c.rev, compact: c.compact, eventsMax: c.scanEvents, chunkBytes: c.chunkBytes}
	j.window = c.window.covers(first.next, first.class)
	reach := first.next + int64(c.scanEvents)
	if j.window {
		j.entries, j.upTo = c.window.copy(first.next, c.scanEvents)
		reach = j.upTo
	}
	var taken []*watcher
	kept := c.ready[:0]
	for _, w := range c.ready {
		switch {
		case w.dead:
		case w.st.blocked:
			c.block(w)
		case w.next >= j.from && w.next <= reach && (!j.window || c.window.covers(w.next, w.class)):
			taken = append(taken, w)
		default:
			kept = append(kept, w)
		}
	}
	clear(c.ready[len(kept):])
	c.ready = kept
	j.cohorts = cohorts(taken)
	return j
}

// scanned takes a scan's result: the cohorts get what was found and stand behind it.
func (c *core) scanned(r *result) {
	c.compact = max(c.compact, r.compact)
	for _, co := range r.job.cohorts {
		for _, w := range co.members {
			if w.dead {
				continue
			}
			switch {
			case co.next < r.compact || co.next > r.upTo: // left out, or not reached
			case !c.deliverAll(w, co.found.out, r.job.to):
			default:
				w.next = r.upTo + 1
			}
			c.settled = append(c.settled, w)
		}
	}
	c.settle()
}

// lag returns how far the farthest cursors are behind, in revisions.
func (c *core) lag() (scan, full int64) {
	for _, w := range c.ready {
		if !w.dead {
			scan = max(scan, c.rev+1-w.next)
		}
	}
	for st := range c.slow {
		for _, w := range st.behind {
			if !w.dead {
				full = max(full, c.rev+1-w.next)
			}
		}
	}
	return scan, full
}

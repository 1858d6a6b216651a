package watch

import "sort"

// window is the recent events in memory, so that a watcher that is a little behind is caught up without
// reading the store. Its floor is the first revision that it holds completely.
type window struct {
	revsMax  int
	bytesMax int64

	ring    []*entry
	head, n int
	bytes   int64
	floor   int64 // all events from here on are in the window
	floorPV int64 // and from here on their previous values too; at least floor
	last    int64 // revision up to which the window goes
}

func (w *window) at(i int) *entry { return w.ring[(w.head+i)%len(w.ring)] }

// reset empties the window: what comes next is at revision from or later.
func (w *window) reset(from int64) {
	w.ring, w.head, w.n, w.bytes = nil, 0, 0, 0
	w.floor, w.floorPV, w.last = from, from, from-1
}

// add appends an event. trim must follow once its revision is complete.
func (w *window) add(e *entry) {
	if w.n == len(w.ring) {
		ring := make([]*entry, max(64, 2*len(w.ring)))
		for i := range w.n {
			ring[i] = w.at(i)
		}
		w.ring, w.head = ring, 0
	}
	w.ring[(w.head+w.n)%len(w.ring)] = e
	w.n++
	w.bytes += e.size()
	w.last = e.rev
	if e.full[0] == nil {
		w.floorPV = e.rev + 1
	}
}

// trim forgets the oldest revisions beyond the limits.
func (w *window) trim() {
	for w.n > 0 && (w.bytes > w.bytesMax || w.last-w.at(0).rev >= int64(w.revsMax)) {
		e := w.at(0)
		w.ring[w.head] = nil
		w.head = (w.head + 1) % len(w.ring)
		w.n--
		w.bytes -= e.size()
		w.floor = e.rev + 1
	}
	w.floorPV = max(w.floorPV, w.floor)
}

// covers says whether every event from rev on is in the window in the form that c wants.
func (w *window) covers(rev int64, c class) bool {
	if c&withPrev != 0 {
		return rev >= w.floorPV
	}
	return rev >= w.floor
}

// from returns the place of the first event at rev or later.
func (w *window) from(rev int64) int {
	return sort.Search(w.n, func(i int) bool { return w.at(i).rev >= rev })
}

// copy returns about at most max events from rev on, whole revisions only, and the last revision that they
// cover completely.
func (w *window) copy(rev int64, limit int) (es []*entry, upTo int64) {
	i := w.from(rev)
	end := min(w.n, i+limit)
	for end > i && end < w.n && w.at(end).rev == w.at(end-1).rev {
		end++
	}
	es = make([]*entry, 0, end-i)
	for ; i < end; i++ {
		es = append(es, w.at(i))
	}
	if end == w.n {
		return es, w.last
	}
	return es, es[len(es)-1].rev
}

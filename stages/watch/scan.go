package watch

import (
	"fmt"

	"sluice/stages/wire"
)

// scan carries out one job: a plain function of the job and of the view that it takes. It reads from the
// job's start until its end, its share of events or its share of bytes is reached, at the end of a revision.
func scan(j *job, views Views) (*result, error) {
	s := scanner{job: j}
	for _, co := range j.cohorts {
		co.found = collector{class: co.class, compact: j.compact, bytes: j.chunkBytes}
		s.add(co)
	}
	if j.window {
		return s.entries(), nil
	}
	v := views.Acquire()
	defer v.Release()
	return s.history(v)
}

// scanner is one scan in progress.
type scanner struct {
	job     *job
	spans   index[*[]*cohort]
	matched []*[]*cohort
	encoder encoder
	events  int // looked at
	bytes   int // collected, each event once
	last    int64
}

func (s *scanner) add(co *cohort) {
	list, ok := s.spans.get(co.span)
	if !ok {
		list = new([]*cohort)
		s.spans.put(co.span, list)
	}
	*list = append(*list, co)
}

// entries reads the part of the window that the job brought along.
func (s *scanner) entries() *result {
	r := &result{job: s.job, upTo: s.job.upTo}
	for _, e := range s.job.entries {
		if e.rev != s.last && s.enough() {
			r.upTo = s.last
			break
		}
		s.last = e.rev
		s.events++
		s.matched = s.spans.match(e.key, s.matched[:0])
		s.collect(e)
	}
	s.finish()
	return r
}

// history reads a view. A view is published before its events are sent, so it is never behind the job.
func (s *scanner) history(v HistoryView) (*result, error) {
	j := s.job
	if v.Revision() < j.to {
		return nil, fmt.Errorf("view at revision %d, watch at %d", v.Revision(), j.to)
	}
	r := &result{job: j, upTo: j.to, compact: v.CompactRevision()}
	err := v.History(max(j.from, r.compact), j.to, func(ev *wire.Event) bool {
		if ev.Rev != s.last && s.enough() {
			r.upTo = s.last
			return false
		}
		s.last = ev.Rev
		s.events++
		s.matched = s.spans.match(ev.Key, s.matched[:0])
		if len(s.matched) > 0 {
			s.read(v, ev)
		}
		return true
	})
	s.finish()
	return r, err
}

// enough says whether the scan may end before the next revision.
func (s *scanner) enough() bool { return s.events >= s.job.eventsMax || s.bytes >= s.job.chunkBytes }

// read encodes an event of a view, with its previous value if a cohort wants that.
func (s *scanner) read(v HistoryView, ev *wire.Event) {
	var want forms
	for _, list := range s.matched {
		for _, co := range *list {
			if co.class&withPrev != 0 {
				want.full = true
			} else {
				want.plain = true
			}
		}
	}
	if want.full {
		ev.Prev, ev.PrevUnknown = previous(v, ev), false
	}
	s.collect(s.encoder.encode(ev, want))
}

// previous returns the value that ev replaced: none for a put that created its key, and none when the
// revision before is compacted.
func previous(v HistoryView, ev *wire.Event) []byte {
	if ev.Rev-1 < v.CompactRevision() {
		return nil
	}
	if ev.Type == wire.EventPut {
		var kv wire.KeyValue
		if err := kv.Decode(ev.KV); err != nil {
			panic(fmt.Sprintf("watch: record at revision %d: %v", ev.Rev, err))
		}
		if kv.CreateRevision == kv.ModRevision {
			return nil
		}
	}
	prev, ok := v.Get(ev.Key, ev.Rev-1)
	if !ok {
		return nil
	}
	return prev
}

// collect hands e to all matched cohorts that stand at or before it.
func (s *scanner) collect(e *entry) {
	counted := false
	for _, list := range s.matched {
		for _, co := range *list {
			if co.next > e.rev {
				continue
			}
			if !co.found.add(e) {
				panic(fmt.Sprintf("watch: no previous value at %d for a cohort at %d", e.rev, co.next))
			}
			if !counted {
				counted = true
				s.bytes += max(len(e.one[0]), len(e.full[0]))
			}
		}
	}
}

func (s *scanner) finish() {
	for _, co := range s.job.cohorts {
		co.found.finish()
	}
}

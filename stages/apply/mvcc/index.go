package mvcc

import (
	"bytes"
	"math"

	"github.com/google/btree"
)

// newest is a revision above all: a read at it sees every key's newest record, those of the running
// transaction included.
const newest = math.MaxInt64

// treeDegree gives inner nodes of at most 31 items: small enough to copy for one put, flat enough that a
// million keys are four levels.
const treeDegree = 16

// item stands for a page in the tree: it covers the keys from low up to the next item's low. The item with
// the empty low is always there.
type item struct {
	low  []byte
	page *page
	sum  summary // the page's, as of the last Publish
}

func newTree() *btree.BTreeG[item] {
	return btree.NewG(treeDegree, func(a, b item) bool { return bytes.Compare(a.low, b.low) < 0 })
}

// span is an interval of keys: the one key from, or [from, to), or everything from from on when to is nil.
type span struct {
	from, to []byte
	single   bool
}

// spanOf reads an interval as requests write it (contract/client-api.md 6.1).
func spanOf(key, end []byte) span {
	switch {
	case len(end) == 0:
		return span{from: key, single: true}
	case len(end) == 1 && end[0] == 0:
		return span{from: key}
	}
	return span{from: key, to: end}
}

func (sp span) empty() bool { return sp.to != nil && bytes.Compare(sp.to, sp.from) <= 0 }

// part is a page's share of a span: its entries [lo, hi). hi is -1 when all of the page belongs to the
// span; then lo is 0 and only a reader that needs the entries has to touch the page.
type part struct {
	page   *page
	sum    summary
	lo, hi int
}

// bounds returns the entries of the part.
func (p *part) bounds() (lo, hi int) {
	if p.hi < 0 {
		return 0, len(p.page.ents)
	}
	return p.lo, p.hi
}

// settled says that at revision rev the whole part is answered by its summary.
func (p *part) settled(rev int64) bool { return p.hi < 0 && p.sum.highest <= rev }

// leaf returns the item whose page covers key.
func leaf(tree *btree.BTreeG[item], key []byte) (it item) {
	tree.DescendLessOrEqual(item{low: key}, func(i item) bool {
		it = i
		return false
	})
	return it
}

// parts calls fn for the pages that cover sp, in key order, until it returns false.
func (st *state) parts(sp span, fn func(p part) bool) {
	if sp.empty() {
		return
	}
	first := leaf(st.tree, sp.from)
	if sp.single {
		if i, ok := first.page.find(sp.from); ok {
			fn(part{page: first.page, sum: first.page.sum, lo: i, hi: i + 1})
		}
		return
	}
	// A page lies wholly in the span once the next one is known to begin below its end: one item waits.
	var wait item
	more := true
	st.tree.AscendGreaterOrEqual(item{low: first.low}, func(it item) bool {
		if sp.to != nil && bytes.Compare(it.low, sp.to) >= 0 {
			return false
		}
		if wait.page != nil {
			more = fn(st.part(wait, sp, false))
		}
		wait = it
		return more
	})
	if more {
		fn(st.part(wait, sp, true))
	}
}

// part cuts item it to sp. last says that the span may end within it.
func (st *state) part(it item, sp span, last bool) part {
	p := part{page: it.page, sum: it.sum, hi: -1}
	if st.unpublished {
		p.sum = it.page.sum
	}
	first := bytes.Compare(it.low, sp.from) < 0
	if !first && (!last || sp.to == nil) {
		return p
	}
	p.hi = len(it.page.ents)
	if first {
		p.lo, _ = it.page.find(sp.from)
	}
	if last && sp.to != nil {
		p.hi, _ = it.page.find(sp.to)
	}
	return p
}

// count returns the number of keys of sp at revision rev. It is parts with the pages in between, of which
// there may be many thousands, added up on the spot.
func (st *state) count(sp span, rev int64) (n int64) {
	if sp.empty() {
		return 0
	}
	if sp.single {
		st.parts(sp, func(p part) bool {
			n = p.count(rev)
			return true
		})
		return n
	}
	var wait item // as in parts
	st.tree.AscendGreaterOrEqual(item{low: leaf(st.tree, sp.from).low}, func(it item) bool {
		if sp.to != nil && bytes.Compare(it.low, sp.to) >= 0 {
			return false
		}
		switch {
		case wait.page == nil: // the first
		case wait.sum.highest <= rev && !st.unpublished && bytes.Compare(wait.low, sp.from) >= 0:
			n += wait.sum.live
		default:
			p := st.part(wait, sp, false)
			n += p.count(rev)
		}
		wait = it
		return true
	})
	p := st.part(wait, sp, true)
	return n + p.count(rev)
}

// count returns the number of the part's keys at revision rev.
func (p *part) count(rev int64) (n int64) {
	if p.settled(rev) {
		return p.sum.live
	}
	lo, hi := p.bounds()
	for i := lo; i < hi; i++ {
		if _, _, ok := p.page.at(i, rev); ok {
			n++
		}
	}
	return n
}

// found is one key of a range at the asked revision.
type found struct {
	page   *page
	i      int
	record      // what the read sees
	newest bool // the record is the entry's own: its fields are in the entry
}

func (f *found) entry() *entry { return &f.page.ents[f.i] }
func (f *found) key() []byte   { return f.page.key(f.i) }

// visit calls fn for every key of sp at revision rev, in order, until it returns false.
func (st *state) visit(sp span, rev int64, fn func(f found) bool) {
	st.parts(sp, func(p part) bool {
		lo, hi := p.bounds()
		for i := lo; i < hi; i++ {
			r, own, ok := p.page.at(i, rev)
			if ok && !fn(found{page: p.page, i: i, record: r, newest: own}) {
				return false
			}
		}
		return true
	})
}

// own returns a copy of p that may be changed, p itself if it is one already. The copy takes its place.
func (s *Store) own(p *page) *page {
	if p.epoch == s.epoch {
		return p
	}
	c := p.copy(s.epoch)
	s.place(c)
	return c
}

// place puts p into the tree, whose item gets its summary at the next Publish.
func (s *Store) place(p *page) {
	s.tree.ReplaceOrInsert(item{low: p.low, page: p, sum: p.sum})
	s.dirty = append(s.dirty, p)
}

// drop takes p out of the tree; the page before it covers its keys from now on.
func (s *Store) drop(p *page) {
	if p.epoch == s.epoch {
		p.merged = true // else it is not in dirty, and published: hands off
	}
	s.tree.Delete(item{low: p.low})
	s.changed = true
}

// insertKey adds a key that the index does not have to page p, which covers it, at place i.
func (s *Store) insertKey(p *page, i int, key []byte, e entry) {
	p = s.own(p)
	if len(p.ents) < pageKeysMax {
		p.insert(i, key, e)
		return
	}
	// Keys that arrive in order leave full pages behind; any other place splits the page in half.
	at := len(p.ents) / 2
	if i == len(p.ents) {
		at = i
	}
	low := key
	if at < len(p.ents) {
		low = p.key(at)
	}
	right := p.part(bytes.Clone(low), at, len(p.ents), s.epoch)
	left := p
	if at < len(p.ents) {
		left = p.part(p.low, 0, at, s.epoch)
		p.merged = true
		s.place(left)
	}
	s.place(right)
	if i > at || at == i && bytes.Compare(key, right.low) >= 0 {
		right.insert(i-at, key, e)
	} else {
		left.insert(i, key, e)
	}
}

// refresh gives the tree the summaries of the pages that changed since the last Publish.
func (s *Store) refresh() {
	for i, p := range s.dirty {
		if !p.merged {
			s.tree.ReplaceOrInsert(item{low: p.low, page: p, sum: p.sum})
		}
		s.dirty[i] = nil
	}
	s.changed = s.changed || len(s.dirty) > 0
	s.dirty = s.dirty[:0]
}

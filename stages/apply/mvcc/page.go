package mvcc

import (
	"bytes"
	"slices"
	"sort"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	pageKeysMax  = 64 // a page that would exceed it is split
	pageKeysFill = 48 // keys per page after Load
	pageKeysMin  = 16 // the sweep joins neighbours that fit a page when one is below it
)

// entry is one key of a page with its newest record. It holds no pointers.
type entry struct {
	revision               // of the newest record
	create, version, lease int64
	keyAt, keyBytes        uint32 // the key in the page's block
	slab, valueAt          uint32 // where the encoded record lies; slab 0 = only in the backend
	size                   uint32 // encoded bytes of the record, 0 for a tombstone
	past                   uint32 // 1 + its place in the page's pasts, 0 = no older record
}

// record is an older record of a key: enough to find it in the backend and to know its size.
type record struct {
	main      int64
	sub, size uint32
}

func (r record) revision() revision { return revision{r.main, r.sub} }

func (r record) deleted() bool { return r.sub&tombstone != 0 }

// record is the newest record of the entry.
func (e *entry) record() record { return record{e.main, e.sub, e.size} }

// summary is what a page tells without being looked into.
type summary struct {
	live    int64 // keys that are not deleted
	bytes   int64 // Σ rowBytes of their newest records
	highest int64 // main revision of the newest change ever made in it; it never falls
}

// page is a leaf of the index: the keys of one interval, sorted. Once published it never changes; what a
// newer copy appends to blocks that both share lies beyond the older one's length.
type page struct {
	low    []byte // the interval begins here; every key is >= low
	keys   []byte // key bytes; keys that left the page leave theirs until it is rebuilt
	ents   []entry
	pasts  [][]record // older records of one key each, in revision order
	tombs  int        // entries that are deleted
	sum    summary
	epoch  uint64 // of the store when this copy was made: it may change while the epochs are equal
	merged bool   // this copy has left the tree
}

// rowBytes is the space of a record of size bytes in a range response.
func rowBytes(size uint32) int64 { return int64(1 + protowire.SizeBytes(int(size))) }

func (p *page) key(i int) []byte {
	e := &p.ents[i]
	return p.keys[e.keyAt : e.keyAt+e.keyBytes : e.keyAt+e.keyBytes]
}

// find returns the place of the first key that is not below key, and whether it is key.
func (p *page) find(key []byte) (int, bool) {
	lo, hi := 0, len(p.ents)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		switch c := bytes.Compare(p.key(mid), key); {
		case c == 0:
			return mid, true
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return lo, false
}

// at returns the record of entry i that a read at revision rev sees. newest says that it is the entry's own.
func (p *page) at(i int, rev int64) (r record, newest, ok bool) {
	e := &p.ents[i]
	if e.main <= rev {
		return e.record(), true, !e.deleted()
	}
	if e.past == 0 {
		return record{}, false, false
	}
	past := p.pasts[e.past-1]
	n := sort.Search(len(past), func(n int) bool { return past[n].main > rev })
	if n == 0 {
		return record{}, false, false
	}
	return past[n-1], false, !past[n-1].deleted()
}

// copy returns a copy that may change in epoch. Entries get some room, keys and pasts are shared.
func (p *page) copy(epoch uint64) *page {
	c := *p
	c.epoch = epoch
	c.ents = append(make([]entry, 0, (len(p.ents)+8)&^7), p.ents...)
	c.pasts = slices.Clone(p.pasts)
	return &c
}

// count adds entry e to the page's summary, or takes it out with by = -1.
func (p *page) count(e *entry, by int64) {
	if e.deleted() {
		p.tombs += int(by)
		return
	}
	p.sum.live += by
	p.sum.bytes += by * rowBytes(e.size)
}

// supersede replaces the newest record of entry i by that of e, whose key and past are not looked at.
func (p *page) supersede(i int, e entry) {
	old := &p.ents[i]
	p.count(old, -1)
	e.keyAt, e.keyBytes, e.past = old.keyAt, old.keyBytes, old.past
	if e.past == 0 {
		p.pasts = append(p.pasts, make([]record, 0, 2))
		e.past = uint32(len(p.pasts))
	}
	past := &p.pasts[e.past-1]
	*past = append(*past, old.record())
	p.ents[i] = e
	p.count(&e, 1)
	p.sum.highest = max(p.sum.highest, e.main)
}

// insert adds key at place i with its first record.
func (p *page) insert(i int, key []byte, e entry) {
	e.keyAt, e.keyBytes, e.past = uint32(len(p.keys)), uint32(len(key)), 0
	p.keys = append(p.keys, key...)
	p.ents = slices.Insert(p.ents, i, e)
	p.count(&e, 1)
	p.sum.highest = max(p.sum.highest, e.main)
}

// part returns a new page with entries [from, to) of p and blocks of its own.
func (p *page) part(low []byte, from, to int, epoch uint64) *page {
	n := &page{low: low, epoch: epoch, ents: make([]entry, 0, (to-from+8)&^7)}
	n.take(p, from, to)
	return n
}

// take appends entries [from, to) of o, which follow p's own.
func (p *page) take(o *page, from, to int) {
	size := 0
	for i := from; i < to; i++ {
		size += int(o.ents[i].keyBytes)
	}
	if p.keys == nil {
		p.keys = make([]byte, 0, size+size/4)
	}
	for i := from; i < to; i++ {
		e := o.ents[i]
		key := o.key(i)
		e.keyAt = uint32(len(p.keys))
		p.keys = append(p.keys, key...)
		if e.past != 0 {
			p.pasts = append(p.pasts, o.pasts[e.past-1])
			e.past = uint32(len(p.pasts))
		}
		p.ents = append(p.ents, e)
		p.count(&e, 1)
	}
	// The parts of a split page both answer for all that happened in it: too high is slower, never wrong.
	p.sum.highest = max(p.sum.highest, o.sum.highest)
}

package mvcc

import (
	"fmt"
	"slices"

	"github.com/google/btree"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

// state is what a read needs. A View holds one that never changes, the Store the one that it changes.
type state struct {
	tree        *btree.BTreeG[item]
	table       []*block       // the slabs of the newest values
	reader      backend.Reader // everything up to the last Publish
	recent      []recent       // the Store's only: what it has written since then
	rev         int64
	compactRev  int64 // -1 before any compaction
	live        int64 // keys that are not deleted
	unpublished bool  // the Store's: summaries in the tree are older than those in the pages
	hashes      []compactionHash

	readMax, changeMax int // readBytesMax and changeBytesMax, but in tests
}

// recent is a record written since the last Publish.
type recent struct {
	revision
	value []byte
}

// View is the store at one moment. Any number of goroutines may read it, for as long as the backend.Reader
// that it was published with is valid; the bytes it returns are valid for as long, if the view is reachable.
type View struct {
	state
	metrics *Metrics
}

// Revision returns the store's main revision.
func (v *View) Revision() int64 { return v.rev }

// CompactRevision returns the last compaction revision, -1 before any. Reads below it are refused.
func (v *View) CompactRevision() int64 { return v.compactRev }

// Keys returns the number of live keys.
func (v *View) Keys() int64 { return v.live }

// check resolves a requested revision: 0 and below mean the current one, as in etcd's Range, also inside a
// transaction (where etcd compares a negative one with the compaction revision; cases/bug-cases BC-05).
// Future is tested before compacted.
func (st *state) check(rev int64) error {
	switch {
	case rev <= 0:
		return nil
	case rev > st.rev:
		return ErrFutureRev
	case rev < st.compactRev:
		return ErrCompacted
	}
	return nil
}

// at returns the revision to read at for a requested one that check has passed.
func (st *state) at(rev int64) int64 {
	if rev <= 0 {
		return newest
	}
	return rev
}

// Get returns the encoded mvccpb.KeyValue of key at main revision rev, 0 for the current one. It finds
// nothing at a revision that is in the future or was compacted.
func (v *View) Get(key []byte, rev int64) (kv []byte, ok bool) {
	if v.check(rev) != nil {
		return nil, false
	}
	p := leaf(v.tree, key).page
	i, ok := p.find(key)
	if !ok {
		return nil, false
	}
	r, own, ok := p.at(i, v.at(rev))
	if !ok {
		return nil, false
	}
	if own {
		if kv := v.cached(&p.ents[i]); kv != nil {
			return kv, true
		}
	}
	return v.stored(r.revision()), true
}

// cached returns the newest record of e from its slab, nil when it is not in memory.
func (st *state) cached(e *entry) []byte {
	if e.slab == noSlab {
		return nil
	}
	return st.table[e.slab].mem[e.valueAt : e.valueAt+e.size : e.valueAt+e.size]
}

// value returns the encoded record of f.
func (st *state) value(f *found) []byte {
	if f.newest {
		if b := st.cached(f.entry()); b != nil {
			return b
		}
	}
	return st.stored(f.revision())
}

// stored reads a record from the backend, or from what has been written since the last Publish.
func (st *state) stored(r revision) []byte {
	if n := len(st.recent); n > 0 && st.recent[0].compare(r) <= 0 {
		i, ok := slices.BinarySearchFunc(st.recent, r, func(a recent, r revision) int { return a.compare(r) })
		if ok {
			return st.recent[i].value
		}
	}
	b := st.reader.Get(backend.Key, r.append(make([]byte, 0, tombstoneBytes)))
	if b == nil {
		panic(fmt.Sprintf("mvcc: record %d.%d is not in the backend; revision %d, compacted %d",
			r.main, r.number(), st.rev, st.compactRev))
	}
	return b
}

// fields returns the numbers of f's record: from the entry, or by decoding an older record.
func (st *state) fields(f *found) (kv wire.KeyValue) {
	if f.newest {
		e := f.entry()
		return wire.KeyValue{CreateRevision: e.create, ModRevision: e.main, Version: e.version, Lease: e.lease}
	}
	if err := kv.Decode(st.stored(f.revision())); err != nil {
		panic(fmt.Sprintf("mvcc: record %d.%d: %v", f.main, f.revision().number(), err))
	}
	return kv
}

func panicNumbers(what string, a, b int64) { panic(fmt.Sprintf("mvcc: %s: %d, %d", what, a, b)) }

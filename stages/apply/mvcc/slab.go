package mvcc

import (
	"encoding/binary"
	"slices"

	"sluice/stages/wire"
)

const (
	slabBytes      = 1 << 20
	slabSingle     = 4        // a record of at least a slab's bytes/slabSingle gets a slab of its own
	slabHeadBytes  = 4        // in front of every record: its length, so that a slab can be walked
	slabSparse     = 3        // a slab is rewritten when less than 1/slabSparse of it is live
	sparseStepMax  = 32 << 10 // bytes of a sparse slab looked at per Publish
	noSlab         = 0        // the table's first place stays empty
	tableGrowExtra = 16
)

// slabs keeps the newest values: the writer's side. The table of blocks is what views share; a place of it
// is reused for another block only in a new copy of the table, so a view's table always shows the blocks
// that its pages point to, and keeps them from being collected.
type slabs struct {
	table    []*block
	tableOwn bool // the table was copied since the last Publish
	stats    []slabStat
	free     []uint32
	current  uint32 // the slab being filled; noSlab at first
	sparse   []uint32
	scanAt   uint32 // how far the first of sparse has been rewritten
	bytes    int64  // Σ len of the blocks
	bytesMax int64
	block    int // slabBytes; less in tests
	memory   *blocks
	retired  []*block // since the last Publish: the running change may still read them
}

type slabStat struct {
	used, live uint32 // bytes handed out; bytes of them that entries point to
	queued     bool   // in sparse
}

func newSlabs(bytesMax int64) slabs {
	return slabs{
		bytesMax: bytesMax, block: slabBytes, memory: newBlocks(slabBytes),
		table: make([]*block, 1, tableGrowExtra), stats: make([]slabStat, 1),
	}
}

// put copies record b into a slab and returns its place; slab 0 when the budget is spent. A rewrite may
// go above the budget by one slab, because it frees one.
func (sl *slabs) put(b []byte, rewrite bool) (slab, at uint32) {
	n := len(b) + slabHeadBytes
	if sl.bytesMax <= 0 {
		return noSlab, 0
	}
	if n >= sl.block/slabSingle {
		if slab = sl.add(n, rewrite); slab == noSlab {
			return noSlab, 0
		}
		return slab, sl.fill(slab, b)
	}
	if sl.current == noSlab || int(sl.stats[sl.current].used)+n > sl.block {
		next := sl.add(sl.block, rewrite)
		if next == noSlab {
			return noSlab, 0
		}
		old := sl.current
		sl.current = next
		if old != noSlab {
			sl.check(old)
		}
	}
	return sl.current, sl.fill(sl.current, b)
}

func (sl *slabs) fill(slab uint32, b []byte) (at uint32) {
	return fillSlab(sl.table[slab].mem, &sl.stats[slab], b)
}

func fillSlab(mem []byte, st *slabStat, b []byte) (at uint32) {
	at = st.used + slabHeadBytes
	binary.LittleEndian.PutUint32(mem[st.used:], uint32(len(b)))
	copy(mem[at:], b)
	st.used = at + uint32(len(b))
	st.live += uint32(len(b)) + slabHeadBytes
	return at
}

// add makes room for a block of n bytes.
func (sl *slabs) add(n int, rewrite bool) uint32 {
	if sl.bytes+int64(n) > sl.bytesMax && !rewrite {
		return noSlab
	}
	sl.bytes += int64(n)
	if len(sl.free) == 0 {
		// Places behind a view's table are never looked at by it, so appending needs no copy.
		sl.table = append(sl.table, sl.memory.new(n))
		sl.stats = append(sl.stats, slabStat{})
		return uint32(len(sl.table) - 1)
	}
	slab := sl.free[len(sl.free)-1]
	sl.free = sl.free[:len(sl.free)-1]
	sl.ownTable()
	sl.table[slab], sl.stats[slab] = sl.memory.new(n), slabStat{}
	return slab
}

func (sl *slabs) ownTable() {
	if !sl.tableOwn {
		sl.table = append(make([]*block, 0, len(sl.table)+tableGrowExtra), sl.table...)
		sl.tableOwn = true
	}
}

// drop says that no entry points to a record of n bytes in slab any more.
func (sl *slabs) drop(slab, n uint32) {
	if slab == noSlab {
		return
	}
	sl.stats[slab].live -= n + slabHeadBytes
	if slab != sl.current {
		sl.check(slab)
	}
}

// check retires slab when nothing in it is live, and queues it for a rewrite when little is.
func (sl *slabs) check(slab uint32) {
	st := &sl.stats[slab]
	switch {
	case st.queued: // rewrite retires it
	case st.live == 0:
		sl.retire(slab)
	case int(st.live)*slabSparse < len(sl.table[slab].mem):
		st.queued = true
		sl.sparse = append(sl.sparse, slab)
	}
}

func (sl *slabs) retire(slab uint32) {
	sl.bytes -= int64(len(sl.table[slab].mem))
	sl.ownTable()
	sl.retired = append(sl.retired, sl.table[slab])
	sl.table[slab] = nil
	sl.free = append(sl.free, slab)
}

// publish returns the table for a view.
func (sl *slabs) publish() []*block {
	sl.tableOwn = false
	clear(sl.retired)
	sl.retired = sl.retired[:0]
	return sl.table[:len(sl.table):len(sl.table)]
}

// rewriteSparse moves what is live in the oldest sparse slab to the current one, looking at no more than
// budget bytes.
func (s *Store) rewriteSparse(budget int) {
	sl := &s.slabs
	for budget > 0 && len(sl.sparse) > 0 {
		slab := sl.sparse[0]
		mem, used := sl.table[slab].mem, sl.stats[slab].used
		for budget > 0 && sl.scanAt < used && sl.stats[slab].live > 0 {
			n := binary.LittleEndian.Uint32(mem[sl.scanAt:])
			at := sl.scanAt + slabHeadBytes
			s.rewrite(slab, at, mem[at:at+n])
			sl.scanAt = at + n
			budget -= int(n + slabHeadBytes)
		}
		if budget <= 0 && sl.stats[slab].live > 0 {
			return
		}
		if live := sl.stats[slab].live; live != 0 {
			panicNumbers("live bytes left in a rewritten slab", int64(slab), int64(live))
		}
		sl.scanAt = 0
		sl.sparse = slices.Delete(sl.sparse, 0, 1)
		sl.retire(slab)
	}
}

// rewrite moves record b, at place at of slab, if an entry still points to it.
func (s *Store) rewrite(slab, at uint32, b []byte) {
	key := recordKey(b)
	p := leaf(s.tree, key).page
	i, ok := p.find(key)
	if !ok || p.ents[i].slab != slab || p.ents[i].valueAt != at {
		return
	}
	p = s.own(p)
	p.ents[i].slab, p.ents[i].valueAt = s.slabs.put(b, true)
	s.slabs.drop(slab, uint32(len(b)))
}

// recordKey returns the key of an encoded mvccpb.KeyValue, aliasing it.
func recordKey(b []byte) []byte {
	var kv wire.KeyValue
	if err := kv.Decode(b); err != nil {
		panic("mvcc: damaged record of a key: " + err.Error())
	}
	return kv.Key
}

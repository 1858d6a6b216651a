package mvcc

import (
	"bytes"
	"cmp"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

// Load rebuilds the store from r, and tells l of every live key with a granted lease. r is read until the
// first Publish.
//
// All records are read once, in revision order, and only their keys decoded. Then each processor takes one
// interval of the keys, sorts its records, and builds its pages from left to right, with the newest values
// in slabs of its own: a read of a range later finds neighbours next to each other.
//
// Rule: contract/disk-and-peer.md 9.3 (revisions at boot) and 14.2 (records without a value).
func Load(r backend.Reader, w backend.Writer, cfg Config, l Leases) (*Store, error) {
	s := newStore(r, w, cfg, l)
	finished, err := metaRevision(r, metaFinished)
	if err != nil {
		return nil, err
	}
	scheduled, err := metaRevision(r, metaScheduled)
	if err != nil {
		return nil, err
	}
	s.compactRev = max(finished, scheduled)
	c := &s.compactions
	c.started, c.swept = finished, finished
	if scheduled > finished {
		// Some of its deletions may be done already, so its hash would be that of a half.
		c.due = append(c.due, compactionJob{prev: finished, rev: scheduled})
	}
	recs, err := loadRecords(r)
	if err != nil {
		return nil, err
	}
	if len(recs) > 0 {
		s.rev = max(s.rev, recs[len(recs)-1].main)
	}
	s.rev = max(s.rev, s.compactRev)
	if err := s.build(recs, goruntime.GOMAXPROCS(0)); err != nil {
		return nil, err
	}
	return s, nil
}

// metaRevision reads a compaction revision, -1 when there is none.
func metaRevision(r backend.Reader, key string) (int64, error) {
	b := r.Get(backend.Meta, []byte(key))
	if len(b) == 0 {
		return -1, nil
	}
	rev, err := readRevision(b)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", key, err)
	}
	return rev.main, nil
}

// loadRecord is a record as Load sorts it. Its value, and with it its key, aliases the backend's memory.
type loadRecord struct {
	revision
	keyAt, keyBytes uint32
	value           []byte
}

func (r *loadRecord) key() []byte { return r.value[r.keyAt : r.keyAt+r.keyBytes] }

func loadRecords(r backend.Reader) (recs []loadRecord, err error) {
	r.Scan(backend.Key, nil, nil, func(key, value []byte) bool {
		rec := loadRecord{value: value}
		if rec.revision, err = readRevision(key); err != nil {
			return false
		}
		if rec.keyAt, rec.keyBytes, err = keyPlace(value); err != nil {
			err = fmt.Errorf("read record %d.%d: %w", rec.main, rec.number(), err)
			return false
		}
		recs = append(recs, rec)
		return true
	})
	return recs, err
}

// keyPlace finds the key in an encoded mvccpb.KeyValue. A record without a value has the empty key, which
// no request can name: a restore with a bumped revision leaves one, and it stays for ever.
func keyPlace(value []byte) (at, n uint32, err error) {
	for i := 0; i < len(value); {
		num, typ, tag := protowire.ConsumeTag(value[i:])
		if tag < 0 {
			return 0, 0, wire.ErrMalformed
		}
		i += tag
		if num == 1 && typ == protowire.BytesType {
			key, size := protowire.ConsumeBytes(value[i:])
			if size < 0 {
				return 0, 0, wire.ErrMalformed
			}
			return uint32(i + size - len(key)), uint32(len(key)), nil
		}
		size := protowire.ConsumeFieldValue(num, typ, value[i:])
		if size < 0 {
			return 0, 0, wire.ErrMalformed
		}
		i += size
	}
	return 0, 0, nil
}

// build makes index and slabs from the records, in parallel parts.
func (s *Store) build(recs []loadRecord, parts int) error {
	splits := splitters(recs, parts)
	parts = len(splits) + 1
	done := make([]*builder, parts)
	var slabID atomic.Uint32
	var wg sync.WaitGroup
	for n := range parts {
		b := &builder{parts: parts, slabID: &slabID, memory: s.slabs.memory, budget: s.slabs.bytesMax / int64(parts)}
		if n > 0 {
			b.from = splits[n-1]
		}
		if n < len(splits) {
			b.to = splits[n]
		}
		done[n] = b
		wg.Go(func() { b.err = b.build(recs) })
	}
	wg.Wait()
	for _, b := range done {
		if b.err != nil {
			return b.err
		}
		for _, p := range b.pages {
			s.tree.ReplaceOrInsert(item{low: p.low, page: p, sum: p.sum})
			s.live += p.sum.live
		}
	}
	s.changed = true
	s.slabs.adopt(done, int(slabID.Load()))
	s.table = s.slabs.table
	s.attachAll()
	return nil
}

// attachAll gives the leases their keys. A lease that is not granted any more is no error.
func (s *Store) attachAll() {
	s.tree.Ascend(func(it item) bool {
		for i := range it.page.ents {
			if e := &it.page.ents[i]; e.lease != 0 && s.leases.Exists(e.lease) {
				s.leases.Attach(e.lease, string(it.page.key(i)))
			}
		}
		return true
	})
}

// splitters returns keys that cut the records into up to parts intervals of similar size.
func splitters(recs []loadRecord, parts int) (splits [][]byte) {
	const perPart, partMin = 128, 4096
	parts = min(parts, len(recs)/partMin)
	if parts < 2 {
		return nil
	}
	sample := make([][]byte, 0, parts*perPart)
	for i := range parts * perPart {
		sample = append(sample, recs[i*len(recs)/(parts*perPart)].key())
	}
	slices.SortFunc(sample, bytes.Compare)
	for n := 1; n < parts; n++ {
		split := sample[n*perPart]
		if len(split) > 0 && (len(splits) == 0 || bytes.Compare(splits[len(splits)-1], split) < 0) {
			splits = append(splits, split)
		}
	}
	return splits
}

// builder builds the pages of the keys in [from, to). The first part has no from, the last no to.
type builder struct {
	from, to []byte
	parts    int            // how many builders there are
	slabID   *atomic.Uint32 // the last place of the table that is taken
	memory   *blocks
	budget   int64

	pages []*page
	slabs []builtSlab
	room  bool // the last slab is one that is being filled
	err   error
}

type builtSlab struct {
	id   uint32
	mem  *block
	stat slabStat
}

func (b *builder) build(recs []loadRecord) error {
	own := make([]loadRecord, 0, len(recs)/b.parts+len(recs)/(8*b.parts))
	for _, r := range recs {
		key := r.key()
		if (b.from == nil || bytes.Compare(key, b.from) >= 0) && (b.to == nil || bytes.Compare(key, b.to) < 0) {
			own = append(own, r)
		}
	}
	slices.SortFunc(own, func(x, y loadRecord) int {
		return cmp.Or(bytes.Compare(x.key(), y.key()), x.compare(y.revision))
	})
	if b.from == nil {
		b.pages = append(b.pages, new(page)) // the one with the empty low
	}
	for i := 0; i < len(own); {
		j := i + 1
		for j < len(own) && bytes.Equal(own[i].key(), own[j].key()) {
			j++
		}
		if err := b.add(own[i:j]); err != nil {
			return err
		}
		i = j
	}
	return nil
}

// add appends one key with all its records, oldest first.
func (b *builder) add(recs []loadRecord) error {
	last := &recs[len(recs)-1]
	key := last.key()
	e, err := b.entry(last)
	if err != nil {
		return err
	}
	if n := len(b.pages); n == 0 || len(b.pages[n-1].ents) == pageKeysFill {
		b.pages = append(b.pages, &page{low: bytes.Clone(key), ents: make([]entry, 0, pageKeysFill)})
	}
	p := b.pages[len(b.pages)-1]
	p.insert(len(p.ents), key, e)
	if len(recs) == 1 {
		return nil
	}
	past := make([]record, len(recs)-1)
	for i := range past {
		past[i] = recs[i].record()
	}
	p.pasts = append(p.pasts, past)
	p.ents[len(p.ents)-1].past = uint32(len(p.pasts))
	return nil
}

func (r *loadRecord) record() record {
	if r.deleted() {
		return record{main: r.main, sub: r.sub}
	}
	return record{r.main, r.sub, uint32(len(r.value))}
}

func (b *builder) entry(r *loadRecord) (e entry, err error) {
	e.revision = r.revision
	if r.deleted() {
		return e, nil
	}
	var kv wire.KeyValue
	if err := kv.Decode(r.value); err != nil {
		return e, fmt.Errorf("read record %d.%d: %w", r.main, r.number(), err)
	}
	e.create, e.version, e.lease, e.size = kv.CreateRevision, kv.Version, kv.Lease, uint32(len(r.value))
	e.slab, e.valueAt = b.keep(r.value)
	return e, nil
}

// keep copies a newest record into the part's slabs, within its share of the budget.
func (b *builder) keep(value []byte) (slab, at uint32) {
	n := len(value) + slabHeadBytes
	last := len(b.slabs) - 1
	if !b.room || int(b.slabs[last].stat.used)+n > slabBytes {
		size := slabBytes
		if b.room = n < slabBytes/slabSingle; !b.room {
			size = n
		}
		if b.budget -= int64(size); b.budget < 0 {
			b.budget = 0
			b.room = false
			return noSlab, 0
		}
		b.slabs = append(b.slabs, builtSlab{id: b.slabID.Add(1), mem: b.memory.new(size)})
		last++
	}
	bs := &b.slabs[last]
	return bs.id, fillSlab(bs.mem.mem, &bs.stat, value)
}

// adopt takes over what the builders filled.
func (sl *slabs) adopt(builders []*builder, n int) {
	sl.table = make([]*block, n+1, n+1+tableGrowExtra)
	sl.stats = make([]slabStat, n+1)
	for _, b := range builders {
		for _, bs := range b.slabs {
			sl.table[bs.id], sl.stats[bs.id] = bs.mem, bs.stat
			sl.bytes += int64(len(bs.mem.mem))
		}
	}
}

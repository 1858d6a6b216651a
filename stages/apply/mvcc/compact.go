package mvcc

import (
	"hash/crc32"
	"slices"
	"sort"

	"github.com/google/btree"

	"sluice/stages/apply/backend"
)

// Keys of bucket meta that this package owns.
const (
	metaScheduled = "scheduledCompactRev"
	metaFinished  = "finishedCompactRev"
)

// compactions is what is still to be done for the compactions that are in force.
//
// A compaction has two halves. In the backend, a worker reads every record up to the revision and apply
// deletes those that no read can reach any more. In the index, SweepIndex forgets them page by page. The
// worker's keep set comes from the index as it was when the compaction was handed out, so the sweep never
// runs ahead of that: swept <= started.
type compactions struct {
	due       []compactionJob
	running   *Compaction
	published int64  // main revision of the last view, -1 before any
	started   int64  // revision of the last compaction handed out
	swept     int64  // the index holds nothing that this revision made unreachable
	sweeping  bool   // a sweep up to started is under way
	sweepAt   []byte // where it goes on
}

type compactionJob struct {
	prev, rev int64
	hashed    bool // its hash is worth keeping
}

// Compact forgets the history up to and including rev, keeping for each key the record that a read at rev
// would return. From now on reads below rev are refused; the deletion follows in steps.
//
// rev is a main revision. ErrCompacted: rev is not above the last compaction. ErrFutureRev: rev is above
// the current revision. Neither changes anything.
//
// Rule: contract/client-api.md 6.6; disk-and-peer.md 9.3.
func (s *Store) Compact(rev int64) error {
	if rev <= s.compactRev {
		return ErrCompacted
	}
	if rev > s.rev {
		return ErrFutureRev
	}
	s.compactions.due = append(s.compactions.due, compactionJob{prev: s.compactRev, rev: rev, hashed: true})
	s.compactRev = rev
	s.w.Put(backend.Meta, []byte(metaScheduled), revision{main: rev}.append(nil))
	return nil
}

// NextCompaction returns the oldest compaction that is due, for a worker to carry out; nil when there is
// none, when one is running, or before the Publish that follows the Compact: what the compaction works on is
// the index of the last view.
func (s *Store) NextCompaction() *Compaction {
	c := &s.compactions
	if c.running != nil || len(c.due) == 0 || c.published < c.due[0].rev {
		return nil
	}
	job := c.due[0]
	c.due = slices.Delete(c.due, 0, 1)
	c.running = &Compaction{compactionJob: job, tree: s.published}
	c.started = job.rev
	return c.running
}

// CompactionDeletes removes records that Next has named.
func (s *Store) CompactionDeletes(deletes [][]byte) {
	for _, key := range deletes {
		s.w.Delete(backend.Key, key)
	}
	if len(deletes) > 0 {
		s.metrics.CompactionKeys.Add(float64(len(deletes)))
	}
}

// FinishCompaction records that c is done: to be called with its last deletes.
func (s *Store) FinishCompaction(c *Compaction) {
	if c != s.compactions.running || !c.done {
		panicNumbers("finish of a compaction that is not running or not done", c.rev, s.compactions.started)
	}
	s.compactions.running = nil
	s.w.Put(backend.Meta, []byte(metaFinished), revision{main: c.rev}.append(nil))
	if c.hashed {
		s.keepHash(compactionHash{hash: c.hash, prev: c.prev, rev: c.rev})
	}
}

// Compaction is one physical compaction, carried out by a worker: it calls Next with a fresh view until
// done, and sends the deletes of every call to apply, which gives them to CompactionDeletes and, after the
// last, calls FinishCompaction. The worker holds a view only during a call, so none pins the database.
type Compaction struct {
	compactionJob
	tree *btree.BTreeG[item] // until the keep set is built
	keep []revision          // the records that stay, in order
	met  int                 // records of keep that the walk has passed
	from []byte              // the record to go on with
	hash uint32
	done bool
}

// Revision returns the revision up to which c compacts.
func (c *Compaction) Revision() int64 { return c.rev }

// Hash returns the hash of what was compacted, once done. It is not what HashKV answers if the compaction
// was resumed after a restart.
func (c *Compaction) Hash() uint32 { return c.hash }

// Next looks at up to recordsMax more records, in order, and returns the keys of those to delete. v is any
// view from the one published with the compaction on; it shows the deletes of earlier calls or not.
//
// The hash of the compaction (disk-and-peer.md 10.2) is taken on the way: over the records before they are
// deleted, those left out that the previous compaction had already made unreachable.
func (c *Compaction) Next(v *View, recordsMax int) (deletes [][]byte, done bool) {
	if v.compactRev < c.rev {
		panicNumbers("compaction on a view from before it", c.rev, v.compactRev)
	}
	if c.done {
		return nil, true
	}
	if c.tree != nil {
		c.keep = keepSet(c.tree, c.rev)
		c.tree = nil
		c.hash = crc32.Update(0, castagnoli, []byte(backend.Key.String()))
		c.from = revision{}.append(nil)
	}
	end := revision{main: c.rev + 1}.append(nil)
	n, ended := 0, true
	v.reader.Scan(backend.Key, c.from, end, func(key, value []byte) bool {
		if n == recordsMax {
			c.from = append(c.from[:0], key...)
			ended = false
			return false
		}
		n++
		rev := parseRevision(key)
		kept := c.keeps(rev)
		if !kept {
			deletes = append(deletes, slices.Clone(key))
		}
		if hashed(rev, c.prev, kept || len(c.keep) == 0) {
			c.hash = crc32.Update(c.hash, castagnoli, key)
			c.hash = crc32.Update(c.hash, castagnoli, value)
		}
		return true
	})
	if ended {
		c.done, c.keep = true, nil
	}
	return deletes, c.done
}

// keeps says whether rev is in the keep set. Revisions are asked for in order.
func (c *Compaction) keeps(rev revision) bool {
	for c.met < len(c.keep) && c.keep[c.met].compare(rev) < 0 {
		c.met++
	}
	return c.met < len(c.keep) && c.keep[c.met].compare(rev) == 0
}

// keepSet returns what a compaction at rev leaves of the records up to rev: for each key the newest one if
// it is no tombstone, and the tombstones of rev itself, which a watch from rev must still deliver.
func keepSet(tree *btree.BTreeG[item], rev int64) (keep []revision) {
	tree.Ascend(func(it item) bool {
		p := it.page
		for i := range p.ents {
			if r, _, ok := p.at(i, rev); ok {
				keep = append(keep, r.revision())
			}
			keep = p.tombstonesOf(i, rev, keep)
		}
		return true
	})
	slices.SortFunc(keep, revision.compare)
	return keep
}

// tombstonesOf appends the tombstones of entry i with main revision rev.
func (p *page) tombstonesOf(i int, rev int64, to []revision) []revision {
	e := &p.ents[i]
	if e.main == rev && e.deleted() {
		to = append(to, e.revision)
	}
	if e.past == 0 {
		return to
	}
	past := p.pasts[e.past-1]
	for n := len(past) - 1; n >= 0 && past[n].main >= rev; n-- {
		if past[n].main == rev && past[n].deleted() {
			to = append(to, past[n].revision())
		}
	}
	return to
}

// SweepIndex forgets, in up to budget keys, what the last compaction handed out has made unreachable, and
// says whether nothing is left to do. Called by apply between batches.
func (s *Store) SweepIndex(budget int) (done bool) {
	c := &s.compactions
	if !c.sweeping {
		if c.swept >= c.started {
			return true
		}
		c.sweeping, c.swept, c.sweepAt = true, c.started, nil
	}
	var pages []*page
	more := false
	s.tree.AscendGreaterOrEqual(item{low: c.sweepAt}, func(it item) bool {
		if budget <= 0 {
			c.sweepAt, more = it.low, true
			return false
		}
		// A page without old records costs a glance; its place in the budget is small but not nothing.
		budget -= 1 + len(it.page.pasts) + it.page.tombs
		pages = append(pages, it.page)
		return true
	})
	var before *page // the neighbour below, if it may be joined
	for _, p := range pages {
		before = s.sweep(before, p, c.swept)
	}
	c.sweeping = more
	return !more && c.swept >= c.started
}

// sweep cleans page p and returns the page that a following one could be joined to.
func (s *Store) sweep(before, p *page, rev int64) *page {
	if p.sweepable(rev) {
		clean := &page{
			low: p.low, epoch: s.epoch, keys: make([]byte, 0, len(p.keys)), ents: make([]entry, 0, len(p.ents)),
		}
		clean.sum.highest = p.sum.highest
		for i := range p.ents {
			clean.takeSwept(p, i, rev)
		}
		if p.epoch == s.epoch {
			p.merged = true
		}
		s.place(clean)
		p = clean
	}
	joined := before != nil && len(before.ents)+len(p.ents) <= pageKeysFill &&
		min(len(before.ents), len(p.ents)) < pageKeysMin
	if joined || before != nil && len(p.ents) == 0 {
		both := before.part(before.low, 0, len(before.ents), s.epoch)
		both.take(p, 0, len(p.ents))
		if before.epoch == s.epoch {
			before.merged = true
		}
		s.drop(p)
		s.place(both)
		return both
	}
	return p
}

// sweepable says whether a compaction at rev leaves less of p than there is.
func (p *page) sweepable(rev int64) bool {
	if len(p.pasts) == 0 && p.tombs == 0 {
		return false
	}
	for i := range p.ents {
		e := &p.ents[i]
		if e.deleted() && e.main < rev || e.past != 0 && p.unreachable(i, rev) > 0 {
			return true
		}
	}
	return false
}

// unreachable returns how many of entry i's older records, from the oldest on, a compaction at rev forgets:
// those below the newest one at rev or, if that one is a tombstone of an earlier revision, it too.
func (p *page) unreachable(i int, rev int64) int {
	e := &p.ents[i]
	past := p.pasts[e.past-1]
	n := sort.Search(len(past), func(n int) bool { return past[n].main > rev })
	if e.main <= rev {
		return n // all are older than the newest one, which stays or takes the key with it
	}
	if n > 0 && !(past[n-1].deleted() && past[n-1].main < rev) {
		n--
	}
	return n
}

// takeSwept appends entry i of o with what a compaction at rev leaves of it.
func (p *page) takeSwept(o *page, i int, rev int64) {
	e := &o.ents[i]
	if e.deleted() && e.main < rev {
		return
	}
	p.take(o, i, i+1)
	if e.past == 0 {
		return
	}
	if n := o.unreachable(i, rev); n > 0 {
		c := &p.ents[len(p.ents)-1]
		rest := o.pasts[e.past-1][n:]
		if len(rest) == 0 {
			p.pasts = p.pasts[:len(p.pasts)-1]
			c.past = 0
			return
		}
		// A block of its own: the old one, mostly forgotten records, must not be kept by a slice of it.
		p.pasts[c.past-1] = slices.Clone(rest)
	}
}

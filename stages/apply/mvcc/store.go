package mvcc

import (
	"fmt"

	"github.com/google/btree"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
	"sluice/tracing"
)

// Store is the writing side: apply's goroutine alone calls it, in log order.
type Store struct {
	state

	// Fixed at Load.
	w       backend.Writer
	leases  Leases
	metrics *Metrics

	// The index since the last Publish.
	epoch     uint64              // pages of this epoch may change
	dirty     []*page             // pages whose summary in the tree is old
	changed   bool                // the tree is not the published one any more
	published *btree.BTreeG[item] // the tree of the last view

	slabs   slabs
	arena   arena
	events  []wire.Event
	changes uint32 // of the running transaction

	compactions compactions

	// Scratch of Txn.
	path    []bool
	scratch []byte

	// Meters, given out at Publish.
	counts   counts
	putBytes int64
}

// counts are operations since the last Publish.
type counts struct{ puts, deletes, ranges, txns int64 }

// sum is the number of operations that tell a transaction of one from a larger one.
func (c counts) sum() int64 { return c.puts + c.deletes + c.ranges }

// newStore returns a store without keys.
func newStore(r backend.Reader, w backend.Writer, cfg Config, l Leases) *Store {
	budget := cfg.ValueCacheBytes
	if budget == 0 {
		budget = DefaultValueCacheBytes
	}
	m := cfg.Metrics
	for _, c := range []*tracing.Counter{&m.Puts, &m.Deletes, &m.Txns, &m.Ranges, &m.CompactionKeys} {
		if *c == nil {
			*c = tracing.Nop
		}
	}
	for _, g := range []*tracing.Gauge{&m.Keys, &m.PutBytes, &m.CachedBytes} {
		if *g == nil {
			*g = tracing.Nop
		}
	}
	return &Store{
		state: state{
			tree: newTree(), reader: r, rev: 1, compactRev: -1, unpublished: true,
			readMax: readBytesMax, changeMax: changeBytesMax,
		},
		w:       w,
		leases:  l,
		metrics: &m,
		epoch:   1,
		slabs:   newSlabs(budget),

		compactions: compactions{published: -1, started: -1, swept: -1},
	}
}

// Revision returns the main revision of the last change, 1 before any.
func (s *Store) Revision() int64 { return s.rev }

// CompactRevision returns the last compaction revision, -1 before any.
func (s *Store) CompactRevision() int64 { return s.compactRev }

// TakeEvents returns the events since the last call, in order. They belong to the caller: their bytes are
// shared with the backend's buffer and never change.
func (s *Store) TakeEvents() []wire.Event {
	ev := s.events
	s.events = nil
	if len(ev) > 0 {
		s.events = make([]wire.Event, 0, min(len(ev), eventsExpectedMax)) // batches resemble their predecessors
	}
	return ev
}

// Publish returns the immutable view of now. r shows everything written so far. The store reads from it,
// too, so r must stay valid until the next Publish, not only as long as the view is held.
func (s *Store) Publish(r backend.Reader) *View {
	if s.changes != 0 {
		panicNumbers("publish within a transaction: revision, changes", s.rev, int64(s.changes))
	}
	s.rewriteSparse(sparseStepMax)
	s.table = s.slabs.publish()
	s.refresh()
	if s.changed || s.published == nil {
		s.published = s.tree.Clone()
		s.changed = false
	}
	s.compactions.published = s.rev
	s.epoch++
	s.reader = r
	clear(s.recent)
	s.recent = s.recent[:0]
	s.meter()
	v := &View{state: s.state, metrics: s.metrics}
	v.tree, v.recent, v.unpublished = s.published, nil, false
	return v
}

func (s *Store) meter() {
	m, c := s.metrics, &s.counts
	for _, add := range []struct {
		to tracing.Counter
		n  *int64
	}{{m.Puts, &c.puts}, {m.Deletes, &c.deletes}, {m.Ranges, &c.ranges}, {m.Txns, &c.txns}} {
		if *add.n != 0 {
			add.to.Add(float64(*add.n))
			*add.n = 0
		}
	}
	m.Keys.Set(float64(s.live))
	m.PutBytes.Set(float64(s.putBytes))
	m.CachedBytes.Set(float64(s.slabs.bytes))
}

// eventsExpectedMax bounds the room made for the next batch's events.
const eventsExpectedMax = 256

// String names the store's revisions, for panics and tests.
func (s *Store) String() string {
	return fmt.Sprintf("revision %d, compacted %d, %d keys", s.rev, s.compactRev, s.live)
}

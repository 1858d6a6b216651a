package mvcc

import (
	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

type Store struct{}
type View struct{}

// Load rebuilds the store from r. r is read until the first Publish.
func Load(r backend.Reader, w backend.Writer, cfg Config, l Leases) (*Store, error) { panic("x") }

func (s *Store) Put(r *wire.PutRequest) (Result, error)                 { panic("x") }
func (s *Store) DeleteRange(r *wire.DeleteRangeRequest) (Result, error) { panic("x") }
func (s *Store) Txn(r *wire.TxnRequest) (Result, error)                 { panic("x") }
func (s *Store) DeleteKeys(keys []string) Result                        { panic("x") }
func (s *Store) Compact(rev int64) error                                { panic("x") }
func (s *Store) Revision() int64                                        { panic("x") }
func (s *Store) CompactRevision() int64                                 { panic("x") }

// Publish returns the immutable view of now. r shows everything written so far; the store itself reads
// from it too, so it must stay valid until the next Publish.
func (s *Store) Publish(r backend.Reader) *View { panic("x") }
func (s *Store) TakeEvents() []wire.Event       { panic("x") }

// NextCompaction returns the oldest compaction that is due, for a worker; nil when there is none or when
// one is running. Apply's goroutine, after a Publish that followed the Compact.
func (s *Store) NextCompaction() *Compaction        { panic("x") }
func (s *Store) CompactionDeletes(deletes [][]byte) { panic("x") }
func (s *Store) FinishCompaction(c *Compaction)     { panic("x") }
func (s *Store) SweepIndex(budget int) (done bool)  { panic("x") }

// Compaction is one physical compaction: the worker calls Next with a fresh view (at or after the one
// published when the compaction was recorded) until done, and sends every batch of deletes to apply, which
// calls CompactionDeletes, and FinishCompaction with the last.
type Compaction struct{}

func (c *Compaction) Revision() int64 { panic("x") }
func (c *Compaction) Next(v *View, recordsMax int) (deletes [][]byte, done bool, err error) {
	panic("x")
}

func (v *View) Revision() int64                            { panic("x") }
func (v *View) CompactRevision() int64                     { panic("x") }
func (v *View) RangeBound(r *wire.RangeRequest) int64      { panic("x") }
func (v *View) TxnBound(r *wire.TxnRequest) int64          { panic("x") }
func (v *View) Range(r *wire.RangeRequest, out Sink) error { panic("x") }
func (v *View) RangeChunk(r *wire.RangeRequest, rev int64, c *Cursor, keysMax int, bytesMax int64, out Sink) (last bool, err error) {
	panic("x")
}
func (v *View) Txn(r *wire.TxnRequest) (body []byte, err error)                      { panic("x") }
func (v *View) HashKV(rev int64) (hash uint32, compactRev, hashRev int64, err error) { panic("x") }
func (v *View) Get(key []byte, rev int64) (kv []byte, ok bool)                       { panic("x") }
func (v *View) History(from, to int64, fn func(ev *wire.Event) bool) error           { panic("x") }
func (v *View) Keys() int64                                                          { panic("x") }

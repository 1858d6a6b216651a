package lease

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/btree"
	"google.golang.org/protobuf/encoding/protowire"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

// Why a request is refused.
var (
	ErrNotFound    = errors.New("lease not found")
	ErrExists      = errors.New("lease already exists")
	ErrTTLTooLarge = errors.New("too large lease TTL")
)

// TTLMax is the largest TTL in seconds that may be granted, inclusive.
const TTLMax = 9_000_000_000

const degree = 16 // of the trees: 31 keys a page keep the copy of a path near a kilobyte

// record is one lease. Once published it is immutable: the next change is made to a copy.
type record struct {
	id, ttl, remaining int64
	keys               *btree.BTreeG[string] // nil while no key was ever attached
	epoch              uint64                // of the Set when the record was made
}

func recordLess(a, b *record) bool { return a.id < b.id }
func keyLess(a, b string) bool     { return a < b }

// Set is the live state. Apply's goroutine alone uses it; what others see is its Table.
type Set struct {
	leases *btree.BTreeG[*record]
	free   *btree.FreeListG[string] // shared by all key trees: one of its own for each lease would outweigh it
	w      backend.Writer
	ttlMin int64
	epoch  uint64 // counts publications; a record of an older epoch may be in a reader's hands
	table  *Table // of the last publication, while nothing has changed since
	orphan int
}

// Load reads bucket lease from r. Changes go to w. ttlMin is the smallest TTL in seconds that is ever granted.
// The keys come afterwards, through Attach, from the store that reads them.
func Load(r backend.Reader, w backend.Writer, ttlMin int64) (*Set, error) {
	s := &Set{
		leases: btree.NewG(degree, recordLess), free: btree.NewFreeListG[string](32), w: w, ttlMin: ttlMin,
	}
	var err error
	r.Scan(backend.Lease, nil, nil, func(k, v []byte) bool {
		var rec *record
		if rec, err = decode(v); err == nil && (len(k) != 8 || rec.id != int64(binary.BigEndian.Uint64(k))) {
			err = fmt.Errorf("value is that of lease %x", uint64(rec.id))
		}
		if err != nil {
			err = fmt.Errorf("read bucket lease, key %x: %w", k, err)
			return false
		}
		rec.ttl = max(rec.ttl, ttlMin)
		s.leases.ReplaceOrInsert(rec)
		return true
	})
	return s, err
}

// Exists says whether the lease id is granted and not revoked.
func (s *Set) Exists(id int64) bool {
	_, ok := s.leases.Get(&record{id: id})
	return ok
}

// Grant makes a lease and returns its effective TTL in seconds, which is never below the smallest one.
//
// ErrTTLTooLarge, ErrNotFound for the id 0, ErrExists: in this order, each changes nothing.
func (s *Set) Grant(id, ttl int64) (effective int64, err error) {
	if ttl > TTLMax {
		return 0, ErrTTLTooLarge
	}
	if id == 0 {
		return 0, ErrNotFound
	}
	if s.Exists(id) {
		return 0, ErrExists
	}
	rec := &record{id: id, ttl: max(ttl, s.ttlMin), epoch: s.epoch}
	s.leases.ReplaceOrInsert(rec)
	s.changed()
	s.w.Put(backend.Lease, bucketKey(id), rec.encode())
	return rec.ttl, nil
}

// Revoke takes the lease away and returns the keys that hung on it in byte order; the caller deletes them in
// the same transaction. ErrNotFound changes nothing.
func (s *Set) Revoke(id int64) (keys []string, err error) {
	rec, ok := s.leases.Delete(&record{id: id})
	if !ok {
		return nil, ErrNotFound
	}
	s.changed()
	if rec.keys != nil {
		keys = make([]string, 0, rec.keys.Len())
		rec.keys.Ascend(func(k string) bool { keys = append(keys, k); return true })
	}
	s.w.Delete(backend.Lease, bucketKey(id))
	return keys, nil
}

// Checkpoint notes that the lease has remaining seconds to live, 0 that it has its full TTL again. persist says
// whether the cluster is new enough to store it.
func (s *Set) Checkpoint(id, remaining int64, persist bool) error {
	rec := s.own(id)
	if rec == nil {
		return ErrNotFound
	}
	rec.remaining = remaining
	if persist {
		s.w.Put(backend.Lease, bucketKey(id), rec.encode())
	}
	return nil
}

// Attach hangs key on the lease id. A lease that does not exist is counted, see Orphans: the store refuses such
// puts, but records of older origin may name one.
func (s *Set) Attach(id int64, key string) {
	rec := s.own(id)
	if rec == nil {
		s.orphan++
		return
	}
	if rec.keys == nil {
		rec.keys = btree.NewWithFreeListG(degree, keyLess, s.free)
	}
	rec.keys.ReplaceOrInsert(key)
}

// Detach takes key off the lease id. Neither needs to exist: a lease that is being revoked is gone before its
// keys are.
func (s *Set) Detach(id int64, key string) {
	rec, ok := s.leases.Get(&record{id: id})
	if !ok || rec.keys == nil || !rec.keys.Has(key) {
		return
	}
	s.own(id).keys.Delete(key)
}

// Keys calls fn for every key of the lease id in byte order until fn returns false.
func (s *Set) Keys(id int64, fn func(key string) bool) { ascendKeys(s.leases, id, fn) }

// Orphans is the number of Attach calls that named no existing lease.
func (s *Set) Orphans() int { return s.orphan }

// Publish returns the immutable state of now.
func (s *Set) Publish() *Table {
	if s.table == nil {
		s.table = &Table{leases: s.leases.Clone()}
		s.epoch++
	}
	return s.table
}

func (s *Set) changed() { s.table = nil }

// own returns the record of id as one that no reader can hold, so that it may be changed; nil if there is none.
func (s *Set) own(id int64) *record {
	rec, ok := s.leases.Get(&record{id: id})
	if !ok {
		return nil
	}
	s.changed()
	if rec.epoch == s.epoch {
		return rec
	}
	c := *rec
	c.epoch = s.epoch
	if rec.keys != nil {
		c.keys = rec.keys.Clone()
	}
	s.leases.ReplaceOrInsert(&c)
	return &c
}

// bucketKey is the id as eight bytes, big endian; a negative id is its two's complement.
func bucketKey(id int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(id)) }

// encode is leasepb.Lease {1 ID, 2 TTL, 3 RemainingTTL}.
func (r *record) encode() []byte {
	b := wire.AppendIntField(nil, 1, r.id)
	b = wire.AppendIntField(b, 2, r.ttl)
	return wire.AppendIntField(b, 3, r.remaining)
}

func decode(b []byte) (*record, error) {
	r := &record{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		b = b[n:]
		if typ != protowire.VarintType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return nil, protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		b = b[n:]
		switch num {
		case 1:
			r.id = int64(v)
		case 2:
			r.ttl = int64(v)
		case 3:
			r.remaining = int64(v)
		}
	}
	return r, nil
}

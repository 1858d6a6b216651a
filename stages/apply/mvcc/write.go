package mvcc

import (
	"bytes"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

// Fields of etcdserverpb.PutResponse and DeleteRangeResponse.
const (
	fieldPutPrev       = 2
	fieldDeleteDeleted = 2
	fieldDeletePrevs   = 3
)

// Put applies a put. ErrLeaseNotFound comes before ErrKeyNotFound (ignore_value or ignore_lease without a
// key); neither changes anything.
//
// Rule: contract/client-api.md 6.4.
func (s *Store) Put(r *wire.PutRequest) (Result, error) {
	if err := s.checkPut(r); err != nil {
		return Result{Revision: s.rev}, err
	}
	prev := s.put(r)
	var body []byte
	if r.PrevKV && prev != nil {
		body = wire.AppendBytesField(s.arena.take(wire.SizeBytesField(fieldPutPrev, len(prev))), fieldPutPrev, prev)
	}
	return s.end(body), nil
}

// DeleteRange applies a delete; without a key to delete it changes nothing. ErrAnswerTooLarge comes with the
// result of a delete that was made.
func (s *Store) DeleteRange(r *wire.DeleteRangeRequest) (Result, error) {
	deleted, prevs := s.deleteRange(spanOf(r.Key, r.RangeEnd), r.PrevKV)
	if deletedSize(deleted, prevs) > s.changeMax {
		return s.end(nil), ErrAnswerTooLarge
	}
	return s.end(appendDeleted(s.arena.take(deletedSize(deleted, prevs)), deleted, prevs)), nil
}

// DeleteKeys deletes those of keys that exist, in one revision: a lease's, when it is revoked. keys is in
// ascending byte order and not the lease table's own slice, which Detach may change meanwhile.
func (s *Store) DeleteKeys(keys []string) Result {
	n := 0
	for _, k := range keys {
		if s.delete([]byte(k), false, nil) {
			n++
		}
	}
	return s.end(nil)
}

// checkPut finds out whether a put may be executed.
func (s *Store) checkPut(r *wire.PutRequest) error {
	if r.Lease != 0 && !s.leases.Exists(r.Lease) {
		return ErrLeaseNotFound
	}
	if !r.IgnoreValue && !r.IgnoreLease {
		return nil
	}
	p := leaf(s.tree, r.Key).page
	if i, ok := p.find(r.Key); !ok || p.ents[i].deleted() {
		return ErrKeyNotFound
	}
	return nil
}

// next gives the revision of the next change of the running transaction.
func (s *Store) next() revision {
	r := revision{s.rev + 1, s.changes}
	if s.changes++; s.changes >= tombstone {
		panicNumbers("too many changes in one transaction", r.main, int64(r.sub))
	}
	return r
}

// end closes the running transaction.
func (s *Store) end(body []byte) Result {
	if len(body) == 0 {
		body = nil
	}
	res := Result{Changed: s.changes > 0, Body: body}
	if res.Changed {
		s.rev++
		s.changes = 0
	}
	res.Revision = s.rev
	return res
}

// put executes a put that checkPut has passed and returns the key's record before, nil if it had none.
func (s *Store) put(r *wire.PutRequest) (prev []byte) {
	p := leaf(s.tree, r.Key).page
	i, known := p.find(r.Key)
	rev := s.next()
	kv := wire.KeyValue{
		Key: r.Key, Value: r.Value, Lease: r.Lease, CreateRevision: rev.main, ModRevision: rev.main, Version: 1,
	}
	ev := wire.Event{Type: wire.EventPut, Rev: rev.main}
	var old entry
	if known {
		old = p.ents[i]
	}
	lived := known && !old.deleted()
	if lived {
		prev = s.prev(&ev, &old, r.PrevKV || r.IgnoreValue)
		kv.CreateRevision, kv.Version = old.create, old.version+1
		if r.IgnoreLease {
			kv.Lease = old.lease
		}
		if r.IgnoreValue {
			kv.Value = recordValue(prev)
		}
	}
	if ev.Created = kv.CreateRevision == rev.main; ev.Created {
		ev.Prev, ev.PrevUnknown = nil, false // also when the transaction itself had created the key before
	}
	value := kv.Append(s.arena.take(kv.Size()))
	ev.KV = value
	ev.Key = recordKey(value)
	s.write(rev, value)
	e := entry{
		revision: rev, create: kv.CreateRevision, version: kv.Version, lease: kv.Lease, size: uint32(len(value)),
	}
	e.slab, e.valueAt = s.slabs.put(value, false)
	s.index(p, i, known, ev.Key, e)
	s.attach(r.Key, old.lease, kv.Lease)
	s.events = append(s.events, ev)
	s.counts.puts++
	s.putBytes += int64(len(r.Key) + len(r.Value))
	if !lived {
		s.live++
	}
	return prev
}

// prev returns the record that the change of ev replaces, and puts a copy of it into ev: slabs do not
// outlive the views, events do. A record that is not in memory is read only when the caller needs it.
func (s *Store) prev(ev *wire.Event, old *entry, needed bool) []byte {
	b := s.cached(old)
	if b == nil && needed {
		b = s.stored(old.revision)
	}
	// prev_kv is the state at revision - 1, not what the same transaction wrote just before.
	if b == nil || old.main == ev.Rev {
		ev.PrevUnknown = true
		return b
	}
	ev.Prev = append(s.arena.take(len(b)), b...)
	return b
}

// delete executes the deletion of key and says whether it lived. With wanted its record before is
// appended to *prevs.
func (s *Store) delete(key []byte, wanted bool, prevs *[][]byte) bool {
	p := leaf(s.tree, key).page
	i, ok := p.find(key)
	if !ok || p.ents[i].deleted() {
		return false
	}
	rev := s.next()
	rev.sub |= tombstone
	old := p.ents[i]
	ev := wire.Event{Type: wire.EventDelete, Rev: rev.main}
	if b := s.prev(&ev, &old, wanted); wanted {
		*prevs = append(*prevs, b)
	}
	// The record is the key alone: the front of the event's encoding.
	kv := wire.KeyValue{Key: key, ModRevision: rev.main}
	ev.KV = kv.Append(s.arena.take(kv.Size()))
	ev.Key = recordKey(ev.KV)
	n := wire.SizeBytesField(1, len(key))
	s.write(rev, ev.KV[:n:n])
	s.index(p, i, true, ev.Key, entry{revision: rev})
	s.attach(key, old.lease, 0)
	s.events = append(s.events, ev)
	s.counts.deletes++
	s.live--
	return true
}

// write hands a record to the backend.
func (s *Store) write(rev revision, value []byte) {
	s.w.Put(backend.Key, rev.append(s.arena.take(tombstoneBytes)), value)
	s.recent = append(s.recent, recent{rev, value})
}

// index makes e the newest record of key, whose place in page p is i.
func (s *Store) index(p *page, i int, known bool, key []byte, e entry) {
	if known {
		p = s.own(p)
		old := p.ents[i]
		p.supersede(i, e)
		s.slabs.drop(old.slab, old.size)
	} else {
		s.insertKey(p, i, key, e)
	}
	s.table = s.slabs.table
}

func (s *Store) attach(key []byte, old, lease int64) {
	if old == lease {
		return
	}
	if old != 0 {
		s.leases.Detach(old, string(key))
	}
	if lease != 0 {
		s.leases.Attach(lease, string(key))
	}
}

// deleteRange deletes the keys of sp in order and returns their number and, if wanted, their records.
func (s *Store) deleteRange(sp span, wanted bool) (n int64, prevs [][]byte) {
	if sp.single {
		if s.delete(sp.from, wanted, &prevs) {
			n++
		}
		return n, prevs
	}
	// Deleting changes pages, so the keys are taken down first; their bytes stay where they are.
	var keys [][]byte
	s.visit(sp, newest, func(f found) bool {
		keys = append(keys, f.key())
		return true
	})
	for _, key := range keys {
		if !s.delete(key, wanted, &prevs) {
			panic("mvcc: a key of the range to delete is gone: " + string(bytes.Clone(key)))
		}
	}
	return int64(len(keys)), prevs
}

func deletedSize(n int64, prevs [][]byte) int {
	size := tailBytesMax
	for _, b := range prevs {
		size += wire.SizeBytesField(fieldDeletePrevs, len(b))
	}
	return size
}

// appendDeleted appends a DeleteRangeResponse without its header.
func appendDeleted(b []byte, n int64, prevs [][]byte) []byte {
	b = wire.AppendIntField(b, fieldDeleteDeleted, n)
	for _, prev := range prevs {
		b = wire.AppendBytesField(b, fieldDeletePrevs, prev)
	}
	return b
}

// arena hands out small pieces of larger blocks, which nobody else ever gets: records, keys and bodies
// of a batch live about equally long, and one block costs one allocation.
type arena struct{ block []byte }

const (
	arenaBlockBytes = 32 << 10
	arenaPieceMax   = 4 << 10 // larger pieces are allocated alone, so that none pins a block
)

// take returns an empty slice of capacity n.
func (a *arena) take(n int) []byte {
	if n > arenaPieceMax {
		return make([]byte, 0, n)
	}
	if n > len(a.block) {
		a.block = make([]byte, arenaBlockBytes)
	}
	b := a.block[:0:n]
	a.block = a.block[n:]
	return b
}

package backend

import (
	"bytes"
	"fmt"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
)

// Snapshot is a Reader of the state at the moment of its Acquire: a read transaction of the file, the
// sealed buffers that are not in it, and a prefix of the buffer that apply was filling. It is counted:
// Acquire gives one hold, Retain adds one, Release gives one back; it may be read while held.
//
// While the file is about to outgrow its mapping the writer gives out snapshots without a read transaction.
// What the buffers hold is read as ever; a key that only the file has is waited for until the flush is done.
type Snapshot struct {
	holds  atomic.Int64
	base   *base
	layers []layer // newest first
	room   [sealedMax + 1]layer
}

// Retain adds a hold, and reports false when there was none left: the snapshot is gone.
func (s *Snapshot) Retain() bool {
	for {
		n := s.holds.Load()
		if n <= 0 {
			return false
		}
		if s.holds.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release gives one hold back. What the snapshot returned must not be touched after the last one.
func (s *Snapshot) Release() {
	switch n := s.holds.Add(-1); {
	case n == 0:
		s.base.release()
	case n < 0:
		panic(fmt.Sprintf("backend: snapshot released %d times too often", -n))
	}
}

// Get is Reader's.
func (s *Snapshot) Get(b Bucket, key []byte) []byte {
	for _, l := range s.layers {
		if value, found := l.get(b, key); found {
			return value
		}
	}
	return s.base.wait().buckets[b].Get(key)
}

// Scan is Reader's.
func (s *Snapshot) Scan(b Bucket, from, to []byte, fn func(key, value []byte) bool) {
	var sources []source
	for _, l := range s.layers {
		if l.rest != nil {
			if src := newRestSource(l.rest, b, from); len(src.chunk) > 0 {
				sources = append(sources, src)
			}
		}
		if b == Key && len(l.run) > 0 {
			if src := newRunSource(l.run, from); len(src.run) > 0 {
				sources = append(sources, src)
			}
		}
	}
	file := newFileSource(s.base.wait().buckets[b], from)
	if len(sources) > 0 {
		merge(append(sources, file), to, fn)
		return
	}
	for file.key != nil && (to == nil || bytes.Compare(file.key, to) < 0) {
		if !fn(file.key, file.value) {
			return
		}
		file.next()
	}
}

// base is the file's part of snapshots: a counted read transaction, or the promise of one.
type base struct {
	holds atomic.Int64        // snapshots, pins, and the backend while it is the newest
	txn   atomic.Pointer[txn] // set once, by the writer or at Open
	ready chan struct{}       // closed after txn was set
}

// txn is a read transaction and where its state stands in the log.
type txn struct {
	file        *file
	tx          *bolt.Tx
	buckets     [buckets]*bolt.Bucket
	index, term uint64
	err         error // no transaction could be opened: the member is stopping
}

func newBase() *base {
	b := &base{ready: make(chan struct{})}
	b.holds.Store(1)
	return b
}

func (b *base) fill(t *txn) {
	b.txn.Store(t)
	close(b.ready)
}

// wait returns the transaction, once it is there.
func (b *base) wait() *txn {
	t := b.txn.Load()
	if t == nil {
		<-b.ready
		t = b.txn.Load()
	}
	if t.err != nil {
		// Only after the writer has failed. No answer at all is right here: the file cannot be read.
		panic(fmt.Sprintf("backend: read of a failed database: %v", t.err))
	}
	return t
}

func (b *base) retain() *base {
	b.holds.Add(1)
	return b
}

func (b *base) release() {
	if b.holds.Add(-1) == 0 {
		if t := b.txn.Load(); t != nil {
			t.close()
		}
	}
}

// close ends the transaction. The last one on a file that is no longer the backend's closes the file.
func (t *txn) close() {
	if t.err != nil {
		return
	}
	if err := t.tx.Rollback(); err != nil {
		panic(fmt.Sprintf("backend: end of a read transaction: %v", err))
	}
	t.file.ended()
}

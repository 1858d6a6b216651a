package mvcc

import (
	"bytes"
	"slices"

	"github.com/google/btree"

	"sluice/stages/apply/backend"
)

// memory is a backend in memory: Writer now, and a Reader of any moment by snapshot.
type memory struct {
	buckets map[backend.Bucket]*btree.BTreeG[pair]
}

type pair struct{ key, value []byte }

func newMemory() *memory {
	m := &memory{buckets: map[backend.Bucket]*btree.BTreeG[pair]{}}
	for b := backend.Alarm; b <= backend.Meta; b++ {
		m.buckets[b] = btree.NewG(32, func(a, b pair) bool { return bytes.Compare(a.key, b.key) < 0 })
	}
	return m
}

func (m *memory) Put(b backend.Bucket, key, value []byte) {
	m.buckets[b].ReplaceOrInsert(pair{key, value})
}

func (m *memory) Delete(b backend.Bucket, key []byte) { m.buckets[b].Delete(pair{key: key}) }

func (m *memory) snapshot() *memory {
	c := &memory{buckets: map[backend.Bucket]*btree.BTreeG[pair]{}}
	for b, t := range m.buckets {
		c.buckets[b] = t.Clone()
	}
	return c
}

func (m *memory) Get(b backend.Bucket, key []byte) []byte {
	p, _ := m.buckets[b].Get(pair{key: key})
	return p.value
}

func (m *memory) Scan(b backend.Bucket, from, to []byte, fn func(key, value []byte) bool) {
	m.buckets[b].AscendGreaterOrEqual(pair{key: from}, func(p pair) bool {
		if to != nil && bytes.Compare(p.key, to) >= 0 {
			return false
		}
		return fn(p.key, p.value)
	})
}

// leases is the lease table of a test.
type leases struct{ keys map[int64]map[string]bool }

func newLeases(ids ...int64) *leases {
	l := &leases{keys: map[int64]map[string]bool{}}
	for _, id := range ids {
		l.keys[id] = map[string]bool{}
	}
	return l
}

func (l *leases) Exists(id int64) bool { return l.keys[id] != nil }

func (l *leases) Attach(id int64, key string) {
	if l.keys[id] == nil {
		panic("attach to an unknown lease")
	}
	l.keys[id][key] = true
}

func (l *leases) Detach(id int64, key string) { delete(l.keys[id], key) }

// of returns the keys of lease id in order.
func (l *leases) of(id int64) []string {
	var keys []string
	for k := range l.keys[id] {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

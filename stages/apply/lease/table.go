package lease

import "github.com/google/btree"

// Info is what a Table says of one lease. Seconds throughout.
type Info struct {
	ID        int64
	TTL       int64 // granted
	Remaining int64 // at the last checkpoint, 0 without one
	Keys      int   // attached
}

// Table is one immutable state of all leases. Any goroutine may read it.
type Table struct{ leases *btree.BTreeG[*record] }

// Len is the number of leases.
func (t *Table) Len() int { return t.leases.Len() }

// Get returns what is known of the lease id.
func (t *Table) Get(id int64) (Info, bool) {
	rec, ok := t.leases.Get(&record{id: id})
	if !ok {
		return Info{}, false
	}
	return rec.info(), true
}

// Each calls fn for every lease in ascending order of ids until fn returns false.
func (t *Table) Each(fn func(Info) bool) {
	t.leases.Ascend(func(r *record) bool { return fn(r.info()) })
}

// Keys calls fn for every key of the lease id in byte order until fn returns false.
func (t *Table) Keys(id int64, fn func(key string) bool) { ascendKeys(t.leases, id, fn) }

func ascendKeys(leases *btree.BTreeG[*record], id int64, fn func(key string) bool) {
	if rec, ok := leases.Get(&record{id: id}); ok && rec.keys != nil {
		rec.keys.Ascend(fn)
	}
}

func (r *record) info() Info {
	i := Info{ID: r.id, TTL: r.ttl, Remaining: r.remaining}
	if r.keys != nil {
		i.Keys = r.keys.Len()
	}
	return i
}

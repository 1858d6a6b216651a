package backend

import (
	"context"
	"testing"
)

// testdata/etcd-3.7.3.db is a database snapshot of etcd 3.7.3 with keys, a compaction, a lease, a user and a
// role; etcd answered Hash with etcdHash.
const (
	etcdFile = "testdata/etcd-3.7.3.db"
	etcdHash = 1673996330
)

// A file of etcd opens with everything in it, and gives etcd's hash: before and after a defragmentation,
// and whatever happens to the meta entries that members keep differently.
// Rule: contract/disk-and-peer.md 4.1, 10.3.
func TestFileOfEtcd(t *testing.T) {
	path := dbPath(t)
	copyFile(t, etcdFile, path)
	r := start(t, Config{Path: path})
	index, term := r.ConsistentIndex()
	if index == 0 || term != 2 {
		t.Errorf("consistent index %d term %d", index, term)
	}
	s := r.Acquire()
	for b, want := range map[Bucket]int{
		Auth: 1, AuthRoles: 1, AuthUsers: 1, Cluster: 1, Lease: 1, Members: 1, Meta: 6, Alarm: 0, MembersRemoved: 0,
	} {
		if got := count(s, b); got != want {
			t.Errorf("%s: %d keys, want %d", b, got, want)
		}
	}
	if n := count(s, Key); n < 25 || n > 42 {
		t.Errorf("%d records", n)
	}
	s.Release()
	if got := hashOf(t, r); got != etcdHash {
		t.Errorf("hash %d, want etcd's %d", got, etcdHash)
	}
	end := r.serve(index)
	defragNow(t, r)
	end()
	r.commit(index + 7)
	if got := hashOf(t, r); got != etcdHash {
		t.Errorf("hash %d after defragmentation and index progress, want etcd's %d", got, etcdHash)
	}
	r.Writer().Put(Lease, []byte("12345678"), []byte("x"))
	end = r.serve(index + 8) // the demand for a seal is answered by apply
	changed := hashOf(t, r)
	end()
	if changed == etcdHash {
		t.Error("a write does not change the hash")
	}
	r.shutInOrder()
}

// Sizes are those of the last commit: free pages count in total only.
func TestSizes(t *testing.T) {
	r := start(t, Config{Path: dbPath(t)})
	for i := int64(1); i <= 100; i++ {
		r.Writer().Put(Key, revKey(i, 0), make([]byte, 4000))
	}
	r.commit(1)
	total, inUse := r.Size()
	if total < 100*4000 || inUse < 100*4000 || inUse > total {
		t.Errorf("size %d, in use %d after 400000 bytes", total, inUse)
	}
	for i := int64(1); i <= 100; i++ {
		r.Writer().Delete(Key, revKey(i, 0))
	}
	r.commit(2)
	if after, used := r.Size(); after < total || used > total/4 {
		t.Errorf("size %d, in use %d after all was deleted; were %d and %d", after, used, total, inUse)
	}
	r.shutInOrder()
}

// BenchmarkCommit measures one commit of 10 000 puts of 256 bytes, as a busy apply seals them.
func BenchmarkCommit(b *testing.B) {
	r := start(b, Config{Path: dbPath(b)})
	value := make([]byte, 256)
	var rev int64
	b.ReportAllocs()
	for b.Loop() {
		for range batchLimit {
			rev++
			r.Writer().Put(Key, revKey(rev, 0), value)
		}
		r.commit(uint64(rev))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rev), "ns/put")
}

// BenchmarkPut measures apply's share of it: the buffer alone, with a snapshot for every 64 puts.
func BenchmarkPut(b *testing.B) {
	r := start(b, Config{Path: dbPath(b)})
	value := make([]byte, 256)
	key := revKey(1, 0)
	var n int64
	b.ReportAllocs()
	for b.Loop() {
		n++
		for i := range 8 {
			key[7-i] = byte(n >> (8 * i))
		}
		r.current.add(Key, append([]byte(nil), key...), value)
		if n%64 == 0 {
			r.Acquire().Release()
		}
		if n%batchLimit == 0 {
			r.current = newBuffer(batchLimit)
		}
	}
}

// BenchmarkGet reads from the file through two layers that do not have the key.
func BenchmarkGet(b *testing.B) {
	r := start(b, Config{Path: dbPath(b)})
	for i := int64(1); i <= 100000; i++ {
		r.Writer().Put(Key, revKey(i, 0), make([]byte, 100))
	}
	r.commit(1)
	for i := int64(100001); i <= 105000; i++ {
		r.Writer().Put(Key, revKey(i, 0), make([]byte, 100))
	}
	s := r.Acquire()
	defer s.Release()
	keys := make([][]byte, 1000)
	for i := range keys {
		keys[i] = revKey(int64(i)*97+1, 0)
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		if s.Get(Key, keys[n%len(keys)]) == nil {
			b.Fatal("absent")
		}
	}
}

// Defragmenting an idle database of 30 MB.
func BenchmarkDefragment(b *testing.B) {
	r := start(b, Config{Path: dbPath(b)})
	for i := int64(1); i <= 100000; i++ {
		r.Writer().Put(Key, revKey(i, 0), make([]byte, 256))
	}
	r.commit(1)
	defer r.serve(1)()
	for b.Loop() {
		if err := r.Defragment(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

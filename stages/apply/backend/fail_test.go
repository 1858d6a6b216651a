package backend

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// BC-65: a write that finds no room ends the writer with an error that names the file; what was committed
// before is there at the next start.
func TestFullDisk(t *testing.T) {
	path := dbPath(t)
	out, err := child(t, "full disk", path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, said, ok := strings.Cut(string(out), "refused at ")
	if !ok || !strings.Contains(said, path) || !strings.Contains(said, "file too large") {
		t.Fatalf("the child said %q", out)
	}
	checkPages(t, path)
	b, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s := b.Acquire()
	defer s.Release()
	index, _ := b.ConsistentIndex()
	var n uint64
	s.Scan(Key, nil, nil, func(_, v []byte) bool {
		if n++; len(v) != 1<<20 {
			t.Errorf("value of %d bytes", len(v))
		}
		return true
	})
	if index == 0 || n != index {
		t.Fatalf("%d entries with consistent index %d", n, index)
	}
}

// A page that turns out to be broken makes bbolt panic in the middle of a commit. That is an error of Run,
// of the calls that wait, and of all later ones; snapshots can still be read.
func TestBrokenPageEndsRun(t *testing.T) {
	path := dbPath(t)
	r := start(t, Config{Path: path})
	for i := uint64(1); i <= 2000; i++ {
		entry(r.Writer(), i)
		r.Writer().Put(AuthUsers, revKey(int64(i), 0), make([]byte, 100))
	}
	r.commit(2000)
	view := r.Acquire()
	breakLeaf(t, r)

	r.Writer().Put(AuthUsers, revKey(3000, 0), []byte("x"))
	r.Writer().Put(Cluster, []byte("unflushed"), []byte("y"))
	later := r.Acquire()
	if err := r.Seal(context.Background(), Seal{Index: 2001, Term: 1}); err != nil {
		t.Fatal(err)
	}
	err := <-r.run
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "bbolt: ") {
		t.Fatalf("Run ended with %v", err)
	}
	if got := r.Flush(context.Background()); !errors.Is(got, err) {
		t.Errorf("Flush: %v", got)
	}
	r.Writer().Put(Cluster, []byte("k"), nil)
	for range sealedMax + 1 {
		if got := r.Seal(context.Background(), Seal{Index: 2002, Term: 1}); !errors.Is(got, err) {
			t.Errorf("Seal: %v", got)
		}
	}
	if _, got := r.Hash(context.Background()); !errors.Is(got, err) {
		t.Errorf("Hash: %v", got)
	}
	if _, got := r.Snapshot(context.Background()); !errors.Is(got, err) {
		t.Errorf("Snapshot: %v", got)
	}
	if got := r.Defragment(context.Background()); !errors.Is(got, err) {
		t.Errorf("Defragment: %v", got)
	}
	if got := later.Get(Cluster, []byte("unflushed")); string(got) != "y" {
		t.Errorf("a view reads %q", got)
	}
	if later.Get(Lease, []byte("last")) == nil || view.Get(Lease, []byte("last")) == nil {
		t.Error("a view cannot read the file any more")
	}
	view.Release()
	later.Release()
	if got := r.Close(); !errors.Is(got, err) {
		t.Errorf("Close: %v", got)
	}
}

// breakLeaf writes junk over the last leaf page of bucket authUsers, under the running backend.
func breakLeaf(t *testing.T, r *running) {
	t.Helper()
	s := r.Acquire()
	defer s.Release()
	tx := s.base.wait().tx
	var page int64
	root := tx.Bucket([]byte("authUsers")).Root()
	if page = lastChild(t, tx, int64(root)); page == int64(root) {
		t.Fatal("bucket of one page: this test tests nothing")
	}
	f, err := os.OpenFile(r.cfg.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(strings.Repeat("junk", 1024)), page*4096); err != nil {
		t.Fatal(err)
	}
}

// lastChild reads the page that the last element of branch page id points to: elements of 16 bytes (pos,
// ksize, pgid) behind a header of 16 bytes that counts them at offset 10.
func lastChild(t *testing.T, tx *bolt.Tx, id int64) int64 {
	t.Helper()
	var file strings.Builder
	if _, err := tx.WriteTo(&file); err != nil {
		t.Fatal(err)
	}
	p := file.String()[id*4096:]
	if p[8]&1 == 0 {
		return id // a leaf
	}
	n := int(p[10]) | int(p[11])<<8
	at := 16 + 16*(n-1) + 8
	var child int64
	for i := range 8 {
		child |= int64(p[at+i]) << (8 * i)
	}
	return child
}

// The consistent index never goes back, and keys that bbolt would refuse are refused where they come from.
func TestBrokenInvariantsPanic(t *testing.T) {
	r := start(t, Config{Path: dbPath(t)})
	r.commit(5)
	for name, f := range map[string]func(){
		"index goes back": func() { _ = r.Seal(context.Background(), Seal{Index: 4, Term: 1}) },
		"term goes back":  func() { _ = r.Seal(context.Background(), Seal{Index: 6}) },
		"empty key":       func() { r.Writer().Put(Key, nil, nil) },
		"too long a key":  func() { r.Writer().Delete(Lease, make([]byte, bolt.MaxKeySize+1)) },
		"released too often": func() {
			s := r.Acquire()
			s.Release()
			s.Release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p, ok := recover().(string); !ok || !strings.HasPrefix(p, "backend: ") {
					t.Errorf("panic %q", p)
				}
			}()
			f()
		})
	}
	s := r.Acquire()
	s.Release()
	if s.Retain() {
		t.Error("a released snapshot was retained")
	}
	r.shutInOrder()
}

// A seal that says nothing new is not committed; index progress alone is, when apply seals it.
func TestEmptySeals(t *testing.T) {
	r := start(t, Config{Path: dbPath(t)})
	r.commit(1)
	before, _ := r.Size()
	txid := r.commits(t)
	r.commit(1)
	if got := r.commits(t); got != txid {
		t.Errorf("commit %d after %d for an empty seal", got, txid)
	}
	r.commit(2)
	if index, _ := r.Durable(); index != 2 {
		t.Errorf("durable index %d, want 2", index)
	}
	if after, _ := r.Size(); after > 3*before {
		t.Errorf("size %d, was %d", after, before)
	}
	r.shutInOrder()
}

// commits returns the id of the last commit.
func (r *running) commits(t *testing.T) int {
	t.Helper()
	s := r.Acquire()
	defer s.Release()
	return s.base.wait().tx.ID()
}

// Contexts end the waiting, and the calls can be repeated.
func TestContextEndsWaiting(t *testing.T) {
	b, err := Open(Config{Path: dbPath(t), Capacity: 1})
	if err != nil {
		t.Fatal(err)
	}
	// The writer does not run: nothing is ever answered.
	ctx, cancel := context.WithCancelCause(context.Background())
	for i := range uint64(sealedMax) {
		if err := b.Seal(ctx, Seal{Index: i + 1}); err != nil {
			t.Fatal(err)
		}
	}
	cancel(errors.New("enough"))
	for name, call := range map[string]func() error{
		"Seal":       func() error { return b.Seal(ctx, Seal{Index: 9}) },
		"Flush":      func() error { return b.Flush(ctx) },
		"Install":    func() error { return b.Install(ctx, "x") },
		"Defragment": func() error { return b.Defragment(ctx) },
		"Hash":       func() error { _, err := b.Hash(ctx); return err },
		"Snapshot":   func() error { _, err := b.Snapshot(ctx); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want Canceled", name, err)
		}
	}
	r := startOpened(t, b) // it takes up what waited, the forsaken request included
	r.commit(9)
	if n := r.ReadTransactions(); n != 1 {
		t.Errorf("%d read transactions, want 1: a forsaken request kept one", n)
	}
	r.shutInOrder()
}

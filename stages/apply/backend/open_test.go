package backend

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A new file is what etcd makes: ten buckets, mode 0600, no freelist page, growth in steps of 16 MiB.
// Rule: contract/disk-and-peer.md 4.1, 4.5.
func TestNewFile(t *testing.T) {
	path := dbPath(t)
	r := start(t, Config{Path: path})
	if index, term := r.ConsistentIndex(); index != 0 || term != 0 {
		t.Errorf("consistent index %d term %d in a new file", index, term)
	}
	total, inUse := r.Size()
	r.Writer().Put(Meta, []byte("storageVersion"), []byte("3.7.0"))
	if err := r.Seal(t.Context(), Seal{Index: 4, Term: 2, ConfState: []byte(`{"voters":[1]}`)}); err != nil {
		t.Fatal(err)
	}
	r.flush()
	r.shutInOrder()

	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	if size := info.Size(); size < 16<<20 || size > 17<<20 {
		t.Errorf("file of %d bytes, want one step of 16 MiB and some pages", size)
	}
	if total != 5*4096 && total != 6*4096 || inUse <= 0 || inUse > total {
		t.Errorf("size %d, in use %d", total, inUse)
	}
	head := make([]byte, 4096)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Read(head); err != nil {
		t.Fatal(err)
	}
	if free := binary.LittleEndian.Uint64(head[16+32:]); free != 1<<64-1 {
		t.Errorf("freelist page %x, want none", free)
	}
	checkNewContent(t, path)
}

// checkNewContent looks at the file with bbolt alone.
func checkNewContent(t *testing.T, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		var names []string
		_ = tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
			names = append(names, string(name))
			return nil
		})
		if !slices.Equal(names, bucketNames[:]) {
			t.Errorf("buckets %q", names)
		}
		want := []string{
			"confState={\"voters\":[1]}", "consistent_index=\x00\x00\x00\x00\x00\x00\x00\x04",
			"storageVersion=3.7.0", "term=\x00\x00\x00\x00\x00\x00\x00\x02",
		}
		var got []string
		_ = tx.Bucket([]byte("meta")).ForEach(func(k, v []byte) error {
			got = append(got, string(k)+"="+string(v))
			return nil
		})
		if !slices.Equal(got, want) {
			t.Errorf("meta %q, want %q", got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// written makes a database with some content and returns its path.
func written(t *testing.T) string {
	path := dbPath(t)
	r := start(t, Config{Path: path})
	for i := uint64(1); i <= 100; i++ {
		entry(r.Writer(), i)
	}
	r.commit(100)
	r.shutInOrder()
	return path
}

// A file that is not a whole database is refused by name, and stays as it is.
func TestBrokenFiles(t *testing.T) {
	meta := func(key, value string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			db, err := bolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			err = db.Update(func(tx *bolt.Tx) error {
				return tx.Bucket([]byte("meta")).Put([]byte(key), []byte(value))
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	overwrite := func(at int64, with string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte(with), at); err != nil {
				t.Fatal(err)
			}
		}
	}
	truncate := func(size int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	junk := strings.Repeat("junk", 2048)
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, path string)
		want   string
	}{
		{"zero length", truncate(0), "file is empty"},
		{"one byte", truncate(1), "invalid database"},
		{"half a page", truncate(2048), "file is truncated"},
		{"pages missing", truncate(3 * 4096), "file is truncated"},
		{"both meta pages", overwrite(0, junk), "invalid database"},
		{"index of 3 bytes", meta("consistent_index", "abc"), "consistent_index of 3 bytes, want 8"},
		{"future version", meta("storageVersion", "3.8.0"), `version "3.8.0" is not supported`},
		{"no version", meta("storageVersion", "seven"), `malformed storage version "seven"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := written(t)
			c.damage(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(Config{Path: path})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want %q and the file's name", err, c.want)
			}
			if after, err := os.ReadFile(path); err != nil || !slices.Equal(before, after) {
				t.Errorf("the file was changed (%v)", err)
			}
			if locked(t, path) {
				t.Error("the lock was kept")
			}
		})
	}
}

// One broken meta page is what a crash in the middle of a commit leaves: the other one counts.
func TestOneBrokenMetaPage(t *testing.T) {
	for _, page := range []int64{0, 1} {
		path := written(t)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, 4096), page*4096); err != nil {
			t.Fatal(err)
		}
		f.Close()
		contentFollowsIndex(t, path)
	}
}

func TestDirectoryMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent", "db")
	if _, err := Open(Config{Path: path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("error %v, want one that names %s", err, path)
	}
}

// A storage version is absent in a file of 3.5, and may be older.
func TestStorageVersions(t *testing.T) {
	for _, v := range []string{"3.6.0", "3.7.0", "3.7.3", "2.9.0"} {
		if err := checkStorageVersion(v); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
	for _, v := range []string{"", "3", "3.7", "3.8.0", "4.0.0", "3.-1.0", "a.b.c"} {
		if checkStorageVersion(v) == nil {
			t.Errorf("%q is accepted", v)
		}
	}
}

// A full disk does not keep a whole database from opening: nothing is written at a start.
func TestOpenWritesNothing(t *testing.T) {
	path := written(t)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if after, _ := os.ReadFile(path); !slices.Equal(before, after) {
		t.Error("the file was changed")
	}
}

// locked reports whether somebody has the lock of the file that path names now.
func locked(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err {
	case nil:
		return false
	case syscall.EWOULDBLOCK:
		return true
	default:
		t.Fatal(err)
		return false
	}
}

// A second start waits for the lock. When the first has defragmented meanwhile, what it waited for is not
// the database any more: it takes the file that has the name now.
func TestSecondStartWaitsForTheLock(t *testing.T) {
	path := written(t)
	r := start(t, Config{Path: path})
	waiting := make(chan *Backend)
	go func() {
		b, err := Open(Config{Path: path})
		if err != nil {
			t.Error(err)
		}
		waiting <- b
	}()
	end := r.serve(100)
	defragNow(t, r)
	end()
	select {
	case <-waiting:
		t.Fatal("two owners")
	default:
	}
	r.Writer().Put(Auth, []byte("after"), []byte("defragmentation"))
	r.commit(101)
	r.shutInOrder()
	b := <-waiting
	defer b.Close()
	s := b.Acquire()
	defer s.Release()
	if got := string(s.Get(Auth, []byte("after"))); got != "defragmentation" {
		t.Errorf("the second start sees %q: it has the old file", got)
	}
}

func defragNow(t *testing.T, r *running) {
	t.Helper()
	if err := r.Defragment(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// --bootstrap-defrag-threshold-megabytes: only a file with at least that much free is rewritten at a start.
func TestDefragmentAtOpen(t *testing.T) {
	path := dbPath(t)
	r := start(t, Config{Path: path})
	for i := int64(1); i <= 200; i++ {
		r.Writer().Put(Key, revKey(i, 0), make([]byte, 10000))
	}
	r.commit(1)
	for i := int64(1); i <= 150; i++ {
		r.Writer().Delete(Key, revKey(i, 0))
	}
	r.commit(2)
	total, inUse := r.Size()
	hash := hashOf(t, r)
	r.shutInOrder()

	core, logs := observer.New(zap.InfoLevel)
	cfg := Config{Path: path, DefragBytes: total - inUse + 100000, Logger: zap.New(core)}
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := b.Size(); got != total || logs.FilterMessage("Skipping defragmentation").Len() != 1 {
		t.Errorf("size %d, want the old %d; logs %v", got, total, logs.All())
	}
	b.Close()

	cfg.DefragBytes = (total - inUse) / 2
	r = start(t, cfg)
	if got, _ := r.Size(); got >= total/2 {
		t.Errorf("size %d after the defragmentation of %d, %d in use", got, total, inUse)
	}
	if logs.FilterMessage("finished defragmenting directory").Len() != 1 {
		t.Errorf("logs %v", logs.All())
	}
	if index, _ := r.ConsistentIndex(); index != 2 {
		t.Errorf("consistent index %d, want 2", index)
	}
	if !locked(t, path) {
		t.Error("the new file is not locked")
	}
	if got := hashOf(t, r); got != hash {
		t.Errorf("hash %x, was %x", got, hash)
	}
	r.shutInOrder()
}

func hashOf(t *testing.T, r *running) uint32 {
	t.Helper()
	h, err := r.Hash(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// A file with a freelist page, as other options leave it, opens too.
func TestSyncedFreelist(t *testing.T) {
	path := written(t)
	db, err := bolt.Open(path, 0o600, nil) // bbolt's default writes the freelist
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	contentFollowsIndex(t, path)
}

// Two starts at once in an empty directory make one database: the second waits for it.
func TestTwoStartsMakeOneFile(t *testing.T) {
	path := dbPath(t)
	opened := make(chan *Backend)
	for range 2 {
		go func() {
			b, err := Open(Config{Path: path})
			if err != nil {
				t.Error(err)
			}
			opened <- b
		}()
	}
	r := startOpened(t, <-opened)
	r.Writer().Put(Auth, []byte("owner"), []byte("first"))
	r.commit(1)
	r.shutInOrder()
	b := <-opened
	defer b.Close()
	s := b.Acquire()
	defer s.Release()
	if got := string(s.Get(Auth, []byte("owner"))); got != "first" {
		t.Errorf("the second start sees %q", got)
	}
}

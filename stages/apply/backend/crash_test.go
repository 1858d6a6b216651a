package backend

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// contentFollowsIndex verifies, in a database where entry i puts revision i and the lease "last" = i and
// deletes revision i-10, that the content is that of exactly the entries up to the consistent index.
func contentFollowsIndex(t *testing.T, path string) uint64 {
	t.Helper()
	b, err := Open(Config{Path: path, MappingBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	index, term := b.ConsistentIndex()
	if index > 0 && term != 1 {
		t.Fatalf("term %d at index %d, want 1", term, index)
	}
	s := b.Acquire()
	defer s.Release()
	var last uint64
	if v := s.Get(Lease, []byte("last")); v != nil {
		last = binary.BigEndian.Uint64(v)
	}
	if last != index {
		t.Fatalf("content of entry %d with consistent index %d", last, index)
	}
	next := max(int64(index)-9, 1)
	s.Scan(Key, nil, nil, func(k, _ []byte) bool {
		if got := int64(binary.BigEndian.Uint64(k)); got != next {
			t.Fatalf("revision %d in the file at index %d, want %d", got, index, next)
		}
		next++
		return true
	})
	if index > 0 && next != int64(index)+1 {
		t.Fatalf("revisions end at %d with consistent index %d", next-1, index)
	}
	return index
}

// entry writes what contentFollowsIndex expects of entry i.
func entry(w Writer, i uint64) {
	w.Put(Key, revKey(int64(i), 0), make([]byte, 200))
	w.Put(Lease, []byte("last"), binary.BigEndian.AppendUint64(nil, i))
	if i > 10 {
		w.Delete(Key, revKey(int64(i)-10, 0))
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if _, err := io.Copy(dst, src); err != nil {
		t.Fatal(err)
	}
}

// Whatever commit a crash leaves behind, its index says exactly what is in it, and every page is accounted
// for.
func TestCommitCarriesItsIndex(t *testing.T) {
	path := dbPath(t)
	r := start(t, Config{Path: path, MappingBytes: 1 << 20})
	copied := filepath.Join(t.TempDir(), "db")
	for i := uint64(1); i <= 60; i++ {
		entry(r.Writer(), i)
		if i%3 != 0 {
			continue
		}
		r.commit(i)
		copyFile(t, path, copied)
		if index := contentFollowsIndex(t, copied); index != i {
			t.Fatalf("index %d after the commit of %d", index, i)
		}
		checkPages(t, copied)
	}
	entry(r.Writer(), 61) // not sealed: must not be there after the close
	r.shutInOrder()
	if index := contentFollowsIndex(t, path); index != 60 {
		t.Fatalf("index %d after the close, want that of the last seal, 60", index)
	}
}

// checkPages runs bbolt's own consistency check.
func checkPages(t *testing.T, path string) {
	t.Helper()
	db, err := bolt.Open(path, fileMode, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

const childEnv = "SLUICE_BACKEND_CHILD"

// child runs this test binary as a process of its own that does what TestChild says.
func child(t *testing.T, what, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"="+what, "DB="+path)
	return cmd
}

// TestChild is not a test but the process of the tests below.
func TestChild(t *testing.T) {
	path := os.Getenv("DB")
	switch os.Getenv(childEnv) {
	case "write and defragment":
		r := start(t, Config{Path: path})
		index, _ := r.ConsistentIndex()
		for {
			done := make(chan error, 1)
			go func() { done <- r.Defragment(t.Context()) }()
			for moved := false; !moved; {
				index++
				entry(r.Writer(), index)
				if r.SealWanted() || index%50 == 0 {
					r.seal(index)
				}
				select {
				case err := <-done:
					if moved = true; err != nil {
						t.Fatal(err)
					}
				default:
				}
			}
		}
	case "full disk":
		limit := uint64(17 << 20) // the first growth passes, a later one does not
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			t.Fatal(err)
		}
		r := start(t, Config{Path: path})
		for i := uint64(1); ; i++ {
			r.Writer().Put(Key, revKey(int64(i), 0), make([]byte, 1<<20))
			err := r.Seal(t.Context(), Seal{Index: i, Term: 1})
			if err == nil {
				err = r.Flush(t.Context())
			}
			if err != nil {
				fmt.Printf("refused at %d: %v\n", i, err)
				return
			}
		}
	default:
		t.Skip("runs only as a child process")
	}
}

// BC-66: a process killed at any moment of a defragmentation under writes leaves a whole database whose
// index says what is in it, and the next start tidies up.
func TestKillDuringDefragment(t *testing.T) {
	path := dbPath(t)
	r := start(t, Config{Path: path})
	for i := uint64(1); i <= 500; i++ {
		entry(r.Writer(), i)
	}
	r.commit(500)
	r.shutInOrder()
	rounds := 15
	if testing.Short() {
		rounds = 3
	}
	last := uint64(500)
	for round := range rounds {
		cmd := child(t, "write and defragment", path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The moment is what varies here, so a timer is the point.
		time.Sleep(50*time.Millisecond + time.Duration(round*37%100)*time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		checkPages(t, path)
		index := contentFollowsIndex(t, path)
		if index < last {
			t.Fatalf("round %d: consistent index went back from %d to %d", round, last, index)
		}
		last = index
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), tempPattern)); len(left) != 0 {
			t.Fatalf("leftovers after a start: %q", left)
		}
	}
	t.Logf("%s entries", strconv.FormatUint(last, 10))
}

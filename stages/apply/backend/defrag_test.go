package backend

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// busy writes while something runs, and checks afterwards what must be there.
type busy struct {
	*running
	index   uint64
	rev     int64
	written map[int64]bool // revisions above the first ones that must be there
	view    *Snapshot
	readers sync.WaitGroup
	stop    chan struct{}
}

// step writes a revision, a change in a part that may be copied already and one in a part that may not, and
// now and then deletes, seals, publishes and starts a reader.
func (b *busy) step() {
	b.rev++
	value := binary.BigEndian.AppendUint64(nil, uint64(b.rev))
	w := b.Writer()
	w.Put(Key, revKey(b.rev, 0), value)
	b.written[b.rev] = true
	w.Put(Lease, []byte{byte(b.rev%50 + 1)}, value)
	w.Put(AuthRoles, []byte{byte(b.rev%50 + 1)}, value)
	if b.rev%7 == 0 {
		w.Delete(Key, revKey(b.rev-5, 0))
		delete(b.written, b.rev-5)
	}
	if !b.SealWanted() && b.rev%500 != 0 {
		return
	}
	b.index++
	b.seal(b.index)
	fresh := b.Acquire()
	b.view.Release()
	b.view = fresh
	if b.rev%2000 == 0 {
		b.view.Retain()
		b.readers.Add(1)
		go b.read(b.view)
	}
}

// read scans s in order until the end or stop.
func (b *busy) read(s *Snapshot) {
	defer b.readers.Done()
	defer s.Release()
	var last []byte
	s.Scan(Key, nil, nil, func(k, _ []byte) bool {
		if bytes.Compare(k, last) <= 0 {
			b.t.Errorf("key %x after %x", k, last)
		}
		last = bytes.Clone(k)
		select {
		case <-b.stop:
			return false
		default:
			return true
		}
	})
}

func (b *busy) check(first int) {
	b.t.Helper()
	now := b.Acquire()
	defer now.Release()
	if n := count(now, Key); n != first+len(b.written) {
		b.t.Errorf("%d keys, want %d", n, first+len(b.written))
	}
	for rev := range b.written {
		if v := now.Get(Key, revKey(rev, 0)); len(v) != 8 || int64(binary.BigEndian.Uint64(v)) != rev {
			b.t.Fatalf("revision %d reads %x", rev, v)
		}
	}
	for _, bucket := range []Bucket{Lease, AuthRoles} {
		for i := b.rev - 40; i <= b.rev; i++ {
			if v := now.Get(bucket, []byte{byte(i%50 + 1)}); int64(binary.BigEndian.Uint64(v)) != i {
				b.t.Fatalf("%s %d reads %x", bucket, i, v)
			}
		}
	}
}

// fragmented makes a database of 60 000 revisions, several rounds of a copy, with three of four deleted.
func fragmented(t *testing.T, cfg Config) (b *busy, left int) {
	const first = 60000
	b = &busy{running: start(t, cfg), index: 2, rev: first, written: map[int64]bool{}, stop: make(chan struct{})}
	value := make([]byte, 300)
	for i := int64(1); i <= first; i++ {
		b.Writer().Put(Key, revKey(i, 0), value)
	}
	b.commit(1)
	for i := int64(1); i <= first; i += 4 {
		for j := range int64(3) {
			b.Writer().Delete(Key, revKey(i+j, 0))
		}
	}
	b.commit(2)
	return b, first / 4
}

// Defragmentation under writes and reads: nothing is lost, old views go on reading the old file until they
// are released, and the file shrinks.
func TestDefragmentUnderWritesAndReads(t *testing.T) {
	path := dbPath(t)
	core, logs := observer.New(zap.InfoLevel)
	b, left := fragmented(t, Config{Path: path, Capacity: 1, Logger: zap.New(core)})
	total, _ := b.Size()
	old, oldFile := b.Acquire(), inode(t, path)
	b.view = b.Acquire()
	done := make(chan error, 1)
	go func() { done <- b.Defragment(context.Background()) }()
	for moved := false; !moved; {
		b.step()
		select {
		case err := <-done:
			if moved = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	close(b.stop)
	b.readers.Wait()
	b.index++
	b.commit(b.index)
	b.view.Release()

	if n := count(old, Key); n != left {
		t.Errorf("the old view shows %d keys, want %d", n, left)
	}
	old.Release()
	if inode(t, path) == oldFile || !locked(t, path) {
		t.Error("the new file is not in place and locked")
	}
	b.check(left)
	if after, _ := b.Size(); after > total/2 {
		t.Errorf("size %d after %d", after, total)
	}
	if n := b.ReadTransactions(); n != 1 {
		t.Errorf("%d read transactions on the new file", n)
	}
	for _, m := range []string{"defragmenting", "finished defragmenting directory"} {
		if logs.FilterMessage(m).Len() != 1 {
			t.Errorf("%d logs of %q", logs.FilterMessage(m).Len(), m)
		}
	}
	sameAfterRestart(t, b.running, b.index)
	if files, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "db*")); len(files) != 1 {
		t.Errorf("files %q", files)
	}
}

// sameAfterRestart closes r and opens its file again: the same hash, at index.
func sameAfterRestart(t *testing.T, r *running, index uint64) {
	t.Helper()
	hash := hashOf(t, r)
	r.shutInOrder()
	checkPages(t, r.cfg.Path)
	again := start(t, Config{Path: r.cfg.Path})
	if got, _ := again.ConsistentIndex(); got != index {
		t.Errorf("consistent index %d, want %d", got, index)
	}
	if got := hashOf(t, again); got != hash {
		t.Errorf("hash %x after the restart, was %x", got, hash)
	}
	again.shutInOrder()
}

func inode(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino)
}

func count(s *Snapshot, b Bucket) (n int) {
	s.Scan(b, nil, nil, func(_, _ []byte) bool {
		n++
		return true
	})
	return n
}

// The last view on the old file closes it, and with it gives up its lock.
func TestLastViewClosesOldFile(t *testing.T) {
	path := written(t)
	r := start(t, Config{Path: path})
	link := filepath.Join(t.TempDir(), "old") // keeps a name for the old file
	if err := os.Link(path, link); err != nil {
		t.Skip(err)
	}
	view := r.Acquire()
	stream := openStream(t, r, 100)
	end := r.serve(100)
	defragNow(t, r)
	end()
	view.Release()
	if !locked(t, link) {
		t.Fatal("the old file was closed under a stream")
	}
	var copied bytes.Buffer
	if n, err := stream.WriteTo(&copied); err != nil || n != stream.Size {
		t.Fatalf("%d bytes of %d: %v", n, stream.Size, err)
	}
	stream.Close()
	if locked(t, link) {
		t.Fatal("the old file is still open")
	}
	r.shutInOrder()
}

// One at a time: the others wait their turn. A caller that stops waiting does not stop the work.
func TestDefragmentsQueue(t *testing.T) {
	path := written(t)
	r := start(t, Config{Path: path})
	defer r.serve(100)()
	var group sync.WaitGroup
	for range 5 {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := r.Defragment(context.Background()); err != nil {
				t.Error(err)
			}
		}()
	}
	group.Wait()
	contentOf(t, r, 100)
}

// contentOf verifies that the backend shows what entries up to index wrote.
func contentOf(t *testing.T, r *running, index uint64) {
	t.Helper()
	p := &pinned{ready: make(chan struct{})}
	if err := r.send.Send(context.Background(), pin{p}); err != nil {
		t.Fatal(err)
	}
	<-p.ready
	defer p.base.release()
	last := p.base.wait().buckets[Lease].Get([]byte("last"))
	if len(last) != 8 || binary.BigEndian.Uint64(last) != index {
		t.Errorf("content of entry %x, want %d", last, index)
	}
}

// While the journal is full, apply is held back: it cannot outrun the copy for ever.
func TestFullJournalHoldsSealsBack(t *testing.T) {
	r := start(t, Config{Path: written(t)})
	reply := make(chan roundReply, 1)
	ask := func(first bool) roundReply {
		t.Helper()
		if err := r.send.Send(context.Background(), round{first, reply}); err != nil {
			t.Fatal(err)
		}
		got := <-reply
		if got.err != nil {
			t.Fatal(got.err)
		}
		return got
	}
	ask(true).base.release()
	value := make([]byte, journalBytesMax/4)
	index := uint64(100)
	for len(r.slots) < sealedMax {
		if index++; index > 120 {
			t.Fatal("nothing holds apply back")
		}
		r.Writer().Put(Lease, []byte("big"), value)
		r.commit(index)
	}
	if index < 104 {
		t.Fatalf("held back at entry %d already", index)
	}
	got := ask(false)
	got.base.release()
	if got.journal.bytes < journalBytesMax || len(r.slots) != 0 {
		t.Errorf("journal of %d bytes, %d seals held back", got.journal.bytes, len(r.slots))
	}
	if err := r.send.Send(context.Background(), abandon{}); err != nil {
		t.Fatal(err)
	}
	r.shutInOrder()
}

// A defragmentation that cannot be done leaves everything as it was, and the backend running.
func TestDefragmentThatFails(t *testing.T) {
	path := written(t)
	r := start(t, Config{Path: path})
	r.Backend.cfg.Path = filepath.Join(filepath.Dir(path), "absent", "db")
	if err := r.Defragment(context.Background()); err == nil {
		t.Fatal("no error")
	}
	r.Backend.cfg.Path = path
	entry(r.Writer(), 101)
	r.commit(101)
	r.shutInOrder()
	if index := contentFollowsIndex(t, path); index != 101 {
		t.Errorf("index %d, want 101", index)
	}
}

// A database from the leader replaces ours, durable at once; what was not sealed is gone, old views go on.
func TestInstall(t *testing.T) {
	path, incoming := written(t), filepath.Join(t.TempDir(), "db")
	other := start(t, Config{Path: incoming})
	for i := uint64(1); i <= 300; i++ {
		entry(other.Writer(), i)
	}
	other.commit(300)
	other.shutInOrder()

	r := start(t, Config{Path: path})
	if err := r.Install(context.Background(), incoming+".absent"); err == nil {
		t.Fatal("a file that is not there was installed")
	}
	view := r.Acquire()
	r.Writer().Put(Auth, []byte("not sealed"), nil)
	if err := r.Install(context.Background(), incoming); err != nil {
		t.Fatal(err)
	}
	if index, term := r.ConsistentIndex(); index != 300 || term != 1 {
		t.Errorf("index %d term %d, want 300 and 1", index, term)
	}
	now := r.Acquire()
	if now.Get(Auth, []byte("not sealed")) != nil {
		t.Error("an unsealed change survived")
	}
	if got := binary.BigEndian.Uint64(view.Get(Lease, []byte("last"))); got != 100 {
		t.Errorf("the old view shows entry %d", got)
	}
	if got := binary.BigEndian.Uint64(now.Get(Lease, []byte("last"))); got != 300 {
		t.Errorf("the new view shows entry %d", got)
	}
	view.Release()
	now.Release()
	entry(r.Writer(), 301)
	r.commit(301)
	if !locked(t, path) {
		t.Error("the installed file is not locked")
	}
	r.shutInOrder()
	if index := contentFollowsIndex(t, path); index != 301 {
		t.Errorf("index %d, want 301", index)
	}
}

// BC-68: an install in the middle of a defragmentation wins.
func TestInstallDuringDefragment(t *testing.T) {
	path, incoming := written(t), filepath.Join(t.TempDir(), "db")
	copyFile(t, path, incoming)
	r := start(t, Config{Path: path})
	f, err := openTemp(&r.cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	reply := make(chan roundReply, 1)
	send := func(m message) {
		t.Helper()
		if err := r.send.Send(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	send(round{true, reply})
	(<-reply).base.release()
	if err := r.Install(context.Background(), incoming); err != nil {
		t.Fatal(err)
	}
	send(round{false, reply})
	if got := <-reply; !errors.Is(got.err, ErrSuperseded) {
		t.Errorf("next round: %v", got.err)
	}
	done := make(chan error, 1)
	send(finish{&copier{dst: f}, done})
	if got := <-done; !errors.Is(got, ErrSuperseded) {
		t.Errorf("finish: %v", got)
	}
	f.leave()
	defer r.serve(100)()
	contentOf(t, r, 100)
}

// openStream plays apply for a Snapshot.
func openStream(t *testing.T, r *running, index uint64) *SnapshotStream {
	t.Helper()
	end := r.serve(index)
	defer end()
	stream, err := r.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// A snapshot is a whole database with everything that apply had written, and says at which index. Writes
// go on while it is read.
func TestSnapshotStream(t *testing.T) {
	r := start(t, Config{Path: written(t)})
	for i := uint64(101); i <= 150; i++ {
		entry(r.Writer(), i) // neither sealed nor flushed
	}
	stream := openStream(t, r, 150)
	if stream.Index != 150 || stream.Term != 1 {
		t.Errorf("index %d term %d, want 150 and 1", stream.Index, stream.Term)
	}
	for i := uint64(151); i <= 400; i++ {
		entry(r.Writer(), i)
		r.commit(i)
	}
	copied := dbPath(t)
	f, err := os.Create(copied)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := stream.WriteTo(f); err != nil || n != stream.Size || n%4096 != 0 {
		t.Errorf("%d bytes, want %d: %v", n, stream.Size, err)
	}
	f.Close()
	stream.Close()
	stream.Close()
	if n := r.ReadTransactions(); n != 1 {
		t.Errorf("%d read transactions", n)
	}
	checkPages(t, copied)
	if index := contentFollowsIndex(t, copied); index != 150 {
		t.Errorf("index %d in the snapshot", index)
	}
	broken, err := r.Snapshot(expired(t))
	if err == nil {
		t.Errorf("snapshot %v without an apply", broken)
	}
	r.shutInOrder()
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now())
	t.Cleanup(cancel)
	return ctx
}

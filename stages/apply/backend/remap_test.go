package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// The trap of bbolt: a commit that outgrows the mapping waits for every open read transaction, and no new one
// can begin meanwhile. A reader that stalls with an old view must not stop apply, nor the readers of newer
// views as far as memory goes; and it must not be stopped itself.
func TestRemapWhileReaderStalls(t *testing.T) {
	r := start(t, Config{Path: dbPath(t), MappingBytes: 64 << 10})
	r.Writer().Put(Key, revKey(1, 0), []byte("old"))
	r.commit(1)
	stalled := r.Acquire() // a LIST that does not proceed, with the view of then
	view := r.Acquire()    // what apply has published

	big := bytes.Repeat([]byte("x"), 32<<10)
	republished := 0
	publish := func() {
		fresh := r.Acquire()
		view.Release()
		view = fresh
		republished++
	}
	index := uint64(1)
	for range 20 { // 640 KB: ten times the mapping
		index++
		r.Writer().Put(Key, revKey(int64(index), 0), big)
		publish()
		if r.SealWanted() || index < 4 {
			sealOrPublish(t, r, index, publish)
		}
	}
	if index != 21 {
		t.Fatalf("apply got to entry %d", index)
	}
	// Newer views answer from the buffers, though the file cannot be read now.
	for i := int64(2); i <= 21; i++ {
		if got := view.Get(Key, revKey(i, 0)); !bytes.Equal(got, big) {
			t.Fatalf("revision %d: %d bytes", i, len(got))
		}
	}
	// The stalled reader goes on.
	if got := string(stalled.Get(Key, revKey(1, 0))); got != "old" {
		t.Fatalf("stalled reader sees %q", got)
	}
	if stalled.Get(Key, revKey(2, 0)) != nil {
		t.Fatal("stalled reader sees a later write")
	}
	if index, _ := r.Durable(); index >= 4 {
		t.Fatalf("durable up to %d while the mapping cannot grow: this test tests nothing", index)
	}
	// What only the file has is waited for, and comes when the stalled reader is gone.
	answer := make(chan []byte)
	view.Retain()
	go func(s *Snapshot) {
		defer s.Release()
		answer <- bytes.Clone(s.Get(Key, revKey(1, 0)))
	}(view)
	stalled.Release()
	if got := string(<-answer); got != "old" {
		t.Fatalf("the file's key reads %q", got)
	}
	sealOrPublish(t, r, index, publish)
	flushOrPublish(t, r, publish)
	publish()
	for i := int64(2); i <= 21; i++ {
		if got := view.Get(Key, revKey(i, 0)); !bytes.Equal(got, big) {
			t.Fatalf("revision %d after the remap: %d bytes", i, len(got))
		}
	}
	view.Release()
	r.shutInOrder()
}

func sealOrPublish(t *testing.T, r *running, index uint64, publish func()) {
	t.Helper()
	for {
		err := r.Seal(context.Background(), Seal{Index: index, Term: 1})
		if err == nil {
			return
		}
		if !errors.Is(err, ErrStale) {
			t.Fatal(err)
		}
		publish()
	}
}

func flushOrPublish(t *testing.T, r *running, publish func()) {
	t.Helper()
	for {
		err := r.Flush(context.Background())
		if err == nil {
			return
		}
		if !errors.Is(err, ErrStale) {
			t.Fatal(err)
		}
		publish()
	}
}

// Apply that is behind with publishing is told so instead of waiting for ever: its own view is what the
// writer waits for.
func TestStaleViewIsReported(t *testing.T) {
	r := start(t, Config{Path: dbPath(t), MappingBytes: 64 << 10})
	view := r.Acquire()
	r.Writer().Put(Key, revKey(1, 0), make([]byte, 60<<10))
	r.seal(1)
	err := r.Flush(context.Background())
	if !errors.Is(err, ErrStale) {
		t.Fatalf("Flush: %v, want ErrStale", err)
	}
	for i := range int64(sealedMax) { // and so does a Seal that would have to wait
		r.Writer().Put(Key, revKey(2+i, 0), []byte("x"))
		if err = r.Seal(context.Background(), Seal{Index: uint64(2 + i), Term: 1}); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrStale) {
		t.Fatalf("Seal: %v, want ErrStale", err)
	}
	fresh := r.Acquire()
	view.Release()
	flushOrPublish(t, r, func() {
		fresh.Release()
		fresh = r.Acquire()
	})
	fresh.Release()
	r.shutInOrder()
}

// The estimate of a commit's growth can be too low: a delete rewrites its leaf with the large values beside
// it. bbolt then waits inside the commit; the late promise lets the readers drain.
func TestRemapThatWasNotForeseen(t *testing.T) {
	r := start(t, Config{Path: dbPath(t), MappingBytes: 1 << 20})
	r.Backend.promiseAfter = time.Millisecond // read by the writer after the first seal only
	value := make([]byte, 200<<10)
	for i := int64(1); i <= 3; i++ {
		r.Writer().Put(Key, revKey(i, 0), value)
	}
	for i := int64(0); i < 8; i++ {
		r.Writer().Put(Lease, []byte{byte(i + 1)}, nil)
	}
	publish := func() {}
	sealOrPublish(t, r, 1, publish)
	flushOrPublish(t, r, publish)
	view := r.Acquire()
	publish = func() {
		fresh := r.Acquire()
		view.Release()
		view = fresh
	}
	r.Writer().Delete(Key, revKey(2, 0))
	if r.Backend.outgrows([]*buffer{r.current}) {
		t.Fatal("foreseen: this test tests nothing")
	}
	publish()
	sealOrPublish(t, r, 2, publish)
	flushOrPublish(t, r, publish)
	publish()
	if view.Get(Key, revKey(2, 0)) != nil || len(view.Get(Key, revKey(3, 0))) != len(value) {
		t.Error("wrong content after the remap")
	}
	view.Release()
	r.shutInOrder()
	if r.file.mapped <= 1<<20 {
		t.Errorf("mapping of %d bytes: nothing was remapped", r.file.mapped)
	}
}

// The writer's own idea of the mapping never exceeds the real one, which the kernel knows.
func TestMappingIsNotOverestimated(t *testing.T) {
	r := start(t, Config{Path: dbPath(t), MappingBytes: 1})
	for i := int64(1); i <= 40; i++ {
		r.Writer().Put(Key, revKey(i, 0), make([]byte, 9000*i))
		r.commit(uint64(i))
		if real := mappedBytes(t, r.cfg.Path); r.file.mapped > real {
			t.Fatalf("mapping of %d bytes taken for %d", real, r.file.mapped)
		}
	}
	r.shutInOrder()
}

// mappedBytes reads how much of the file at path this process has mapped.
func mappedBytes(t *testing.T, path string) int64 {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	var from, to, total int64
	for line := range bytes.Lines(maps) {
		if bytes.Contains(line, []byte(path)) {
			if _, err := sscanRange(string(line), &from, &to); err != nil {
				t.Fatal(err)
			}
			total += to - from
		}
	}
	return total
}

// The writer's tick tells apply after a batch interval, and only when there is something to seal.
func TestTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Path: dbPath(t), BatchInterval: 100 * time.Millisecond, BatchLimit: 3})
		time.Sleep(time.Second)
		synctest.Wait()
		if r.SealWanted() {
			t.Error("a seal is wanted of nothing")
		}
		select {
		case <-r.Wanted():
			t.Error("apply is woken for nothing")
		default:
		}
		r.Writer().Put(Lease, []byte("a"), nil)
		if r.SealWanted() {
			t.Error("a seal is wanted at once")
		}
		<-r.Wanted()
		if !r.SealWanted() {
			t.Error("no seal is wanted after an interval")
		}
		r.seal(1)
		if r.SealWanted() {
			t.Error("a seal is wanted after the seal")
		}
		for range 3 {
			r.Writer().Put(Lease, []byte("b"), nil)
		}
		r.flush()
		if !r.SealWanted() {
			t.Error("no seal is wanted at the batch limit")
		}
		r.commit(2)
		if index, term := r.Durable(); index != 2 || term != 1 {
			t.Errorf("durable %d in term %d", index, term)
		}
		r.shutInOrder()
	})
}

func sscanRange(line string, from, to *int64) (int, error) {
	return fmt.Sscanf(line, "%x-%x", from, to)
}

// Stopping hard does not wait for readers.
func TestCancelEndsTheWaitForReaders(t *testing.T) {
	r := start(t, Config{Path: dbPath(t), MappingBytes: 64 << 10})
	stalled := r.Acquire()
	r.Writer().Put(Key, revKey(1, 0), make([]byte, 60<<10))
	r.seal(1)
	if err := r.Flush(context.Background()); !errors.Is(err, ErrStale) {
		t.Fatalf("Flush: %v, want ErrStale: the writer does not wait", err)
	}
	promised := r.Acquire()
	r.stop()
	if err := <-r.run; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ended with %v", err)
	}
	if len(promised.Get(Key, revKey(1, 0))) != 60<<10 || promised.Get(Lease, []byte("absent")) != nil {
		t.Error("the view that was promised a transaction reads wrong")
	}
	promised.Release()
	stalled.Release()
}

// While the writer is behind, apply is not asked to seal until the buffer is full: it goes on.
func TestSealWantedWhileTheWriterIsBehind(t *testing.T) {
	b, err := Open(Config{Path: dbPath(t), BatchLimit: 2, BufferBytesMax: 10000})
	if err != nil {
		t.Fatal(err)
	}
	put := func() { b.Writer().Put(Lease, []byte("a"), make([]byte, 1000)) }
	for i := range uint64(sealedMax) { // the writer does not run: nothing leaves
		put()
		if b.SealWanted() {
			t.Fatal("a seal is wanted of one change")
		}
		put()
		if !b.SealWanted() {
			t.Fatal("no seal is wanted at the batch limit")
		}
		if err := b.Seal(context.Background(), Seal{Index: i + 1}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for ; !b.SealWanted(); n++ {
		put()
	}
	if n != 10 {
		t.Errorf("a seal is forced after %d changes of 1065 bytes, want 10", n)
	}
	r := startOpened(t, b)
	r.commit(3)
	r.shutInOrder()
}

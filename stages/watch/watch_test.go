package watch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice/mailbox"
)

var seed = flag.Uint64("seed", 1, "of the random test; 0 chooses one")

// world is a stage that runs, with its workers and its ticker.
type world struct {
	t     testing.TB
	store *model
	box   *mailbox.Mailbox[Inbound]
	stage *Stage
	wg    sync.WaitGroup
	stop  context.CancelFunc
}

func newWorld(t testing.TB, capacity int, change func(*Config)) *world {
	w := &world{t: t, store: newModel()}
	w.box = mailbox.NewSized(mailbox.Config{Name: "watch", Capacity: capacity, BytesMax: 1 << 20}, InboundBytes)
	cfg := Config{
		In: w.box.Receiver(), Self: w.box.Sender(mailbox.Wait), Views: w.store, Revision: 1,
		ProgressInterval: 10 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	w.stage = New(cfg)
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	run := func(name string, fn func(context.Context) error) {
		w.wg.Go(func() {
			if err := fn(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, mailbox.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	run("watch", w.stage.Run)
	for _, worker := range w.stage.Workers() {
		run(worker.Name(), worker.Run)
	}
	run("clock", func(ctx context.Context) error {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.stage.Tick()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	return w
}

func (w *world) close() {
	w.stop()
	w.wg.Wait()
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.store.views != 0 {
		w.t.Errorf("%d views held", w.store.views)
	}
}

// change makes one revision and sends it.
func (w *world) change(ops ...op) {
	evs := w.store.txn(ops...)
	if err := w.stage.Events(w.t.Context(), w.store.batch(evs)); err != nil {
		w.t.Error(err)
	}
}

// both runs a test in a bubble, with a mailbox of ordinary size and with one place.
func both(t *testing.T, fn func(t *testing.T, capacity int)) {
	for _, capacity := range []int{1000, 1} {
		t.Run(fmt.Sprintf("capacity %d", capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { fn(t, capacity) })
		})
	}
}

func (w *world) next(st *Stream) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	m, err := st.Next(ctx)
	if err != nil {
		w.t.Fatalf("next: %v", err)
	}
	return describe(w.t, m)
}

func (w *world) expect(st *Stream, want ...string) {
	w.t.Helper()
	for _, s := range want {
		if got := w.next(st); got != s {
			w.t.Fatalf("got %q, want %q", got, s)
		}
	}
}

func (w *world) create(st *Stream, req CreateRequest) {
	w.t.Helper()
	if err := st.Create(w.t.Context(), req); err != nil {
		w.t.Fatal(err)
	}
}

// design.md section 5: a watch created after a put's answer never sees an event from before its creation
// revision, and none after it is missed. Apply sends the events before it completes the waiters.
func TestCreatedAfterPut(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		st := w.stage.Open(StreamConfig{})
		defer st.Close()
		for i := range 200 {
			w.change(op{"k", []byte("x")})
			rev := int64(i + 2)
			w.create(st, CreateRequest{Key: []byte("k")})
			if got, want := w.next(st), fmt.Sprintf("id %d created revision %d", i, rev); got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
			if err := st.Cancel(t.Context(), int64(i)); err != nil {
				t.Fatal(err)
			}
			w.expect(st, fmt.Sprintf("id %d canceled revision %d", i, rev))
		}
	})
}

// contract/client-api.md 7.8: a stream that is not read delays nobody, holds a bounded number of responses,
// and misses nothing when it is read again.
func TestSlowStreamDelaysOnlyItself(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, func(c *Config) { c.WindowRevisions = 50 })
		defer w.close()
		slow, quick := w.stage.Open(StreamConfig{MessagesMax: 4}), w.stage.Open(StreamConfig{})
		defer slow.Close()
		defer quick.Close()
		w.create(slow, CreateRequest{Key: []byte("k")})
		w.create(quick, CreateRequest{Key: []byte("k")})
		w.expect(quick, "id 0 created revision 1")
		w.expect(slow, "id 0 created revision 1")
		for i := range 500 {
			w.change(op{"k", []byte("x")})
			w.expect(quick, fmt.Sprintf("id 0 revision %d PUT k@%d=x", i+2, i+2))
		}
		slow.out.mu.Lock()
		if slow.out.n > 4 {
			t.Errorf("%d responses wait", slow.out.n)
		}
		slow.out.mu.Unlock()
		next := int64(2)
		for next <= 501 {
			m, err := slow.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, ev := range decode(t, m).Events {
				if ev.Kv.ModRevision != next {
					t.Fatalf("event at %d, want %d", ev.Kv.ModRevision, next)
				}
				next++
			}
		}
		w.change(op{"k", []byte("y")})
		w.expect(slow, "id 0 revision 502 PUT k@502=y")
	})
}

// A client that never reads its answers is held back when it asks, and holds back nobody else.
func TestUnreadAnswersHoldTheAsker(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		st := w.stage.Open(StreamConfig{})
		defer st.Close()
		for range answersMax {
			w.create(st, CreateRequest{Key: []byte("k")})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := st.Create(ctx, CreateRequest{Key: []byte("k")}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("create with %d unread answers: %v", answersMax, err)
		}
		for range 100 { // unknown ids and silent progress requests keep no place
			if w.next(st); true {
				_ = st.Cancel(t.Context(), 12345)
			}
			w.create(st, CreateRequest{Key: []byte("k")})
		}
	})
}

// Progress notifications come at the interval plus up to 10 %, chosen once.
func TestProgressInterval(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, func(c *Config) { c.Jitter = func() float64 { return 0.5 } })
		defer w.close()
		st := w.stage.Open(StreamConfig{})
		defer st.Close()
		opened := time.Now()
		w.create(st, CreateRequest{Key: []byte("k"), ProgressNotify: true})
		w.expect(st, "id 0 created revision 1")
		for i := range 5 {
			w.expect(st, "id 0 revision 1")
			want := time.Duration(i+1) * 10500 * time.Millisecond
			if got := time.Since(opened); got < want || got > want+100*time.Millisecond {
				t.Errorf("notification %d after %v, want %v", i, got, want)
			}
		}
	})
}

// A closed mailbox is drained; what was pushed can still be taken, then Next says that the stage has ended.
func TestOrderlyStop(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		st := w.stage.Open(StreamConfig{})
		w.create(st, CreateRequest{Key: []byte("k")})
		w.change(op{"k", []byte("x")})
		synctest.Wait()
		w.box.Close()
		synctest.Wait()
		w.expect(st, "id 0 created revision 1", "id 0 revision 2 PUT k@2=x")
		if _, err := st.Next(t.Context()); !errors.Is(err, ErrStopped) {
			t.Errorf("next after the end: %v", err)
		}
		if err := st.Progress(t.Context()); err == nil {
			t.Error("progress after the end was taken")
		}
		st.Close()
		st.Close()
	})
}

// A failing scan stops the stage's worker, and so the member.
func TestFailedScanEndsTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := mailbox.New[Inbound](mailbox.Config{Capacity: 4})
		s := New(Config{In: box.Receiver(), Self: box.Sender(mailbox.Wait), Views: newModel(), Revision: 5, Workers: 1})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		st := s.Open(StreamConfig{})
		if err := st.Create(ctx, CreateRequest{Key: []byte("k"), Start: 2}); err != nil {
			t.Fatal(err)
		}
		if err := s.Workers()[0].Run(ctx); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("a view behind the stage: %v", err)
		}
	})
}

// Random writers, watchers, readers, compactions and installs against the model: order, uniqueness, no gap,
// atomic revisions, progress, previous values, cancels; with every mailbox at one place as well.
func TestRandomAgainstModel(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 6
	}
	for i := range rounds {
		n := *seed
		if n == 0 {
			n = rand.Uint64()
		}
		t.Run(fmt.Sprintf("seed %d", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomRun(t, rand.New(rand.NewPCG(n, 0))) })
		})
		if *seed != 0 && i == 0 {
			return
		}
	}
}

func randomRun(t *testing.T, rng *rand.Rand) {
	pick := func(values ...int) int { return values[rng.IntN(len(values))] }
	w := newWorld(t, pick(1, 1, 10, 1000), func(c *Config) {
		c.Workers = pick(1, 2, 3)
		c.WindowRevisions = pick(1, 5, 100, 10_000)
		c.WindowBytes = int64(pick(100, 5000, 1<<20))
		c.ChunkBytes = int64(pick(1, 300, 1<<20))
		c.StreamMessagesMax = pick(1, 2, 10, 256)
		c.StreamBytesMax = int64(pick(1, 2000, 1<<20))
		c.ProgressInterval = time.Duration(pick(100, 500)) * time.Millisecond
	})
	defer w.close()
	core := w.stage.core
	core.fragmentBytes = pick(100, 1000, 1<<20)
	core.spotEvents, core.scanEvents = pick(0, 1, 10, spotEvents), pick(1, 10, scanEvents)
	var clients sync.WaitGroup
	done := make(chan struct{}) // the writer has finished
	for range 1 + rng.IntN(6) {
		r := rand.New(rand.NewPCG(rng.Uint64(), 0))
		clients.Go(func() { client(w, r, done) })
	}
	writer(w, rand.New(rand.NewPCG(rng.Uint64(), 0)))
	close(done)
	clients.Wait()
}

func randomKey(rng *rand.Rand) string {
	return string("abcdefgh"[rng.IntN(8)]) + "/" + string("xyz"[rng.IntN(3)])
}

// writer applies random batches, and sometimes compacts or installs a snapshot.
func writer(w *world, rng *rand.Rand) {
	for range 300 {
		b := w.store.batch(nil).Events
		for range 1 + rng.IntN(4) {
			keys := map[string]bool{}
			var ops []op
			for range 1 + rng.IntN(4) {
				o := op{key: randomKey(rng)}
				if keys[o.key] {
					continue
				}
				keys[o.key] = true
				if rng.IntN(3) > 0 {
					o.value = make([]byte, 1+rng.IntN(60))
				}
				ops = append(ops, o)
			}
			evs := w.store.txn(ops...)
			if rng.IntN(10) == 0 {
				for i := range evs {
					if evs[i].Prev != nil {
						evs[i].Prev, evs[i].PrevUnknown = nil, true
					}
				}
			}
			b = append(b, evs...)
		}
		switch rng.IntN(20) {
		case 0, 1:
			w.store.compactAt(w.store.batch(nil).Revision - int64(rng.IntN(40)))
			time.Sleep(time.Duration(rng.IntN(3)) * 100 * time.Millisecond) // views know it first
		case 2:
			b = nil // an install: only views tell
		}
		if err := w.stage.Events(w.t.Context(), w.store.batch(b)); err != nil {
			w.t.Error(err)
			return
		}
		if rng.IntN(3) == 0 {
			time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
		}
	}
}

// client opens a stream, asks at random, reads more or less slowly, and holds what it gets against the model.
func client(w *world, rng *rand.Rand, done <-chan struct{}) {
	st := w.stage.Open(StreamConfig{})
	defer st.Close()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	c := newChecker(w.store)
	var mu sync.Mutex // guards c
	delay := []int{0, 0, 5, 50, 400}[rng.IntN(5)]
	stall := time.Duration(rng.IntN(5)) * time.Second
	var reader sync.WaitGroup
	reader.Go(func() {
		time.Sleep(stall)
		for {
			m, err := st.Next(ctx)
			if err != nil {
				return
			}
			mu.Lock()
			if err := c.take(decode(w.t, m)); err != nil {
				w.t.Error(err)
				mu.Unlock()
				cancel()
				return
			}
			mu.Unlock()
			select {
			case <-done:
			default:
				time.Sleep(time.Duration(delay) * time.Millisecond)
			}
		}
	})
	for range 60 {
		if err := act(ctx, w, st, c, &mu, rng); err != nil {
			break
		}
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
	}
	<-done
	const enough = time.Minute // of the bubble's time: everything that can come has come
	time.Sleep(enough)
	var err error
	mu.Lock()
	mute := c.mute()
	mu.Unlock()
	for _, id := range mute {
		err = errors.Join(err, st.Cancel(ctx, id))
	}
	time.Sleep(enough)
	err = errors.Join(err, st.Progress(ctx))
	time.Sleep(enough)
	cancel()
	reader.Wait()
	mu.Lock()
	defer mu.Unlock()
	if err := errors.Join(err, c.finish()); err != nil && !w.t.Failed() {
		w.t.Error(err)
	}
}

// act sends one random request.
func act(ctx context.Context, w *world, st *Stream, c *checker, mu *sync.Mutex, rng *rand.Rand) error {
	rev := w.store.batch(nil).Revision
	switch rng.IntN(6) {
	case 0:
		return st.Cancel(ctx, int64(rng.IntN(12)))
	case 1, 2:
		return st.Progress(ctx)
	}
	req := CreateRequest{
		Key: []byte(randomKey(rng)), PrevKV: rng.IntN(2) == 0, Fragment: rng.IntN(3) == 0,
		ProgressNotify: rng.IntN(3) == 0, NoPut: rng.IntN(8) == 0, NoDelete: rng.IntN(8) == 0,
	}
	switch rng.IntN(4) {
	case 0:
		req.Key = req.Key[:2]
		req.End = []byte{req.Key[0], '0'}
	case 1:
		req.End = []byte(randomKey(rng))
	case 2:
		req.End = []byte{0}
	}
	switch rng.IntN(4) {
	case 0:
		req.Start = max(rev-int64(rng.IntN(50)), 1)
	case 1:
		req.Start = rev + int64(rng.IntN(20)) - 5
	case 2:
		req.Start = 1 + rng.Int64N(rev)
	}
	if rng.IntN(4) == 0 {
		req.ID = int64(rng.IntN(12)) - 3
	}
	if req.ID == broadcastID { // allowed, but ambiguous for whoever reads the responses
		req.ID = 99
	}
	if rng.IntN(10) == 0 {
		req.Refuse = "no"
	}
	mu.Lock()
	c.create(req)
	mu.Unlock()
	return st.Create(ctx, req)
}

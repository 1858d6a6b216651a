package expire

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice/mailbox"
)

// world is the stage with the rest of a member played by the test: revocations come back as changes.
type world struct {
	t     *testing.T
	box   *mailbox.Mailbox[Inbound]
	stage *Stage
	stop  context.CancelFunc
	start time.Time

	mu       sync.Mutex
	fresh    bool
	refuse   bool  // take nothing
	lose     bool  // take, and forget
	barrier  error // what a read barrier says
	barriers int
	revoked  map[int64]time.Duration
	records  []Checkpoint
	wg       sync.WaitGroup
}

func newWorld(t *testing.T, capacity int, change func(*Config)) *world {
	w := &world{t: t, fresh: true, revoked: map[int64]time.Duration{}, start: time.Now()}
	w.box = mailbox.New[Inbound](mailbox.Config{Name: "expire", Capacity: capacity})
	cfg := Config{
		In: w.box.Receiver(), Self: w.box.Sender(mailbox.Wait), Out: w, Standing: w,
		ElectionTimeout: time.Second, RequestTimeout: 7 * time.Second,
		Now: func() int64 { return int64(time.Since(w.start)) },
	}
	if change != nil {
		change(&cfg)
	}
	w.stage = New(cfg)
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	w.wg.Go(func() { _ = w.stage.Run(ctx) })
	w.wg.Go(func() { _ = w.stage.Confirmer().Run(ctx) })
	w.wg.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.stage.Tick()
			case <-ctx.Done():
				return
			}
		}
	})
	return w
}

func (w *world) close() {
	w.stop()
	w.wg.Wait()
}

func (w *world) Fresh() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fresh
}

func (w *world) Revoke(_ uint64, ids []int64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse {
		return 0
	}
	if w.lose {
		return len(ids)
	}
	var cs []Change
	for _, id := range ids {
		w.revoked[id] = time.Since(w.start)
		cs = append(cs, Change{Kind: Revoked, ID: id})
	}
	w.wg.Go(func() { _ = w.stage.Changes(w.t.Context(), cs) })
	return len(ids)
}

func (w *world) Checkpoint(_ uint64, cps []Checkpoint) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, cps...)
	var cs []Change
	for _, cp := range cps {
		cs = append(cs, Change{Kind: Checkpointed, ID: cp.ID, Remaining: cp.Remaining})
	}
	w.wg.Go(func() { _ = w.stage.Changes(w.t.Context(), cs) })
	return true
}

func (w *world) Barrier(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.barriers++
	return w.barrier
}

func (w *world) set(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
}

func (w *world) change(cs ...Change) {
	w.t.Helper()
	if err := w.stage.Changes(w.t.Context(), cs); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) lead(term uint64) { w.change(Change{Kind: Leading, Leads: true, Term: term}) }

// at returns when id was revoked.
func (w *world) at(id int64) time.Duration {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.revoked[id]
	if !ok {
		w.t.Fatalf("lease %d not revoked after %v", id, time.Since(w.start))
	}
	return at
}

// both runs a test with a mailbox of ordinary size and with one place.
func both(t *testing.T, fn func(t *testing.T, capacity int)) {
	for name, capacity := range map[string]int{"capacity 1000": 1000, "capacity 1": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { fn(t, capacity) })
		})
	}
}

// contract/client-api.md 8.6: never earlier than the TTL after the last renewal; soon after.
func TestLeaseLivesItsTTL(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		w.lead(2)
		w.change(Change{Kind: Granted, ID: -3, TTL: 5}, Change{Kind: Granted, ID: 4, TTL: 5})
		time.Sleep(4 * time.Second)
		if ttl, err := w.stage.Renew(t.Context(), -3); ttl != 5 || err != nil {
			t.Fatalf("renewal: %d, %v", ttl, err)
		}
		if granted, left, err := w.stage.TimeToLive(t.Context(), 4); granted != 5 || left != 1 && left != 0 || err != nil {
			t.Fatalf("time to live: %d of %d, %v", left, granted, err)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		for id, want := range map[int64]time.Duration{4: 5 * time.Second, -3: 9 * time.Second} {
			if at := w.at(id); at < want || at > want+200*time.Millisecond {
				t.Errorf("lease %d revoked after %v, want %v", id, at, want)
			}
		}
		if _, err := w.stage.Renew(t.Context(), 4); !errors.Is(err, ErrNotFound) {
			t.Errorf("renewal of a dead lease: %v", err)
		}
		if _, _, err := w.stage.TimeToLive(t.Context(), 4); !errors.Is(err, ErrNotFound) {
			t.Errorf("time to live of a dead lease: %v", err)
		}
	})
}

// BC-42: a renewal of a lease that has run out waits for the revocation, and then says that it is gone.
func TestRenewalWaitsForTheEnd(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		w.lead(2)
		w.change(Change{Kind: Granted, ID: 1, TTL: 2})
		w.set(func() { w.refuse = true })
		time.Sleep(3 * time.Second)
		done := make(chan error, 1)
		w.wg.Go(func() {
			_, err := w.stage.Renew(t.Context(), 1)
			done <- err
		})
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.stage.Renew(short, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("renewal of a due lease was answered: %v", err)
		}
		w.set(func() { w.refuse = false })
		if err := <-done; !errors.Is(err, ErrNotFound) {
			t.Fatalf("renewal after the revocation: %v", err)
		}
	})
}

// BC-39: a lost revocation is tried again after the request timeout.
func TestLostRevocationIsSentAgain(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		w.lead(2)
		w.change(Change{Kind: Granted, ID: 1, TTL: 2})
		w.set(func() { w.lose = true })
		time.Sleep(5 * time.Second)
		w.set(func() { w.lose = false })
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if at := w.at(1); at < 9*time.Second || at > 9500*time.Millisecond {
			t.Errorf("sent again after %v, want 9s", at)
		}
	})
}

// design.md section 5: with a stale tick, renewals are answered after a read barrier, one for all of them, and
// nothing is revoked before it.
func TestStaleTickNeedsBarrier(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		w.lead(2)
		w.change(Change{Kind: Granted, ID: 1, TTL: 100}, Change{Kind: Granted, ID: 2, TTL: 2})
		w.set(func() { w.fresh, w.barrier = false, errors.New("no quorum") })
		if _, err := w.stage.Renew(t.Context(), 1); !errors.Is(err, ErrNotPrimary) {
			t.Fatalf("renewal without a quorum: %v", err)
		}
		time.Sleep(10 * time.Second)
		w.set(func() {
			if len(w.revoked) > 0 {
				t.Errorf("revoked on old authority: %v", w.revoked)
			}
			w.barrier, w.barriers = nil, 0
		})
		for range 50 {
			if ttl, err := w.stage.Renew(t.Context(), 1); ttl != 100 || err != nil {
				t.Fatalf("renewal after a barrier: %d, %v", ttl, err)
			}
		}
		time.Sleep(time.Second)
		w.at(2)
		w.set(func() {
			if w.barriers > 5 {
				t.Errorf("%d barriers for 50 renewals", w.barriers)
			}
		})
	})
}

// performance.md 3.5, BC-39: 20 000 leases that run out together leave at the rate, and all of them.
func TestMassExpiryIsPaced(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		w.lead(2)
		const n = 20_000
		cs := make([]Change, n)
		for i := range cs {
			cs[i] = Change{Kind: Granted, ID: int64(i + 1), TTL: 10}
		}
		w.change(cs...)
		perSecond := map[int]int{}
		time.Sleep(35 * time.Second)
		synctest.Wait()
		w.set(func() {
			if len(w.revoked) != n {
				t.Errorf("%d of %d leases revoked", len(w.revoked), n)
			}
			for _, at := range w.revoked {
				perSecond[int((at+time.Millisecond)/time.Second)]++
			}
		})
		for second, count := range perSecond {
			if count > 2000 || second > 10 && count > 1000 {
				t.Errorf("%d revocations in second %d", count, second)
			}
		}
	})
}

// contract/client-api.md 8.5: the leader lists by remaining time.
func TestLeasesByRemainingTime(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		w.change(Change{Kind: Reset}, Change{Kind: Granted, ID: 1, TTL: 50}, Change{Kind: Granted, ID: 2, TTL: 40})
		w.lead(2)
		w.change(Change{Kind: Granted, ID: -9, TTL: 45})
		if ids, err := w.stage.Leases(t.Context()); err != nil || !slices.Equal(ids, []int64{2, -9, 1}) {
			t.Fatalf("leases %v, %v", ids, err)
		}
		if _, err := w.stage.Renew(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		w.change(Change{Kind: Leading, Term: 3})
		ids, err := w.stage.Leases(t.Context())
		slices.Sort(ids)
		if err != nil || !slices.Equal(ids, []int64{-9, 1, 2}) {
			t.Fatalf("leases of a follower %v, %v", ids, err)
		}
	})
}

// BC-37: with the gate on, checkpoints leave every five minutes, and a renewal takes them back first.
func TestCheckpoints(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, func(c *Config) { c.Checkpoint = true })
		defer w.close()
		w.lead(2)
		w.change(Change{Kind: Granted, ID: 1, TTL: 1000}, Change{Kind: Granted, ID: 2, TTL: 200})
		time.Sleep(11 * time.Minute)
		if ttl, err := w.stage.Renew(t.Context(), 1); err != nil || ttl != 1000 {
			t.Fatalf("renewal: %d, %v", ttl, err)
		}
		want := []Checkpoint{{1, 700}, {1, 400}, {1, 0}}
		w.set(func() {
			if !slices.Equal(w.records, want) {
				t.Errorf("checkpoints %v, want %v", w.records, want)
			}
		})
	})
}

// Without the gate nothing is recorded.
func TestNoCheckpointsByDefault(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		w.lead(2)
		w.change(Change{Kind: Granted, ID: 1, TTL: 1000})
		time.Sleep(15 * time.Minute)
		w.set(func() {
			if len(w.records) > 0 {
				t.Errorf("checkpoints %v", w.records)
			}
		})
	})
}

// A closed mailbox is drained, then Run ends in order; who waits is told.
func TestOrderlyStop(t *testing.T) {
	both(t, func(t *testing.T, capacity int) {
		w := newWorld(t, capacity, nil)
		defer w.close()
		w.lead(2)
		w.change(Change{Kind: Granted, ID: 1, TTL: 2})
		w.set(func() { w.refuse = true })
		time.Sleep(3 * time.Second)
		done := make(chan error, 1)
		w.wg.Go(func() {
			_, err := w.stage.Renew(t.Context(), 1)
			done <- err
		})
		synctest.Wait()
		w.box.Close()
		if err := <-done; !errors.Is(err, ErrStopped) {
			t.Errorf("a waiting renewal got %v", err)
		}
		if _, err := w.stage.Renew(t.Context(), 1); !errors.Is(err, mailbox.ErrClosed) {
			t.Errorf("a renewal after the end got %v", err)
		}
	})
}

// Callers that gave up are forgotten, so that renewing a due lease for hours costs no memory.
func TestGivenUpRenewalsAreForgotten(t *testing.T) {
	var rs []*reply
	for range 100_000 {
		r := &reply{ch: make(chan answer, 1)}
		r.gone.Store(true)
		rs = keep(rs, r)
	}
	if len(rs) > 8 {
		t.Errorf("%d replies kept", len(rs))
	}
}

func BenchmarkRenew(b *testing.B) {
	c := newCore(settings{electionTimeout: second, requestTimeout: 7 * second, revokeRate: 1000}, 0)
	c.step(0, true, changesMsg{[]Change{{Kind: Leading, Leads: true, Term: 1}}})
	const leases = 100_000
	for id := range int64(leases) {
		c.step(0, true, changesMsg{[]Change{{Kind: Granted, ID: id + 1, TTL: 60}}})
	}
	m := renewMsg{reply: &reply{ch: make(chan answer, 1)}}
	now := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		now += 1000
		m.id = (m.id*1103515245+12345)%leases + 1
		c.step(now, true, m)
		c.out.answers = c.out.answers[:0]
	}
}

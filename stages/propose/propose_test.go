package propose

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/mailbox"
	"sluice/stages/wire"
)

// fakeRaft stands for replicate and apply: it does with each batch what the test says.
type fakeRaft struct {
	mu       sync.Mutex
	entries  []*raftpb.Entry
	rounds   []uint64
	batches  int
	onBatch  func(entries []*raftpb.Entry)
	onRound  func(round uint64)
	commit   atomic.Uint64
	applied_ atomic.Uint64
}

func (f *fakeRaft) Propose(_ context.Context, entries []*raftpb.Entry) error {
	f.mu.Lock()
	f.entries = append(f.entries, entries...)
	f.batches++
	f.mu.Unlock()
	if f.onBatch != nil {
		f.onBatch(entries)
	}
	return nil
}

func (f *fakeRaft) ReadIndex(_ context.Context, round uint64) error {
	f.mu.Lock()
	f.rounds = append(f.rounds, round)
	f.mu.Unlock()
	if f.onRound != nil {
		f.onRound(round)
	}
	return nil
}

func (f *fakeRaft) Committed() uint64 { return f.commit.Load() }
func (f *fakeRaft) Applied() uint64   { return f.applied_.Load() }

func (f *fakeRaft) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.entries)
}

func put(key, value string) *wire.Request {
	return &wire.Request{Put: &wire.PutRequest{Key: []byte(key), Value: []byte(value)}}
}

var leading = Standing{Leader: 7, Term: 2, CommittedTerm: 2, Leading: true}

// start runs a stage with fake time's clock; stop ends it in order and checks how Run ended.
func start(t *testing.T, f *fakeRaft, change func(*Config)) (s *Stage, stop func()) {
	t.Helper()
	begin := time.Now()
	cfg := Config{
		MemberID: 0xff07, StartMillis: 1, Clock: func() int64 { return int64(time.Since(begin)) + 1 },
		ClientMessages: 1000, SystemMessages: 100, Replicate: f, Progress: f,
	}
	if change != nil {
		change(&cfg)
	}
	s = New(cfg)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()
	return s, func() {
		t.Helper()
		s.Close()
		if err := <-ended; !errors.Is(err, mailbox.ErrClosed) {
			t.Fatalf("Run ended with %v", err)
		}
		s.Abandon()
	}
}

// complete answers every entry of a batch with its id.
func complete(s *Stage) func([]*raftpb.Entry) {
	return func(entries []*raftpb.Entry) {
		for _, e := range entries {
			s.Complete([]wire.Result{{ID: entryID(e), Revision: 5}})
		}
	}
}

func TestProposeReturnsTheResultOfItsOwnID(t *testing.T) {
	for _, n := range []int{1, 2, 1000} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeRaft{}
			s, stop := start(t, f, func(c *Config) { c.ClientMessages, c.CellsFirst = n, 2 })
			f.onBatch = complete(s)
			s.Standing(leading)
			var wg sync.WaitGroup
			for i := range 3000 {
				wg.Go(func() {
					r := put(fmt.Sprint(i), "v")
					res, err := s.Propose(t.Context(), r, Lane(i%2))
					if err != nil || res.ID != r.ID || res.Revision != 5 {
						t.Errorf("got %+v, %v for id %d", res, err, r.ID)
					}
				})
			}
			wg.Wait()
			if f.count() != 3000 || s.Pending() != 0 {
				t.Errorf("%d entries proposed, %d cells taken", f.count(), s.Pending())
			}
			stop()
		})
	}
}

func TestBatchesHoldWhatWaitedAndAtMostOneMebibyte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, nil)
		var largest int
		f.onBatch = func(entries []*raftpb.Entry) {
			n := 0
			for _, e := range entries {
				n += len(e.GetData())
			}
			largest = max(largest, n)
			complete(s)(entries)
		}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { _, _ = s.Propose(t.Context(), put("k", string(make([]byte, 100_000))), Client) })
		}
		synctest.Wait()
		s.Standing(leading) // until now the lane was closed
		wg.Wait()
		if f.batches != 10 || largest > batchBytesMax {
			t.Errorf("%d batches, the largest of %d bytes; want 10 of at most %d", f.batches, largest, batchBytesMax)
		}
		stop()
	})
}

// A round trip allocates the encoded bytes, the entry, and the batch's slice: nothing to wait with.
func TestProposeAllocations(t *testing.T) {
	f := &fakeRaft{}
	s, stop := start(t, f, nil)
	results := make([]wire.Result, 1)
	f.onBatch = func(entries []*raftpb.Entry) {
		f.entries = f.entries[:0]
		var r wire.Request
		if err := r.Decode(entries[0].GetData()); err != nil {
			t.Error(err)
		}
		results[0] = wire.Result{ID: r.ID}
		s.Complete(results)
	}
	s.Standing(leading)
	r := put("key", "value")
	encoded := r.Append(nil)
	decode := testing.AllocsPerRun(100, func() { // what the fake itself costs
		var d wire.Request
		_ = d.Decode(encoded)
	})
	ctx := t.Context()
	got := testing.AllocsPerRun(2000, func() {
		if _, err := s.Propose(ctx, r, Client); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%.1f allocations per round trip, decoding in the fake %.1f", got, decode)
	if got-decode > 3 {
		t.Errorf("%.1f allocations per round trip beside the fake's %.1f, want at most 3", got, decode)
	}
	stop()
}

func TestWithoutLeaderARequestWaitsAndIsNeverProposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, capacity := range []int{1, 100} {
			f := &fakeRaft{}
			s, stop := start(t, f, func(c *Config) { c.ClientMessages = capacity })
			begin := time.Now()
			var wg sync.WaitGroup
			for range 10 { // most of them wait for room in the small lane
				wg.Go(func() {
					if _, err := s.Propose(t.Context(), put("k", "v"), Client); err != context.DeadlineExceeded {
						t.Errorf("got %v, want the plain context error", err)
					}
				})
			}
			ticks(s, 71)
			wg.Wait()
			if took := time.Since(begin); took > 7200*time.Millisecond {
				t.Errorf("took %v", took)
			}
			s.Standing(leading)
			synctest.Wait()
			if f.count() != 0 {
				t.Errorf("%d requests proposed that nobody waits for", f.count())
			}
			stop()
		}
	})
}

// ticks lets n tick intervals pass.
func ticks(s *Stage, n int) {
	for range n {
		time.Sleep(100 * time.Millisecond) // fake time
		s.Tick()
		synctest.Wait()
	}
}

func TestALateResultDoesNotCompleteANewerRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, func(c *Config) { c.CellsFirst, c.CellsMax = 1, 1 })
		s.Standing(leading)
		old := put("old", "")
		done := make(chan error, 1)
		go func() { _, err := s.Propose(t.Context(), old, Client); done <- err }()
		ticks(s, 71)
		if err := <-done; err != ErrTimeout {
			t.Fatalf("got %v, want ErrTimeout", err)
		}
		newer := put("newer", "")
		got := make(chan wire.Result, 1)
		go func() {
			res, err := s.Propose(t.Context(), newer, Client)
			if err != nil {
				t.Error(err)
			}
			got <- res
		}()
		synctest.Wait()
		if old.ID == newer.ID || f.count() != 2 {
			t.Fatalf("ids %x and %x, %d proposed", old.ID, newer.ID, f.count())
		}
		s.Complete([]wire.Result{{ID: old.ID, Revision: 1}, {ID: 0}, {ID: 12345}})
		synctest.Wait()
		s.Complete([]wire.Result{{ID: newer.ID, Revision: 2}})
		s.Complete([]wire.Result{{ID: newer.ID, Revision: 3}}) // twice is harmless
		if res := <-got; res.Revision != 2 {
			t.Errorf("got the result of revision %d", res.Revision)
		}
		stop()
	})
}

func TestRequestsWaitForACellWhenAllAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, func(c *Config) { c.CellsFirst, c.CellsMax = 1, 4 })
		s.Standing(leading)
		var wg sync.WaitGroup
		var ok, late, left atomic.Int32
		leave, cancel := context.WithCancel(t.Context())
		count := func(ctx context.Context) {
			switch _, err := s.Propose(ctx, put("k", "v"), Client); err {
			case nil:
				ok.Add(1)
			case ErrTimeout:
				late.Add(1)
			case ErrCanceled:
				left.Add(1)
			default:
				t.Error(err)
			}
		}
		for range 20 {
			wg.Go(func() { count(t.Context()) })
		}
		synctest.Wait()
		wg.Go(func() { count(leave) }) // parks behind the 16 others
		synctest.Wait()
		if f.count() != 4 {
			t.Fatalf("%d proposed with 4 cells", f.count())
		}
		cancel()
		synctest.Wait()
		answer := complete(s)
		for i := range 10 { // each frees a cell for the next that waits
			answer(f.entries[i : i+1])
			synctest.Wait()
		}
		ticks(s, 71)
		wg.Wait()
		if ok.Load() != 10 || late.Load() != 10 || left.Load() != 1 || s.Pending() != 0 {
			t.Errorf("%d answered, %d late, %d left, %d cells taken", ok.Load(), late.Load(), left.Load(), s.Pending())
		}
		stop()
	})
}

func TestHundredThousandWait(t *testing.T) {
	f := &fakeRaft{}
	s, stop := start(t, f, func(c *Config) {
		c.ClientMessages, c.Clock = 100_000, func() int64 { return 1 } // however slow the machine
	})
	s.Standing(leading)
	const n = 100_000
	var wg sync.WaitGroup
	all := make(chan struct{})
	f.onBatch = func([]*raftpb.Entry) {
		if f.count() == n {
			close(all)
		}
	}
	for i := range n {
		wg.Go(func() {
			r := put("k", "v")
			if res, err := s.Propose(t.Context(), r, Client); err != nil || res.Revision != int64(r.ID) {
				t.Errorf("request %d: %+v, %v", i, res, err)
			}
		})
	}
	<-all
	if s.Pending() != n {
		t.Errorf("%d wait, want %d", s.Pending(), n)
	}
	begin := time.Now()
	s.Tick()
	results := make([]wire.Result, n)
	for i, e := range f.entries {
		results[i] = wire.Result{ID: entryID(e), Revision: int64(entryID(e))}
	}
	s.Complete(results)
	wg.Wait()
	t.Logf("completed in %v, cells in the newest ring: %d", time.Since(begin), s.cells.size())
	stop()
}

// A context that ends frees the waiter, wherever its request is; the work goes on once it was handed over.
func TestContextEndsAtEachPoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, func(c *Config) { c.ClientMessages = 1 })
		type outcome struct {
			r   *wire.Request
			err error
		}
		out := make(chan outcome, 3)
		begin := func(key string) context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				r := put(key, "")
				_, err := s.Propose(ctx, r, Client)
				out <- outcome{r, err}
			}()
			synctest.Wait()
			return cancel
		}
		inLane, forRoom := begin("in the lane"), begin("waits for room")
		forRoom()
		if o := <-out; o.err != ErrCanceled || string(o.r.Put.Key) != "waits for room" {
			t.Errorf("%s: %v", o.r.Put.Key, o.err)
		}
		inLane()
		if o := <-out; o.err != ErrCanceled {
			t.Errorf("in the lane: %v", o.err)
		}
		s.Standing(leading)
		synctest.Wait()
		if f.count() != 0 {
			t.Errorf("%d proposed for waiters that were gone", f.count())
		}
		handed := begin("handed over")
		handed()
		o := <-out
		if o.err != ErrCanceled || f.count() != 1 || s.Pending() != 0 {
			t.Errorf("handed over: %v, %d proposed, %d cells taken", o.err, f.count(), s.Pending())
		}
		s.Complete([]wire.Result{{ID: o.r.ID}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := s.Propose(ctx, put("k", ""), Client); err != ErrTimeout {
			t.Errorf("the client's own deadline: %v", err)
		}
		cancel()
		stop()
	})
}

func TestGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, func(c *Config) { c.RequestBytesMax, c.PriorityGapMax, c.WaitingMax = 100, 6000, 5 })
		f.onBatch = complete(s)
		s.Standing(leading)
		propose := func(r *wire.Request) error { _, err := s.Propose(t.Context(), r, Client); return err }
		r := put("k", "")
		r.ID = 1 << 63 // as long as a real one
		fits := string(make([]byte, 100-r.Size()-2))
		r = put("k", fits)
		if err := propose(r); err != nil || r.Size() != 100 {
			t.Errorf("a request of %d bytes: %v", r.Size(), err)
		}
		traced := put("k", fits)
		traced.Trace = make([]byte, 50)
		if err := propose(traced); err != nil {
			t.Errorf("the trace context counts: %v", err)
		}
		if err := propose(put("k", fits+"x")); err != ErrRequestTooLarge {
			t.Errorf("101 bytes: %v", err)
		}
		f.commit.Store(15000)
		f.applied_.Store(10000)
		if err := propose(put("k", "")); err != nil {
			t.Errorf("a gap of 5000: %v", err)
		}
		f.applied_.Store(9999)
		if err := propose(put("k", "")); err != ErrTooManyRequests {
			t.Errorf("a gap of 5001: %v", err)
		}
		revoke := &wire.Request{Other: leaseRevoke(1)}
		if err := propose(revoke); err != nil {
			t.Errorf("a revocation at a gap of 5001 of 6000: %v", err)
		}
		f.applied_.Store(8999)
		if err := propose(&wire.Request{Other: leaseRevoke(1)}); err != ErrTooManyRequests {
			t.Errorf("a revocation at a gap of 6001: %v", err)
		}
		f.applied_.Store(15000)
		f.onBatch = nil
		for range 5 {
			go propose(put("k", ""))
		}
		synctest.Wait()
		if err := propose(put("k", "")); err != ErrTooManyRequests {
			t.Errorf("the sixth that waits: %v", err)
		}
		if s.Pending() != 5 {
			t.Errorf("%d cells taken", s.Pending())
		}
		stop()
	})
}

// While too much is appended and not applied, the client lane stays closed; the system lane has a share
// of its own, and reads need none.
func TestBacklogClosesTheLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, func(c *Config) { c.UncommittedBytes = 800 })
		f.onBatch = complete(s)
		f.onRound = func(round uint64) { s.ReadIndexed(round, 1) }
		s.Published(1)
		s.Standing(leading)
		var done atomic.Int32
		begin := func(l Lane) {
			go func() {
				if _, err := s.Propose(t.Context(), put("k", ""), l); err != nil {
					t.Error(err)
				}
				done.Add(1)
			}()
			synctest.Wait()
		}
		s.Backlog(801)
		synctest.Wait()
		begin(Client)
		if done.Load() != 0 {
			t.Error("the client lane is open at 801 of 800 bytes")
		}
		begin(System)
		if done.Load() != 1 {
			t.Error("the system lane is closed at 801 of 900 bytes")
		}
		s.Backlog(901)
		begin(System)
		if done.Load() != 1 {
			t.Error("the system lane is open at 901 of 900 bytes")
		}
		if err := s.Barrier(t.Context()); err != nil {
			t.Error(err)
		}
		s.Backlog(900)
		synctest.Wait()
		if done.Load() != 2 {
			t.Error("the system lane did not open at 900 bytes")
		}
		s.Backlog(800)
		synctest.Wait()
		if done.Load() != 3 {
			t.Error("the client lane did not open at 800 bytes")
		}
		stop()
	})
}

func TestRefusalsAnswerAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, nil)
		s.Standing(leading)
		for _, c := range []struct {
			why  Refusal
			want error
		}{{NoLeader, ErrNoLeader}, {Overloaded, ErrTooManyRequests}} {
			f.onBatch = func(entries []*raftpb.Entry) { s.Refuse(entries, c.why) }
			if _, err := s.Propose(t.Context(), put("k", ""), Client); err != c.want {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if _, err := s.ProposeConfChange(t.Context(), &raftpb.ConfChange{NodeId: proto.Uint64(9)}); err != c.want {
				t.Errorf("conf change: got %v, want %v", err, c.want)
			}
		}
		stop()
	})
}

func TestOneConfChangeIsOutstanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, nil)
		s.Standing(leading)
		change := func(ctx context.Context) {
			go func() { _, _ = s.ProposeConfChange(ctx, &raftpb.ConfChange{NodeId: proto.Uint64(9)}) }()
			synctest.Wait()
		}
		first, cancel := context.WithCancel(t.Context())
		change(first)
		change(t.Context())
		change(t.Context())
		if f.count() != 1 {
			t.Fatalf("%d conf changes at once", f.count())
		}
		cancel() // its waiter is gone, but the change is on its way
		synctest.Wait()
		if f.count() != 1 {
			t.Fatalf("%d conf changes after the first waiter left", f.count())
		}
		complete(s)(f.entries[:1])
		synctest.Wait()
		if f.count() != 2 {
			t.Fatalf("%d conf changes after the first was applied", f.count())
		}
		s.Refuse(f.entries[1:2], Pending) // raft cannot take it yet: again at the next tick
		ticks(s, 1)
		if f.count() != 3 || entryID(f.entries[1]) != entryID(f.entries[2]) {
			t.Fatalf("%d conf changes after the tick", f.count())
		}
		// The leader is lost with it; once the next one has committed, the outcome is known to be in the past.
		s.Standing(Standing{Term: 2, CommittedTerm: 2})
		s.Standing(Standing{Leader: 8, Term: 3, CommittedTerm: 2})
		synctest.Wait()
		if f.count() != 3 {
			t.Fatalf("%d conf changes before the new term committed", f.count())
		}
		s.Standing(Standing{Leader: 8, Term: 3, CommittedTerm: 3})
		synctest.Wait()
		if f.count() != 4 {
			t.Fatalf("%d conf changes in the new term", f.count())
		}
		ticks(s, 75) // this one is lost without a trace
		s.cells.stop(ErrStopped)
		stop()
	})
}

func TestTimeoutTexts(t *testing.T) {
	const second = int64(time.Second)
	on, off := fakeLinks(true), fakeLinks(false)
	led := func(elected int64, l Links) outlook { return outlook{standing: leading, elected: elected, links: l} }
	followed := func(l Links) outlook { return outlook{standing: Standing{Leader: 9}, elected: 1, links: l} }
	for _, c := range []struct {
		name    string
		o       outlook
		started int64
		handed  bool
		want    error
	}{
		{"no leader, never proposed", outlook{}, 10, false, context.DeadlineExceeded},
		{"the leader lost its quorum", outlook{standing: Standing{Term: 2}, elected: 5 * second}, 10, true, ErrTimeout},
		{"a leader, held back by the backlog", led(1, on), 10, false, ErrTimeout},
		{"just before the leader", led(11*second, on), 10, true, ErrTimeoutLeaderFail},
		{"long before the leader", led(13*second, on), 10, true, ErrTimeout},
		{"leader without quorum", led(1, off), 10, true, ErrTimeoutConnectionLost},
		{"follower without leader", followed(off), 10, true, ErrTimeoutConnectionLost},
		{"connected", followed(on), 10, true, ErrTimeout},
	} {
		c.o.election = time.Second
		if got := c.o.timeout(17*second, c.started*second, c.handed); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

type fakeLinks bool

func (l fakeLinks) ConnectedFor(uint64, time.Duration) bool { return bool(l) }
func (l fakeLinks) QuorumFor(time.Duration) bool            { return bool(l) }

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, func(c *Config) { c.ClientMessages = 1 })
		errs := make(chan error, 10)
		begin := func() {
			go func() { _, err := s.Propose(t.Context(), put("k", ""), Client); errs <- err }()
			synctest.Wait()
		}
		begin() // in the lane
		begin() // waits for room
		go func() { errs <- s.Barrier(t.Context()) }()
		synctest.Wait()
		stop()
		begin()
		for range 4 {
			if err := <-errs; err != ErrStopped {
				t.Errorf("got %v", err)
			}
		}
		if err := s.Barrier(t.Context()); err != ErrStopped {
			t.Errorf("a read after the stop: %v", err)
		}
		if err := s.Submit(t.Context(), put("k", ""), System); err != ErrStopped {
			t.Errorf("Submit after the stop: %v", err)
		}
	})
}

// The orderly stop proposes what waits; whoever was handed over waits on for apply.
func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, _ := start(t, f, func(c *Config) { c.ClientMessages = 1 })
		s.Standing(leading)
		synctest.Wait()
		results := make(chan error, 1)
		go func() { _, err := s.Propose(t.Context(), put("k", ""), Client); results <- err }()
		synctest.Wait()
		s.Close()
		synctest.Wait()
		complete(s)(f.entries)
		if err := <-results; err != nil {
			t.Errorf("got %v", err)
		}
	})
}

func TestHardStopFailsEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s := New(Config{MemberID: 7, ClientMessages: 10, SystemMessages: 10, Replicate: f, Progress: f})
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		s.Standing(leading)
		errs := make(chan error, 2)
		go func() { _, err := s.Propose(t.Context(), put("k", ""), Client); errs <- err }()
		go func() { errs <- s.Barrier(t.Context()) }()
		synctest.Wait()
		cause := errors.New("disk full")
		cancel(cause)
		if err := <-ended; err != cause {
			t.Errorf("Run ended with %v", err)
		}
		for range 2 {
			if err := <-errs; err != ErrStopped {
				t.Errorf("got %v", err)
			}
		}
	})
}

func TestSubmitWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, func(c *Config) { c.RequestBytesMax = 50 })
		r := &wire.Request{Other: leaseRevoke(5)}
		if err := s.Submit(t.Context(), r, System); err != nil {
			t.Fatal(err)
		}
		if err := s.Submit(t.Context(), put("k", string(make([]byte, 50))), System); err != ErrRequestTooLarge {
			t.Errorf("a large one: %v", err)
		}
		s.Standing(leading)
		synctest.Wait()
		if f.count() != 1 || entryID(f.entries[0]) != r.ID || s.Pending() != 0 {
			t.Errorf("%d proposed, %d cells taken", f.count(), s.Pending())
		}
		s.Refuse(f.entries, NoLeader) // nobody to tell
		stop()
	})
}

func TestIDs(t *testing.T) {
	g := newIDGenerator(0x123456789abc4f9e, 0x1ffa22f183bee)
	if got, want := g.next(), uint64(0x4f9e)<<48|0xfa22f183bee<<8&(1<<48-1)|1; got != want {
		t.Errorf("first id %x, want %x", got, want)
	}
	g.count.Store(1<<48 - 1)
	if got := g.next(); got != 0x4f9e<<48 {
		t.Errorf("the id after the last suffix is %x", got)
	}
}

func leaseRevoke(id int64) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: id}}
}

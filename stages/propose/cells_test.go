package propose

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/wire"
)

// Few cells, contexts that end at any moment, deadlines, results that come late, twice and for nobody:
// everybody gets the result of its own id or none, and afterwards every cell is free and without a token.
func TestCellsUnderStress(t *testing.T) {
	for _, cells := range []int{1, 2, 8, 64} {
		f := &fakeRaft{}
		var clock atomic.Int64
		clock.Store(1)
		s, stop := start(t, f, func(c *Config) {
			c.CellsFirst, c.CellsMax, c.ClientMessages = 1, cells, 4
			c.Clock = func() int64 { return clock.Load() }
		})
		s.Standing(leading)
		queue := make(chan uint64, 1<<16)
		f.onBatch = func(entries []*raftpb.Entry) {
			for _, e := range entries {
				queue <- entryID(e)
			}
		}
		var answerers, clients sync.WaitGroup
		for i := range uint64(3) {
			answerers.Go(func() {
				rnd := rand.New(rand.NewPCG(i, 1))
				var late []uint64
				for id := range queue {
					switch rnd.IntN(10) {
					case 0:
						late = append(late, id)
						clock.Add(int64(time.Second))
						s.Tick()
						continue
					case 1:
						s.Refuse([]*raftpb.Entry{{Data: (&wire.Request{ID: id}).Append(nil)}}, Overloaded)
					}
					s.Complete([]wire.Result{{ID: id, Index: id}, {ID: id, Index: 1}})
					if len(late) > 20 {
						s.Complete([]wire.Result{{ID: late[0], Index: late[0]}})
						late = late[1:]
					}
				}
			})
		}
		var ok, failed atomic.Int64
		for i := range uint64(40) {
			clients.Go(func() {
				rnd := rand.New(rand.NewPCG(i, 2))
				for range 100 {
					ctx, cancel := context.WithCancel(t.Context())
					if rnd.IntN(3) == 0 {
						go cancel()
					}
					r := put("k", "v")
					res, err := s.Propose(ctx, r, Lane(i%2))
					switch {
					case err == nil && (res.ID != r.ID || res.Index != r.ID):
						t.Errorf("request %x got %+v", r.ID, res)
					case err == nil:
						ok.Add(1)
					case err == ErrCanceled || err == ErrTimeout || err == ErrTimeoutLeaderFail || err == ErrTooManyRequests:
						failed.Add(1)
					default:
						t.Error(err)
					}
					cancel()
				}
			})
		}
		finished := make(chan struct{})
		go func() { clients.Wait(); close(finished) }()
		every := time.NewTicker(time.Millisecond)
		for done := false; !done; { // the last ones may wait for a result that is kept for ever
			select {
			case <-finished:
				done = true
			case <-every.C:
				clock.Add(int64(100 * time.Millisecond))
				s.Tick()
			}
		}
		every.Stop()
		stop()
		close(queue)
		answerers.Wait()
		if ok.Load() == 0 || failed.Load() == 0 {
			t.Errorf("%d answered, %d failed", ok.Load(), failed.Load())
		}
		if s.Pending() != 0 || s.cells.held.Load() != 0 || len(s.cells.parked) != 0 {
			t.Errorf("%d cells taken, %d bytes held, %d parked", s.Pending(), s.cells.held.Load(), len(s.cells.parked))
		}
		for _, r := range *s.cells.rings.Load() {
			for i := range r.cells {
				if cl := &r.cells[i]; cl.id.Load() != 0 || cl.done || cl.handed || len(cl.wake) != 0 {
					t.Errorf("a free cell is not clean: %x, done %v, %d tokens", cl.id.Load(), cl.done, len(cl.wake))
				}
			}
		}
	}
}

// A read that joins a round allocates nothing; a round is a struct, its channel and its place in the lists.
func TestBarrierAllocations(t *testing.T) {
	f := &fakeRaft{}
	s, stop := start(t, f, nil)
	f.onRound = func(round uint64) {
		f.rounds = f.rounds[:0]
		s.ReadIndexed(round, 1)
	}
	s.Published(1)
	s.Standing(leading)
	ctx := t.Context()
	got := testing.AllocsPerRun(1000, func() {
		if err := s.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
	})
	if got > 4 {
		t.Errorf("%.1f allocations for a round of one read", got)
	}
	stop()
}

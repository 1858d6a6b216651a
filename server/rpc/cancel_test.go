package rpc

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// free waits until all of b is free, collecting garbage meanwhile.
func free(t *testing.T, b *budget) {
	t.Helper()
	ctx := within(t)
	for {
		runtime.GC()
		if free, _, grants := b.state(); free == b.max && grants == 0 {
			return
		}
		if ctx.Err() != nil {
			free, _, grants := b.state()
			t.Fatalf("%d of %d bytes are free, %d shares are held", free, b.max, grants)
		}
		runtime.Gosched()
	}
}

// An answer that grpc drops without freeing it gives its share back as it is collected.
func TestDroppedAnswerGivesItsShareBack(t *testing.T) {
	b := newBudget(1<<20, time.Minute, time.Now)
	func() {
		g, err := b.acquire(t.Context(), 300<<10, new(pool))
		if err != nil {
			t.Fatal(err)
		}
		a := newAnswer(new(pool), 300<<10)
		a.counted(g)
		a.Append(make([]byte, 200<<10))
		a.body(make([]byte, 50<<10))
		r := a.done()
		r.bufs[0].Free()
		r.take()
	}()
	free(t, b)
}

// A client that cancels its reads while they are answered, on a connection that lives on, leaves no share of
// the read budget behind, nor does one that reads to the end.
func TestCancelledReadsGiveTheirShareBack(t *testing.T) {
	s := newServer(t, func(c *Config, _ *ListenConfig) { c.ReadBudgetBytes = 64 << 20 })
	fill(t, s, 9)
	kv := s.kv(t)
	all := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}
	read := func(ctx context.Context) {
		if stream, err := kv.RangeStream(ctx, all); err == nil {
			for err == nil {
				_, err = stream.Recv()
			}
		}
		_, _ = kv.Range(ctx, all)
	}
	read(within(t))
	free(t, s.budget)
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			g := rand.New(rand.NewPCG(7, uint64(c)))
			for range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(g.IntN(3000))*time.Microsecond)
				read(ctx)
				cancel()
			}
		})
	}
	clients.Wait()
	free(t, s.budget)
}

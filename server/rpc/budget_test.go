package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (b *budget) state() (free int64, waiting, grants int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.free, b.waiting.Len(), len(b.shares)
}

// Answers are admitted in the order in which they came, also when a smaller one would fit sooner.
func TestBudgetIsFIFO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100, time.Minute, time.Now)
		ctx := context.Background()
		first, err := b.acquire(ctx, 60, new(pool))
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		var mu sync.Mutex
		grants := make([]*grant, 3)
		for i, n := range []int64{80, 30, 500} {
			go func() {
				g, err := b.acquire(ctx, n, new(pool))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order, grants[i] = append(order, i), g
			}()
			synctest.Wait()
		}
		if len(order) != 0 {
			t.Fatalf("admitted %v while 60 of 100 are taken", order)
		}
		first.abandon()
		synctest.Wait()
		for i := range grants {
			if len(order) != i+1 || order[i] != i {
				t.Fatalf("admitted %v after %d were done", order, i)
			}
			grants[i].abandon()
			synctest.Wait()
		}
		if free, waiting, out := b.state(); free != 100 || waiting != 0 || out != 0 {
			t.Errorf("%d free, %d waiting, %d grants", free, waiting, out)
		}
	})
}

// Who gives up waiting does not hold up those behind it.
func TestBudgetWaiterGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100, time.Minute, time.Now)
		held, _ := b.acquire(context.Background(), 50, new(pool))
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 2)
		go func() { _, err := b.acquire(ctx, 90, new(pool)); got <- err }()
		synctest.Wait()
		go func() { _, err := b.acquire(context.Background(), 50, new(pool)); got <- err }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled waiter: %v", err)
		}
		if err := <-got; err != nil {
			t.Errorf("waiter behind it: %v", err)
		}
		held.abandon()
	})
}

// A share shrinks to the answer's true size, and comes back chunk by chunk.
func TestGrantComesBackByChunks(t *testing.T) {
	b := newBudget(1<<20, time.Minute, time.Now)
	g, err := b.acquire(context.Background(), 500<<10, new(pool))
	if err != nil {
		t.Fatal(err)
	}
	a := newAnswer(new(pool), 300<<10)
	a.counted(g)
	a.Append(bytes.Repeat([]byte("x"), 200<<10))
	a.body(make([]byte, 50<<10))
	r := a.done()
	if free, _, _ := b.state(); free != 1<<20-250<<10 {
		t.Fatalf("%d free after sealing", free)
	}
	for len(r.bufs) > 0 {
		before, _, _ := b.state()
		n := int64(r.bufs[0].Len())
		r.bufs[0].Free()
		r.bufs = r.bufs[1:]
		if after, _, _ := b.state(); after-before != n {
			t.Errorf("a chunk of %d bytes gave %d back", n, after-before)
		}
	}
	if free, _, grants := b.state(); free != 1<<20 || grants != 0 {
		t.Errorf("%d free, %d grants", free, grants)
	}
}

// Answers are built the same however the pieces fall.
func TestAnswerPieces(t *testing.T) {
	var want []byte
	a := newAnswer(NewPoisonPool(), 100)
	for i := range 3000 {
		p := bytes.Repeat([]byte{byte(i)}, i%97)
		a.Append(p)
		want = append(want, p...)
		r := a.Reserve(i % 7)
		for j := range r {
			r[j] = byte(j)
			want = append(want, byte(j))
		}
	}
	big := bytes.Repeat([]byte("b"), 10<<10)
	a.body(big)
	want = append(want, big...)
	r := a.done()
	if r.size != len(want) || !bytes.Equal(r.bufs.Materialize(), want) {
		t.Errorf("%d bytes, want %d", r.size, len(want))
	}
	r.free()
}

// fill puts n keys of 100 KiB each.
func fill(t *testing.T, s *testServer, n int) {
	t.Helper()
	kv := s.kv(t)
	value := bytes.Repeat([]byte("v"), 100<<10)
	for i := range n {
		if _, err := kv.Put(within(t), &pb.PutRequest{Key: fmt.Appendf(nil, "k%03d", i), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
}

// writeRequest asks for all keys on stream 1.
func writeRequest(t *testing.T, framer *http2.Framer) {
	t.Helper()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/etcdserverpb.KV/Range"}, {":authority", "h"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	if err == nil {
		err = framer.WriteData(1, true, []byte{0, 0, 0, 0, 6, 0x0a, 1, 'k', 0x12, 1, 'l'})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// stall opens a connection by hand, asks for everything, and never opens the window.
func stall(t *testing.T, s *testServer) net.Conn {
	t.Helper()
	c := dialTCP(t, s)
	framer := pingsFrom(t, c, 0)
	writeRequest(t, framer)
	return c
}

// A client that stops reading holds its share of the budget until its connection is closed for it, and a client
// that goes away frees its share at once: those who wait for it are served (design.md section 4).
func TestStalledReader(t *testing.T) {
	s := newServer(t, func(c *Config, _ *ListenConfig) {
		c.ReadBudgetBytes = 1 << 20
		c.ReadStall = 300 * time.Millisecond
	})
	fill(t, s, 9)
	for _, leaves := range []bool{true, false} {
		c := stall(t, s)
		for {
			if free, _, _ := s.budget.state(); free < 200<<10 {
				break
			}
			if err := within(t).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if leaves {
			c.Close()
		}
		r, err := s.kv(t).Range(within(t), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")})
		if err != nil || len(r.Kvs) != 9 {
			t.Fatalf("client leaves %v: %d keys, %v", leaves, len(r.GetKvs()), err)
		}
		if !leaves { // the server has closed it: reading comes to an end
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
		}
	}
}

// A client that has stopped reading may take its time while nobody is in its way, and a part of it when others wait.
func TestStallIsShorterWhenOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100, time.Minute, time.Now)
		near, far := net.Pipe()
		defer far.Close()
		c := &clientConn{Conn: near}
		g, err := b.acquire(context.WithValue(context.Background(), connKey{}, c), 80, new(pool))
		if err != nil {
			t.Fatal(err)
		}
		g.seal(80)
		time.Sleep(30 * time.Second)
		if stalled := b.sweep(); len(stalled) != 0 {
			t.Fatal("closed though nobody waits")
		}
		admitted := make(chan *grant)
		go func() {
			g, err := b.acquire(context.Background(), 50, new(pool))
			if err != nil {
				t.Error(err)
			}
			admitted <- g
		}()
		synctest.Wait()
		if stalled := b.sweep(); len(stalled) != 1 || stalled[0] != c {
			t.Fatalf("%d connections closed, want that in the way", len(stalled))
		}
		if g := <-admitted; g == nil {
			t.Fatal("not admitted")
		} else {
			g.abandon()
		}
	})
}

// What waits for the budget ends with its client's deadline.
func TestBudgetDeadline(t *testing.T) {
	s := newServer(t, func(c *Config, _ *ListenConfig) { c.ReadBudgetBytes = 1 << 20 })
	fill(t, s, 9)
	all, err := s.budget.acquire(context.Background(), 1<<20, new(pool))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	kv := s.kv(t)
	_, err = kv.Range(ctx, &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	// A small answer is not counted.
	count := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), CountOnly: true}
	if _, err := kv.Range(within(t), count); err != nil {
		t.Error(err)
	}
	all.abandon()
	if _, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}); err != nil {
		t.Error(err)
	}
}

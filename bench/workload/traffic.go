package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"sluice/bench/lean"
	"sluice/bench/stats"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// caller makes the calls of one lean connection. Slots are its calls in flight, 0 and up.
type caller interface {
	next(slot int, due time.Time, dst []byte) (method string, msg []byte)
	answer(slot int, msg []byte) error
}

// traffic is a load of unary calls, by one of the two clients.
type traffic struct {
	conns   int
	clients int     // calls in flight, over all connections, in a closed loop
	rate    float64 // calls per second in an open loop, lean only; 0 is a closed loop
	// One of these is set. Lean makes the caller of connection n; stock makes one call.
	lean  func(n int, g *rand.Rand) caller
	stock func(ctx context.Context, c *clientv3.Client, g *rand.Rand) error
	// beside runs along until its context ends; nil for none.
	beside func(ctx context.Context, m *Member) error
}

// openInFlight is how many calls of an open loop may be under way: more than a member that stalls for a
// second collects.
const openInFlight = 20000

// client names the generator in a cell's name.
func (t traffic) client() string {
	if t.stock != nil {
		return "stock client"
	}
	return "lean client"
}

// name describes the load for a cell's name.
func (t traffic) name(what string) string {
	if t.rate > 0 {
		return fmt.Sprintf("%s, %s", what, t.client())
	}
	return fmt.Sprintf("%s, %dx%d, %s", what, t.conns, t.clients, t.client())
}

// sample loads m and measures it.
func (t traffic) sample(ctx context.Context, m *Member, s Settings) (Sample, error) {
	var do func() (Work, error)
	if t.stock != nil {
		clients, err := m.stock(t.conns)
		if err != nil {
			return nil, err
		}
		defer closeAll(clients)
		do = func() (Work, error) { return t.driveStock(ctx, s, clients) }
	} else {
		conns, err := m.lean(ctx, t.conns, nil)
		if err != nil {
			return nil, err
		}
		defer closeAll(conns)
		do = func() (Work, error) { return t.driveLean(ctx, s, conns) }
	}
	if t.beside == nil {
		return m.measure(ctx, do)
	}
	besides, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- t.beside(besides, m) }()
	sample, err := m.measure(ctx, do)
	cancel()
	return sample, errors.Join(err, <-ended)
}

// driveLean loads over lean connections, a goroutine for each.
func (t traffic) driveLean(ctx context.Context, s Settings, conns []*lean.Conn) (Work, error) {
	work := Work{Latency: &stats.Histogram{}}
	var mu sync.Mutex // guards work and failed
	var failed error
	var wg sync.WaitGroup
	start := time.Now().Add(time.Millisecond)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for n, c := range conns {
		wg.Go(func() {
			caller := t.lean(n, rand.New(rand.NewPCG(uint64(start.UnixNano()), uint64(n))))
			load := lean.Load{
				InFlight: share(t.clients, len(conns), n), Next: caller.next, Answer: caller.answer,
				Until: start.Add(s.Duration), Start: start, Latency: &stats.Histogram{},
			}
			if s.Ops > 0 {
				load.Ops = share(s.Ops, len(conns), n)
			}
			if t.rate > 0 {
				load.InFlight = openInFlight / len(conns)
				load.Interval = time.Duration(float64(len(conns)) / t.rate * 1e9)
				load.Start = start.Add(time.Duration(float64(n) / t.rate * 1e9))
			}
			done, err := c.Run(ctx, load)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && failed == nil {
				failed = err
				cancel()
			}
			work.Ops += done
			work.Latency.Add(load.Latency)
		})
	}
	wg.Wait()
	return work, failed
}

// share is the n-th of so many nearly equal parts of a whole, at least 1.
func share(whole, parts, n int) int {
	size := whole / parts
	if n < whole%parts {
		size++
	}
	return max(size, 1)
}

// driveStock loads through the stock client, a goroutine for each call in flight.
func (t traffic) driveStock(ctx context.Context, s Settings, clients []*clientv3.Client) (Work, error) {
	work := Work{Latency: &stats.Histogram{}}
	var mu sync.Mutex // guards work and failed
	var failed error
	var begun atomic.Int64 // by all workers, to stop at s.Ops
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	for w := range t.clients {
		wg.Go(func() {
			g := rand.New(rand.NewPCG(uint64(began.UnixNano()), uint64(w)))
			var latency stats.Histogram
			var err error
			for err == nil && time.Since(began) < s.Duration && (s.Ops == 0 || begun.Add(1) <= int64(s.Ops)) {
				start := time.Now()
				if err = t.stock(ctx, clients[w%len(clients)], g); err == nil {
					latency.Record(int64(time.Since(start)))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil && failed == nil {
				failed = err
				cancel()
			}
			work.Ops += latency.Count()
			work.Latency.Add(&latency)
		})
	}
	wg.Wait()
	return work, failed
}

// calls is a caller whose answers need no look beyond their status.
type calls func(due time.Time, dst []byte) (string, []byte)

func (c calls) next(_ int, due time.Time, dst []byte) (string, []byte) { return c(due, dst) }
func (c calls) answer(int, []byte) error                               { return nil }

// same returns callers that repeat one request.
func same(method string, msg []byte) func(int, *rand.Rand) caller {
	return func(int, *rand.Rand) caller {
		return calls(func(_ time.Time, dst []byte) (string, []byte) { return method, append(dst, msg...) })
	}
}

// fill writes keys first to first+n-1, many in a transaction, many of those under way.
func fill(ctx context.Context, m *Member, first, n, size int) error {
	value := noise(size)
	batch := min(100, 40<<10/(size+64)) // within a stream's window
	conns, err := m.lean(ctx, 1, nil)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	at := first
	_, err = conns[0].Run(ctx, lean.Load{
		InFlight: 16, Ops: (n + batch - 1) / batch,
		Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
			count := min(batch, first+n-at)
			at += count
			return methodTxn, appendPuts(dst, at-count, count, value)
		},
	})
	if err != nil {
		return fmt.Errorf("write %d keys: %w", n, err)
	}
	return nil
}

// filled returns a Group's Fill that writes n keys with values of size bytes.
func filled(n, size int) func(context.Context, *Member) error {
	return func(ctx context.Context, m *Member) error { return fill(ctx, m, 0, n, size) }
}

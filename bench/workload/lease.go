package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"sluice/bench/lean"
	"sluice/bench/stats"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaseID numbers leases from 1; set by the client, so that no answer has to be remembered.
func leaseID(n int) int64 { return int64(n) + 1 }

// grant makes n leases over one connection; with keys, each has one attached.
func grant(ctx context.Context, m *Member, n int, ttl int64, keys bool) error {
	conns, err := m.lean(ctx, 1, nil)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	at := 0
	granting := func(_ int, _ time.Time, dst []byte) (string, []byte) {
		at++
		return methodGrant, appendInt(appendInt(dst, 1, ttl), 2, leaseID(at-1))
	}
	if _, err = conns[0].Run(ctx, lean.Load{InFlight: 64, Ops: n, Next: granting}); err != nil || !keys {
		return err
	}
	at = 0
	attaching := func(_ int, _ time.Time, dst []byte) (string, []byte) {
		at++
		return methodPut, appendPut(dst, fmt.Appendf(nil, "/leased/%06d", at), []byte("v"), leaseID(at-1))
	}
	_, err = conns[0].Run(ctx, lean.Load{InFlight: 64, Ops: n, Next: attaching})
	return err
}

// renewing is one connection whose streams each have one keepalive under way.
type renewing struct {
	conn    *lean.Conn
	g       *rand.Rand
	leases  int
	until   time.Time
	opsMax  int
	began   int
	waiting int // streams
	latency stats.Histogram
	msg     []byte
}

func (r *renewing) run(ctx context.Context, streams int) error {
	stop := context.AfterFunc(ctx, func() { r.conn.Close() })
	defer stop()
	r.conn.Handle(r)
	for range streams {
		if err := r.renew(r.conn.Open(methodKeepAlive)); err != nil {
			return err
		}
	}
	for r.waiting > 0 {
		if err := r.conn.Poll(time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

func (r *renewing) renew(s *lean.Stream) error {
	now := time.Now()
	if now.After(r.until) || r.opsMax > 0 && r.began >= r.opsMax {
		return nil
	}
	r.began++
	r.waiting++
	s.Since = now.UnixNano()
	r.msg = appendInt(r.msg[:0], 1, leaseID(r.g.IntN(r.leases)))
	return r.conn.Send(s, r.msg, false)
}

// Message checks that the lease lives and renews another.
func (r *renewing) Message(s *lean.Stream, msg []byte) error {
	r.latency.Record(time.Now().UnixNano() - s.Since)
	r.waiting--
	ttl, err := dig(msg, 3)
	if err != nil {
		return err
	}
	if ttl <= 0 {
		return fmt.Errorf("a lease was renewed for %d s", ttl)
	}
	return r.renew(s)
}

// Ended says that a stream is over, which it should not be.
func (r *renewing) Ended(_ *lean.Stream, err error) error {
	return fmt.Errorf("a keepalive stream ended: %w", err)
}

// keepAlive renews random leases over many streams.
func keepAlive(s Settings, leases, connections, streams int) Cell {
	run := func(ctx context.Context, m *Member) (Sample, error) {
		conns, err := m.lean(ctx, connections, nil)
		if err != nil {
			return nil, err
		}
		defer closeAll(conns)
		return m.measure(ctx, func() (Work, error) {
			work := Work{Latency: &stats.Histogram{}}
			var mu sync.Mutex // guards work and failed
			var failed error
			var wg sync.WaitGroup
			until := time.Now().Add(s.Duration)
			for n, c := range conns {
				wg.Go(func() {
					r := &renewing{conn: c, g: rand.New(rand.NewPCG(uint64(n), 5)), leases: leases, until: until}
					if s.Ops > 0 {
						r.opsMax = share(s.Ops, len(conns), n)
					}
					err := r.run(ctx, share(streams, len(conns), n))
					mu.Lock()
					defer mu.Unlock()
					if err != nil && failed == nil {
						failed = err
					}
					work.Ops += r.latency.Count()
					work.Latency.Add(&r.latency)
				})
			}
			wg.Wait()
			return work, failed
		})
	}
	return Cell{
		Name: fmt.Sprintf("keepalive of %s leases, %d streams on %d connections, lean client",
			thousands(leases), streams, connections),
		Op: "keepalive", Gates: []Gate{{Metric: CPU, Limit: 2}}, Run: run,
	}
}

// expiry lets leases run out at once, with a key each, under puts at a low fixed rate, whose latency is
// measured. The wall time is from when the last lease is due until the last key is gone.
func expiry(s Settings, leases int) Cell {
	puts := putTraffic(4, 0, 1000, 256)
	puts.rate = 1000
	ttl := 4 + int64(leases/1500) // long enough to grant all of them before the first one is over
	life := time.Duration(ttl) * time.Second
	run := func(ctx context.Context, m *Member) (Sample, error) {
		clients, err := m.stock(1)
		if err != nil {
			return nil, err
		}
		defer closeAll(clients)
		began := time.Now()
		if err := grant(ctx, m, leases, ttl, true); err != nil {
			return nil, err
		}
		granted := time.Now()
		select {
		case <-time.After(time.Until(began.Add(life))):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		conns, err := m.lean(ctx, puts.conns, nil)
		if err != nil {
			return nil, err
		}
		defer closeAll(conns)
		var gone time.Time
		sample, err := m.measure(ctx, func() (Work, error) {
			writing := s
			writing.Duration, writing.Ops = max(s.Duration, 2*time.Second), 0
			written := make(chan error, 1)
			work := Work{}
			go func() {
				var err error
				work, err = puts.driveLean(ctx, writing, conns)
				written <- err
			}()
			var err error
			gone, err = awaitGone(ctx, clients[0])
			if werr := <-written; err == nil {
				err = werr
			}
			return Work{Ops: leases, Latency: work.Latency}, err
		})
		if err != nil {
			return nil, err
		}
		delete(sample, Rate)
		sample[Wall] = float64(gone.Sub(granted.Add(life)).Milliseconds())
		return sample, nil
	}
	return Cell{
		Name: fmt.Sprintf("%s leases expire at once, 1000 puts/s beside", thousands(leases)), Op: "lease",
		Alone: true, Run: run,
	}
}

// awaitGone waits until no leased key is left.
func awaitGone(ctx context.Context, c *clientv3.Client) (time.Time, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < 5*time.Minute; {
		got, err := c.Get(ctx, "/leased/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return time.Time{}, err
		}
		if got.Count == 0 {
			return time.Now(), nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case <-tick.C:
		}
	}
	return time.Time{}, fmt.Errorf("leases did not expire in 5 minutes")
}

// W10: leases.
func leases(s Settings) Family {
	n := s.Size(10_000)
	alive := func(ctx context.Context, m *Member) error { return grant(ctx, m, n, 36000, false) }
	return Family{ID: "W10", Title: "leases", Groups: []Group{
		{Fill: alive, Cells: []Cell{
			keepAlive(s, n, 8, 64),
			guardedTraffic(10, 100, 1000, 400).cell(s, "leases of 1000 nodes, guarded put 400 B", "transaction"),
		}},
		{Cells: []Cell{expiry(s, n)}},
	}}
}

package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sluice/bench/stats"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// watchUnderReads times events on a connection of the stock client that also lists all the time.
func watchUnderReads(s Settings, keys int) Cell {
	run := func(ctx context.Context, m *Member) (Sample, error) {
		clients, err := m.stock(1)
		if err != nil {
			return nil, err
		}
		defer closeAll(clients)
		writer, err := m.lean(ctx, 1, nil)
		if err != nil {
			return nil, err
		}
		defer closeAll(writer)
		watched, cancel := context.WithCancel(ctx)
		defer cancel()
		events := clients[0].Watch(watched, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		<-events
		reading := make(chan error, 1)
		go func() { reading <- listWith(watched, clients[0], keys) }()
		sample, err := m.measure(ctx, func() (Work, error) {
			received := make(chan *stats.Histogram, 1)
			var sent atomic.Int64
			sent.Store(-1)
			go func() { received <- receive(events, &sent) }()
			writes, err := stampedPuts(20, 1024).driveLean(ctx, s, writer)
			if err != nil {
				return Work{}, err
			}
			sent.Store(int64(writes.Ops))
			// One more event, so that the receiver looks at how many were sent.
			if _, err := clients[0].Put(ctx, prefix, string(make([]byte, 8))); err != nil {
				return Work{}, err
			}
			return Work{Ops: writes.Ops, Latency: <-received}, nil
		})
		cancel()
		return sample, errors.Join(err, <-reading)
	}
	return Cell{
		Name: fmt.Sprintf("events 1 KB, 20/s, LISTs of %d x 1 KB on the same connection, stock client", keys),
		Op:   "event", Gates: []Gate{{Metric: P99, Limit: 0.2}}, Run: run,
	}
}

func listWith(ctx context.Context, c *clientv3.Client, keys int) error {
	var wg sync.WaitGroup
	failed := make(chan error, 4)
	for range cap(failed) {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := c.Get(ctx, key(0), clientv3.WithRange(key(keys))); err != nil && ctx.Err() == nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed
}

// receive records events until as many came as were sent, and the one that ends the run.
func receive(events clientv3.WatchChan, sent *atomic.Int64) *stats.Histogram {
	h, n := &stats.Histogram{}, int64(0)
	for r := range events {
		now := time.Now().UnixNano()
		for _, ev := range r.Events {
			if at := int64(binary.LittleEndian.Uint64(ev.Kv.Value)); at > 0 {
				h.Record(now - at)
				n++
			}
		}
		if n == sent.Load() && len(r.Events[len(r.Events)-1].Kv.Key) == len(prefix) {
			break
		}
	}
	return h
}

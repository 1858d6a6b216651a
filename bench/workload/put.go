package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const keySpace = 100_000

// putTraffic writes random keys of a space.
func putTraffic(conns, clients, keys, size int) traffic {
	value := noise(size)
	return traffic{conns: conns, clients: clients, lean: func(_ int, g *rand.Rand) caller {
		var key []byte
		return calls(func(_ time.Time, dst []byte) (string, []byte) {
			key = appendKey(key[:0], g.IntN(keys))
			return methodPut, appendPut(dst, key, value, 0)
		})
	}}
}

func stockPutTraffic(conns, clients, keys, size int) traffic {
	value := string(noise(size))
	call := func(ctx context.Context, c *clientv3.Client, g *rand.Rand) error {
		_, err := c.Put(ctx, key(g.IntN(keys)), value)
		return err
	}
	return traffic{conns: conns, clients: clients, stock: call}
}

// cell makes a cell of a traffic.
func (t traffic) cell(s Settings, what, op string, gates ...Gate) Cell {
	return Cell{Name: t.name(what), Op: op, Gates: gates, Run: func(ctx context.Context, m *Member) (Sample, error) {
		return t.sample(ctx, m, s)
	}}
}

func (c Cell) long() Cell { c.Long = true; return c }

// W1: one client, one call at a time.
func putLatency(s Settings) Family {
	keys := s.Size(keySpace)
	gates := []Gate{{Metric: P50, Limit: 0.5}, {Metric: CPU, Limit: 2.5}}
	return Family{ID: "W1", Title: "put latency", Groups: []Group{{Cells: []Cell{
		stockPutTraffic(1, 1, keys, 256).cell(s, "put 256 B", "put", gates...),
		putTraffic(1, 1, keys, 256).cell(s, "put 256 B", "put", gates...),
	}}}}
}

// W2: many clients.
func puts(s Settings) Family {
	keys := s.Size(keySpace)
	cpu, allocs := Gate{Metric: CPU, Limit: 3}, Gate{Metric: Allocs, Limit: 40, Absolute: true}
	few, many := Gate{Metric: Rate, Limit: 1.8}, Gate{Metric: Rate, Limit: 2.5}
	// The records of entries are the same; how many hard states lie between them depends on the batches.
	log := Gate{Metric: Log, Limit: 1.01}
	return Family{ID: "W2", Title: "put throughput", Groups: []Group{{Cells: []Cell{
		stockPutTraffic(8, 64, keys, 256).cell(s, "put 256 B", "put", cpu, few, allocs, log),
		putTraffic(8, 64, keys, 256).cell(s, "put 256 B", "put", cpu, many, allocs, log),
		putTraffic(8, 64, keys, 1024).cell(s, "put 1 KB", "put", cpu, many),
		stockPutTraffic(100, 1000, keys, 256).cell(s, "put 256 B", "put", cpu, few).long(),
		putTraffic(100, 1000, keys, 256).cell(s, "put 256 B", "put", cpu, many),
		putTraffic(8, 64, keys, 256).amongWatches(s, s.Size(2000)).cell("put 256 B", "put", cpu, allocs),
	}}}}
}

// referenceRate measures, once, how many calls the reference answers in a closed loop.
type referenceRate struct {
	s       Settings
	traffic traffic
	rate    float64
}

func (r *referenceRate) prepare(ctx context.Context, reference *Member) error {
	if r.rate > 0 {
		return nil
	}
	sample, err := r.traffic.sample(ctx, reference, r.s)
	if err != nil {
		return fmt.Errorf("find the reference's rate: %w", err)
	}
	r.rate = sample[Rate]
	return nil
}

// cell makes an open-loop cell at a share of the reference's rate.
func (r *referenceRate) cell(t traffic, what string, share float64, gates ...Gate) Cell {
	t.rate = 1
	return Cell{
		Name: t.name(what), Op: "call", Gates: gates, Prepare: r.prepare,
		Run: func(ctx context.Context, m *Member) (Sample, error) {
			t := t
			t.rate = share * r.rate
			return t.sample(ctx, m, r.s)
		},
	}
}

// W3: puts at a fixed rate.
func putRates(s Settings) Family {
	t := putTraffic(8, 64, s.Size(keySpace), 256)
	reference := &referenceRate{s: s, traffic: t}
	gates := []Gate{{Metric: P99, Limit: 0.5}, {Metric: P999, Limit: 0.3}}
	return Family{ID: "W3", Title: "put at a fixed rate", Groups: []Group{{Cells: []Cell{
		reference.cell(t, "put 256 B at 40 % of etcd's rate", 0.4, gates...),
		reference.cell(t, "put 256 B at 70 % of etcd's rate", 0.7, gates...),
	}}}}
}

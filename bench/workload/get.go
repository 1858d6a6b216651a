package workload

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"sluice/bench/lean"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// getTraffic reads random keys.
func getTraffic(conns, clients, keys int, serializable bool) traffic {
	return traffic{conns: conns, clients: clients, lean: func(_ int, g *rand.Rand) caller {
		var key []byte
		return calls(func(_ time.Time, dst []byte) (string, []byte) {
			key = appendKey(key[:0], g.IntN(keys))
			return methodRange, appendGet(dst, key, serializable)
		})
	}}
}

func stockGetTraffic(conns, clients, keys int, serializable bool) traffic {
	var opts []clientv3.OpOption
	if serializable {
		opts = append(opts, clientv3.WithSerializable())
	}
	call := func(ctx context.Context, c *clientv3.Client, g *rand.Rand) error {
		_, err := c.Get(ctx, key(g.IntN(keys)), opts...)
		return err
	}
	return traffic{conns: conns, clients: clients, stock: call}
}

// W5: reads of one key.
func gets(s Settings) Family {
	keys := s.Size(keySpace)
	cpu, allocs := Gate{Metric: CPU, Limit: 2.5}, Gate{Metric: Allocs, Limit: 25, Absolute: true}
	p50 := Gate{Metric: P50, Limit: 0.7}
	return Family{ID: "W5", Title: "get", Groups: []Group{{Fill: filled(keys, 256), Cells: []Cell{
		stockGetTraffic(1, 1, keys, false).cell(s, "linearizable get", "get", p50),
		getTraffic(1, 1, keys, false).cell(s, "linearizable get", "get", p50),
		stockGetTraffic(8, 64, keys, false).cell(s, "linearizable get", "get", cpu, allocs),
		getTraffic(8, 64, keys, false).cell(s, "linearizable get", "get", cpu, allocs),
		stockGetTraffic(8, 64, keys, true).cell(s, "serializable get", "get", cpu, allocs).long(),
		getTraffic(8, 64, keys, true).cell(s, "serializable get", "get", cpu, allocs),
		getTraffic(100, 1000, keys, false).cell(s, "linearizable get", "get", cpu),
		getTraffic(8, 64, keys, false).amongWatches(s, s.Size(2000)).cell("linearizable get", "get", cpu, allocs),
	}}}}
}

// mixedTraffic reads, and writes once in so many calls.
func mixedTraffic(conns, clients, keys, size, onePutIn int) traffic {
	value := noise(size)
	return traffic{conns: conns, clients: clients, lean: func(_ int, g *rand.Rand) caller {
		var key []byte
		return calls(func(_ time.Time, dst []byte) (string, []byte) {
			key = appendKey(key[:0], g.IntN(keys))
			if g.IntN(onePutIn) == 0 {
				return methodPut, appendPut(dst, key, value, 0)
			}
			return methodRange, appendGet(dst, key, false)
		})
	}}
}

// listLoop lists a range again and again until ctx ends.
func listLoop(q rangeQuery) func(ctx context.Context, m *Member) error {
	return func(ctx context.Context, m *Member) error {
		conns, err := m.lean(ctx, 1, nil)
		if err != nil {
			return ended(ctx, err)
		}
		defer closeAll(conns)
		_, err = conns[0].Run(ctx, lean.Load{InFlight: 1, Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
			return methodRange, q.append(dst)
		}})
		return ended(ctx, err)
	}
}

// ended turns the error of something that was stopped on purpose into nil.
func ended(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

// W6: reads and writes together, and with a long read beside them.
func mixes(s Settings) Family {
	keys := s.Size(keySpace)
	most := mixedTraffic(8, 64, keys, 256, 10)
	half := mixedTraffic(8, 64, keys, 256, 2)
	reference := &referenceRate{s: s, traffic: most}
	beside := most
	beside.beside = listLoop(rangeQuery{key: key(0), end: key(keys)})
	return Family{ID: "W6", Title: "reads and writes", Groups: []Group{{Fill: filled(keys, 256), Cells: []Cell{
		most.cell(s, "9 gets to a put, 256 B", "call"),
		half.cell(s, "1 get to a put, 256 B", "call"),
		reference.cell(beside, "9 gets to a put at 25 % of etcd's rate, LIST of all keys looping", 0.25,
			Gate{Metric: P99, Limit: 0.5}),
	}}}}
}

package workload

import (
	"context"
	"fmt"
	"time"

	"sluice/bench/lean"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// during runs puts at a fixed rate, begins work as they have begun, and ends when both have: latency is that of the
// puts, wall time that of the work.
func during(
	ctx context.Context, m *Member, s Settings, puts traffic, work func(ctx context.Context) error,
) (Sample, error) {
	conns, err := m.lean(ctx, puts.conns, nil)
	if err != nil {
		return nil, err
	}
	defer closeAll(conns)
	var took time.Duration
	sample, err := m.measure(ctx, func() (Work, error) {
		type result struct {
			work Work
			err  error
		}
		written := make(chan result, 1)
		go func() {
			w, err := puts.driveLean(ctx, s, conns)
			written <- result{w, err}
		}()
		began := time.Now()
		err := work(ctx)
		took = time.Since(began)
		r := <-written
		if err == nil {
			err = r.err
		}
		return Work{Ops: 1, Latency: r.work.Latency}, err
	})
	if err != nil {
		return nil, err
	}
	delete(sample, Rate)
	sample[Wall] = float64(took.Microseconds()) / 1000
	return sample, nil
}

// history writes n revisions of a few keys.
func history(ctx context.Context, m *Member, n int) (last int64, err error) {
	conns, err := m.lean(ctx, 1, nil)
	if err != nil {
		return 0, err
	}
	defer closeAll(conns)
	value, at := noise(256), 0
	_, err = conns[0].Run(ctx, lean.Load{
		InFlight: 16, Ops: max(1, n/100),
		Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
			at += 100
			return methodTxn, appendPuts(dst, at%10_000, 100, value)
		},
		Answer: func(_ int, msg []byte) error {
			revision, err := dig(msg, 1, 3)
			last = max(last, revision)
			return err
		},
	})
	return last, err
}

// W11: compaction and the deletion of many keys, with puts beside them.
func compactions(s Settings) Family {
	revisions, keys := s.Size(500_000), s.Size(100_000)
	reference := &referenceRate{s: s, traffic: putTraffic(8, 64, s.Size(keySpace), 256)}
	puts := func() traffic {
		t := reference.traffic
		t.rate = 0.4 * reference.rate
		return t
	}
	compact := Cell{
		Name:  fmt.Sprintf("compaction of %s revisions, puts at 40 %% of etcd's rate", thousands(revisions)),
		Op:    "compaction",
		Gates: []Gate{{Metric: P99, Limit: 0.5}}, Prepare: reference.prepare, Alone: true,
		Run: func(ctx context.Context, m *Member) (Sample, error) {
			clients, err := m.stock(1)
			if err != nil {
				return nil, err
			}
			defer closeAll(clients)
			last, err := history(ctx, m, revisions)
			if err != nil {
				return nil, err
			}
			return during(ctx, m, s, puts(), func(ctx context.Context) error {
				_, err := clients[0].Compact(ctx, last, clientv3.WithCompactPhysical())
				return err
			})
		},
	}
	remove := Cell{
		Name:    fmt.Sprintf("deletion of a range of %s keys, puts at 40 %% of etcd's rate", thousands(keys)),
		Op:      "deletion",
		Prepare: reference.prepare, Alone: true,
		Run: func(ctx context.Context, m *Member) (Sample, error) {
			clients, err := m.stock(1)
			if err != nil {
				return nil, err
			}
			defer closeAll(clients)
			const away = 10_000_000 // from what the puts write
			if err := fill(ctx, m, away, keys, 256); err != nil {
				return nil, err
			}
			return during(ctx, m, s, puts(), func(ctx context.Context) error {
				got, err := clients[0].Delete(ctx, key(away), clientv3.WithRange(key(away+keys)))
				if err == nil && got.Deleted != int64(keys) {
					err = fmt.Errorf("%d keys deleted of %d", got.Deleted, keys)
				}
				return err
			})
		},
	}
	return Family{ID: "W11", Title: "compaction and deletion", Groups: []Group{{Cells: []Cell{compact, remove}}}}
}

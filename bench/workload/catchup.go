package workload

import (
	"context"
	"fmt"
	"time"

	"sluice/bench/lean"
)

// W9: watchers that begin in the past.
func catchUp(s Settings) Family {
	revisions, watchers := s.Size(50_000), s.Size(1000)
	each := revisions / watchers
	of := func(i int) (string, string) { return fmt.Sprintf("/catch/%06d/", i), fmt.Sprintf("/catch/%06d0", i) }
	fill := func(ctx context.Context, m *Member) error {
		conns, err := m.lean(ctx, 1, nil)
		if err != nil {
			return err
		}
		defer closeAll(conns)
		n, value := 0, noise(256)
		_, err = conns[0].Run(ctx, lean.Load{
			InFlight: 64, Ops: revisions,
			Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
				n++
				return methodPut, appendPut(dst, fmt.Appendf(nil, "/catch/%06d/key", n%watchers), value, 0)
			},
		})
		return err
	}
	run := func(w watch, want int64) func(context.Context, *Member) (Sample, error) {
		return func(ctx context.Context, m *Member) (Sample, error) {
			sample, err := m.measure(ctx, func() (Work, error) {
				crowd, err := m.join(ctx, w)
				if err != nil {
					return Work{}, err
				}
				defer crowd.leave()
				return Work{Ops: int(want)}, crowd.wait(ctx, &crowd.events, want)
			})
			if err == nil {
				sample[Wall] = 1000 * float64(want) / sample[Rate]
			}
			return sample, err
		}
	}
	gate := Gate{Metric: Wall, Limit: 0.3}
	whole := func(int) (string, string) { return "/catch/", "/catch0" }
	streams := max(1, watchers/10)
	own := watch{conns: 10, streams: streams, perStream: watchers / streams, of: of, revision: 1}
	all := watch{conns: 10, streams: 10, perStream: 1, of: whole, revision: 1}
	return Family{ID: "W9", Title: "watch catch-up", Groups: []Group{{Fill: fill, Cells: []Cell{
		{
			Name: fmt.Sprintf("%d watchers of a key each, from %s revisions back, lean client",
				watchers, thousands(revisions)),
			Op: "event", Gates: []Gate{gate}, Run: run(own, int64(own.streams*own.perStream*each)),
		}, {
			Name: fmt.Sprintf("10 watchers of all keys, from %s revisions back, lean client", thousands(revisions)),
			Op:   "event", Gates: []Gate{gate}, Run: run(all, int64(10*revisions)),
		},
	}}}}
}

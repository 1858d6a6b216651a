package workload

import (
	"context"
	"fmt"
	"time"
)

// settle is how long a member is left alone before its memory is read: time for a collection and for pages
// to go back to the kernel.
const settle = 3 * time.Second

// resident is the member's resident bytes once it has been left alone.
func (m *Member) resident(ctx context.Context) (int64, error) {
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	u, err := readProcess(m.daemon.PID())
	return u.resident, err
}

// begin does something to a member; end takes it back.
type begin func(ctx context.Context, m *Member) (end func(), err error)

// memoryAfter starts the member anew, does something and reads what is resident then.
func memoryAfter(do begin) func(context.Context, *Member) (Sample, error) {
	return func(ctx context.Context, m *Member) (Sample, error) {
		if err := m.Reset(ctx); err != nil {
			return nil, err
		}
		end, err := do(ctx, m)
		if err != nil {
			return nil, err
		}
		defer end()
		bytes, err := m.resident(ctx)
		return Sample{Resident: mebi(bytes)}, err
	}
}

// memoryEach tells what n idle things cost in resident memory, each.
func memoryEach(n int, do begin) func(context.Context, *Member) (Sample, error) {
	return func(ctx context.Context, m *Member) (Sample, error) {
		if err := m.Reset(ctx); err != nil {
			return nil, err
		}
		before, err := m.resident(ctx)
		if err != nil {
			return nil, err
		}
		end, err := do(ctx, m)
		if err != nil {
			return nil, err
		}
		defer end()
		after, err := m.resident(ctx)
		return Sample{Resident: mebi(after), Each: float64(after-before) / float64(n)}, err
	}
}

// idleWatches opens watchers of keys that nobody writes.
func idleWatches(conns, streams, perStream int) begin {
	return func(ctx context.Context, m *Member) (func(), error) {
		of := func(i int) (string, string) { return fmt.Sprintf("/idle/%08d", i), "" }
		crowd, err := m.join(ctx, watch{conns: conns, streams: streams, perStream: perStream, of: of})
		if err != nil {
			return nil, err
		}
		return func() { crowd.leave() }, nil
	}
}

// W16: memory, at rest and per idle thing.
func memory(s Settings) Family {
	keys, conns, streams, watchers := s.Size(300_000), s.Size(5_000), s.Size(10_000), s.Size(200_000)
	nothing := func(context.Context, *Member) (func(), error) { return func() {}, nil }
	written := func(ctx context.Context, m *Member) (func(), error) {
		return func() {}, fill(ctx, m, 0, keys, 256)
	}
	// Each connection has made a call, as a client's would have.
	connected := func(ctx context.Context, m *Member) (func(), error) {
		all, err := m.lean(ctx, conns, nil)
		if err != nil {
			return nil, err
		}
		t := getTraffic(conns, conns, 1, true)
		_, err = t.driveLean(ctx, Settings{Duration: time.Minute, Ops: conns}, all)
		return func() { closeAll(all) }, err
	}
	perStream := max(1, watchers/min(streams, 1000))
	cells := []Cell{
		{
			Name: "idle", Op: "member", Gates: []Gate{{Metric: Resident, Limit: 0.9}}, Run: memoryAfter(nothing),
		}, {
			Name: thousands(keys) + " keys x 256 B", Op: "member", Gates: []Gate{{Metric: Resident, Limit: 0.8}},
			Run: memoryAfter(written),
		}, {
			Name: thousands(streams) + " idle watch streams on 100 connections", Op: "stream",
			Gates: []Gate{{Metric: Each, Limit: 0.75}}, Run: memoryEach(streams, idleWatches(100, streams, 1)),
		}, {
			Name: thousands(conns) + " idle connections", Op: "connection", Long: true,
			Run: memoryEach(conns, connected),
		}, {
			Name: thousands(watchers) + " idle watchers on " + thousands(watchers/perStream) + " streams",
			Op:   "watcher", Long: true,
			Run: memoryEach(watchers/perStream*perStream, idleWatches(20, watchers/perStream, perStream)),
		},
	}
	for i := range cells {
		cells[i].Alone = true
	}
	return Family{ID: "W16", Title: "memory", Groups: []Group{{Cells: cells}}}
}

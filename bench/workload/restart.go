package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/bench/lean"
)

// errBoot is returned for a daemon that ends, or does not answer, after a restart.
var errBoot = errors.New("the member did not come back")

// reboot ends the daemon, runs it again and measures the time from exec to the first linearizable read.
func (m *Member) reboot(ctx context.Context, kill bool) (Sample, error) {
	if kill {
		m.daemon.Kill()
	} else if err := m.daemon.Stop(); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := m.daemon.Spawn(); err != nil {
		return nil, err
	}
	if err := m.firstRead(ctx); err != nil {
		return nil, err
	}
	wall := time.Since(began)
	u, err := readProcess(m.daemon.PID())
	if err != nil {
		return nil, err
	}
	return Sample{
		Wall: float64(wall.Microseconds()) / 1000, CPU: micros(u.cpu), Reads: float64(u.reads), Disk: float64(u.disk),
		Peak: mebi(u.peak), Resident: mebi(u.resident),
	}, nil
}

// firstRead asks until a linearizable read of the first key is answered. A refused connection is tried again
// every two milliseconds; so is a call that ends with an error, which a member may well answer with while it
// has no leader.
func (m *Member) firstRead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := m.readOnce(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-m.daemon.Exited():
			return fmt.Errorf("%w: it ended: %w\n%s", errBoot, err, m.daemon.Log())
		case <-ctx.Done():
			return fmt.Errorf("%w: %w\n%s", errBoot, err, m.daemon.Log())
		case <-tick.C:
		}
	}
}

func (m *Member) readOnce(ctx context.Context) error {
	conns, err := m.lean(ctx, 1, nil)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	_, err = conns[0].Run(ctx, lean.Load{
		InFlight: 1, Ops: 1,
		Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
			return methodRange, appendGet(dst, appendKey(nil, 0), false)
		},
		Answer: func(_ int, msg []byte) error {
			count, err := dig(msg, 4)
			if err == nil && count != 1 {
				err = fmt.Errorf("%w: without its first key", errBoot)
			}
			return err
		},
	})
	return err
}

// W12: restarts.
func restarts(s Settings) Family {
	group := func(n int, gates ...Gate) Group {
		cell := func(kill bool, how string, gates ...Gate) Cell {
			return Cell{
				Name: fmt.Sprintf("restart with %s keys x 256 B after %s", thousands(n), how), Op: "restart",
				Gates: gates, Run: func(ctx context.Context, m *Member) (Sample, error) { return m.reboot(ctx, kill) },
			}
		}
		return Group{Fill: filled(n, 256), Cells: []Cell{
			cell(true, "kill -9", gates...), cell(false, "a clean stop"),
		}}
	}
	gates := []Gate{{Metric: Wall, Limit: 0.3}, {Metric: CPU, Limit: 1 / 0.3}}
	large := group(s.Size(1_000_000), gates...)
	small := group(s.Size(20_000))
	for _, g := range []Group{small, large} {
		for i := range g.Cells {
			g.Cells[i].Long = true
		}
	}
	return Family{ID: "W12", Title: "restart", Groups: []Group{
		small, group(s.Size(100_000), gates...), group(s.Size(300_000), gates...), large,
	}}
}

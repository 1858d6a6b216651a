package apply

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"sluice/stages/apply/backend"
)

// work is what the workers send to apply. Exactly one field is set.
type work struct {
	compacted *compacted
	swept     chan bool // a step of the index sweep is due; the answer is whether it was the last; capacity 1
	flushed   *flush
}

// takeWork works on all that the workers have sent.
func (s *Stage) takeWork(ctx context.Context) error {
	tasks, err := s.work.Receiver().TryReceive(s.tasks[:0])
	if err != nil {
		return fmt.Errorf("receive work: %w", err) // only Run closes it, and only at its end
	}
	s.tasks = tasks
	defer clear(tasks)
	for _, t := range tasks {
		switch {
		case t.compacted != nil:
			err = s.compactionStep(ctx, t.compacted)
		case t.swept != nil:
			t.swept <- s.sweep()
		case t.flushed != nil:
			err = s.flushDone(ctx, t.flushed)
		default:
			panic("apply: empty work")
		}
		if err != nil {
			return err
		}
	}
	if s.cfg.Backend.SealWanted() {
		return s.seal(ctx)
	}
	return nil
}

// Snapshot returns an image of the database: everything applied before the call is in it. The backend asks apply
// for a seal at an entry boundary; see backend.SnapshotStream for the index that came of it. Any goroutine.
func (s *Stage) Snapshot(ctx context.Context) (*backend.SnapshotStream, error) {
	return s.cfg.Backend.Snapshot(ctx)
}

// Hash returns the checksum of the whole database, everything applied before the call included. Any goroutine.
func (s *Stage) Hash(ctx context.Context) (uint32, error) { return s.cfg.Backend.Hash(ctx) }

// Defragment rewrites the database without its free pages. Reads and writes go on meanwhile. Any goroutine.
func (s *Stage) Defragment(ctx context.Context) error { return s.cfg.Backend.Defragment(ctx) }

// humanBytes writes n as etcd's logs do: two digits below ten, powers of ten.
func humanBytes(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}
	if n < 10 {
		return strconv.FormatInt(n, 10) + " B"
	}
	e := min(int(math.Floor(math.Log(float64(n))/math.Log(1000))), len(units)-1)
	v := math.Floor(float64(n)/math.Pow(1000, float64(e))*10+0.5) / 10
	if v < 10 {
		return strconv.FormatFloat(v, 'f', 1, 64) + " " + units[e]
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + " " + units[e]
}

package apply

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"sluice/mailbox"
	"sluice/stages/apply/backend"
)

// work is what comes to apply beside the log. Exactly one field is set.
type work struct {
	sealed    chan sealed // maintenance wants the state of now sealed; capacity 1
	swept     chan bool   // the compactor wants a step of the index sweep, and whether it was the last; capacity 1
	compacted *compacted
	flushed   *flushed
}

// sealed answers a wish for a seal: the backend that now has everything up to index.
type sealed struct {
	disk        *backend.Backend
	index, term uint64
	err         error
}

// takeWork works on all that the workers and maintenance have sent.
func (s *Stage) takeWork(ctx context.Context) error {
	tasks, err := s.work.Receiver().TryReceive(s.tasks[:0])
	if err != nil {
		return fmt.Errorf("receive work: %w", err) // only Run closes it, and only at its end
	}
	s.tasks = tasks
	defer clear(tasks)
	for _, t := range tasks {
		switch {
		case t.sealed != nil:
			if err := s.seal(ctx); err != nil {
				t.sealed <- sealed{err: err}
				return err
			}
			t.sealed <- sealed{disk: s.disk.Load(), index: s.core.index, term: s.core.term}
		case t.swept != nil:
			t.swept <- s.sweep()
		case t.compacted != nil:
			if err := s.compactionStep(ctx, t.compacted); err != nil {
				return err
			}
		case t.flushed != nil:
			if err := s.flushDone(ctx, t.flushed); err != nil {
				return err
			}
		default:
			panic("apply: empty work")
		}
	}
	if s.disk.Load().SealWanted() {
		return s.seal(ctx)
	}
	return nil
}

// sealNow has everything applied so far sealed, at an entry boundary, and returns the backend that holds it.
func (s *Stage) sealNow(ctx context.Context) (sealed, error) {
	reply := make(chan sealed, 1)
	if err := s.work.Sender(mailbox.Wait).Send(ctx, work{sealed: reply}); err != nil {
		if ctx.Err() == nil {
			err = ErrStopped
		}
		return sealed{}, err
	}
	select {
	case r := <-reply:
		return r, r.err
	case <-s.stopped:
		return sealed{}, ErrStopped
	case <-ctx.Done():
		return sealed{}, context.Cause(ctx)
	}
}

// Snapshot returns an image of the database as of now: everything applied before the call is in it. Any goroutine.
func (s *Stage) Snapshot(ctx context.Context) (*backend.SnapshotStream, error) {
	r, err := s.sealNow(ctx)
	if err != nil {
		return nil, err
	}
	return r.disk.Snapshot(ctx)
}

// Hash returns the checksum of the whole database as of now. Any goroutine.
func (s *Stage) Hash(ctx context.Context) (uint32, error) {
	r, err := s.sealNow(ctx)
	if err != nil {
		return 0, err
	}
	return r.disk.Hash(ctx)
}

// Defragment rewrites the database without its free pages. Reads and writes go on meanwhile. Any goroutine.
func (s *Stage) Defragment(ctx context.Context) error {
	r, err := s.sealNow(ctx)
	if err != nil {
		return err
	}
	return r.disk.Defragment(ctx)
}

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

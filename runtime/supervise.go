package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"sluice/mailbox"
	"sluice/stages/apply/backend"
)

// StageError says which stage ended the member, and why.
type StageError struct {
	Stage string
	Err   error  // what its Run returned, or the value of its panic
	Stack []byte // of the panic; nil otherwise
}

func (e *StageError) Error() string {
	if e.Stack != nil {
		return fmt.Sprintf("stage %s: panic: %v\n%s", e.Stage, e.Err, e.Stack)
	}
	return fmt.Sprintf("stage %s: %v", e.Stage, e.Err)
}

func (e *StageError) Unwrap() error { return e.Err }

// supervisor runs the loops of one member. The first that ends with an error fails the member: its
// context is cancelled with that error as the cause.
type supervisor struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	loops  sync.WaitGroup

	mu    sync.Mutex // guards ended: written by every loop's end
	ended map[string]chan struct{}
}

func newSupervisor(ctx context.Context) *supervisor {
	ctx, cancel := context.WithCancelCause(ctx)
	return &supervisor{ctx: ctx, cancel: cancel, ended: map[string]chan struct{}{}}
}

// run starts one named loop on a goroutine that carries the name as a pprof label.
func (s *supervisor) run(name string, loop func(context.Context) error) {
	ended := make(chan struct{})
	s.mu.Lock()
	s.ended[name] = ended
	s.mu.Unlock()
	s.loops.Go(func() {
		defer close(ended)
		pprof.Do(s.ctx, pprof.Labels("stage", name), func(ctx context.Context) {
			if err := guarded(ctx, name, loop); err != nil {
				s.cancel(err)
			}
		})
	})
}

// guarded runs loop and turns its end into a *StageError, nil for the orderly ends: a closed mailbox, or a
// member that is already stopping.
func guarded(ctx context.Context, name string, loop func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			failure, ok := v.(error)
			if !ok {
				failure = fmt.Errorf("%v", v)
			}
			err = &StageError{Stage: name, Err: failure, Stack: debug.Stack()}
		}
	}()
	err = loop(ctx)
	if err == nil || errors.Is(err, mailbox.ErrClosed) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	var writer *backend.FailedError
	if errors.As(err, &writer) { // who waits for the writer may learn of its failure before its own loop ends
		return &StageError{Stage: "backend", Err: writer.Err}
	}
	return &StageError{Stage: name, Err: err}
}

// await returns when the named loop has ended or ctx ends.
func (s *supervisor) await(ctx context.Context, name string) error {
	s.mu.Lock()
	ended := s.ended[name]
	s.mu.Unlock()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return &StageError{Stage: name, Err: fmt.Errorf("drain: %w", ctx.Err())}
	}
}

// settle waits at most patience until every loop but the named one has ended, and returns those that have
// not, in alphabetical order.
func (s *supervisor) settle(patience time.Duration, but string) (stuck []string) {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	s.mu.Lock()
	ends := maps.Clone(s.ended)
	s.mu.Unlock()
	delete(ends, but)
	late := false
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		if !late {
			select {
			case <-ends[name]:
				continue
			case <-deadline.C:
				late = true
			}
		}
		select {
		case <-ends[name]:
		default:
			stuck = append(stuck, name)
		}
	}
	return stuck
}

// err is why the member failed, nil while it has not.
func (s *supervisor) err() error {
	var stage *StageError
	if errors.As(context.Cause(s.ctx), &stage) {
		return stage
	}
	return nil
}

package runtime

import (
	"context"
	"sync"
	"sync/atomic"
)

// appliedIndex is the index of the published view, and who waits for it to come. Apply sets it once per
// batch; without waiters that costs one store and one load.
type appliedIndex struct {
	index   atomic.Uint64
	waiting atomic.Int64

	mu      sync.Mutex // guards waiters: appended by those who wait, taken by apply
	waiters map[chan struct{}]uint64
}

func newAppliedIndex() *appliedIndex { return &appliedIndex{waiters: map[chan struct{}]uint64{}} }

func (a *appliedIndex) get() uint64 { return a.index.Load() }

func (a *appliedIndex) set(index uint64) {
	a.index.Store(index)
	if a.waiting.Load() == 0 {
		return
	}
	a.mu.Lock()
	for ch, at := range a.waiters {
		if at <= index {
			delete(a.waiters, ch)
			close(ch)
		}
	}
	a.mu.Unlock()
}

// await returns once the index is at least want, ctx ends, or done is closed.
func (a *appliedIndex) await(ctx context.Context, want uint64, done <-chan struct{}) error {
	if a.get() >= want {
		return nil
	}
	ch := make(chan struct{})
	a.waiting.Add(1)
	defer a.waiting.Add(-1)
	a.mu.Lock()
	a.waiters[ch] = want
	a.mu.Unlock()
	if a.get() >= want { // set may have passed before the entry was seen
		return nil
	}
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		a.forget(ch)
		return ctx.Err()
	case <-done:
		a.forget(ch)
		return context.Canceled
	}
}

func (a *appliedIndex) forget(ch chan struct{}) {
	a.mu.Lock()
	delete(a.waiters, ch)
	a.mu.Unlock()
}

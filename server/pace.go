package main

import (
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"

	goruntime "runtime"
)

const (
	// allocateMin is how much is allocated between two garbage collections, at least. Values lie outside the
	// Go heap, so what is live in it is small, and by the proportion alone a busy member would collect every
	// few hundred requests.
	allocateMin = 48 << 20
	// gcPercentMin is Go's own default: a heap above allocateMin grows as it would without pacing.
	gcPercentMin = 100
)

// gcPercent is the GC percentage that lets allocateMin bytes be allocated on top of live.
func gcPercent(live uint64) int {
	return max(gcPercentMin, int(allocateMin*100/max(live, 1<<20)))
}

// pacing sets the GC percentage anew after each collection. A fixed one cannot do it: what keeps a small heap
// from collecting all the time would let a large one grow to many times its size. A memory limit instead
// would make a heap that outgrows it collect without end.
type pacing struct {
	mu      sync.Mutex // guards below: the finalizer goroutine and stop
	percent int        // as last set, 0 before
	stopped bool
}

// pace begins pacing, unless the environment says how to collect. GOMEMLIMIT stays in force beside it. The
// returned function ends it.
func pace(environ []string) (stop func()) {
	if slices.ContainsFunc(environ, func(e string) bool { return strings.HasPrefix(e, "GOGC=") }) {
		return func() {}
	}
	p := &pacing{}
	p.collected()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopped = true
		debug.SetGCPercent(gcPercentMin)
	}
}

// sentinel is an object that nothing refers to: its finalizer runs once per collection. It must hold a
// pointer, since small objects without share their memory with others and may live as long as those.
type sentinel struct{ p *pacing }

// collected follows a collection, or begins the pacing. Setting the percentage stops the world for a moment,
// so that small changes are left alone.
func (p *pacing) collected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	want := gcPercent(live[0].Value.Uint64())
	if diff := want - p.percent; diff > p.percent/8 || -diff > p.percent/8 {
		p.percent = want
		debug.SetGCPercent(want)
	}
	goruntime.SetFinalizer(&sentinel{p}, func(s *sentinel) { s.p.collected() })
}

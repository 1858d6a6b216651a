package main

import (
	"runtime/debug"
	"testing"

	goruntime "runtime"
)

func TestGCPercent(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{
		{0, 4800},        // nothing is known before the first collection
		{4 << 20, 1200},  // the next one at 52 MiB
		{24 << 20, 200},  // at 72 MiB
		{48 << 20, 100},  // from here on Go's own proportion
		{500 << 20, 100}, // which it never falls below
	} {
		if got := gcPercent(c.live); got != c.want {
			t.Errorf("gcPercent(%d) = %d, want %d", c.live, got, c.want)
		}
	}
}

// TestPaceFollowsTheHeap holds more and more memory and waits for the percentage to come down with it.
func TestPaceFollowsTheHeap(t *testing.T) {
	was := debug.SetGCPercent(100)
	defer debug.SetGCPercent(was)
	stop := pace(nil)
	defer stop()
	percent := func() int {
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p
	}
	if got := percent(); got <= gcPercentMin {
		t.Fatalf("percentage of a small heap is %d", got)
	}
	held := make([]byte, 2*allocateMin)
	for percent() != gcPercentMin {
		goruntime.GC() // the finalizer follows on a goroutine of its own
	}
	goruntime.KeepAlive(held)
	for percent() == gcPercentMin {
		goruntime.GC() // and up again when the memory is free
	}
	stop()
	if got := percent(); got != gcPercentMin {
		t.Errorf("percentage is %d after pacing ended", got)
	}
}

func TestPaceLeavesTheEnvironmentItsWord(t *testing.T) {
	was := debug.SetGCPercent(77)
	defer debug.SetGCPercent(was)
	pace([]string{"GOGC=77"})()
	if got := debug.SetGCPercent(77); got != 77 {
		t.Errorf("percentage is %d, the environment said 77", got)
	}
}

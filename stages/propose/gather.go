package propose

import "time"

const (
	// gatherWorth is how long a batch may be delayed per request in it. Below load, the goroutines that are
	// about to send need a few microseconds each; one that computes for its whole slice of time costs more.
	gatherWorth = 200 * time.Microsecond
	// gatherPauseMax is after how many turns without gathering it is tried again, at most.
	gatherPauseMax = 32
)

// gathering decides when a turn lets those go first who are about to send, so that one batch takes them all.
//
// The scheduler runs Run at once after the first of them, and a batch costs raft ten times as much as an
// entry in it: a put came to 97 allocations without gathering and to 78 with it, at 64 clients. Gathering
// waits for nobody: with a processor to spare it returns at once. But whoever yields may find himself
// behind long work, so that what it gave decides whether the next turn does it again, or a later one.
type gathering struct {
	skip  int // turns that pass before it is tried again
	pause int // turns that the last failure had to pass, 0 after a success
}

// due says whether this turn gathers.
func (g *gathering) due() bool {
	if g.skip > 0 {
		g.skip--
		return false
	}
	return true
}

// gave takes how many requests and reads the turn found, after gathering had taken so many nanoseconds.
func (g *gathering) gave(requests int, took int64) {
	if requests > 1 && took <= int64(requests)*int64(gatherWorth) {
		g.pause = 0
		return
	}
	g.pause = min(max(1, 2*g.pause), gatherPauseMax)
	g.skip = g.pause
}

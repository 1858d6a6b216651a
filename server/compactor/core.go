package compactor

import "time"

const (
	periodicIntervalMax = time.Hour // longest time between two compactions
	ticksPerInterval    = 10
	tickMin             = time.Millisecond
	revisionInterval    = 5 * time.Minute
)

// core decides what to compact.
type core interface {
	// interval is the time between two ticks.
	interval() time.Duration
	// record takes the store's revision at a tick.
	record(revision int64)
	// due returns the revision to compact at now, if any.
	due(now time.Time) (target int64, ok bool)
	// compacted notes that target is compacted, by this member or another.
	compacted(now time.Time, target int64)
}

// periodic keeps the history of one period. It samples the revision ten times in an interval, which is the
// period or an hour; the oldest sample is then the revision of one period ago, or a tick more.
type periodic struct {
	every   time.Duration // between compactions
	tick    time.Duration
	window  int     // samples that span a period
	samples []int64 // oldest first
	last    int64   // compacted
	next    time.Time
}

func newPeriodic(start time.Time, period time.Duration) *periodic {
	every := min(period, periodicIntervalMax)
	tick := max(every/ticksPerInterval, tickMin)
	return &periodic{every: every, tick: tick, window: int(period/tick) + 1, next: start.Add(period)}
}

func (p *periodic) interval() time.Duration { return p.tick }

func (p *periodic) record(revision int64) {
	p.samples = append(p.samples, revision)
	if len(p.samples) > p.window {
		p.samples = p.samples[1:]
	}
}

func (p *periodic) due(now time.Time) (int64, bool) {
	if len(p.samples) == 0 || now.Before(p.next) || p.samples[0] == p.last {
		return 0, false
	}
	return p.samples[0], true
}

func (p *periodic) compacted(now time.Time, target int64) {
	p.last, p.next = target, now.Add(p.every)
}

// byRevision keeps the newest revisions.
type byRevision struct {
	keep    int64
	current int64
	last    int64
}

func (r *byRevision) interval() time.Duration { return revisionInterval }

func (r *byRevision) record(revision int64) { r.current = revision }

func (r *byRevision) due(time.Time) (int64, bool) {
	target := r.current - r.keep
	return target, target > 0 && target != r.last
}

func (r *byRevision) compacted(_ time.Time, target int64) { r.last = target }

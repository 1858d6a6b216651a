package propose

import (
	"time"

	"sluice/tracing"
)

// Metrics of the stage; missing ones are discarded.
type Metrics struct {
	Pending     tracing.Gauge   // etcd_server_proposals_pending
	Failed      tracing.Counter // etcd_server_proposals_failed_total
	SlowReads   tracing.Counter // etcd_server_slow_read_indexes_total
	FailedReads tracing.Counter // etcd_server_read_indexes_failed_total
}

// Config of the stage. Zero limits get the value in parentheses.
type Config struct {
	MemberID        uint64
	StartMillis     int64         // Unix milliseconds at the start, from which ids count
	ElectionTimeout time.Duration // (1 s); a request waits 5 s and twice this
	Clock           func() int64  // monotonic nanoseconds; nil is tracing.Clock

	RequestBytesMax  int   // (1.5 MiB) of an encoded request, --max-request-bytes
	GapMax           int64 // (5000) commit index minus applied index
	PriorityGapMax   int64 // (GapMax) the same for lease revocations, 10000 with PriorityRequest
	UncommittedBytes int64 // (64 MiB) appended but not applied, --raft-uncommitted-bytes
	WaitingMax       int64 // requests that wait for a result; 0 is no limit
	WaitingBytesMax  int64 // bytes of them; 0 is no limit
	CellsFirst       int   // (4096) completion cells made at the start
	CellsMax         int   // (1 Mi) cells at most; more requests wait for one

	ClientMessages int   // capacity of the client lane, at least 1
	ClientBytesMax int64 // (64 MiB) bytes waiting in it
	SystemMessages int   // capacity of the system lane, at least 1
	SystemBytesMax int64 // (16 MiB) bytes waiting in it

	Replicate Replicate
	Progress  Progress
	Links     Links // nil: never disconnected
	Meter     *tracing.Stage
	Metrics   Metrics
}

// requestTimeoutBase is the fixed part of the request timeout (contract/client-api.md 2.2).
const requestTimeoutBase = 5 * time.Second

func (c Config) withDefaults() Config {
	set := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	setInt := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&c.GapMax, 5000)
	set(&c.PriorityGapMax, c.GapMax)
	set(&c.UncommittedBytes, 64<<20)
	set(&c.ClientBytesMax, 64<<20)
	set(&c.SystemBytesMax, 16<<20)
	setInt(&c.RequestBytesMax, 1536<<10)
	setInt(&c.CellsFirst, 4096)
	setInt(&c.CellsMax, 1<<20)
	if c.ElectionTimeout == 0 {
		c.ElectionTimeout = time.Second
	}
	if c.Clock == nil {
		c.Clock = tracing.Clock
	}
	if c.Metrics.Pending == nil {
		c.Metrics.Pending = tracing.Nop
	}
	for _, m := range []*tracing.Counter{&c.Metrics.Failed, &c.Metrics.SlowReads, &c.Metrics.FailedReads} {
		if *m == nil {
			*m = tracing.Nop
		}
	}
	return c
}

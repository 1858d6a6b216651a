package workload

import (
	"context"
	"time"
)

// Settings are what all workloads share.
type Settings struct {
	Duration time.Duration // of one run of a loop
	Ops      int           // calls of one run at most; 0 is as many as fit
	Divide   int           // key spaces and crowds are this much smaller than planned; 1 is the plan
}

// Size is the planned number n, made smaller as the settings say.
func (s Settings) Size(n int) int { return max(1, n/s.Divide) }

// Family is one workload of the plan.
type Family struct {
	ID, Title string
	Groups    []Group
}

// Group is a row of cells that share members and data.
type Group struct {
	Security Security
	Fill     func(ctx context.Context, m *Member) error // writes the data; nil for none
	Cells    []Cell
}

// Cell is one load.
type Cell struct {
	Name  string
	Op    string // what one operation is
	Gates []Gate
	Long  bool // left out of the quick form
	Alone bool // starts from fresh members of its own accord, and takes long: fewer pairs do
	// Prepare is called once, before the runs, with the reference; nil for none. Fixed rates come from it.
	Prepare func(ctx context.Context, reference *Member) error
	Run     func(ctx context.Context, m *Member) (Sample, error)
}

// Gate is what a metric's ratio has to reach; with Absolute set, what our own value may not exceed.
type Gate struct {
	Metric   Metric
	Limit    float64
	Absolute bool
}

// Sample is one run of a cell: what was measured, per operation where the metric says so.
type Sample map[Metric]float64

// Metric names one measured value; the constants are all there are, in the order of the tables.
type Metric string

// The metrics. Latencies are in microseconds, sizes in bytes or MiB as the name says.
const (
	Ops       Metric = "ops" // in the run; not in tables
	Rate      Metric = "ops/s"
	P50       Metric = "p50 us"
	P99       Metric = "p99 us"
	P999      Metric = "p99.9 us"
	Wall      Metric = "wall ms"
	Quiet     Metric = "quiet p99 us"  // of the same writer with nothing beside it
	Writer    Metric = "writer p99 us" // where the other latencies are those of delivery
	Slowdown  Metric = "p99 to quiet"  // Writer to Quiet
	CPU       Metric = "CPU us/op"     // of the server, user and system
	Allocs    Metric = "allocs/op"
	Bytes     Metric = "B/op" // allocated
	Fsyncs    Metric = "fsyncs/op"
	Reads     Metric = "reads/op"    // system calls
	Writes    Metric = "writes/op"   // system calls
	Log       Metric = "log B/op"    // appended to the write-ahead log
	Disk      Metric = "disk B/op"   // written, space that is zeroed ahead of the log included
	Switches  Metric = "switches/op" // of the server's threads
	Peak      Metric = "peak MiB"    // resident, during the run
	Extra     Metric = "extra MiB"   // Peak beyond what was resident before the run
	Resident  Metric = "RSS MiB"     // after the run
	Each      Metric = "B each"      // resident bytes per idle thing
	ClientCPU Metric = "client us/op"
)

// Metrics returns all metrics that tables show, in their order.
func Metrics() []Metric {
	return []Metric{Rate, P50, P99, P999, Writer, Quiet, Slowdown, Wall, CPU, Allocs, Bytes, Fsyncs, Reads, Writes,
		Log, Disk, Switches, Peak, Extra, Resident, Each, ClientCPU}
}

// Inverse says that the metric's ratio is the reference's value to ours, so that more is better: what an
// operation costs the server. The others are ours to the reference's.
func (m Metric) Inverse() bool {
	switch m {
	case CPU, Allocs, Bytes:
		return true
	default:
		return false
	}
}

// More says that the more of the metric's ratio, the better.
func (m Metric) More() bool { return m == Rate || m.Inverse() }

// All returns every family, in order.
func All(s Settings) []Family {
	return []Family{
		putLatency(s), puts(s), putRates(s), txns(s), gets(s), mixes(s), lists(s), fanOut(s), catchUp(s), leases(s),
		compactions(s), restarts(s), secured(s), memory(s),
	}
}

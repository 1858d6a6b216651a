package apply

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"

	"sluice/mailbox"
	"sluice/stages/apply/auth"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/members"
	"sluice/stages/apply/mvcc"
	"sluice/tracing"
)

// Clock is the time as apply's shell sees it. No decision about an entry depends on it.
type Clock interface {
	Now() time.Time
	// After yields the time once d has passed.
	After(d time.Duration) <-chan time.Time
}

// Config is what a Stage is built with.
type Config struct {
	Log     mailbox.Receiver[Message] // from replicate
	Out     Out
	Clock   Clock // nil: the real one
	Logger  *zap.Logger
	Meter   *tracing.Stage
	Metrics Metrics

	// Backend is open, and its Run runs from Run's start until after the stage has ended.
	Backend *backend.Backend
	// SnapshotFile names the database of the received snapshot with this index: whole, durable, on Backend's
	// file system, and given up to it.
	SnapshotFile func(index uint64) string

	LocalID       uint64
	ServerVersion members.Version // of this binary
	Store         mvcc.Config
	Tokens        auth.Tokens
	// LeaderTerm returns the term in which this member leads now, 0 while it does not. Replicate publishes
	// it before the first entry of that term can be committed.
	LeaderTerm func() uint64
	// Removed is called when an entry has removed this member from the cluster; at most once.
	Removed func()
	// Image makes the v2 JSON that goes into disk snapshots.
	Image func(*members.Table) []byte

	// CheckpointIndex is the index of the newest disk snapshot, CheckpointEntries the --snapshot-count: more
	// entries than this above the last disk snapshot, and the next is asked for.
	CheckpointIndex, CheckpointEntries uint64

	LearnersMax     int           // --max-learners, inclusive
	LeaseTTLMin     int64         // seconds; no lease is granted a shorter one
	QuotaBytes      int64         // of the backend; 0 or less: none
	WarningDuration time.Duration // an entry that took longer is logged; 0: 100 ms

	CompactionRecordsMax int           // scanned per batch of deletes, --compaction-batch-limit; 0: 1000
	CompactionPause      time.Duration // between two batches, --compaction-sleep-interval; 0: 10 ms
	WorkCapacity         int           // of the work mailbox; 0: 8
}

// Metrics are apply's meters. Missing ones are discarded.
type Metrics struct {
	// Duration takes every applied entry: etcd_server_apply_duration_seconds{op, success}.
	Duration func(op string, success bool, seconds float64)
	// Alarm takes every alarm that is raised or lowered: etcd_debugging_server_alarms{server_id, alarm_type}.
	Alarm func(member uint64, typ pb.AlarmType, raised bool)

	Applied         tracing.Gauge    // etcd_server_proposals_applied_total, an index
	SlowApplies     tracing.Counter  // etcd_server_slow_apply_total
	Learner         tracing.Gauge    // etcd_server_is_learner
	Installing      tracing.Gauge    // etcd_server_snapshot_apply_in_progress_total
	LeasesGranted   tracing.Counter  // etcd_debugging_lease_granted_total
	LeasesRevoked   tracing.Counter  // etcd_debugging_lease_revoked_total
	LeaseTTL        tracing.Observer // etcd_debugging_lease_ttl_total, seconds
	CompactionLast  tracing.Gauge    // etcd_debugging_mvcc_db_compaction_last, Unix seconds
	CompactionPause tracing.Observer // etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds
	CompactionTotal tracing.Observer // etcd_debugging_mvcc_db_compaction_total_duration_milliseconds
	IndexPause      tracing.Observer // etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds
}

func (c Config) withDefaults() Config {
	if c.Clock == nil {
		c.Clock = realClock{}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.LeaderTerm == nil {
		c.LeaderTerm = func() uint64 { return 0 }
	}
	if c.Removed == nil {
		c.Removed = func() {}
	}
	if c.Image == nil {
		c.Image = func(*members.Table) []byte { return nil }
	}
	if c.WarningDuration == 0 {
		c.WarningDuration = 100 * time.Millisecond
	}
	if c.CompactionRecordsMax == 0 {
		c.CompactionRecordsMax = 1000
	}
	if c.CompactionPause == 0 {
		c.CompactionPause = 10 * time.Millisecond
	}
	if c.WorkCapacity == 0 {
		c.WorkCapacity = 8
	}
	if c.Tokens == nil {
		c.Tokens = auth.NewSimpleTokens(5*time.Minute, c.Clock.Now)
	}
	c.Metrics = c.Metrics.withDefaults()
	return c
}

func (m Metrics) withDefaults() Metrics {
	if m.Duration == nil {
		m.Duration = func(string, bool, float64) {}
	}
	if m.Alarm == nil {
		m.Alarm = func(uint64, pb.AlarmType, bool) {}
	}
	for _, g := range []*tracing.Gauge{&m.Applied, &m.Learner, &m.Installing, &m.CompactionLast} {
		if *g == nil {
			*g = tracing.Nop
		}
	}
	for _, c := range []*tracing.Counter{&m.SlowApplies, &m.LeasesGranted, &m.LeasesRevoked} {
		if *c == nil {
			*c = tracing.Nop
		}
	}
	for _, o := range []*tracing.Observer{&m.LeaseTTL, &m.CompactionPause, &m.CompactionTotal, &m.IndexPause} {
		if *o == nil {
			*o = tracing.Nop
		}
	}
	return m
}

type realClock struct{}

func (realClock) Now() time.Time                         { return time.Now() }
func (realClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

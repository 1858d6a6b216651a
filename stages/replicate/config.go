package replicate

import (
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"sluice/tracing"
)

// Boot is what raft starts from. The log begins behind the snapshot at (Index, Term), both 0 for none.
type Boot struct {
	HardState *raftpb.HardState // nil in a new member
	ConfState *raftpb.ConfState // of the members table; nil when Peers are given
	Index     uint64
	Term      uint64
	Entries   []*raftpb.Entry // from Index+1 on; kept, not copied
	Peers     []raft.Peer     // the members of a new cluster; only with an empty log
}

// Settings of raft and of the limits. Zero fields of the second group get the value in parentheses.
type Settings struct {
	ID      uint64 // of this member
	PreVote bool

	ElectionTicks       int    // (10) election timeout ÷ heartbeat interval
	CatchUpEntries      uint64 // (5000) applied entries that stay in the log, --snapshot-catchup-entries
	LogBytesMax         int64  // (256 MiB) of entries in the log, as far as they are applied
	AppendBytesMax      int64  // (64 MiB) waiting for the disk, above which a follower drops MsgApp
	UncommittedBytesMax uint64 // (256 MiB) raft's own backstop above propose's --raft-uncommitted-bytes
	PersistCredits      int    // (2) Appends handed over and not acknowledged
	ApplyCredits        int    // (2) Batches and Installs handed over and not acknowledged
}

const (
	heartbeatTicks     = 1
	messageBytesMax    = 1 << 20  // of one MsgApp
	inflightMessages   = 512      // MsgApps on their way to one follower
	inflightBytesMax   = 64 << 20 // and their bytes
	applyingBytesMax   = 16 << 20 // handed to apply and not acknowledged
	cutEvery           = 100      // applied entries between two cuts of the log
	freshTicks         = 3        // a last tick of this age still proves that the process was not frozen
	lateHeartbeatTicks = 2        // intervals after which a leader's heartbeat counts as late
)

func (s Settings) withDefaults() Settings {
	orInt := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	orInt64 := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	orInt(&s.ElectionTicks, 10)
	orInt(&s.PersistCredits, 2)
	orInt(&s.ApplyCredits, 2)
	orInt64(&s.LogBytesMax, 256<<20)
	orInt64(&s.AppendBytesMax, 64<<20)
	if s.CatchUpEntries == 0 {
		s.CatchUpEntries = 5000
	}
	if s.UncommittedBytesMax == 0 {
		s.UncommittedBytesMax = 256 << 20
	}
	return s
}

// Metrics of the stage; missing ones are discarded.
type Metrics struct {
	HasLeader     tracing.Gauge   // etcd_server_has_leader
	IsLeader      tracing.Gauge   // etcd_server_is_leader
	LeaderChanges tracing.Counter // etcd_server_leader_changes_seen_total
	Committed     tracing.Gauge   // etcd_server_proposals_committed_total
	HeartbeatLate tracing.Counter // etcd_server_heartbeat_send_failures_total
	LogEntries    tracing.Gauge   // sluice_raft_log_entries
	LogBytes      tracing.Gauge   // sluice_raft_log_bytes
	Backlog       tracing.Gauge   // sluice_raft_backlog_bytes: appended, not applied
	MsgAppDropped tracing.Counter // sluice_raft_append_dropped_total: MsgApp refused for the disk's backlog
}

func (m Metrics) withDefaults() Metrics {
	for _, g := range []*tracing.Gauge{&m.HasLeader, &m.IsLeader, &m.Committed, &m.LogEntries, &m.LogBytes, &m.Backlog} {
		if *g == nil {
			*g = tracing.Nop
		}
	}
	for _, c := range []*tracing.Counter{&m.LeaderChanges, &m.HeartbeatLate, &m.MsgAppDropped} {
		if *c == nil {
			*c = tracing.Nop
		}
	}
	return m
}

// Config of the stage.
type Config struct {
	Settings
	Boot   Boot
	Tick   time.Duration // heartbeat interval; runtime calls Tick this often
	Clock  func() int64  // monotonic nanoseconds; nil is tracing.Clock
	Logger *zap.Logger   // named "raft", as etcd's lines are; nil logs nothing
	Meter  *tracing.Stage

	IntakeMessages int   // capacity of the intake, at least 1
	IntakeBytesMax int64 // (8 MiB) bytes of entries waiting in it
	PeerMessages   int   // capacity of the peers' inbox, at least 1
	PeerBytesMax   int64 // (64 MiB) bytes of messages waiting in it

	Persist Persist
	Apply   Apply
	Peers   Peers
	Propose Propose
	Metrics Metrics
}

package runtime

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/stages/apply"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/mvcc"
	"sluice/stages/expire"
	"sluice/stages/persist"
	"sluice/stages/propose"
	"sluice/stages/replicate"
	"sluice/stages/watch"
	"sluice/tracing"
)

// Which of the exported metrics each stage feeds.

func (m *Member) backendMetrics() backend.Metrics {
	x := m.cfg.Metrics
	return backend.Metrics{
		CommitSeconds: x.BackendCommit, RebalanceSeconds: x.BackendRebalance, SpillSeconds: x.BackendSpill,
		WriteSeconds: x.BackendWrite, DefragSeconds: x.BackendDefrag, SnapshotSeconds: x.BackendSnapshot,
		DefragInflight: x.DefragInflight,
	}
}

func (m *Member) persistMetrics() persist.Metrics {
	x := m.cfg.Metrics
	return persist.Metrics{
		WALFsync: x.WALFsync, WALWrite: x.WALWrite, WALBytes: x.WALBytes, SnapFsync: x.SnapFsync, SnapSave: x.SnapSave,
	}
}

func (m *Member) proposeMetrics() propose.Metrics {
	x := m.cfg.Metrics
	return propose.Metrics{
		Pending: x.ProposalsPending, Failed: x.ProposalsFailed,
		SlowReads: x.SlowReadIndexes, FailedReads: x.ReadIndexesFailed,
	}
}

func (m *Member) replicateMetrics() replicate.Metrics {
	x := m.cfg.Metrics
	return replicate.Metrics{
		HasLeader: x.HasLeader, IsLeader: x.IsLeader, LeaderChanges: x.LeaderChanges, Committed: x.ProposalsCommitted,
		HeartbeatLate: x.HeartbeatSendFailures, LogEntries: x.Own.RaftLogEntries, LogBytes: x.Own.RaftLogBytes,
		Backlog: x.Own.RaftBacklogBytes, MsgAppDropped: x.Own.AppendsDropped,
	}
}

func (m *Member) storeMetrics() mvcc.Metrics {
	x := m.cfg.Metrics
	return mvcc.Metrics{
		Puts: x.Puts, Deletes: x.Deletes, Txns: x.Txns, Ranges: x.Ranges,
		PutBytes: x.PutBytes, CompactionKeys: x.CompactedKeys, CachedBytes: x.Own.ValueCacheBytes,
	}
}

func (m *Member) applyMetrics() apply.Metrics {
	x := m.cfg.Metrics
	return apply.Metrics{
		Duration: applyDurations(x.ApplyDuration),
		Alarm: func(member uint64, typ pb.AlarmType, raised bool) {
			g := x.Alarms.WithLabelValues(hex(member), typ.String())
			if raised {
				g.Inc()
			} else {
				g.Dec()
			}
		},
		Applied: x.ProposalsApplied, SlowApplies: x.SlowApply, Learner: x.IsLearner, Installing: x.SnapshotApplyInProgress,
		LeasesGranted: x.LeasesGranted, LeasesRevoked: x.LeasesRevoked, LeaseTTL: x.LeaseTTL,
		CompactionLast: x.CompactionLast, CompactionPause: x.CompactionPause, CompactionTotal: x.CompactionTotal,
		IndexPause: x.IndexCompactionPause,
	}
}

// applyDurations feeds the histograms of applied requests. A series appears with its first request, as in etcd;
// after that, finding it by its labels' hash would cost apply more than observing. Only apply calls it.
func applyDurations(vec *prometheus.HistogramVec) func(op string, success bool, seconds float64) {
	type series struct {
		op      string
		success bool
	}
	found := map[series]prometheus.Observer{}
	return func(op string, success bool, seconds float64) {
		key := series{op, success}
		h, ok := found[key]
		if !ok {
			h = vec.WithLabelValues("v3", op, strconv.FormatBool(success))
			found[key] = h
		}
		h.Observe(seconds)
	}
}

func (m *Member) watchMetrics() watch.Metrics {
	x := m.cfg.Metrics
	return watch.Metrics{
		Streams: x.WatchStreams, Watchers: x.Watchers, SlowWatchers: x.SlowWatchers,
		PendingEvents: x.PendingEvents, Events: x.Events, Future: x.Own.WatchersFuture,
		Compacted: x.Own.WatchersCompacted, LagScanning: x.Own.WatchLagScanning, LagBlocked: x.Own.WatchLagBlocked,
		WindowBytes: x.Own.WatchWindowBytes, Scans: x.Own.WatchScans,
	}
}

func (m *Member) expireMetrics() expire.Metrics {
	x := m.cfg.Metrics
	return expire.Metrics{Renewed: x.LeasesRenewed, Expired: x.LeasesExpired, Due: x.Own.LeasesDue}
}

// priorityGap is the backlog up to which lease revocations pass; 0 is the gate of all requests.
func (m *Member) priorityGap() int64 {
	if m.cfg.PriorityRequest {
		return 10_000
	}
	return 0
}

// setLive names the values that are read at scrape.
func (m *Member) setLive() {
	ofView := func(fn func(*apply.View) int64) func() int64 {
		return func() int64 {
			view := m.apply.View()
			defer view.Release()
			return fn(view)
		}
	}
	m.cfg.Metrics.SetLive(tracing.Live{
		AuthRevision:         ofView(func(v *apply.View) int64 { return int64(v.Auth.Revision()) }),
		CurrentRevision:      ofView(func(v *apply.View) int64 { return v.KV.Revision() }),
		CompactRevision:      ofView(func(v *apply.View) int64 { return v.KV.CompactRevision() }),
		Keys:                 ofView(func(v *apply.View) int64 { return v.KV.Keys() }),
		DBSize:               func() int64 { total, _ := m.apply.Size(); return total },
		DBSizeInUse:          func() int64 { _, inUse := m.apply.Size(); return inUse },
		OpenReadTransactions: func() int64 { return m.backend.ReadTransactions() },
		OldestViewSeconds:    func() float64 { return m.apply.OldestView().Seconds() },
		ClusterVersion: func() string {
			view := m.apply.View()
			defer view.Release()
			return view.Members.ClusterVersion()
		},
	})
}

package tracing

import "github.com/prometheus/client_golang/prometheus"

// Own are the levels inside the stages that etcd has no name for.
type Own struct {
	RaftLogEntries    prometheus.Gauge   // sluice_raft_log_entries
	RaftLogBytes      prometheus.Gauge   // sluice_raft_log_bytes
	RaftBacklogBytes  prometheus.Gauge   // sluice_raft_backlog_bytes
	AppendsDropped    prometheus.Counter // sluice_raft_append_dropped_total
	ValueCacheBytes   prometheus.Gauge   // sluice_mvcc_value_cache_bytes
	WatchersFuture    prometheus.Gauge   // sluice_watch_future_watchers
	WatchersCompacted prometheus.Gauge   // sluice_watch_compacted_watchers
	WatchLagScanning  prometheus.Gauge   // sluice_watch_lag_scanning_revisions
	WatchLagBlocked   prometheus.Gauge   // sluice_watch_lag_blocked_revisions
	WatchWindowBytes  prometheus.Gauge   // sluice_watch_window_bytes
	WatchScans        prometheus.Counter // sluice_watch_scans_total
	LeasesDue         prometheus.Gauge   // sluice_lease_due
}

func newOwn(b builder) *Own {
	return &Own{
		RaftLogEntries:   b.gauge("sluice_raft_log_entries", "Entries of the raft log kept in memory."),
		RaftLogBytes:     b.gauge("sluice_raft_log_bytes", "Bytes of the raft log kept in memory."),
		RaftBacklogBytes: b.gauge("sluice_raft_backlog_bytes", "Bytes appended to the log and not yet applied."),
		AppendsDropped: b.counter("sluice_raft_append_dropped_total",
			"Appends of a leader refused because too much waits for the disk."),
		ValueCacheBytes: b.gauge("sluice_mvcc_value_cache_bytes", "Bytes of newest values kept in memory."),
		WatchersFuture:  b.gauge("sluice_watch_future_watchers", "Watchers that wait for a future revision."),
		WatchersCompacted: b.gauge("sluice_watch_compacted_watchers",
			"Watchers cancelled for a compaction, not yet by their client."),
		WatchLagScanning: b.gauge("sluice_watch_lag_scanning_revisions",
			"Revisions that the farthest behind of the watchers waiting for a scan lags."),
		WatchLagBlocked: b.gauge("sluice_watch_lag_blocked_revisions",
			"Revisions that the farthest behind of the watchers waiting for their client lags."),
		WatchWindowBytes: b.gauge("sluice_watch_window_bytes", "Bytes of recent events kept encoded."),
		WatchScans:       b.counter("sluice_watch_scans_total", "Catch-up scans of history."),
		LeasesDue:        b.gauge("sluice_lease_due", "Leases that have run out and are not revoked yet."),
	}
}

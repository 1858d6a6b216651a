package tracing

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics holds every metric family of a member, under etcd's names, types, labels and buckets, and those
// of Sluice's own (sluice_*). A member makes one; there is no registry of the package. A vector shows no
// series until one of its label sets was used. Families whose name ends in _total although they are gauges
// are so in etcd too, and dashboards rely on it.
//
// Rule: contract/operations.md section 4.
type Metrics struct {
	registry *prometheus.Registry
	live     atomic.Pointer[Live] // written by SetLive; read at a scrape
	flow     flow
	rpc      rpcVectors

	Own *Own // levels that etcd has no name for

	// Identity and state of the member: runtime and server set them.
	ServerVersion           *prometheus.GaugeVec   // etcd_server_version
	GoVersion               *prometheus.GaugeVec   // etcd_server_go_version
	ServerID                *prometheus.GaugeVec   // etcd_server_id
	FeatureEnabled          *prometheus.GaugeVec   // etcd_server_feature_enabled
	HasLeader               prometheus.Gauge       // etcd_server_has_leader
	IsLeader                prometheus.Gauge       // etcd_server_is_leader
	IsLearner               prometheus.Gauge       // etcd_server_is_learner
	LeaderChanges           prometheus.Counter     // etcd_server_leader_changes_seen_total
	LearnerPromoteSuccesses prometheus.Counter     // etcd_server_learner_promote_successes
	LearnerPromoteFailures  *prometheus.CounterVec // etcd_server_learner_promote_failures
	QuotaBytes              prometheus.Gauge       // etcd_server_quota_backend_bytes
	Alarms                  *prometheus.GaugeVec   // etcd_debugging_server_alarms

	// Proposals, reads and raft: propose and replicate.
	HeartbeatSendFailures prometheus.Counter       // etcd_server_heartbeat_send_failures_total
	ProposalsCommitted    prometheus.Gauge         // etcd_server_proposals_committed_total
	ProposalsApplied      prometheus.Gauge         // etcd_server_proposals_applied_total
	ProposalsPending      prometheus.Gauge         // etcd_server_proposals_pending
	ProposalsFailed       prometheus.Counter       // etcd_server_proposals_failed_total
	RequestDuration       *prometheus.HistogramVec // etcd_server_request_duration_seconds
	SlowReadIndexes       prometheus.Counter       // etcd_server_slow_read_indexes_total
	ReadIndexesFailed     prometheus.Counter       // etcd_server_read_indexes_failed_total

	// Applying and the store: apply and its rooms.
	ApplyDuration           *prometheus.HistogramVec // etcd_server_apply_duration_seconds; version is "v3"
	RangeDuration           *prometheus.HistogramVec // etcd_server_range_duration_seconds
	SlowApply               prometheus.Counter       // etcd_server_slow_apply_total
	SnapshotApplyInProgress prometheus.Gauge         // etcd_server_snapshot_apply_in_progress_total
	Ranges                  prometheus.Counter       // etcd_mvcc_range_total
	Puts                    prometheus.Counter       // etcd_mvcc_put_total
	Deletes                 prometheus.Counter       // etcd_mvcc_delete_total; keys removed
	Txns                    prometheus.Counter       // etcd_mvcc_txn_total; transactions of more than one operation
	HashDuration            prometheus.Histogram     // etcd_mvcc_hash_duration_seconds
	HashRevDuration         prometheus.Histogram     // etcd_mvcc_hash_rev_duration_seconds
	PutBytes                prometheus.Gauge         // etcd_debugging_mvcc_total_put_size_in_bytes
	Events                  prometheus.Counter       // etcd_debugging_mvcc_events_total
	CompactedKeys           prometheus.Counter       // etcd_debugging_mvcc_db_compaction_keys_total
	CompactionLast          prometheus.Gauge         // etcd_debugging_mvcc_db_compaction_last; unix seconds
	IndexCompactionPause    prometheus.Histogram     // etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds
	CompactionPause         prometheus.Histogram     // etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds
	CompactionTotal         prometheus.Histogram     // etcd_debugging_mvcc_db_compaction_total_duration_milliseconds

	// Watching: watch.
	WatchStreams  prometheus.Gauge     // etcd_debugging_mvcc_watch_stream_total
	Watchers      prometheus.Gauge     // etcd_debugging_mvcc_watcher_total
	SlowWatchers  prometheus.Gauge     // etcd_debugging_mvcc_slow_watcher_total; unsynced
	PendingEvents prometheus.Gauge     // etcd_debugging_mvcc_pending_events_total
	WatchSendLoop prometheus.Histogram // etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds
	// etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds
	WatchSendLoopPerEvent prometheus.Histogram
	WatchSendLoopControl  prometheus.Histogram // etcd_debugging_server_watch_send_loop_control_stream_duration_seconds
	WatchSendLoopProgress prometheus.Histogram // etcd_debugging_server_watch_send_loop_progress_duration_seconds

	// Leases: apply and expire.
	LeasesGranted prometheus.Counter   // etcd_debugging_lease_granted_total
	LeasesRevoked prometheus.Counter   // etcd_debugging_lease_revoked_total
	LeasesRenewed prometheus.Counter   // etcd_debugging_lease_renewed_total; on the leader
	LeaseTTL      prometheus.Histogram // etcd_debugging_lease_ttl_total; seconds
	LeasesExpired prometheus.Counter   // etcd_debugging_server_lease_expired_total

	// Disk: persist and the backend.
	WALFsync         prometheus.Histogram // etcd_disk_wal_fsync_duration_seconds
	WALWrite         prometheus.Histogram // etcd_disk_wal_write_duration_seconds
	WALBytes         prometheus.Gauge     // etcd_disk_wal_write_bytes_total
	BackendCommit    prometheus.Histogram // etcd_disk_backend_commit_duration_seconds
	BackendRebalance prometheus.Histogram // etcd_debugging_disk_backend_commit_rebalance_duration_seconds
	BackendSpill     prometheus.Histogram // etcd_debugging_disk_backend_commit_spill_duration_seconds
	BackendWrite     prometheus.Histogram // etcd_debugging_disk_backend_commit_write_duration_seconds
	BackendDefrag    prometheus.Histogram // etcd_disk_backend_defrag_duration_seconds
	BackendSnapshot  prometheus.Histogram // etcd_disk_backend_snapshot_duration_seconds
	DefragInflight   prometheus.Gauge     // etcd_disk_defrag_inflight
	SnapFsync        prometheus.Histogram // etcd_snap_fsync_duration_seconds
	SnapDBFsync      prometheus.Histogram // etcd_snap_db_fsync_duration_seconds
	SnapDBSave       prometheus.Histogram // etcd_snap_db_save_total_duration_seconds
	SnapMarshalling  prometheus.Histogram // etcd_debugging_snap_save_marshalling_duration_seconds
	SnapSave         prometheus.Histogram // etcd_debugging_snap_save_total_duration_seconds

	// The client edge: rpc and web.
	HealthSuccess       prometheus.Counter     // etcd_server_health_success
	HealthFailures      prometheus.Counter     // etcd_server_health_failures
	HealthCheck         *prometheus.GaugeVec   // etcd_server_healthcheck
	HealthChecks        *prometheus.CounterVec // etcd_server_healthchecks_total
	ClientRequests      *prometheus.CounterVec // etcd_server_client_requests_total
	ClientSentBytes     prometheus.Counter     // etcd_network_client_grpc_sent_bytes_total
	ClientReceivedBytes prometheus.Counter     // etcd_network_client_grpc_received_bytes_total
	// Type is send or receive, API is watch or lease-keepalive.
	StreamFailures    *prometheus.CounterVec // etcd_network_server_stream_failures_total
	KnownPeers        *prometheus.GaugeVec   // etcd_network_known_peers
	ActivePeers       *prometheus.GaugeVec   // etcd_network_active_peers
	DisconnectedPeers *prometheus.CounterVec // etcd_network_disconnected_peers_total
	FDUsed            prometheus.Gauge       // os_fd_used
	FDLimit           prometheus.Gauge       // os_fd_limit
}

// NewMetrics makes the registry and every family in it. extensive adds grpc_server_handling_seconds.
func NewMetrics(extensive bool) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.live.Store(&Live{})
	b := builder{m.registry}
	m.newState(b)
	m.newRaft(b)
	m.newStore(b)
	m.newEdges(b)
	m.newDisk(b)
	m.newClient(b)
	m.newLive(b)
	m.Own = newOwn(b)
	b.registry.MustRegister(newClusterVersion(&m.live))
	b.unused()
	m.rpc = newRPCVectors(b, extensive)
	m.registry.MustRegister(
		&m.flow,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Registry is the registry to scrape, and to which the scrape handler adds its own families.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

func (m *Metrics) newState(b builder) {
	m.ServerVersion = b.gaugeVec("etcd_server_version",
		"Which version is running. 1 for 'server_version' label with current version.", "server_version")
	m.GoVersion = b.gaugeVec("etcd_server_go_version",
		"Which Go version server is running with. 1 for 'server_go_version' label with current version.",
		"server_go_version")
	m.ServerID = b.gaugeVec("etcd_server_id",
		"Server or member ID in hexadecimal format. 1 for 'server_id' label with current ID.", "server_id")
	m.FeatureEnabled = b.gaugeVec("etcd_server_feature_enabled",
		"Whether or not a feature is enabled. 1 is enabled, 0 is not.", "name", "stage")
	m.HasLeader = b.gauge("etcd_server_has_leader",
		"Whether or not a leader exists. 1 is existence, 0 is not.")
	m.IsLeader = b.gauge("etcd_server_is_leader",
		"Whether or not this member is a leader. 1 if is, 0 otherwise.")
	m.IsLearner = b.gauge("etcd_server_is_learner",
		"Whether or not this member is a learner. 1 if is, 0 otherwise.")
	m.LeaderChanges = b.counter("etcd_server_leader_changes_seen_total",
		"The number of leader changes seen.")
	m.LearnerPromoteSuccesses = b.counter("etcd_server_learner_promote_successes",
		"The total number of successful learner promotions while this member is leader.")
	m.LearnerPromoteFailures = b.counterVec("etcd_server_learner_promote_failures",
		"The total number of failed learner promotions (likely learner not ready) while this member is leader.", "Reason")
	m.QuotaBytes = b.gauge("etcd_server_quota_backend_bytes",
		"Current backend storage quota size in bytes.")
	m.Alarms = b.gaugeVec("etcd_debugging_server_alarms",
		"Alarms for every member in cluster. 1 for 'server_id' label with current ID. "+
			"2 for 'alarm_type' label with type of this alarm",
		"server_id", "alarm_type")
}

func (m *Metrics) newRaft(b builder) {
	m.HeartbeatSendFailures = b.counter("etcd_server_heartbeat_send_failures_total",
		"The total number of leader heartbeat send failures (likely overloaded from slow disk).")
	m.ProposalsCommitted = b.gauge("etcd_server_proposals_committed_total",
		"The total number of consensus proposals committed.")
	m.ProposalsApplied = b.gauge("etcd_server_proposals_applied_total",
		"The total number of consensus proposals applied.")
	m.ProposalsPending = b.gauge("etcd_server_proposals_pending",
		"The current number of pending proposals to commit.")
	m.ProposalsFailed = b.counter("etcd_server_proposals_failed_total",
		"The total number of failed proposals seen.")
	m.RequestDuration = b.histogramVec("etcd_server_request_duration_seconds",
		"Response latency distribution in seconds for each type.", 0.001, 2, 14, "type", "success")
	m.SlowReadIndexes = b.counter("etcd_server_slow_read_indexes_total",
		"The total number of pending read indexes not in sync with leader's or timed out read index requests.")
	m.ReadIndexesFailed = b.counter("etcd_server_read_indexes_failed_total",
		"The total number of failed read indexes seen.")
}

func (m *Metrics) newStore(b builder) {
	m.ApplyDuration = b.histogramVec("etcd_server_apply_duration_seconds",
		"The latency distributions of v2 apply called by backend.", 0.0001, 2, 20, "version", "op", "success")
	m.RangeDuration = b.histogramVec("etcd_server_range_duration_seconds",
		"The latency distributions of txn.Range", 0.0001, 2, 20, "success")
	m.SlowApply = b.counter("etcd_server_slow_apply_total",
		"The total number of slow apply requests (likely overloaded from slow disk).")
	m.SnapshotApplyInProgress = b.gauge("etcd_server_snapshot_apply_in_progress_total",
		"1 if the server is applying the incoming snapshot. 0 if none.")
	m.Ranges = b.counter("etcd_mvcc_range_total",
		"Total number of ranges seen by this member.")
	m.Puts = b.counter("etcd_mvcc_put_total",
		"Total number of puts seen by this member.")
	m.Deletes = b.counter("etcd_mvcc_delete_total",
		"Total number of deletes seen by this member.")
	m.Txns = b.counter("etcd_mvcc_txn_total",
		"Total number of txns seen by this member.")
	m.HashDuration = b.histogram("etcd_mvcc_hash_duration_seconds",
		"The latency distribution of storage hash operation.", 0.01, 2, 15)
	m.HashRevDuration = b.histogram("etcd_mvcc_hash_rev_duration_seconds",
		"The latency distribution of storage hash by revision operation.", 0.01, 2, 15)
	m.PutBytes = b.gauge("etcd_debugging_mvcc_total_put_size_in_bytes",
		"The total size of put kv pairs seen by this member.")
	m.Events = b.counter("etcd_debugging_mvcc_events_total",
		"Total number of events sent by this member.")
	m.CompactedKeys = b.counter("etcd_debugging_mvcc_db_compaction_keys_total",
		"Total number of db keys compacted.")
	m.CompactionLast = b.gauge("etcd_debugging_mvcc_db_compaction_last",
		"The unix time of the last db compaction. Resets to 0 on start.")
	m.IndexCompactionPause = b.histogram("etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds",
		"Bucketed histogram of index compaction pause duration.", 0.5, 2, 14)
	m.CompactionPause = b.histogram("etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
		"Bucketed histogram of db compaction pause duration.", 1, 2, 13)
	m.CompactionTotal = b.histogram("etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
		"Bucketed histogram of db compaction total duration.", 100, 2, 14)
}

func (m *Metrics) newEdges(b builder) {
	m.WatchStreams = b.gauge("etcd_debugging_mvcc_watch_stream_total",
		"Total number of watch streams.")
	m.Watchers = b.gauge("etcd_debugging_mvcc_watcher_total",
		"Total number of watchers.")
	m.SlowWatchers = b.gauge("etcd_debugging_mvcc_slow_watcher_total",
		"Total number of unsynced slow watchers.")
	m.PendingEvents = b.gauge("etcd_debugging_mvcc_pending_events_total",
		"Total number of pending events to be sent.")
	m.WatchSendLoop = b.histogram("etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
		"The total duration in seconds of running through the send loop watch stream response all events.", 0.001, 2, 14)
	m.WatchSendLoopPerEvent = b.histogram("etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
		"The average duration in seconds of running through the send loop watch stream response, per event.", 0.001, 2, 14)
	m.WatchSendLoopControl = b.histogram("etcd_debugging_server_watch_send_loop_control_stream_duration_seconds",
		"The total duration in seconds of running through the send loop control stream response.", 0.001, 2, 14)
	m.WatchSendLoopProgress = b.histogram("etcd_debugging_server_watch_send_loop_progress_duration_seconds",
		"The total duration in seconds of running through the progress loop control stream response.", 0.001, 2, 14)
	m.LeasesGranted = b.counter("etcd_debugging_lease_granted_total",
		"The total number of granted leases.")
	m.LeasesRevoked = b.counter("etcd_debugging_lease_revoked_total",
		"The total number of revoked leases.")
	m.LeasesRenewed = b.counter("etcd_debugging_lease_renewed_total",
		"The number of renewed leases seen by the leader.")
	m.LeaseTTL = b.histogram("etcd_debugging_lease_ttl_total",
		"Bucketed histogram of lease TTLs.", 1, 2, 24)
	m.LeasesExpired = b.counter("etcd_debugging_server_lease_expired_total",
		"The total number of expired leases.")
}

func (m *Metrics) newDisk(b builder) {
	m.WALFsync = b.histogram("etcd_disk_wal_fsync_duration_seconds",
		"The latency distributions of fsync called by WAL.", 0.001, 2, 14)
	m.WALWrite = b.histogram("etcd_disk_wal_write_duration_seconds",
		"The latency distributions of write called by WAL.", 0.001, 2, 14)
	m.WALBytes = b.gauge("etcd_disk_wal_write_bytes_total",
		"Total number of bytes written in WAL.")
	m.BackendCommit = b.histogram("etcd_disk_backend_commit_duration_seconds",
		"The latency distributions of commit called by backend.", 0.001, 2, 14)
	m.BackendRebalance = b.histogram("etcd_debugging_disk_backend_commit_rebalance_duration_seconds",
		"The latency distributions of commit.rebalance called by bboltdb backend.", 0.001, 2, 14)
	m.BackendSpill = b.histogram("etcd_debugging_disk_backend_commit_spill_duration_seconds",
		"The latency distributions of commit.spill called by bboltdb backend.", 0.001, 2, 14)
	m.BackendWrite = b.histogram("etcd_debugging_disk_backend_commit_write_duration_seconds",
		"The latency distributions of commit.write called by bboltdb backend.", 0.001, 2, 14)
	m.BackendDefrag = b.histogram("etcd_disk_backend_defrag_duration_seconds",
		"The latency distribution of backend defragmentation.", 0.1, 2, 13)
	m.BackendSnapshot = b.histogram("etcd_disk_backend_snapshot_duration_seconds",
		"The latency distribution of backend snapshots.", 0.01, 2, 17)
	m.DefragInflight = b.gauge("etcd_disk_defrag_inflight",
		"Whether or not defrag is active on the member. 1 means active, 0 means not.")
	m.SnapFsync = b.histogram("etcd_snap_fsync_duration_seconds",
		"The latency distributions of fsync called by snap.", 0.001, 2, 14)
	m.SnapDBFsync = b.histogram("etcd_snap_db_fsync_duration_seconds",
		"The latency distributions of fsyncing .snap.db file", 0.001, 2, 14)
	m.SnapDBSave = b.histogram("etcd_snap_db_save_total_duration_seconds",
		"The total latency distributions of v3 snapshot save", 0.1, 2, 10)
	m.SnapMarshalling = b.histogram("etcd_debugging_snap_save_marshalling_duration_seconds",
		"The marshalling cost distributions of save called by snapshot.", 0.001, 2, 14)
	m.SnapSave = b.histogram("etcd_debugging_snap_save_total_duration_seconds",
		"The total latency distributions of save called by snapshot.", 0.001, 2, 14)
}

func (m *Metrics) newClient(b builder) {
	m.HealthSuccess = b.counter("etcd_server_health_success",
		"The total number of successful health checks")
	m.HealthFailures = b.counter("etcd_server_health_failures",
		"The total number of failed health checks")
	m.HealthCheck = b.gaugeVec("etcd_server_healthcheck",
		"The result of each kind of healthcheck.", "type", "name")
	m.HealthChecks = b.counterVec("etcd_server_healthchecks_total",
		"The total number of each kind of healthcheck.", "type", "name", "status")
	m.ClientRequests = b.counterVec("etcd_server_client_requests_total",
		"The total number of client requests per client version.", "type", "client_api_version")
	m.ClientSentBytes = b.counter("etcd_network_client_grpc_sent_bytes_total",
		"The total number of bytes sent to grpc clients.")
	m.ClientReceivedBytes = b.counter("etcd_network_client_grpc_received_bytes_total",
		"The total number of bytes received from grpc clients.")
	m.StreamFailures = b.counterVec("etcd_network_server_stream_failures_total",
		"The total number of stream failures from the local server.", "Type", "API")
	m.KnownPeers = b.gaugeVec("etcd_network_known_peers",
		"The current number of known peers.", "Local", "Remote")
	m.ActivePeers = b.gaugeVec("etcd_network_active_peers",
		"The current number of active peer connections.", "Local", "Remote")
	m.DisconnectedPeers = b.counterVec("etcd_network_disconnected_peers_total",
		"The total number of disconnected peers.", "Local", "Remote")
	m.FDUsed = b.gauge("os_fd_used",
		"The number of used file descriptors.")
	m.FDLimit = b.gauge("os_fd_limit",
		"The file descriptor limit.")
}

package main

import (
	"crypto/tls"
	"fmt"
	goruntime "runtime"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"sluice/runtime"
	"sluice/server/config"
	"sluice/server/rpc"
	"sluice/stages/apply/members"
	"sluice/tracing"
)

// fatalReturns lets a fatal line be logged without ending the process: run ends it, after the log is flushed.
type fatalReturns struct{}

// OnWrite implements zapcore.CheckWriteHook.
func (fatalReturns) OnWrite(*zapcore.CheckedEntry, []zapcore.Field) {}

func memberConfig(c *config.Config, log *zap.Logger, metrics *tracing.Metrics) runtime.Config {
	version, err := members.ParseVersion(config.Version)
	if err != nil {
		panic(err) // a constant
	}
	return runtime.Config{
		Name: c.Name, DataDir: c.DataDir, WALDir: c.WALDir,
		AdvertiseClientURLs: c.AdvertiseClientURLs.Strings(), AdvertisePeerURLs: c.AdvertisePeerURLs.Strings(),
		InitialCluster: c.InitialCluster, InitialClusterToken: c.InitialClusterToken, NewCluster: c.IsNewCluster(),
		Heartbeat: c.Heartbeat, Election: c.Election, PreVote: c.PreVote,
		SnapshotCount: c.SnapshotCount, CatchUpEntries: c.SnapshotCatchUpEntries,
		WALsMax: c.WALsMax, SnapshotsMax: c.SnapshotsMax, LearnersMax: c.LearnersMax,
		UnsafeNoFsync: c.UnsafeNoFsync, Mlock: c.MemoryMlock,
		QuotaBytes: c.QuotaBackendBytes, FreelistType: c.BackendFreelistType,
		BatchInterval: c.BackendBatchInterval, BatchLimit: c.BackendBatchLimit,
		DefragBytes: int64(c.BootstrapDefragThresholdMiB) << 20, RequestBytesMax: int64(c.RequestBytesMax),
		CompactionRecordsMax: c.CompactionBatchLimit, CompactionPause: c.CompactionSleepInterval,
		ProgressInterval: c.WatchProgressNotifyInterval, WarningDuration: c.WarnApplyDuration, TokenTTL: c.AuthTokenTTL,
		LeaseCheckpoint:        c.FeatureGates.Enabled(config.GateLeaseCheckpoint),
		LeaseCheckpointPersist: c.FeatureGates.Enabled(config.GateLeaseCheckpointPersist),
		PriorityRequest:        c.FeatureGates.Enabled(config.GatePriorityRequest),
		Mailboxes:              runtime.Mailboxes(c.Mailboxes),
		UncommittedBytes:       int64(c.RaftUncommittedBytes), ValueCacheBytes: c.ValueCacheBytes,
		WindowBytes: c.WatchWindowBytes, RevokesPerSecond: c.RevokesPerSecondMax,
		Version: version, Logger: log, Metrics: metrics,
	}
}

func rpcConfig(c *config.Config, log *zap.Logger, metrics *tracing.Metrics) rpc.Config {
	return rpc.Config{
		ServerVersion: config.Version, RequestBytesMax: int64(c.RequestBytesMax), TxnOpsMax: int(c.TxnOpsMax),
		StreamsMax: c.ConcurrentStreamsMax, RequestTimeout: c.RequestTimeout(), ElectionTimeout: c.Election,
		BcryptCost: int(c.BcryptCost), LearnersMax: c.LearnersMax, StrictReconfig: c.StrictReconfigCheck,
		ReadBudgetBytes: c.ReadBudgetBytes, StreamWorkers: int(c.GRPCStreamWorkers),
		WarnUnary: c.WarnUnaryDuration, WarnApply: c.WarnApplyDuration,
		KeepAliveMinTime: c.KeepAliveMinTime, KeepAliveInterval: c.KeepAliveInterval, KeepAliveTimeout: c.KeepAliveTimeout,
		ClientCertAuth: c.ClientTLS.ClientCertAuth,
		StopOnDefrag:   c.FeatureGates.Enabled(config.GateStopGRPCServiceOnDefrag),
		Metrics:        metrics, Logger: log,
	}
}

// tlsConfig is the transport security of one side's listeners, nil without a certificate.
func tlsConfig(c *config.Config, t config.TLS) (*tls.Config, error) {
	if t.Empty() {
		return nil, nil
	}
	suites, err := c.Suites()
	if err != nil {
		return nil, err
	}
	low, err := config.TLSVersion(c.TLSMinVersion)
	if err != nil {
		return nil, err
	}
	high, err := config.TLSVersion(c.TLSMaxVersion)
	if err != nil {
		return nil, err
	}
	secure, err := rpc.ServerTLS(rpc.TLSOptions{
		CertFile: t.CertFile, KeyFile: t.KeyFile, TrustedCAFile: t.TrustedCAFile, ClientCertAuth: t.ClientCertAuth,
		CRLFile: t.CRLFile, AllowedHostnames: t.AllowedHostnames, AllowedCNs: t.AllowedCNs,
		CipherSuites: suites, MinVersion: low, MaxVersion: high,
	})
	if err != nil {
		return nil, &listenerError{err}
	}
	return secure, nil
}

// listenerError is found only when serving starts, and is logged as "listener failed".
type listenerError struct{ err error }

func (e *listenerError) Error() string { return e.err.Error() }
func (e *listenerError) Unwrap() error { return e.err }

// logStart writes every effective setting in one line, under etcd's keys.
//
// Rule: contract/operations.md 6.2.
func logStart(c *config.Config, log *zap.Logger, initialized bool) {
	memberDir := c.DataDir + "/member"
	retention := fmt.Sprint(c.AutoCompactionRetention)
	d := c.Discovery
	log.Info("starting an etcd server",
		zap.String("etcd-version", config.Version), zap.String("git-sha", config.GitSHA),
		zap.String("go-version", goruntime.Version()), zap.String("go-os", goruntime.GOOS),
		zap.String("go-arch", goruntime.GOARCH), zap.Int("max-cpu-set", goruntime.GOMAXPROCS(0)),
		zap.Int("max-cpu-available", goruntime.NumCPU()), zap.Bool("member-initialized", initialized),
		zap.String("name", c.Name), zap.String("data-dir", c.DataDir), zap.String("wal-dir", c.WALDir),
		zap.String("wal-dir-dedicated", c.WALDir), zap.String("member-dir", memberDir),
		zap.Bool("force-new-cluster", c.ForceNewCluster), zap.Stringer("heartbeat-interval", c.Heartbeat),
		zap.Stringer("election-timeout", c.Election),
		zap.Bool("initial-election-tick-advance", c.ElectionTickAdvance),
		zap.Uint64("snapshot-count", c.SnapshotCount), zap.Uint("max-wals", c.WALsMax),
		zap.Uint("max-snapshots", c.SnapshotsMax), zap.Uint64("snapshot-catchup-entries", c.SnapshotCatchUpEntries),
		zap.Strings("initial-advertise-peer-urls", c.AdvertisePeerURLs.Strings()),
		zap.Strings("listen-peer-urls", c.ListenPeerURLs.Strings()),
		zap.Strings("advertise-client-urls", c.AdvertiseClientURLs.Strings()),
		zap.Strings("listen-client-urls", c.ListenClientURLs.Strings()),
		zap.Strings("listen-metrics-urls", c.ListenMetricsURLs.Strings()), zap.String("local-address", ""),
		zap.Strings("cors", c.CORS), zap.Strings("host-whitelist", c.HostWhitelist),
		zap.String("initial-cluster", c.InitialCluster), zap.String("initial-cluster-state", c.InitialClusterState),
		zap.String("initial-cluster-token", c.InitialClusterToken),
		zap.Int64("quota-backend-bytes", c.QuotaBackendBytes), zap.Uint("max-request-bytes", c.RequestBytesMax),
		zap.Uint32("max-concurrent-streams", c.ConcurrentStreamsMax), zap.Bool("pre-vote", c.PreVote),
		zap.Stringer("feature-gates", c.FeatureGates), zap.Bool("initial-corrupt-check", false),
		zap.Stringer("corrupt-check-time-interval", c.CorruptCheckTime),
		zap.Stringer("compact-check-time-interval", c.CompactHashCheckTime),
		zap.String("auto-compaction-mode", c.AutoCompactionMode), zap.String("auto-compaction-retention", retention),
		zap.String("auto-compaction-interval", retention),
		zap.String("discovery-token", d.Token), zap.String("discovery-endpoints", strings.Join(d.Endpoints, ",")),
		zap.Stringer("discovery-dial-timeout", d.DialTimeout),
		zap.Stringer("discovery-request-timeout", d.RequestTimeout),
		zap.Stringer("discovery-keepalive-time", d.KeepAliveTime),
		zap.Stringer("discovery-keepalive-timeout", d.KeepAliveTimeout),
		zap.Bool("discovery-insecure-transport", d.InsecureTransport),
		zap.Bool("discovery-insecure-skip-tls-verify", d.InsecureSkipTLSVerify),
		zap.String("discovery-cert", d.CertFile), zap.String("discovery-key", d.KeyFile),
		zap.String("discovery-cacert", d.CAFile), zap.String("discovery-user", d.User),
		zap.Stringer("downgrade-check-interval", c.DowngradeCheckTime), zap.Int("max-learners", c.LearnersMax),
		zap.String("v2-deprecation", c.V2Deprecation), zap.String("sluice-version", config.Own),
		zap.Any("mailboxes", c.Mailboxes), zap.Uint64("raft-uncommitted-bytes", c.RaftUncommittedBytes),
		zap.Int64("value-cache-bytes", c.ValueCacheBytes), zap.Int64("read-budget-bytes", c.ReadBudgetBytes),
		zap.Int64("watch-window-bytes", c.WatchWindowBytes), zap.Uint("grpc-stream-workers", c.GRPCStreamWorkers),
		zap.Int("revoke-rate", c.RevokesPerSecondMax),
	)
}

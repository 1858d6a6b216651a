package config

import (
	"flag"
	"io"
	"time"
)

// flagSet declares every flag on c, in the groups of the help text. The values are those of the command
// line; check turns them into effective ones.
func flagSet(c *Config, version *bool) *flag.FlagSet {
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.BoolVar(version, "version", false, "")
	fs.StringVar(&c.ConfigFile, "config-file", "", "")
	memberFlags(fs, c)
	storageFlags(fs, c)
	clusterFlags(fs, c)
	discoveryFlags(fs, c)
	securityFlags(fs, c)
	observeFlags(fs, c)
	sluiceFlags(fs, c)
	for _, name := range []string{
		"cluster-active-size", "cluster-remove-delay", "cluster-sync-interval", "config", "force",
		"max-result-buffer", "max-retry-attempts", "peer-heartbeat-interval", "peer-election-timeout",
		"retry-interval", "snapshot", "v", "vv", "test.coverprofile", "test.outputdir",
	} {
		fs.Var(ignoredValue{}, name, "")
	}
	return fs
}

func memberFlags(fs *flag.FlagSet, c *Config) {
	fs.StringVar(&c.Name, "name", c.Name, "")
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "")
	fs.StringVar(&c.WALDir, "wal-dir", c.WALDir, "")
	fs.Uint64Var(&c.SnapshotCount, "snapshot-count", c.SnapshotCount, "")
	fs.Uint64Var(&c.SnapshotCatchUpEntries, "snapshot-catchup-entries", c.SnapshotCatchUpEntries, "")
	fs.UintVar(&c.SnapshotsMax, "max-snapshots", c.SnapshotsMax, "")
	fs.UintVar(&c.WALsMax, "max-wals", c.WALsMax, "")
	fs.Var(unitValue{&c.Heartbeat, time.Millisecond}, "heartbeat-interval", "")
	fs.Var(unitValue{&c.Election, time.Millisecond}, "election-timeout", "")
	fs.BoolVar(&c.ElectionTickAdvance, "initial-election-tick-advance", c.ElectionTickAdvance, "")
	fs.BoolVar(&c.PreVote, "pre-vote", c.PreVote, "")
	fs.DurationVar(&c.RaftReadTimeout, "raft-read-timeout", c.RaftReadTimeout, "")
	fs.DurationVar(&c.RaftWriteTimeout, "raft-write-timeout", c.RaftWriteTimeout, "")
	fs.Var(urlsValue{&c.ListenPeerURLs}, "listen-peer-urls", "")
	fs.Var(urlsValue{&c.ListenClientURLs}, "listen-client-urls", "")
	fs.Var(urlsValue{&c.ListenClientHTTPURLs}, "listen-client-http-urls", "")
	fs.Var(urlsValue{&c.ListenMetricsURLs}, "listen-metrics-urls", "")
	fs.BoolVar(&c.SocketReusePort, "socket-reuse-port", false, "")
	fs.BoolVar(&c.SocketReuseAddress, "socket-reuse-address", false, "")
	fs.UintVar(&c.TxnOpsMax, "max-txn-ops", c.TxnOpsMax, "")
	fs.UintVar(&c.RequestBytesMax, "max-request-bytes", c.RequestBytesMax, "")
	fs.Var(uint32Value{&c.ConcurrentStreamsMax}, "max-concurrent-streams", "")
	fs.DurationVar(&c.KeepAliveMinTime, "grpc-keepalive-min-time", c.KeepAliveMinTime, "")
	fs.DurationVar(&c.KeepAliveInterval, "grpc-keepalive-interval", c.KeepAliveInterval, "")
	fs.DurationVar(&c.KeepAliveTimeout, "grpc-keepalive-timeout", c.KeepAliveTimeout, "")
	fs.BoolVar(&c.EnableGateway, "enable-grpc-gateway", c.EnableGateway, "")
	fs.DurationVar(&c.WatchProgressNotifyInterval, "watch-progress-notify-interval", 0, "")
	fs.Var(gatesValue{&c.FeatureGates}, "feature-gates", "")
}

func storageFlags(fs *flag.FlagSet, c *Config) {
	fs.Int64Var(&c.QuotaBackendBytes, "quota-backend-bytes", c.QuotaBackendBytes, "")
	fs.StringVar(&c.BackendFreelistType, "backend-bbolt-freelist-type", c.BackendFreelistType, "")
	fs.DurationVar(&c.BackendBatchInterval, "backend-batch-interval", c.BackendBatchInterval, "")
	fs.IntVar(&c.BackendBatchLimit, "backend-batch-limit", c.BackendBatchLimit, "")
	fs.UintVar(&c.BootstrapDefragThresholdMiB, "bootstrap-defrag-threshold-megabytes", 0, "")
	fs.BoolVar(&c.MemoryMlock, "memory-mlock", false, "")
	fs.BoolVar(&c.UnsafeNoFsync, "unsafe-no-fsync", false, "")
	fs.BoolVar(&c.ForceNewCluster, "force-new-cluster", false, "")
	fs.StringVar(&c.AutoCompactionMode, "auto-compaction-mode", c.AutoCompactionMode, "")
	fs.StringVar(&c.AutoCompactionRetentionText, "auto-compaction-retention", c.AutoCompactionRetentionText, "")
	fs.IntVar(&c.CompactionBatchLimit, "compaction-batch-limit", c.CompactionBatchLimit, "")
	fs.DurationVar(&c.CompactionSleepInterval, "compaction-sleep-interval", c.CompactionSleepInterval, "")
	fs.DurationVar(&c.CorruptCheckTime, "corrupt-check-time", c.CorruptCheckTime, "")
	fs.DurationVar(&c.CompactHashCheckTime, "compact-hash-check-time", c.CompactHashCheckTime, "")
	fs.DurationVar(&c.DowngradeCheckTime, "downgrade-check-time", c.DowngradeCheckTime, "")
	fs.Var(enumValue{&c.V2Deprecation,
		[]string{"write-only", "write-only-skip-check", "write-only-drop-data", "gone"}, true}, "v2-deprecation", "")
}

func clusterFlags(fs *flag.FlagSet, c *Config) {
	fs.Var(urlsValue{&c.AdvertisePeerURLs}, "initial-advertise-peer-urls", "")
	fs.Var(urlsValue{&c.AdvertiseClientURLs}, "advertise-client-urls", "")
	fs.StringVar(&c.InitialCluster, "initial-cluster", c.InitialCluster, "")
	fs.Var(enumValue{&c.InitialClusterState, []string{"new", "existing"}, false}, "initial-cluster-state", "")
	fs.StringVar(&c.InitialClusterToken, "initial-cluster-token", c.InitialClusterToken, "")
	fs.BoolVar(&c.StrictReconfigCheck, "strict-reconfig-check", c.StrictReconfigCheck, "")
	fs.IntVar(&c.LearnersMax, "max-learners", c.LearnersMax, "")
}

func discoveryFlags(fs *flag.FlagSet, c *Config) {
	d := &c.Discovery
	fs.StringVar(&d.Token, "discovery-token", "", "")
	fs.Var(listValue{&d.Endpoints, true}, "discovery-endpoints", "")
	fs.DurationVar(&d.DialTimeout, "discovery-dial-timeout", d.DialTimeout, "")
	fs.DurationVar(&d.RequestTimeout, "discovery-request-timeout", d.RequestTimeout, "")
	fs.DurationVar(&d.KeepAliveTime, "discovery-keepalive-time", d.KeepAliveTime, "")
	fs.DurationVar(&d.KeepAliveTimeout, "discovery-keepalive-timeout", d.KeepAliveTimeout, "")
	fs.BoolVar(&d.InsecureTransport, "discovery-insecure-transport", d.InsecureTransport, "")
	fs.BoolVar(&d.InsecureSkipTLSVerify, "discovery-insecure-skip-tls-verify", false, "")
	fs.StringVar(&d.CertFile, "discovery-cert", "", "")
	fs.StringVar(&d.KeyFile, "discovery-key", "", "")
	fs.StringVar(&d.CAFile, "discovery-cacert", "", "")
	fs.StringVar(&d.User, "discovery-user", "", "")
	fs.StringVar(&d.Password, "discovery-password", "", "")
	fs.Var(enumValue{&c.discoveryFallback, []string{"exit", "proxy"}, false}, "discovery-fallback", "")
	fs.StringVar(&c.DiscoverySRV, "discovery-srv", "", "")
	fs.StringVar(&c.DiscoverySRVName, "discovery-srv-name", "", "")
}

func securityFlags(fs *flag.FlagSet, c *Config) {
	client, peer := &c.ClientTLS, &c.PeerTLS
	for _, side := range []struct {
		prefix string
		t      *TLS
	}{{"", client}, {"peer-", peer}} {
		fs.StringVar(&side.t.CertFile, side.prefix+"cert-file", "", "")
		fs.StringVar(&side.t.KeyFile, side.prefix+"key-file", "", "")
		fs.StringVar(&side.t.ClientCertFile, side.prefix+"client-cert-file", "", "")
		fs.StringVar(&side.t.ClientKeyFile, side.prefix+"client-key-file", "", "")
		fs.StringVar(&side.t.TrustedCAFile, side.prefix+"trusted-ca-file", "", "")
		fs.BoolVar(&side.t.ClientCertAuth, side.prefix+"client-cert-auth", false, "")
	}
	fs.StringVar(&client.CRLFile, "client-crl-file", "", "")
	fs.StringVar(&peer.CRLFile, "peer-crl-file", "", "")
	fs.Var(listValue{&client.AllowedHostnames, false}, "client-cert-allowed-hostname", "")
	fs.Var(listValue{&peer.AllowedHostnames, false}, "peer-cert-allowed-hostname", "")
	fs.Var(listValue{&peer.AllowedCNs, false}, "peer-cert-allowed-cn", "")
	fs.BoolVar(&c.ClientAutoTLS, "auto-tls", false, "")
	fs.BoolVar(&c.PeerAutoTLS, "peer-auto-tls", false, "")
	fs.UintVar(&c.SelfSignedCertValid, "self-signed-cert-validity", c.SelfSignedCertValid, "")
	fs.BoolVar(&c.PeerSkipClientSANVerification, "peer-skip-client-san-verification", false, "")
	fs.Var(listValue{&c.CipherSuites, false}, "cipher-suites", "")
	fs.StringVar(&c.TLSMinVersion, "tls-min-version", c.TLSMinVersion, "")
	fs.StringVar(&c.TLSMaxVersion, "tls-max-version", c.TLSMaxVersion, "")
	fs.Var(originsValue{&c.CORS}, "cors", "")
	fs.Var(listValue{&c.HostWhitelist, true}, "host-whitelist", "")
	fs.StringVar(&c.AuthToken, "auth-token", c.AuthToken, "")
	fs.Var(unitValue{&c.AuthTokenTTL, time.Second}, "auth-token-ttl", "")
	fs.UintVar(&c.BcryptCost, "bcrypt-cost", c.BcryptCost, "")
}

func observeFlags(fs *flag.FlagSet, c *Config) {
	fs.StringVar(&c.Logger, "logger", c.Logger, "")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "")
	fs.StringVar(&c.LogFormat, "log-format", c.LogFormat, "")
	fs.Var(listValue{&c.LogOutputs, true}, "log-outputs", "")
	fs.BoolVar(&c.LogRotation, "enable-log-rotation", false, "")
	fs.StringVar(&c.LogRotationJSON, "log-rotation-config-json", c.LogRotationJSON, "")
	fs.DurationVar(&c.WarnApplyDuration, "warning-apply-duration", c.WarnApplyDuration, "")
	fs.DurationVar(&c.WarnUnaryDuration, "warning-unary-request-duration", c.WarnUnaryDuration, "")
	fs.BoolVar(&c.EnablePprof, "enable-pprof", false, "")
	fs.StringVar(&c.Metrics, "metrics", c.Metrics, "")
	fs.BoolVar(&c.EnableTracing, "enable-distributed-tracing", false, "")
	fs.StringVar(&c.TracingAddress, "distributed-tracing-address", c.TracingAddress, "")
	fs.StringVar(&c.TracingServiceName, "distributed-tracing-service-name", c.TracingServiceName, "")
	fs.StringVar(&c.TracingInstanceID, "distributed-tracing-instance-id", "", "")
	fs.IntVar(&c.TracingSamplesPerMillion, "distributed-tracing-sampling-rate", 0, "")
}

func sluiceFlags(fs *flag.FlagSet, c *Config) {
	m := &c.Mailboxes
	for name, capacity := range map[string]*int{
		"propose": &m.Propose, "system": &m.System, "replicate": &m.Replicate, "persist": &m.Persist,
		"apply": &m.Apply, "watch": &m.Watch, "expire": &m.Expire, "backend": &m.Backend,
	} {
		fs.IntVar(capacity, "mailbox-"+name, 0, "")
	}
	fs.Uint64Var(&c.RaftUncommittedBytes, "raft-uncommitted-bytes", c.RaftUncommittedBytes, "")
	fs.Int64Var(&c.ValueCacheBytes, "value-cache-bytes", 0, "")
	fs.Int64Var(&c.ReadBudgetBytes, "read-budget-bytes", 0, "")
	fs.Int64Var(&c.WatchWindowBytes, "watch-window-bytes", 0, "")
	fs.UintVar(&c.GRPCStreamWorkers, "grpc-stream-workers", 0, "")
	fs.IntVar(&c.RevokesPerSecondMax, "revoke-rate", c.RevokesPerSecondMax, "")
}

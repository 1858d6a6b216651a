package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// fileConfig is the configuration file. A nil field was not given; keys that are not here are ignored, as
// etcd ignores them. Durations are nanoseconds, but the two raft timeouts are milliseconds.
type fileConfig struct {
	Name                   *string `json:"name"`
	DataDir                *string `json:"data-dir"`
	WALDir                 *string `json:"wal-dir"`
	SnapshotCount          *uint64 `json:"snapshot-count"`
	SnapshotCatchUpEntries *uint64 `json:"snapshot-catchup-entries"`
	SnapshotsMax           *uint   `json:"max-snapshots"`
	WALsMax                *uint   `json:"max-wals"`
	Heartbeat              *uint   `json:"heartbeat-interval"`
	Election               *uint   `json:"election-timeout"`
	ElectionTickAdvance    *bool   `json:"initial-election-tick-advance"`
	PreVote                *bool   `json:"pre-vote"`
	MemoryMlock            *bool   `json:"memory-mlock"`
	UnsafeNoFsync          *bool   `json:"unsafe-no-fsync"`
	ForceNewCluster        *bool   `json:"force-new-cluster"`
	ListenPeer             *string `json:"listen-peer-urls"`
	ListenClient           *string `json:"listen-client-urls"`
	ListenClientHTTP       *string `json:"listen-client-http-urls"`
	ListenMetrics          *string `json:"listen-metrics-urls"`
	AdvertisePeer          *string `json:"initial-advertise-peer-urls"`
	AdvertiseClient        *string `json:"advertise-client-urls"`
	SocketOptions          struct {
		ReusePort    *bool `json:"reuse-port"`
		ReuseAddress *bool `json:"reuse-address"`
	} `json:"socket-options"`

	QuotaBackendBytes       *int64         `json:"quota-backend-bytes"`
	BackendFreelistType     *string        `json:"backend-bbolt-freelist-type"`
	BackendBatchInterval    *time.Duration `json:"backend-batch-interval"`
	BackendBatchLimit       *int           `json:"backend-batch-limit"`
	BootstrapDefrag         *uint          `json:"bootstrap-defrag-threshold-megabytes"`
	CompactionBatchLimit    *int           `json:"compaction-batch-limit"`
	CompactionSleepInterval *time.Duration `json:"compaction-sleep-interval"`
	AutoCompactionMode      *string        `json:"auto-compaction-mode"`
	AutoCompactionRetention *string        `json:"auto-compaction-retention"`
	CorruptCheckTime        *time.Duration `json:"corrupt-check-time"`
	CompactHashCheckTime    *time.Duration `json:"compact-hash-check-time"`
	DowngradeCheckTime      *time.Duration `json:"downgrade-check-time"`
	LearnersMax             *int           `json:"max-learners"`
	StrictReconfigCheck     *bool          `json:"strict-reconfig-check"`
	WarnApplyDuration       *time.Duration `json:"warning-apply-duration"`
	WarnUnaryDuration       *time.Duration `json:"warning-unary-request-duration"`
	ProgressInterval        *time.Duration `json:"watch-progress-notify-interval"`
	FeatureGates            *string        `json:"feature-gates"`
	PeerSkipSAN             *bool          `json:"peer-skip-client-san-verification"`

	InitialCluster      *string `json:"initial-cluster"`
	InitialClusterState *string `json:"initial-cluster-state"`
	InitialClusterToken *string `json:"initial-cluster-token"`
	DiscoverySRV        *string `json:"discovery-srv"`
	DiscoverySRVName    *string `json:"discovery-srv-name"`
	Discovery           struct {
		Token  *string `json:"token"`
		Client struct {
			Endpoints []string `json:"endpoints"`
		} `json:"client"`
	} `json:"discovery-config"`

	TxnOpsMax            *uint          `json:"max-txn-ops"`
	RequestBytesMax      *uint          `json:"max-request-bytes"`
	ConcurrentStreamsMax *uint32        `json:"max-concurrent-streams"`
	KeepAliveMinTime     *time.Duration `json:"grpc-keepalive-min-time"`
	KeepAliveInterval    *time.Duration `json:"grpc-keepalive-interval"`
	KeepAliveTimeout     *time.Duration `json:"grpc-keepalive-timeout"`
	EnableGateway        *bool          `json:"enable-grpc-gateway"`
	CORS                 *string        `json:"cors"`
	HostWhitelist        *string        `json:"host-whitelist"`
	AuthToken            *string        `json:"auth-token"`
	AuthTokenTTL         *uint          `json:"auth-token-ttl"`
	BcryptCost           *uint          `json:"bcrypt-cost"`
	ClientTLS            fileTLS        `json:"client-transport-security"`
	PeerTLS              fileTLS        `json:"peer-transport-security"`
	SelfSignedCertValid  *uint          `json:"self-signed-cert-validity"`
	CipherSuites         []string       `json:"cipher-suites"`
	TLSMinVersion        *string        `json:"tls-min-version"`
	TLSMaxVersion        *string        `json:"tls-max-version"`

	Logger                   *string  `json:"logger"`
	LogLevel                 *string  `json:"log-level"`
	LogFormat                *string  `json:"log-format"`
	LogOutputs               []string `json:"log-outputs"`
	LogRotation              *bool    `json:"enable-log-rotation"`
	LogRotationJSON          *string  `json:"log-rotation-config-json"`
	EnablePprof              *bool    `json:"enable-pprof"`
	Metrics                  *string  `json:"metrics"`
	EnableTracing            *bool    `json:"enable-distributed-tracing"`
	TracingAddress           *string  `json:"distributed-tracing-address"`
	TracingServiceName       *string  `json:"distributed-tracing-service-name"`
	TracingInstanceID        *string  `json:"distributed-tracing-instance-id"`
	TracingSamplesPerMillion *int     `json:"distributed-tracing-sampling-rate"`

	MailboxPropose       *int    `json:"mailbox-propose"`
	MailboxSystem        *int    `json:"mailbox-system"`
	MailboxReplicate     *int    `json:"mailbox-replicate"`
	MailboxPersist       *int    `json:"mailbox-persist"`
	MailboxApply         *int    `json:"mailbox-apply"`
	MailboxWatch         *int    `json:"mailbox-watch"`
	MailboxExpire        *int    `json:"mailbox-expire"`
	MailboxBackend       *int    `json:"mailbox-backend"`
	RaftUncommittedBytes *uint64 `json:"raft-uncommitted-bytes"`
	ValueCacheBytes      *int64  `json:"value-cache-bytes"`
	ReadBudgetBytes      *int64  `json:"read-budget-bytes"`
	WatchWindowBytes     *int64  `json:"watch-window-bytes"`
	GRPCStreamWorkers    *uint   `json:"grpc-stream-workers"`
	RevokesPerSecondMax  *int    `json:"revoke-rate"`
}

type fileTLS struct {
	CertFile         *string  `json:"cert-file"`
	KeyFile          *string  `json:"key-file"`
	ClientCertFile   *string  `json:"client-cert-file"`
	ClientKeyFile    *string  `json:"client-key-file"`
	TrustedCAFile    *string  `json:"trusted-ca-file"`
	ClientCertAuth   *bool    `json:"client-cert-auth"`
	AutoTLS          *bool    `json:"auto-tls"`
	SkipSAN          *bool    `json:"skip-client-san-verification"`
	AllowedCNs       []string `json:"allowed-cn"`
	AllowedHostnames []string `json:"allowed-hostname"`
}

// set overwrites to when the file had a value.
func set[T any](to *T, given *T) {
	if given != nil {
		*to = *given
	}
}

// fileURLError is a bad URL in the file: etcd prints it as a plain line, outside the log.
type fileURLError struct {
	name string
	err  error
}

func (e *fileURLError) Error() string {
	return fmt.Sprintf("unexpected error setting up %s: %v", e.shown(), e.err)
}

// shown keeps a slip of etcd's that scripts may match: the wrong name for the advertised client URLs.
func (e *fileURLError) shown() string {
	if e.name == "advertise-client-urls" {
		return "advertise-peer-urls"
	}
	return e.name
}

// fromFile fills c from YAML or JSON text and records in explicit what the later checks ask for.
//
// Rule: contract/operations.md 1.3.
func (c *Config) fromFile(text []byte, explicit map[string]bool) error {
	var f fileConfig
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return fmt.Errorf("error converting YAML to JSON: %w", err)
	}
	if err := json.Unmarshal(asJSON, &f); err != nil {
		return fmt.Errorf("error unmarshaling JSON: while decoding JSON: %w", err)
	}
	for _, list := range []struct {
		name string
		text *string
		to   *URLs
	}{
		{"listen-peer-urls", f.ListenPeer, &c.ListenPeerURLs},
		{"listen-client-urls", f.ListenClient, &c.ListenClientURLs},
		{"listen-client-http-urls", f.ListenClientHTTP, &c.ListenClientHTTPURLs},
		{"initial-advertise-peer-urls", f.AdvertisePeer, &c.AdvertisePeerURLs},
		{"advertise-client-urls", f.AdvertiseClient, &c.AdvertiseClientURLs},
		{"listen-metrics-urls", f.ListenMetrics, &c.ListenMetricsURLs},
	} {
		if list.text == nil || *list.text == "" {
			continue
		}
		urls, err := ParseURLs(strings.Split(*list.text, ","))
		if err != nil {
			return &fileURLError{list.name, err}
		}
		*list.to, explicit[list.name] = urls, true
	}
	f.member(c)
	f.storage(c)
	f.requests(c)
	f.observe(c)
	f.sluice(c)
	explicit["max-snapshots"] = f.SnapshotsMax != nil
	if f.FeatureGates != nil {
		if c.FeatureGates, err = parseGates(*f.FeatureGates); err != nil {
			return err
		}
	}
	if f.CORS != nil && *f.CORS != "" {
		if err := (originsValue{&c.CORS}).Set(*f.CORS); err != nil {
			return err
		}
	}
	if f.HostWhitelist != nil && *f.HostWhitelist != "" {
		if err := (listValue{&c.HostWhitelist, true}).Set(*f.HostWhitelist); err != nil {
			return err
		}
	}
	// A discovery way replaces the default initial cluster, a name alone derives it.
	explicit["initial-cluster"] = f.InitialCluster != nil && *f.InitialCluster != Default().InitialCluster
	if f.InitialCluster == nil && c.Name != DefaultName {
		c.InitialCluster = clusterOf(c.Name, c.AdvertisePeerURLs)
	}
	return nil
}

func (f *fileConfig) member(c *Config) {
	set(&c.Name, f.Name)
	set(&c.DataDir, f.DataDir)
	set(&c.WALDir, f.WALDir)
	set(&c.SnapshotCount, f.SnapshotCount)
	set(&c.SnapshotCatchUpEntries, f.SnapshotCatchUpEntries)
	set(&c.SnapshotsMax, f.SnapshotsMax)
	set(&c.WALsMax, f.WALsMax)
	if f.Heartbeat != nil {
		c.Heartbeat = time.Duration(*f.Heartbeat) * time.Millisecond
	}
	if f.Election != nil {
		c.Election = time.Duration(*f.Election) * time.Millisecond
	}
	set(&c.ElectionTickAdvance, f.ElectionTickAdvance)
	set(&c.PreVote, f.PreVote)
	set(&c.MemoryMlock, f.MemoryMlock)
	set(&c.UnsafeNoFsync, f.UnsafeNoFsync)
	set(&c.ForceNewCluster, f.ForceNewCluster)
	set(&c.SocketReusePort, f.SocketOptions.ReusePort)
	set(&c.SocketReuseAddress, f.SocketOptions.ReuseAddress)
	set(&c.InitialCluster, f.InitialCluster)
	set(&c.InitialClusterState, f.InitialClusterState)
	set(&c.InitialClusterToken, f.InitialClusterToken)
	set(&c.DiscoverySRV, f.DiscoverySRV)
	set(&c.DiscoverySRVName, f.DiscoverySRVName)
	set(&c.Discovery.Token, f.Discovery.Token)
	c.Discovery.Endpoints = f.Discovery.Client.Endpoints
	set(&c.LearnersMax, f.LearnersMax)
	set(&c.StrictReconfigCheck, f.StrictReconfigCheck)
}

func (f *fileConfig) storage(c *Config) {
	set(&c.QuotaBackendBytes, f.QuotaBackendBytes)
	set(&c.BackendFreelistType, f.BackendFreelistType)
	set(&c.BackendBatchInterval, f.BackendBatchInterval)
	set(&c.BackendBatchLimit, f.BackendBatchLimit)
	set(&c.BootstrapDefragThresholdMiB, f.BootstrapDefrag)
	set(&c.CompactionBatchLimit, f.CompactionBatchLimit)
	set(&c.CompactionSleepInterval, f.CompactionSleepInterval)
	set(&c.AutoCompactionMode, f.AutoCompactionMode)
	set(&c.AutoCompactionRetentionText, f.AutoCompactionRetention)
	set(&c.CorruptCheckTime, f.CorruptCheckTime)
	set(&c.CompactHashCheckTime, f.CompactHashCheckTime)
	set(&c.DowngradeCheckTime, f.DowngradeCheckTime)
}

func (f *fileConfig) requests(c *Config) {
	set(&c.TxnOpsMax, f.TxnOpsMax)
	set(&c.RequestBytesMax, f.RequestBytesMax)
	set(&c.ConcurrentStreamsMax, f.ConcurrentStreamsMax)
	set(&c.KeepAliveMinTime, f.KeepAliveMinTime)
	set(&c.KeepAliveInterval, f.KeepAliveInterval)
	set(&c.KeepAliveTimeout, f.KeepAliveTimeout)
	set(&c.EnableGateway, f.EnableGateway)
	set(&c.WatchProgressNotifyInterval, f.ProgressInterval)
	set(&c.AuthToken, f.AuthToken)
	if f.AuthTokenTTL != nil {
		c.AuthTokenTTL = time.Duration(*f.AuthTokenTTL) * time.Second
	}
	set(&c.BcryptCost, f.BcryptCost)
	f.ClientTLS.fill(&c.ClientTLS, &c.ClientAutoTLS, &c.ClientSkipClientSANVerification)
	f.PeerTLS.fill(&c.PeerTLS, &c.PeerAutoTLS, &c.PeerSkipClientSANVerification)
	set(&c.PeerSkipClientSANVerification, f.PeerSkipSAN)
	if f.SelfSignedCertValid != nil && *f.SelfSignedCertValid != 0 { // 0 means 1 here, unlike the flag's
		c.SelfSignedCertValid = *f.SelfSignedCertValid
	}
	c.CipherSuites = f.CipherSuites
	set(&c.TLSMinVersion, f.TLSMinVersion)
	set(&c.TLSMaxVersion, f.TLSMaxVersion)
}

func (f *fileTLS) fill(t *TLS, auto, skipSAN *bool) {
	set(&t.CertFile, f.CertFile)
	set(&t.KeyFile, f.KeyFile)
	set(&t.ClientCertFile, f.ClientCertFile)
	set(&t.ClientKeyFile, f.ClientKeyFile)
	set(&t.TrustedCAFile, f.TrustedCAFile)
	set(&t.ClientCertAuth, f.ClientCertAuth)
	set(auto, f.AutoTLS)
	set(skipSAN, f.SkipSAN)
	t.AllowedCNs, t.AllowedHostnames = f.AllowedCNs, f.AllowedHostnames
}

func (f *fileConfig) observe(c *Config) {
	set(&c.Logger, f.Logger)
	set(&c.LogLevel, f.LogLevel)
	set(&c.LogFormat, f.LogFormat)
	if f.LogOutputs != nil {
		c.LogOutputs = f.LogOutputs
	}
	set(&c.LogRotation, f.LogRotation)
	set(&c.LogRotationJSON, f.LogRotationJSON)
	set(&c.WarnApplyDuration, f.WarnApplyDuration)
	set(&c.WarnUnaryDuration, f.WarnUnaryDuration)
	set(&c.EnablePprof, f.EnablePprof)
	set(&c.Metrics, f.Metrics)
	set(&c.EnableTracing, f.EnableTracing)
	set(&c.TracingAddress, f.TracingAddress)
	set(&c.TracingServiceName, f.TracingServiceName)
	set(&c.TracingInstanceID, f.TracingInstanceID)
	set(&c.TracingSamplesPerMillion, f.TracingSamplesPerMillion)
}

func (f *fileConfig) sluice(c *Config) {
	m := &c.Mailboxes
	set(&m.Propose, f.MailboxPropose)
	set(&m.System, f.MailboxSystem)
	set(&m.Replicate, f.MailboxReplicate)
	set(&m.Persist, f.MailboxPersist)
	set(&m.Apply, f.MailboxApply)
	set(&m.Watch, f.MailboxWatch)
	set(&m.Expire, f.MailboxExpire)
	set(&m.Backend, f.MailboxBackend)
	set(&c.RaftUncommittedBytes, f.RaftUncommittedBytes)
	set(&c.ValueCacheBytes, f.ValueCacheBytes)
	set(&c.ReadBudgetBytes, f.ReadBudgetBytes)
	set(&c.WatchWindowBytes, f.WatchWindowBytes)
	set(&c.GRPCStreamWorkers, f.GRPCStreamWorkers)
	set(&c.RevokesPerSecondMax, f.RevokesPerSecondMax)
}

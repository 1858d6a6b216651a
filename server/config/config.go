package config

import (
	"math"
	"time"
)

// Defaults that etcd applies where a flag's value is 0 or empty, and limits of the checks.
const (
	DefaultName              = "default"
	DefaultListenPeerURLs    = "http://localhost:2380"
	DefaultListenClientURLs  = "http://localhost:2379"
	DefaultQuotaBytes        = 2 << 30
	quotaBytesMax            = 8 << 30 // above, a warning
	requestBytesMaxSuggested = 10 << 20
	DefaultBatchInterval     = 100 * time.Millisecond
	DefaultBatchLimit        = 10_000
	DefaultSnapshotCount     = 10_000
	DefaultCatchUpEntries    = 5_000
	DefaultCompactionBatch   = 1_000
	DefaultCompactionSleep   = 10 * time.Millisecond
	DefaultProgressInterval  = 10 * time.Minute
	progressIntervalMin      = 100 * time.Millisecond
	DefaultWarnUnary         = 300 * time.Millisecond
	electionMillisMax        = 50_000
	peerTimeoutMin           = 5 * time.Second
)

// Config holds every setting of a member. After Parse its values are effective and checked.
type Config struct {
	// Member.
	Name                   string
	DataDir                string // never empty: "<name>.etcd" when not given
	WALDir                 string // empty: <data-dir>/member/wal
	SnapshotCount          uint64
	SnapshotCatchUpEntries uint64
	SnapshotsMax           uint // 0 is unlimited
	WALsMax                uint // 0 is unlimited
	Heartbeat              time.Duration
	Election               time.Duration
	ElectionTickAdvance    bool // --initial-election-tick-advance
	PreVote                bool
	RaftReadTimeout        time.Duration
	RaftWriteTimeout       time.Duration
	ListenPeerURLs         URLs
	ListenClientURLs       URLs
	ListenClientHTTPURLs   URLs
	ListenMetricsURLs      URLs
	SocketReusePort        bool
	SocketReuseAddress     bool
	MemoryMlock            bool
	UnsafeNoFsync          bool
	ForceNewCluster        bool

	// Backend.
	QuotaBackendBytes               int64 // negative is unlimited
	BackendFreelistType             string
	BackendBatchInterval            time.Duration
	BackendBatchLimit               int
	BootstrapDefragThresholdMiB     uint // 0 is off
	CompactionBatchLimit            int
	CompactionSleepInterval         time.Duration
	AutoCompactionMode              string        // "periodic" or "revision"
	AutoCompactionRetention         time.Duration // in revision mode the number of revisions; 0 is off
	AutoCompactionRetentionText     string        // as it was given
	CorruptCheckTime                time.Duration
	CompactHashCheckTime            time.Duration
	DowngradeCheckTime              time.Duration
	LearnersMax                     int
	StrictReconfigCheck             bool
	V2Deprecation                   string
	WarnApplyDuration               time.Duration
	WarnUnaryDuration               time.Duration
	WatchProgressNotifyInterval     time.Duration
	FeatureGates                    FeatureGates
	PeerSkipClientSANVerification   bool
	ClientSkipClientSANVerification bool // configuration file only

	// Cluster.
	AdvertisePeerURLs   URLs
	AdvertiseClientURLs URLs
	InitialCluster      string
	InitialClusterState string // "new" or "existing"
	InitialClusterToken string
	DiscoverySRV        string
	DiscoverySRVName    string
	Discovery           Discovery

	// Requests.
	TxnOpsMax                uint
	RequestBytesMax          uint
	ConcurrentStreamsMax     uint32
	KeepAliveMinTime         time.Duration // --grpc-keepalive-min-time
	KeepAliveInterval        time.Duration // --grpc-keepalive-interval; 0 is off
	KeepAliveTimeout         time.Duration // --grpc-keepalive-timeout; 0 is off
	EnableGateway            bool
	CORS                     []string // sorted; "*" allows all
	HostWhitelist            []string // sorted; "*" allows all
	AuthToken                string
	AuthTokenTTL             time.Duration
	BcryptCost               uint
	ClientTLS, PeerTLS       TLS
	ClientAutoTLS            bool
	PeerAutoTLS              bool
	SelfSignedCertValid      uint // years
	CipherSuites             []string
	TLSMinVersion            string
	TLSMaxVersion            string
	EnablePprof              bool
	Metrics                  string // "extensive" adds the gRPC handling histogram
	EnableTracing            bool
	TracingAddress           string
	TracingServiceName       string
	TracingInstanceID        string
	TracingSamplesPerMillion int

	// Logging.
	Logger          string
	LogLevel        string
	LogFormat       string
	LogOutputs      []string
	LogRotation     bool
	LogRotationJSON string

	// Sluice's own.
	Mailboxes            Mailboxes
	RaftUncommittedBytes uint64
	ValueCacheBytes      int64 // 0: the stage's default
	ReadBudgetBytes      int64 // 0: the stage's default
	WatchWindowBytes     int64 // 0: the stage's default
	GRPCStreamWorkers    uint  // 0: the transport's default
	RevokesPerSecondMax  int
	ConfigFile           string
	SinglePort           bool   // no listen-client-http-urls were given: gRPC and HTTP share the client URLs
	QuotaIsDefault       bool   // quota-backend-bytes was 0
	explicitCluster      bool   // initial-cluster was given
	discoveryFallback    string // only "proxy" is looked at, to refuse it
}

// Mailboxes are the capacities of the stages' mailboxes in messages; 0 means the stage's default.
type Mailboxes struct {
	Propose, System, Replicate, Persist, Apply, Watch, Expire, Backend int
}

// TLS names the files and rules of one side's transport security.
type TLS struct {
	CertFile, KeyFile             string
	ClientCertFile, ClientKeyFile string // identity when this server dials; empty: CertFile, KeyFile
	TrustedCAFile                 string
	CRLFile                       string
	ClientCertAuth                bool
	AllowedCNs                    []string
	AllowedHostnames              []string
}

// Empty reports whether no server certificate is configured.
func (t TLS) Empty() bool { return t.CertFile == "" && t.KeyFile == "" }

// Discovery holds the settings of the discovery service.
type Discovery struct {
	Endpoints             []string
	Token                 string
	DialTimeout           time.Duration
	RequestTimeout        time.Duration
	KeepAliveTime         time.Duration
	KeepAliveTimeout      time.Duration
	InsecureTransport     bool
	InsecureSkipTLSVerify bool
	CertFile, KeyFile     string
	CAFile                string
	User, Password        string
}

// Default returns the settings of a start without arguments, before the checks have filled what 0 means.
func Default() *Config {
	return &Config{
		Name:                   DefaultName,
		SnapshotCount:          DefaultSnapshotCount,
		SnapshotCatchUpEntries: DefaultCatchUpEntries,
		SnapshotsMax:           5,
		WALsMax:                5,
		Heartbeat:              100 * time.Millisecond,
		Election:               time.Second,
		ElectionTickAdvance:    true,
		PreVote:                true,
		RaftReadTimeout:        peerTimeoutMin,
		RaftWriteTimeout:       peerTimeoutMin,
		ListenPeerURLs:         mustURLs(DefaultListenPeerURLs),
		ListenClientURLs:       mustURLs(DefaultListenClientURLs),
		AdvertisePeerURLs:      mustURLs(DefaultListenPeerURLs),
		AdvertiseClientURLs:    mustURLs(DefaultListenClientURLs),
		InitialCluster:         DefaultName + "=" + DefaultListenPeerURLs,
		InitialClusterState:    "new",
		InitialClusterToken:    "etcd-cluster",
		Discovery: Discovery{
			DialTimeout: 2 * time.Second, RequestTimeout: 5 * time.Second,
			KeepAliveTime: 2 * time.Second, KeepAliveTimeout: 6 * time.Second, InsecureTransport: true,
		},
		BackendFreelistType:         "map",
		AutoCompactionMode:          "periodic",
		AutoCompactionRetentionText: "0",
		CompactHashCheckTime:        time.Minute,
		DowngradeCheckTime:          5 * time.Second,
		LearnersMax:                 1,
		StrictReconfigCheck:         true,
		V2Deprecation:               "write-only",
		WarnApplyDuration:           100 * time.Millisecond,
		WarnUnaryDuration:           DefaultWarnUnary,
		FeatureGates:                defaultGates(),
		TxnOpsMax:                   128,
		RequestBytesMax:             1_572_864,
		ConcurrentStreamsMax:        math.MaxUint32,
		KeepAliveMinTime:            5 * time.Second,
		KeepAliveInterval:           2 * time.Hour,
		KeepAliveTimeout:            20 * time.Second,
		EnableGateway:               true,
		CORS:                        []string{"*"},
		HostWhitelist:               []string{"*"},
		AuthToken:                   "simple",
		AuthTokenTTL:                300 * time.Second,
		BcryptCost:                  10,
		SelfSignedCertValid:         1,
		TLSMinVersion:               "TLS1.2",
		Metrics:                     "basic",
		TracingAddress:              "localhost:4317",
		TracingServiceName:          "etcd",
		Logger:                      "zap",
		LogLevel:                    "info",
		LogFormat:                   "json",
		LogOutputs:                  []string{"default"},
		LogRotationJSON:             defaultRotation,
		RaftUncommittedBytes:        64 << 20,
		RevokesPerSecondMax:         1000,
	}
}

const defaultRotation = `{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}`

// ElectionTicks is how many heartbeat intervals make an election timeout.
func (c *Config) ElectionTicks() int { return int(c.Election / c.Heartbeat) }

// RequestTimeout bounds a request that has no nearer deadline of its own, and each step of a shutdown.
func (c *Config) RequestTimeout() time.Duration { return 5*time.Second + 2*c.Election }

// LeaseTTLMin is the smallest TTL that a lease is given, in seconds: one and a half election timeouts,
// rounded up.
func (c *Config) LeaseTTLMin() int64 {
	return int64((3*c.Election/2 + time.Second - 1) / time.Second)
}

// IsNewCluster reports whether an empty data directory founds a cluster instead of joining one.
func (c *Config) IsNewCluster() bool { return c.InitialClusterState == "new" }

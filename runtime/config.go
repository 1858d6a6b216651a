package runtime

import (
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"sluice/stages/apply/auth"
	"sluice/stages/apply/members"
	"sluice/stages/persist/wal"
	"sluice/tracing"
)

// Config is one member. The daemon fills it from its flags; zero values are not defaults unless said.
type Config struct {
	Name                string
	DataDir             string
	WALDir              string // empty: <data-dir>/member/wal
	AdvertiseClientURLs []string
	AdvertisePeerURLs   []string
	InitialCluster      string // name=url[,name=url ...]
	InitialClusterToken string
	NewCluster          bool // --initial-cluster-state=new

	Heartbeat      time.Duration
	Election       time.Duration
	PreVote        bool
	SnapshotCount  uint64
	CatchUpEntries uint64
	WALsMax        uint
	SnapshotsMax   uint
	LearnersMax    int
	UnsafeNoFsync  bool
	Mlock          bool // keep the database's pages in memory

	QuotaBytes      int64 // of the backend; negative: none
	FreelistType    string
	BatchInterval   time.Duration
	BatchLimit      int
	DefragBytes     int64 // bootstrap defragmentation threshold; 0: off
	RequestBytesMax int64

	CompactionRecordsMax int
	CompactionPause      time.Duration
	ProgressInterval     time.Duration
	WarningDuration      time.Duration
	TokenTTL             time.Duration

	LeaseCheckpoint        bool // feature gates of these names
	LeaseCheckpointPersist bool
	PriorityRequest        bool

	Mailboxes        Mailboxes
	UncommittedBytes int64 // --raft-uncommitted-bytes
	ValueCacheBytes  int64 // 0: the store's default
	WindowBytes      int64 // of recent events; 0: the watch stage's default
	RevokesPerSecond int   // 0: the expire stage's default

	Version members.Version // reported server version
	Logger  *zap.Logger
	Metrics *tracing.Metrics // nil discards
	Disk    wal.FS           // of the log and the snapshot files; nil is the real one

	// For tests and simulations, which cannot write gigabytes; 0 is the ordinary size.
	MappingBytes int64 // of the database's first mapping
	SegmentBytes int64 // of a log segment
	BufferBytes  int64 // of changes that apply collects while the database cannot take them
}

// Mailboxes are the capacities of the stages' mailboxes in messages; 0 means the default of the table in
// withDefaults.
type Mailboxes struct {
	Propose, System, Replicate, Persist, Apply, Watch, Expire, Backend int
}

func (m Mailboxes) withDefaults() Mailboxes {
	for _, d := range []struct {
		n    *int
		size int
	}{
		{&m.Propose, 4096},  // requests that wait for a batch
		{&m.System, 1024},   // the same in the system lane
		{&m.Replicate, 128}, // batches of entries and read rounds
		{&m.Persist, 4},     // appends that persist has not acknowledged: what more there is joins one
		{&m.Apply, 8},       // committed batches that apply has not acknowledged
		{&m.Watch, 1024},    // event batches, creates, cancels, progress requests
		{&m.Expire, 1024},   // lease changes, renewals
		{&m.Backend, 16},    // sealed buffers and requests
	} {
		if *d.n <= 0 {
			*d.n = d.size
		}
	}
	return m
}

func (c *Config) memberDir() string { return filepath.Join(c.DataDir, "member") }
func (c *Config) snapDir() string   { return filepath.Join(c.memberDir(), "snap") }
func (c *Config) dbPath() string    { return filepath.Join(c.snapDir(), "db") }

func (c *Config) walDir() string {
	if c.WALDir != "" {
		return c.WALDir
	}
	return filepath.Join(c.memberDir(), "wal")
}

func (c *Config) electionTicks() int { return int(c.Election / c.Heartbeat) }

// requestTimeout bounds a request that has no nearer deadline (contract/client-api.md section 2.2).
func (c *Config) requestTimeout() time.Duration { return 5*time.Second + 2*c.Election }

// leaseTTLMin is the smallest TTL in seconds: one and a half election timeouts in whole ticks, rounded up.
func (c *Config) leaseTTLMin() int64 {
	shortest := time.Duration(3*c.electionTicks()/2) * c.Heartbeat
	return int64((shortest + time.Second - 1) / time.Second)
}

func (c *Config) tokens() auth.Tokens { return auth.NewSimpleTokens(c.TokenTTL, time.Now) }

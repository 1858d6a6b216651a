package rpc

import (
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/mem"

	"sluice/tracing"
)

// Limits that are not flags.
const (
	// requestOverhead is what a gRPC message may hold beyond --max-request-bytes.
	requestOverhead = 512 << 10
	// streamWorkersDefault is high because a watch, or a put that waits, occupies a worker for its life;
	// calls beyond it get a goroutine each.
	streamWorkersDefault = 256
	// handshakeDefault is how long a new connection may stay silent.
	handshakeDefault = 30 * time.Second
)

// Config is what a Server is built with. Zero fields get etcd's defaults.
type Config struct {
	ServerVersion string // such as "3.7.3"; in Status

	RequestBytesMax  int64         // --max-request-bytes
	TxnOpsMax        int           // --max-txn-ops
	StreamsMax       uint32        // --max-concurrent-streams; MaxUint32 announces no limit
	RequestTimeout   time.Duration // 5s + 2 election timeouts
	ElectionTimeout  time.Duration // between two looks for a leader
	BcryptCost       int           // --bcrypt-cost
	LearnersMax      int           // --max-learners
	StrictReconfig   bool          // --strict-reconfig-check
	ReadBudgetBytes  int64         // --read-budget-bytes
	ReadStall        time.Duration // a counted answer without progress for so long costs its connection
	StreamWorkers    int           // --grpc-stream-workers; negative: none
	WarnUnary        time.Duration // --warning-unary-request-duration
	WarnApply        time.Duration // --warning-apply-duration
	KeepAliveMinTime time.Duration // --grpc-keepalive-min-time; 0: grpc's default policy
	// KeepAliveInterval and KeepAliveTimeout: --grpc-keepalive-interval, -timeout. Either 0: grpc's defaults.
	KeepAliveInterval, KeepAliveTimeout time.Duration
	HandshakeTimeout                    time.Duration
	ClientCertAuth                      bool // the certificate's common name is the user
	// StopOnDefrag is the feature gate StopGRPCServiceOnDefrag.
	StopOnDefrag bool

	Metrics *tracing.Metrics
	Logger  *zap.Logger
	Now     func() time.Time
	// Random fills p: lease ids and token prefixes.
	Random func(p []byte)
	// Buffers is the pool of received frames and answers; nil is an own one. Tests hand in a PoisonPool.
	Buffers mem.BufferPool
}

func (c Config) withDefaults() Config {
	if c.RequestBytesMax == 0 {
		c.RequestBytesMax = 1536 << 10
	}
	if c.TxnOpsMax == 0 {
		c.TxnOpsMax = 128
	}
	if c.StreamsMax == 0 {
		c.StreamsMax = 1<<32 - 1
	}
	if c.ReadBudgetBytes == 0 {
		c.ReadBudgetBytes = readBudgetDefault
	}
	if c.StreamWorkers == 0 {
		c.StreamWorkers = streamWorkersDefault
	}
	for _, d := range []struct {
		field     *time.Duration
		otherwise time.Duration
	}{
		{&c.ElectionTimeout, time.Second},
		{&c.RequestTimeout, 7 * time.Second},
		{&c.ReadStall, stallDefault},
		{&c.WarnUnary, 300 * time.Millisecond},
		{&c.WarnApply, 100 * time.Millisecond},
		{&c.HandshakeTimeout, handshakeDefault},
	} {
		if *d.field == 0 {
			*d.field = d.otherwise
		}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Metrics == nil {
		c.Metrics = tracing.NewMetrics(false)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = randomBytes
	}
	if c.Buffers == nil {
		c.Buffers = new(pool)
	}
	return c
}

package rpc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress, as with etcd
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"sluice/server/rpc/electionpb"
	"sluice/server/rpc/lockpb"
	"sluice/stages/apply/auth"
	"sluice/stages/wire"
)

// Server is the client edge of one member. New makes it, Serve serves endpoints, Shutdown ends it.
type Server struct {
	// Fixed at New.
	cfg     Config
	m       Member
	logger  *zap.Logger
	codec   *codec
	budget  *budget
	errors  []errorRow
	methods map[string]*method
	meters  *meters
	clients clientVersions
	health  *health.Server
	leaders *leaderMonitor
	hashing chan struct{} // a token per bcrypt run, so that logins cannot take all processors

	calls          sync.Pool              // of *call
	capableVersion atomic.Pointer[string] // cluster version that was last found good: any call sets it

	local *handover    // connections from inside the process
	plain *grpc.Server // plaintext listeners and the local one

	mu      sync.Mutex // guards serving: Serve sets it, Shutdown reads it
	serving *served
}

// New makes the server of m. Nothing is served before Serve, but the local listener accepts.
func New(cfg Config, m Member) *Server {
	cfg = cfg.withDefaults()
	s := &Server{
		cfg: cfg, m: m, logger: cfg.Logger, errors: errorTable(), health: health.NewServer(),
		budget:  newBudget(cfg.ReadBudgetBytes, cfg.ReadStall, cfg.Now),
		hashing: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		methods: make(map[string]*method),
		local:   newHandover(memoryAddr{}),
	}
	s.codec = &codec{pool: cfg.Buffers, received: cfg.Metrics.ClientReceivedBytes, sent: cfg.Metrics.ClientSentBytes}
	s.calls.New = func() any { return new(call) }
	s.meters = newMeters(cfg.Metrics)
	s.clients.requests = cfg.Metrics.ClientRequests
	s.leaders = newLeaderMonitor(m, cfg.ElectionTimeout)
	s.plain = s.newGRPC(cfg.StreamWorkers, s.plainKeepAlive()...)
	return s
}

// newGRPC makes one grpc server with all services.
func (s *Server) newGRPC(workers int, extra ...grpc.ServerOption) *grpc.Server {
	opts := append([]grpc.ServerOption{
		grpc.Creds(handshaken{}),
		grpc.ForceServerCodecV2(s.codec),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(int(s.cfg.RequestBytesMax) + requestOverhead),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(s.cfg.StreamsMax),
		grpc.SharedWriteBuffer(true),
		grpc.ConnectionTimeout(s.cfg.HandshakeTimeout),
		experimental.BufferPool(s.cfg.Buffers),
	}, extra...)
	if workers > 0 {
		opts = append(opts, grpc.NumStreamWorkers(uint32(workers)))
	}
	g := grpc.NewServer(opts...)
	s.register(g)
	return g
}

// plainKeepAlive is the policy of the plaintext listeners.
func (s *Server) plainKeepAlive() []grpc.ServerOption {
	var opts []grpc.ServerOption
	if s.cfg.KeepAliveMinTime > 0 {
		opts = append(opts, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: s.cfg.KeepAliveMinTime,
		}))
	}
	return append(opts, s.serverPings()...)
}

// laxKeepAlive lets clients ping as they like: what the reference's TLS listeners, being net/http, do.
func (s *Server) laxKeepAlive() []grpc.ServerOption {
	return append(s.serverPings(), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
		MinTime: time.Nanosecond, PermitWithoutStream: true,
	}))
}

func (s *Server) serverPings() []grpc.ServerOption {
	if s.cfg.KeepAliveInterval <= 0 || s.cfg.KeepAliveTimeout <= 0 {
		return nil
	}
	return []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{
		Time: s.cfg.KeepAliveInterval, Timeout: s.cfg.KeepAliveTimeout,
	})}
}

// register adds all services to g: hot methods with handlers of their own, the others as generated.
func (s *Server) register(g *grpc.Server) {
	for _, d := range s.hotServices() {
		s.describe(&d)
		g.RegisterService(&d, s)
	}
	leases := s.leaseService()
	s.describe(&leases)
	g.RegisterService(&leases, &leaseServer{Server: s})
	for _, r := range []struct {
		desc *grpc.ServiceDesc
		impl any
	}{
		{&pb.Cluster_ServiceDesc, &clusterServer{Server: s}},
		{&pb.Maintenance_ServiceDesc, &maintenanceServer{Server: s}},
		{&pb.Auth_ServiceDesc, &authServer{Server: s}},
		{&lockpb.Lock_ServiceDesc, &lockServer{Server: s}},
		{&electionpb.Election_ServiceDesc, &electionServer{Server: s}},
		{&healthpb.Health_ServiceDesc, s.health},
	} {
		s.describe(r.desc)
		g.RegisterService(r.desc, r.impl)
	}
}

// header is the header of an answer at revision.
func (s *Server) header(revision int64) wire.Header {
	return wire.Header{ClusterID: s.m.ClusterID(), MemberID: s.m.MemberID(), Revision: revision, RaftTerm: s.m.Term()}
}

// messageHeader is header for generated messages.
func (s *Server) messageHeader(revision int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{
		ClusterId: s.m.ClusterID(), MemberId: s.m.MemberID(), Revision: revision, RaftTerm: s.m.Term(),
	}
}

// revision is the store's current revision.
func (s *Server) revision() int64 {
	v := s.m.View()
	defer v.Release()
	return v.KV.Revision()
}

// authTable is the current auth state.
func (s *Server) authTable() *auth.Table {
	v := s.m.View()
	defer v.Release()
	return v.Auth
}

// applied waits, for a second at most, until everything that is committed now has been applied.
func (s *Server) applied(ctx context.Context) error {
	index := s.m.CommitIndex()
	if s.m.AppliedIndex() >= index {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, appliedWait)
	defer cancel()
	if err := s.m.Applied(wait, index); err != nil {
		if ctx.Err() == nil && wait.Err() != nil {
			return errAppliedTimeout
		}
		return err
	}
	return nil
}

// appliedWait is how long the lease calls wait for the applied index.
const appliedWait = time.Second

func randomBytes(p []byte) {
	if _, err := rand.Read(p); err != nil {
		panic("rpc: read random bytes: " + err.Error())
	}
}

// randomID is a random positive int64.
func (s *Server) randomID() int64 {
	for {
		var b [8]byte
		s.cfg.Random(b[:])
		if id := int64(binary.BigEndian.Uint64(b[:]) &^ (1 << 63)); id != 0 {
			return id
		}
	}
}

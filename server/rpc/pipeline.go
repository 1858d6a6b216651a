package rpc

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"sluice/stages/apply/members"
)

// requestKind is the label of etcd_server_client_requests_total.
type requestKind uint8

const (
	unaryRequest requestKind = iota
	streamRequest
)

// admit makes the checks that every RPC passes, in the order of client-api.md 2.1. serializable is whether the
// request is a serializable Range. hasLeader is whether the client insists on a leader.
func (s *Server) admit(
	ctx context.Context, m *method, kind requestKind, serializable bool,
) (hasLeader bool, err error) {
	v := s.m.View()
	version, learner := v.Members.ClusterVersion(), v.Members.IsLearner()
	v.Release()
	if !s.capable(version) {
		return false, rpctypes.ErrGRPCNotCapable
	}
	if learner && m.learner != learnerServes && !(m.learner == learnerServesSerializable && serializable) {
		return false, rpctypes.ErrGRPCNotSupportedForLearner
	}
	version = unknownVersion
	if v := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataClientAPIVersionKey); len(v) > 0 {
		version = v[0]
	}
	if !utf8.ValidString(version) {
		return false, rpctypes.ErrGRPCInvalidClientAPIVersion
	}
	s.clients.count(kind, version)
	insists := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataRequireLeaderKey)
	if len(insists) > 0 && insists[0] == rpctypes.MetadataHasLeader {
		if s.m.Leader() == 0 {
			return true, rpctypes.ErrGRPCNoLeader
		}
		return true, nil
	}
	return false, nil
}

// capable says whether a cluster of this version has the v3 API. An undecided version is that of a cluster that
// starts: its members are all of this release.
func (s *Server) capable(version string) bool {
	if last := s.capableVersion.Load(); last != nil && *last == version {
		return true
	}
	if version != "" && !members.AtLeast(version, 3, 0) {
		return false
	}
	found := version // a variable of its own: only a new version costs an allocation
	s.capableVersion.Store(&found)
	return true
}

// unary is the interceptor of the generated unary handlers.
func (s *Server) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	m, start := s.called(info.FullMethod), s.cfg.Now()
	m.meters.Started.Add(1)
	m.meters.Received.Add(1)
	_, err := s.admit(ctx, m, unaryRequest, false)
	var resp any
	if err == nil {
		resp, err = handler(ctx, req)
		err = s.status(err)
	}
	s.finish(ctx, m, start, err, nil, nil)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// finish counts a finished unary call and logs a slow one. c and r are those of a hot call.
func (s *Server) finish(ctx context.Context, m *method, start time.Time, err error, c *call, r *reply) {
	took := s.cfg.Now().Sub(start)
	if err == nil {
		m.meters.Sent.Add(1)
	}
	m.meters.Handled(status.Code(err))
	m.meters.Handling.Observe(took.Seconds())
	if took > s.cfg.WarnUnary || s.logger.Core().Enabled(debugLevel) {
		s.logStats(ctx, m, start, took, c, r)
	}
}

// hotUnary is the method handler of a hot unary RPC: what the generated handler and the interceptor do
// together, without a message that is decoded twice, a closure per call or a boxed info.
func (s *Server) hotUnary(
	m *method, kind callKind, serve func(context.Context, *call) (*reply, error),
) func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
	return func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		c := s.calls.Get().(*call)
		c.kind, c.opsMax = kind, s.cfg.TxnOpsMax
		defer func() {
			c.reset()
			s.calls.Put(c)
		}()
		if err := decode(c); err != nil {
			return nil, err
		}
		start := s.cfg.Now()
		m.meters.Started.Add(1)
		m.meters.Received.Add(1)
		_, err := s.admit(ctx, m, unaryRequest, kind == callRange && c.rng.Serializable)
		var r *reply
		if err == nil {
			r, err = serve(ctx, c)
			err = s.status(err)
		}
		s.finish(ctx, m, start, err, c, r)
		if err != nil {
			return nil, err
		}
		return r, nil
	}
}

// stream is the interceptor of all streams, hot ones included.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	m, start := s.called(info.FullMethod), s.cfg.Now()
	m.meters.Started.Add(1)
	hasLeader, err := s.admit(ss.Context(), m, streamRequest, false)
	if err == nil {
		counted := &countedStream{ServerStream: ss, ctx: ss.Context(), method: m}
		if hasLeader {
			var done func()
			counted.ctx, done = s.leaders.follow(ss.Context())
			defer done()
		}
		err = s.status(handler(srv, counted))
		if err != nil && context.Cause(counted.ctx) == rpctypes.ErrGRPCNoLeader {
			err = rpctypes.ErrGRPCNoLeader
		}
	}
	m.meters.Handled(status.Code(err))
	m.meters.Handling.Observe(s.cfg.Now().Sub(start).Seconds())
	return err
}

// countedStream counts messages. Its context ends with ErrGRPCNoLeader when the client insisted on a leader
// and there has been none for too long.
type countedStream struct {
	grpc.ServerStream
	ctx    context.Context
	method *method
}

func (c *countedStream) Context() context.Context { return c.ctx }

func (c *countedStream) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	if err == nil {
		c.method.meters.Received.Add(1)
	}
	return err
}

func (c *countedStream) SendMsg(m any) error {
	err := c.ServerStream.SendMsg(m)
	if err == nil {
		c.method.meters.Sent.Add(1)
	}
	return err
}

const (
	unknownVersion    = "unknown"
	clientVersionsMax = 200
	versionBytesMax   = 64
)

// clientVersions counts requests by client version. The label comes from clients, so the number of different
// ones is bounded, and their length: what comes after, or is longer, counts as unknown.
type clientVersions struct {
	requests *prometheus.CounterVec

	known [2]sync.Map // by requestKind: version -> prometheus.Counter
	mu    sync.Mutex
	n     int // guarded by mu: entries of both
}

func (v *clientVersions) count(kind requestKind, version string) {
	if len(version) > versionBytesMax {
		version = unknownVersion
	}
	c, ok := v.known[kind].Load(version)
	if !ok {
		c = v.add(kind, version)
	}
	c.(prometheus.Counter).Inc()
}

func (v *clientVersions) add(kind requestKind, version string) any {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.n >= clientVersionsMax {
		version = unknownVersion
	}
	if c, ok := v.known[kind].Load(version); ok {
		return c
	}
	version = strings.Clone(version) // the metadata's text may be a piece of something larger
	c := v.requests.WithLabelValues([...]string{"unary", "stream"}[kind], version)
	v.known[kind].Store(version, c)
	v.n++
	return c
}

package rpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sluice/stages/apply/auth"
	"sluice/stages/expire"
	"sluice/stages/propose"
	"sluice/stages/wire"
)

// leaseCost is what the quota counts for a lease.
const leaseCost = 64

// leaseService is the generated description, with a keepalive handler of our own.
func (s *Server) leaseService() grpc.ServiceDesc {
	d := pb.Lease_ServiceDesc
	d.Streams = slices.Clone(d.Streams)
	for i := range d.Streams {
		if d.Streams[i].StreamName == "LeaseKeepAlive" {
			d.Streams[i].Handler = func(_ any, ss grpc.ServerStream) error { return s.serveKeepAlive(ss) }
		}
	}
	return d
}

// leaseServer has the unary lease RPCs.
type leaseServer struct {
	pb.UnimplementedLeaseServer
	*Server
}

// LeaseGrant makes a lease. An id of 0 is replaced by a random one here, so that all members grant the same.
func (s *leaseServer) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if err := s.quota(ctx, leaseCost); err != nil {
		return nil, err
	}
	if err := s.known(ctx); err != nil {
		return nil, err
	}
	if r.ID == 0 {
		r.ID = s.randomID()
	}
	res, err := s.propose(ctx, &wire.Request{Other: &pb.InternalRaftRequest{LeaseGrant: r}}, propose.Client)
	if err != nil {
		return nil, err
	}
	out := res.Message.(*pb.LeaseGrantResponse)
	out.Header = s.messageHeader(res.Revision)
	return out, nil
}

// LeaseRevoke ends a lease and deletes its keys.
func (s *leaseServer) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	if err := s.known(ctx); err != nil {
		return nil, err
	}
	res, err := s.propose(ctx, &wire.Request{Other: &pb.InternalRaftRequest{LeaseRevoke: r}}, propose.System)
	if err != nil {
		return nil, err
	}
	return &pb.LeaseRevokeResponse{Header: s.messageHeader(res.Revision)}, nil
}

// LeaseTimeToLive asks the leader. An unknown lease is no error: it has a TTL of -1.
func (s *leaseServer) LeaseTimeToLive(
	ctx context.Context, r *pb.LeaseTimeToLiveRequest,
) (*pb.LeaseTimeToLiveResponse, error) {
	who, err := s.identity(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.authTable().CheckKnown(who); err != nil {
		return nil, err
	}
	if r.Keys {
		if err := s.leaseKeys(who, r.ID, (*auth.Table).CheckRange, nil); err != nil {
			return nil, err
		}
	}
	if err := s.applied(ctx); err != nil {
		return nil, err
	}
	out := &pb.LeaseTimeToLiveResponse{ID: r.ID, TTL: -1}
	var granted, remaining int64
	err = s.askLeader(ctx, func() error {
		granted, remaining, err = s.m.TimeToLive(ctx, r.ID)
		return err
	})
	switch {
	case errors.Is(err, expire.ErrNotFound):
	case err != nil:
		return nil, err
	default:
		out.TTL, out.GrantedTTL = remaining, granted
		if r.Keys {
			err := s.leaseKeys(who, r.ID, (*auth.Table).CheckRange, func(key string) {
				out.Keys = append(out.Keys, []byte(key))
			})
			if err != nil {
				return nil, err
			}
		}
	}
	if r.Keys {
		if err := s.unchanged(who); err != nil {
			return nil, err
		}
	}
	out.Header = s.messageHeader(s.revision())
	return out, nil
}

// leaseKeys calls fn, which may be nil, for the keys of a lease if the caller has a right on each of them.
func (s *Server) leaseKeys(
	who auth.Identity, id int64, right func(t *auth.Table, who auth.Identity, key, end []byte) error, fn func(string),
) (err error) {
	v := s.m.View()
	defer v.Release()
	if !v.Auth.Enabled() && fn == nil {
		return nil
	}
	v.Leases.Keys(id, func(key string) bool {
		if v.Auth.Enabled() {
			if err = right(v.Auth, who, []byte(key), nil); err != nil {
				return false
			}
		}
		if fn != nil {
			fn(key)
		}
		return true
	})
	return err
}

// LeaseLeases lists this member's leases. Whoever is not root needs the right to read every key of every lease.
func (s *leaseServer) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	who, err := s.identity(ctx)
	if err != nil {
		return nil, err
	}
	table := s.authTable()
	if err := table.CheckKnown(who); err != nil {
		return nil, err
	}
	ids, err := s.m.Leases(ctx)
	if err != nil {
		return nil, err
	}
	out := &pb.LeaseLeasesResponse{Leases: make([]*pb.LeaseStatus, 0, len(ids))}
	for _, id := range ids {
		if table.Enabled() {
			if err := s.leaseKeys(who, id, (*auth.Table).CheckRange, nil); err != nil {
				return nil, err
			}
		}
		out.Leases = append(out.Leases, &pb.LeaseStatus{ID: id})
	}
	out.Header = s.messageHeader(s.revision())
	return out, nil
}

// leaderPolls is how often per election timeout a lease call looks whether there is a leader again.
const leaderPolls = 10

// askLeader runs a call that only the leader answers. While there is no leader it is tried again, for the request
// timeout at most. A leader may take longer: a renewal waits for the end of a lease that has run out, which an
// alarm can hold up.
func (s *Server) askLeader(ctx context.Context, call func() error) error {
	var limit <-chan time.Time
	for {
		err := call()
		if !errors.Is(err, expire.ErrNotPrimary) || s.m.Leader() != 0 {
			return err
		}
		if limit == nil {
			timer := time.NewTimer(s.cfg.RequestTimeout)
			defer timer.Stop()
			limit = timer.C
		}
		select {
		case <-time.After(s.cfg.ElectionTimeout / leaderPolls):
		case <-limit:
			return rpctypes.ErrGRPCNoLeader
		case <-s.m.Done():
			return propose.ErrStopped
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serveKeepAlive answers renewals in the order in which they come. The end of the client's requests ends the
// stream, with OK. A receiver of its own lets the loss of the leader end a stream that waits for its client.
func (s *Server) serveKeepAlive(ss grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(ss.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.keepAlive(ctx, ss) }()
	select {
	case err := <-ended:
		return err
	case <-ss.Context().Done():
		return context.Cause(ss.Context())
	}
}

func (s *Server) keepAlive(ctx context.Context, ss grpc.ServerStream) error {
	c := &call{kind: callKeepAlive}
	defer c.reset()
	for {
		if err := ss.RecvMsg(c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			if status.Code(err) != codes.Canceled {
				s.streamFailed("receive", "lease-keepalive")
			}
			return err
		}
		r, err := s.renew(ctx, c.lease)
		if err != nil {
			return err
		}
		if err := ss.SendMsg(r); err != nil {
			s.streamFailed("send", "lease-keepalive")
			return err
		}
	}
}

// renew answers one keepalive. The revision of its header is taken before the renewal, so that it can never
// be above the state at the renewal. A lease that does not exist has a TTL of 0.
//
// Rule: contract/client-api.md section 8.3.
func (s *Server) renew(ctx context.Context, id int64) (*reply, error) {
	header := s.header(s.revision())
	if err := s.mayRenew(ctx, id); err != nil {
		return nil, err
	}
	if !s.leaseExists(id) {
		if err := s.applied(ctx); err != nil {
			return nil, err
		}
	}
	var ttl int64
	err := s.askLeader(ctx, func() (err error) {
		ttl, err = s.m.Renew(ctx, id)
		return err
	})
	if errors.Is(err, expire.ErrNotFound) {
		ttl, err = 0, nil
	}
	if err != nil {
		return nil, err
	}
	a := newAnswer(s.cfg.Buffers, 0)
	a.header(header)
	var b [32]byte
	a.Append(wire.AppendIntField(wire.AppendIntField(b[:0], 2, id), 3, ttl))
	return a.done(), nil
}

func (s *Server) leaseExists(id int64) bool {
	v := s.m.View()
	defer v.Release()
	_, ok := v.Leases.Get(id)
	return ok
}

func (s *Server) mayRenew(ctx context.Context, id int64) error {
	if !s.authTable().Enabled() {
		return nil
	}
	who, err := s.identity(ctx)
	if err != nil {
		return err
	}
	if err := s.authTable().CheckKnown(who); err != nil {
		return err
	}
	return s.leaseKeys(who, id, (*auth.Table).CheckDelete, nil)
}

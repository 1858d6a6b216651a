package rpc

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/apply/members"
)

// settledAfter is how long a connection must have been up to count for the health of the cluster.
const settledAfter = 5 * time.Second

// clusterServer has the Cluster RPCs.
type clusterServer struct {
	pb.UnimplementedClusterServer
	*Server
}

func (s *clusterServer) table() *members.Table {
	v := s.m.View()
	defer v.Release()
	return v.Members
}

// clusterHeader is the header of all Cluster responses: without a revision.
func (s *clusterServer) clusterHeader() *pb.ResponseHeader { return s.messageHeader(0) }

func listed(t *members.Table) []*pb.Member {
	out := make([]*pb.Member, 0, len(t.List()))
	for _, m := range t.List() {
		out = append(out, &pb.Member{
			ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, IsLearner: m.IsLearner,
		})
	}
	return out
}

// MemberList lists the members that this member knows, after a barrier if asked for one.
func (s *clusterServer) MemberList(ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	if r.Linearizable {
		if err := s.m.Barrier(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.known(ctx); err != nil {
		return nil, err
	}
	return &pb.MemberListResponse{Header: s.clusterHeader(), Members: listed(s.table())}, nil
}

// MemberAdd adds a voter or a learner. Its URLs are checked before the caller's rights.
//
// Rule: contract/client-api.md section 10.1.
func (s *clusterServer) MemberAdd(ctx context.Context, r *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	urls, err := types.NewURLs(r.PeerURLs)
	if err != nil {
		return nil, rpctypes.ErrGRPCMemberBadURLs
	}
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	if err := s.mayAdd(r.IsLearner); err != nil {
		return nil, err
	}
	peers := urls.StringSlice()
	m := members.Member{ID: members.AddedID(peers, s.cfg.Now().Unix()), PeerURLs: peers, IsLearner: r.IsLearner}
	change := members.Add(m)
	if !s.m.PeersSupported() {
		// What would be refused anyway gets its own answer. A member that nobody can talk to would only
		// count against the quorum.
		if err := s.table().Validate(change, s.cfg.LearnersMax); err != nil {
			return nil, err
		}
		return nil, rpctypes.ErrGRPCUnhealthy
	}
	list, err := s.change(ctx, change)
	if err != nil {
		return nil, err
	}
	return &pb.MemberAddResponse{
		Header: s.clusterHeader(), Members: list,
		Member: &pb.Member{ID: m.ID, PeerURLs: m.PeerURLs, IsLearner: m.IsLearner},
	}, nil
}

// change proposes a membership change and returns the members after it.
func (s *clusterServer) change(ctx context.Context, cc *raftpb.ConfChange) ([]*pb.Member, error) {
	res, err := s.m.ProposeConfChange(ctx, cc)
	if err == nil {
		err = res.Err
	}
	if err != nil {
		return nil, err
	}
	return listed(s.table()), nil
}

// mayAdd is the strict check of an addition.
func (s *clusterServer) mayAdd(learner bool) error {
	if !s.cfg.StrictReconfig {
		return nil
	}
	voters := s.table().Voters()
	if !learner && started(voters) < quorum(len(voters)+1) && !(len(voters) == 1 && voters[0].Started()) {
		return errNotEnoughStarted
	}
	if len(voters) > 1 && s.settled(voters) < quorum(len(voters)+1) {
		return rpctypes.ErrGRPCUnhealthy
	}
	return nil
}

// settled counts the voters that are connected and have been for a while, this member included.
func (s *clusterServer) settled(voters []members.Member) (n int) {
	for _, m := range voters {
		since := s.m.ActiveSince(m.ID)
		if !since.IsZero() && s.cfg.Now().Sub(since) >= settledAfter {
			n++
		}
	}
	return n
}

func (s *clusterServer) connected(voters []members.Member) (n int) {
	for _, m := range voters {
		if m.ID == s.m.MemberID() || !s.m.ActiveSince(m.ID).IsZero() {
			n++
		}
	}
	return n
}

func started(ms []members.Member) (n int) {
	for _, m := range ms {
		if m.Started() {
			n++
		}
	}
	return n
}

func quorum(voters int) int { return voters/2 + 1 }

// MemberRemove removes a member for ever.
//
// Rule: contract/client-api.md section 10.2.
func (s *clusterServer) MemberRemove(
	ctx context.Context, r *pb.MemberRemoveRequest,
) (*pb.MemberRemoveResponse, error) {
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	if err := s.mayRemove(r.ID); err != nil {
		return nil, err
	}
	list, err := s.change(ctx, members.Remove(r.ID))
	if err != nil {
		return nil, err
	}
	return &pb.MemberRemoveResponse{Header: s.clusterHeader(), Members: list}, nil
}

// mayRemove is the strict check of a removal. The last voter is never removed, strict or not: nobody would be
// left to apply the change.
func (s *clusterServer) mayRemove(id uint64) error {
	t := s.table()
	if m, ok := t.Get(id); ok && m.IsLearner {
		return nil
	}
	voters := t.Voters()
	left := slices.DeleteFunc(slices.Clone(voters), func(m members.Member) bool { return m.ID == id })
	if len(left) == 0 {
		return errNotEnoughStarted
	}
	if !s.cfg.StrictReconfig {
		return nil
	}
	if started(left) < quorum(len(left)) {
		return errNotEnoughStarted
	}
	if id != s.m.MemberID() && s.m.ActiveSince(id).IsZero() {
		return nil // it takes no part already
	}
	if s.connected(voters)-1 < quorum(len(left)) {
		return rpctypes.ErrGRPCUnhealthy
	}
	return nil
}

// MemberUpdate replaces the peer URLs of a member. The reference stores whatever it is sent; URLs that no
// member could ever be reached at are refused here.
func (s *clusterServer) MemberUpdate(
	ctx context.Context, r *pb.MemberUpdateRequest,
) (*pb.MemberUpdateResponse, error) {
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	urls, err := types.NewURLs(r.PeerURLs)
	if err != nil {
		if _, ok := s.table().Get(r.ID); !ok {
			return nil, rpctypes.ErrGRPCMemberNotFound
		}
		return nil, rpctypes.ErrGRPCMemberBadURLs
	}
	list, err := s.change(ctx, members.Update(r.ID, urls.StringSlice()))
	if err != nil {
		return nil, err
	}
	return &pb.MemberUpdateResponse{Header: s.clusterHeader(), Members: list}, nil
}

// MemberPromote makes a learner a voter.
//
// Rule: contract/client-api.md section 10.4.
func (s *clusterServer) MemberPromote(
	ctx context.Context, r *pb.MemberPromoteRequest,
) (*pb.MemberPromoteResponse, error) {
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	if err := s.applied(ctx); err != nil {
		return nil, err
	}
	t := s.table()
	m, ok := t.Get(r.ID)
	switch {
	case !ok:
		return nil, rpctypes.ErrGRPCMemberNotFound
	case m.IsLearner && !s.m.PeersSupported():
		return nil, rpctypes.ErrGRPCLearnerNotReady
	case m.IsLearner && s.cfg.StrictReconfig && started(t.Voters())+1 < quorum(len(t.Voters())+1):
		return nil, errNotEnoughStarted
	}
	list, err := s.change(ctx, members.Promote(r.ID))
	if err != nil {
		return nil, err
	}
	return &pb.MemberPromoteResponse{Header: s.clusterHeader(), Members: list}, nil
}

package rpc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/stages/apply/members"
	"sluice/stages/propose"
	"sluice/stages/wire"
)

// snapshotBlobBytes is the data that one Snapshot message carries.
const snapshotBlobBytes = 32 << 10

// maintenanceServer has the Maintenance RPCs.
type maintenanceServer struct {
	pb.UnimplementedMaintenanceServer
	*Server
}

// Status describes this member. It needs an identity, and works without leader and on learners.
func (s *maintenanceServer) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	if err := s.known(ctx); err != nil {
		return nil, err
	}
	v := s.m.View()
	defer v.Release()
	total, inUse, quota := s.m.DBSize()
	downgrade := v.Members.Downgrade()
	out := &pb.StatusResponse{
		Header:           s.messageHeader(v.KV.Revision()),
		Version:          s.cfg.ServerVersion,
		DbSize:           total,
		DbSizeInUse:      inUse,
		DbSizeQuota:      quota,
		Leader:           s.m.Leader(),
		RaftIndex:        s.m.CommitIndex(),
		RaftAppliedIndex: s.m.AppliedIndex(),
		RaftTerm:         s.m.Term(),
		IsLearner:        v.Members.IsLearner(),
		StorageVersion:   v.StorageVersion,
		DowngradeInfo:    &pb.DowngradeInfo{Enabled: downgrade.Enabled, TargetVersion: downgrade.TargetVersion},
	}
	if out.Leader == 0 {
		out.Errors = append(out.Errors, rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader))
	}
	for _, a := range v.Alarms {
		out.Errors = append(out.Errors, a.String())
	}
	return out, nil
}

// Alarm lists, raises or lowers alarms. All of it goes through consensus, the list too.
func (s *maintenanceServer) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if _, known := etcdserverpb.AlarmRequest_AlarmAction_name[int32(r.Action)]; !known {
		return nil, errUnknownAlarm
	}
	if r.Action == pb.AlarmRequest_GET {
		if err := s.known(ctx); err != nil {
			return nil, err
		}
	} else if err := s.admin(ctx); err != nil {
		return nil, err
	}
	res, err := s.propose(ctx, &wire.Request{Other: &pb.InternalRaftRequest{Alarm: r}}, propose.System)
	if err != nil {
		return nil, err
	}
	out := res.Message.(*pb.AlarmResponse)
	out.Header = s.messageHeader(res.Revision)
	return out, nil
}

// Defragment compacts the database file.
func (s *maintenanceServer) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	if s.cfg.StopOnDefrag {
		s.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
		defer s.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	}
	if err := s.m.Defragment(ctx); err != nil {
		return nil, err
	}
	return &pb.DefragmentResponse{}, nil
}

// Hash hashes the whole backend of this member.
func (s *maintenanceServer) Hash(ctx context.Context, _ *pb.HashRequest) (*pb.HashResponse, error) {
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	started := s.cfg.Now()
	hash, err := s.m.Hash(ctx)
	if err != nil {
		return nil, err
	}
	s.cfg.Metrics.HashDuration.Observe(s.cfg.Now().Sub(started).Seconds())
	return &pb.HashResponse{Header: s.messageHeader(s.revision()), Hash: hash}, nil
}

// HashKV hashes the keys of this member up to a revision.
func (s *maintenanceServer) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	v := s.m.View()
	defer v.Release()
	started := s.cfg.Now()
	hash, compact, at, err := v.KV.HashKV(r.Revision)
	if err != nil {
		return nil, err
	}
	s.cfg.Metrics.HashRevDuration.Observe(s.cfg.Now().Sub(started).Seconds())
	return &pb.HashKVResponse{
		Header: s.messageHeader(v.KV.Revision()), Hash: hash, CompactRevision: compact, HashRevision: at,
	}, nil
}

// Snapshot sends an image of the database, then its SHA-256. As it pins a state of the file, which grows
// meanwhile and in the end waits for it, a client that stops reading loses its connection.
//
// Rule: contract/client-api.md section 11.4.
func (s *maintenanceServer) Snapshot(_ *pb.SnapshotRequest, ss grpc.ServerStreamingServer[pb.SnapshotResponse]) error {
	ctx := ss.Context()
	if err := s.admin(ctx); err != nil {
		return err
	}
	v := s.m.View()
	version := v.StorageVersion
	v.Release()
	size, data, err := s.m.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer data.Close()
	progress := s.watchStall(ctx)
	defer progress.Stop()
	sum := sha256.New()
	blob := make([]byte, snapshotBlobBytes)
	for left := size; left > 0; {
		n, err := io.ReadFull(data, blob[:min(left, snapshotBlobBytes)])
		if err != nil {
			return fmt.Errorf("read snapshot, %d of %d bytes left: %w", left, size, err)
		}
		left -= int64(n)
		sum.Write(blob[:n])
		// Send encodes the message before it returns, so that the blob may be used again.
		m := &pb.SnapshotResponse{RemainingBytes: uint64(left), Blob: blob[:n], Version: version}
		if err := ss.Send(m); err != nil {
			return err
		}
		progress.Reset(s.cfg.ReadStall)
	}
	return ss.Send(&pb.SnapshotResponse{Blob: sum.Sum(nil), Version: version})
}

// MoveLeader hands leadership over. Only the leader does.
func (s *maintenanceServer) MoveLeader(ctx context.Context, r *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	if s.m.Leader() != s.m.MemberID() {
		return nil, rpctypes.ErrGRPCNotLeader
	}
	v := s.m.View()
	target, ok := v.Members.Get(r.TargetID)
	v.Release()
	if !ok || target.IsLearner {
		return nil, rpctypes.ErrGRPCBadLeaderTransferee
	}
	if r.TargetID == s.m.MemberID() {
		return &pb.MoveLeaderResponse{}, nil
	}
	err := s.m.MoveLeader(ctx, r.TargetID)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, errTransferTimeout
	}
	if err != nil {
		return nil, err
	}
	return &pb.MoveLeaderResponse{}, nil
}

// Downgrade checks, starts or ends a downgrade of the cluster version.
//
// Rule: contract/client-api.md section 11.6.
func (s *maintenanceServer) Downgrade(ctx context.Context, r *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	info := &membershippb.DowngradeInfoSetRequest{}
	switch r.Action {
	case pb.DowngradeRequest_VALIDATE, pb.DowngradeRequest_ENABLE:
		target, err := s.checkDowngrade(ctx, r.Version)
		if err != nil {
			return nil, err
		}
		info.Enabled, info.Ver = true, target.String()
	case pb.DowngradeRequest_CANCEL:
	default:
		return nil, errUnknownDowngrade
	}
	if r.Action != pb.DowngradeRequest_VALIDATE {
		req := &wire.Request{Other: &pb.InternalRaftRequest{DowngradeInfoSet: info}}
		if _, err := s.propose(ctx, req, propose.System); err != nil {
			return nil, err
		}
	}
	v := s.m.View()
	defer v.Release()
	current, err := members.ParseVersion(v.Members.ClusterVersion())
	if err != nil {
		return nil, rpctypes.ErrGRPCClusterVersionUnavailable
	}
	return &pb.DowngradeResponse{
		Header: s.messageHeader(v.KV.Revision()), Version: fmt.Sprintf("%d.%d", current.Major, current.Minor),
	}, nil
}

func (s *maintenanceServer) checkDowngrade(ctx context.Context, version string) (members.Version, error) {
	target, ok := parseRelease(version)
	if !ok {
		return target, rpctypes.ErrGRPCWrongDowngradeVersionFormat
	}
	if _, err := members.ParseVersion(s.clusterVersion()); err != nil {
		return target, rpctypes.ErrGRPCClusterVersionUnavailable
	}
	if err := s.m.Barrier(ctx); err != nil {
		return target, err
	}
	v := s.m.View()
	defer v.Release()
	current, err := members.ParseVersion(v.Members.ClusterVersion())
	switch {
	case err != nil:
		return target, rpctypes.ErrGRPCClusterVersionUnavailable
	case target.Major != current.Major || target.Minor != current.Minor-1:
		return target, rpctypes.ErrGRPCInvalidDowngradeTargetVersion
	case v.Members.Downgrade().Enabled:
		return target, rpctypes.ErrGRPCDowngradeInProcess
	}
	return target, nil
}

func (s *Server) clusterVersion() string {
	v := s.m.View()
	defer v.Release()
	return v.Members.ClusterVersion()
}

// parseRelease reads X.Y or X.Y.Z, of which only X.Y counts.
func parseRelease(version string) (members.Version, bool) {
	if strings.Count(version, ".") == 1 {
		version += ".0"
	}
	v, err := members.ParseVersion(version)
	return v.Release(), err == nil
}

package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"go.uber.org/zap"

	"sluice/mailbox"
	"sluice/stages/apply/members"
	"sluice/stages/propose"
	"sluice/stages/wire"
)

// versionInterval is how often the leader compares the cluster version with its members' (contract 6.2).
const versionInterval = 4 * time.Second

// tick is the clock of all stages. A tick that is still waiting is replaced, never queued.
func (m *Member) tick(ctx context.Context) error {
	heartbeat := time.NewTicker(m.cfg.Heartbeat)
	defer heartbeat.Stop()
	pulse := time.NewTicker(100 * time.Millisecond)
	defer pulse.Stop()
	for {
		select {
		case <-heartbeat.C:
			m.replicate.Tick()
		case <-pulse.C:
			m.propose.Tick()
			m.watch.Tick()
			m.expire.Tick()
		case <-ctx.Done():
			return ctx.Err()
		case <-m.stopping:
			return nil
		}
	}
}

// revoke proposes what expire has decided, in the system lane and with root's rights.
func (m *Member) revoke(ctx context.Context) error {
	var batch []revocation
	for {
		var err error
		if batch, err = m.revoking.Receiver().Receive(ctx, batch[:0]); err != nil {
			return err
		}
		for _, r := range batch {
			if err := m.submit(ctx, r); err != nil {
				return err
			}
		}
	}
}

// submit proposes one order of expire. What is refused comes again: the lease stays due there.
func (m *Member) submit(ctx context.Context, r revocation) error {
	for _, id := range r.leases {
		req := &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: id}}
		if err := m.submitOne(ctx, r.term, req); err != nil {
			return err
		}
	}
	if len(r.checkpoints) == 0 {
		return nil
	}
	list := &pb.LeaseCheckpointRequest{}
	for _, c := range r.checkpoints {
		list.Checkpoints = append(list.Checkpoints, &pb.LeaseCheckpoint{ID: c.ID, Remaining_TTL: c.Remaining})
	}
	return m.submitOne(ctx, r.term, &pb.InternalRaftRequest{LeaseCheckpoint: list})
}

func (m *Member) submitOne(ctx context.Context, term uint64, req *pb.InternalRaftRequest) error {
	if m.leaderTerm() != term {
		return nil // decided as the leader of another term
	}
	err := m.propose.Submit(ctx, m.asRoot(req), propose.System)
	if err == nil || ctx.Err() != nil || errors.Is(err, propose.ErrStopped) {
		return ctx.Err()
	}
	m.log.Warn("failed to propose for leases", zap.Error(err))
	return nil
}

// asRoot makes a request of the server itself, which no right may refuse.
func (m *Member) asRoot(req *pb.InternalRaftRequest) *wire.Request {
	r := &wire.Request{Other: req}
	view := m.apply.View()
	defer view.Release()
	if view.Auth.Enabled() {
		r.Username, r.AuthRevision = "root", view.Auth.Revision()
	}
	return r
}

// raiseNoSpace proposes the NOSPACE alarm whenever apply asks for it.
func (m *Member) raiseNoSpace(ctx context.Context) error {
	for {
		select {
		case <-m.noSpace:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.stopping:
			return nil
		}
		req := &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{
			Action: pb.AlarmRequest_ACTIVATE, MemberID: m.boot.local, Alarm: pb.AlarmType_NOSPACE,
		}}
		m.log.Warn("message exceeded backend quota; raising alarm", zap.Int64("quota-size-bytes", m.cfg.QuotaBytes))
		if _, err := m.propose.Propose(ctx, m.asRoot(req), propose.System); err != nil && ctx.Err() == nil {
			m.log.Warn("failed to raise alarm", zap.Error(err)) // apply asks again with the next write
		}
	}
}

// publish makes this member's name and client URLs known through the log, at every start; then the member
// is ready (contract 7.3).
func (m *Member) publish(ctx context.Context) error {
	req := &pb.InternalRaftRequest{ClusterMemberAttrSet: &membershippb.ClusterMemberAttrSetRequest{
		Member_ID: m.boot.local,
		MemberAttributes: &membershippb.Attributes{
			Name: m.cfg.Name, ClientUrls: m.cfg.AdvertiseClientURLs,
		},
	}}
	for {
		result, err := m.propose.Propose(ctx, &wire.Request{Other: req}, propose.System)
		switch {
		case err == nil && result.Err == nil:
			m.log.Info("published local member to cluster through raft",
				zap.String("local-member-id", hex(m.boot.local)),
				zap.String("local-member-attributes",
					fmt.Sprintf("{Name:%s ClientURLs:%v}", m.cfg.Name, m.cfg.AdvertiseClientURLs)),
				zap.String("cluster-id", hex(m.boot.cluster)), zap.Duration("publish-timeout", m.cfg.requestTimeout()))
			if err := m.decideVersion(ctx); err != nil {
				return err
			}
			close(m.ready)
			return nil
		case err == nil:
			return fmt.Errorf("publish the member: %w", result.Err)
		case ctx.Err() != nil || errors.Is(err, propose.ErrStopped):
			return mailbox.ErrClosed
		}
		m.log.Warn("failed to publish local member to cluster through raft",
			zap.String("local-member-id", hex(m.boot.local)), zap.Error(err))
	}
}

// watchVersion keeps the cluster version at what all members serve, while this member leads. The members of this build's clusters are this one.
func (m *Member) watchVersion(ctx context.Context) error {
	select {
	case <-m.ready:
	case <-ctx.Done():
		return ctx.Err()
	case <-m.stopping:
		return nil
	}
	again := time.NewTicker(versionInterval)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			if err := m.decideVersion(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-m.stopping:
			return nil
		}
	}
}

func (m *Member) decideVersion(ctx context.Context) error {
	view := m.apply.View()
	version, downgrade := view.Members.ClusterVersion(), view.Members.Downgrade()
	view.Release()
	target := m.nextVersion(version, downgrade)
	if m.leaderTerm() == 0 || target == "" {
		return nil
	}
	req := &pb.InternalRaftRequest{ClusterVersionSet: &membershippb.ClusterVersionSetRequest{Ver: target}}
	if _, err := m.propose.Propose(ctx, m.asRoot(req), propose.System); err != nil && ctx.Err() == nil {
		m.log.Warn("failed to update cluster version", zap.String("to", target), zap.Error(err))
	}
	return ctx.Err()
}

// nextVersion is what the cluster version should become, empty when it is right (contract 6.2). All members
// are this one.
func (m *Member) nextVersion(version string, downgrade members.Downgrade) string {
	lowest := m.cfg.Version.Release()
	current, err := members.ParseVersion(version)
	if err != nil {
		return lowest.String()
	}
	if downgrade.Enabled {
		target, err := members.ParseVersion(downgrade.TargetVersion)
		if err == nil && target.Major == current.Major && target.Minor == current.Minor-1 && target.Minor == lowest.Minor-1 {
			return target.Release().String()
		}
		return ""
	}
	if current.Major == lowest.Major && current.Less(lowest) {
		return lowest.String()
	}
	return ""
}

package runtime

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/apply"
	"sluice/stages/apply/auth"
	"sluice/stages/apply/members"
	"sluice/stages/persist/snap"
	"sluice/stages/propose"
	"sluice/stages/watch"
	"sluice/stages/wire"
)

// What the daemon's services ask of a member. Any goroutine may call these while the member runs.

// ErrNotLeader refuses what only the leader does.
var ErrNotLeader = errors.New("etcdserver: not leader")

// ErrBadTransferee refuses to hand leadership to a member that cannot lead.
var ErrBadTransferee = errors.New("etcdserver: bad leader transferee")

func (m *Member) ClusterID() uint64    { return m.boot.cluster }
func (m *Member) MemberID() uint64     { return m.boot.local }
func (m *Member) Leader() uint64       { return m.replicate.Standing().Leader }
func (m *Member) Term() uint64         { return m.replicate.Standing().Term }
func (m *Member) CommitIndex() uint64  { return m.replicate.Committed() }
func (m *Member) AppliedIndex() uint64 { return m.applied.get() }
func (m *Member) Tokens() auth.Tokens  { return m.tokens }

// Existing says whether the member was already initialised when it was opened.
func (m *Member) Existing() bool { return m.boot.existing }

// RaftStatus is raft's status as of its last tick.
func (m *Member) RaftStatus() raft.Status { return m.replicate.Status() }

// Learner says whether this member is a learner.
func (m *Member) Learner() bool {
	view := m.apply.View()
	defer view.Release()
	return view.Members.IsLearner()
}

// Applied waits until the published view's index is at least index.
func (m *Member) Applied(ctx context.Context, index uint64) error {
	if err := m.applied.await(ctx, index, m.stopping); err != nil {
		if ctx.Err() == nil {
			return propose.ErrStopped
		}
		return err
	}
	return nil
}

// Propose sends r through consensus and waits for its result.
func (m *Member) Propose(ctx context.Context, r *wire.Request, lane propose.Lane) (wire.Result, error) {
	return m.propose.Propose(ctx, r, lane)
}

// ProposeConfChange sends a membership change through consensus and waits until raft knows it.
func (m *Member) ProposeConfChange(ctx context.Context, cc *raftpb.ConfChange) (wire.Result, error) {
	return m.propose.ProposeConfChange(ctx, cc)
}

// Barrier returns once the published view is at least as new as the moment of the call.
func (m *Member) Barrier(ctx context.Context) error { return m.propose.Barrier(ctx) }

// View acquires the published view. The caller releases it.
func (m *Member) View() *apply.View { return m.apply.View() }

// OpenWatch starts a watch stream.
func (m *Member) OpenWatch(cfg watch.StreamConfig) *watch.Stream { return m.watch.Open(cfg) }

// Renew gives the lease its whole TTL again and returns it in seconds.
func (m *Member) Renew(ctx context.Context, id int64) (int64, error) { return m.expire.Renew(ctx, id) }

// TimeToLive returns the granted and the remaining seconds of a lease.
func (m *Member) TimeToLive(ctx context.Context, id int64) (granted, remaining int64, err error) {
	return m.expire.TimeToLive(ctx, id)
}

// Leases lists the lease ids, on the leader by ascending remaining time.
func (m *Member) Leases(ctx context.Context) ([]int64, error) { return m.expire.Leases(ctx) }

// NewID returns an id that no other request or lease of this cluster has.
func (m *Member) NewID() uint64 { return m.propose.NextID() }

// DBSize is the database's size as of its last commit, and the quota: <= 0 means none.
func (m *Member) DBSize() (total, inUse, quota int64) {
	total, inUse = m.apply.Size()
	return total, inUse, m.cfg.QuotaBytes
}

// Snapshot returns the length and the content of a consistent image of the database. The caller closes it.
func (m *Member) Snapshot(ctx context.Context) (int64, io.ReadCloser, error) {
	s, err := m.apply.Snapshot(ctx)
	if err != nil {
		return 0, nil, err
	}
	read, write := io.Pipe()
	go func() {
		_, err := s.WriteTo(write)
		write.CloseWithError(err)
		s.Close()
	}()
	return s.Size, read, nil
}

// Hash is the checksum of the whole database.
func (m *Member) Hash(ctx context.Context) (uint32, error) { return m.apply.Hash(ctx) }

// Defragment rewrites the database without its free pages, while reads and writes go on.
func (m *Member) Defragment(ctx context.Context) error { return m.apply.Defragment(ctx) }

// MoveLeader hands leadership to target and returns when it leads. In a cluster of one only the leader
// itself can be asked for.
func (m *Member) MoveLeader(_ context.Context, target uint64) error {
	if m.leaderTerm() == 0 {
		return ErrNotLeader
	}
	if target != m.boot.local {
		return ErrBadTransferee
	}
	return nil
}

// PeersSupported says whether other members can be served.
func (m *Member) PeersSupported() bool { return false }

// ActiveSince is when the connection to a member came up: for this member its start, zero for others.
func (m *Member) ActiveSince(id uint64) time.Time {
	if id == m.boot.local {
		return m.started
	}
	return time.Time{}
}

// leaderTerm is the term in which this member leads now, 0 while it does not.
func (m *Member) leaderTerm() uint64 {
	if s := m.replicate.Standing(); s.Leading {
		return s.Term
	}
	return 0
}

// removed is called by apply when an entry has taken this member out of its cluster.
func (m *Member) removed() {
	m.log.Warn("data-dir used by this member must be removed")
	m.loops.cancel(&StageError{Stage: "apply", Err: ErrRemoved})
}

// ErrRemoved ends a member that is no longer in its cluster.
var ErrRemoved = errors.New("the member has been permanently removed from the cluster")

// image makes the content of a disk snapshot, which only members of release 3.6 read.
func (m *Member) image(t *members.Table) []byte {
	var list []snap.Member
	for _, x := range t.List() {
		list = append(list, snap.Member{
			ID: x.ID, PeerURLs: x.PeerURLs, Learner: x.IsLearner, Name: x.Name, ClientURLs: x.ClientURLs,
		})
	}
	data, err := snap.V2Image(list, t.RemovedIDs(), t.ClusterVersion())
	if err != nil {
		panic("runtime: image of the members: " + err.Error()) // plain structs of strings
	}
	return data
}

func hex(id uint64) string { return strconv.FormatUint(id, 16) }

// stopOnce closes a channel once.
type stopOnce struct{ once sync.Once }

func (s *stopOnce) begin(ch chan struct{}) { s.once.Do(func() { close(ch) }) }

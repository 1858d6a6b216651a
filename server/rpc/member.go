package rpc

import (
	"context"
	"io"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/apply"
	"sluice/stages/apply/auth"
	"sluice/stages/propose"
	"sluice/stages/watch"
	"sluice/stages/wire"
)

// Member is what the services need of the member they speak for; *runtime.Member is one. Every method may
// be called from any goroutine, and none blocks unless it takes a context.
type Member interface {
	// ClusterID and MemberID never change.
	ClusterID() uint64
	MemberID() uint64
	// Leader is the leader that this member knows, 0 for none.
	Leader() uint64
	Term() uint64
	CommitIndex() uint64
	AppliedIndex() uint64
	// Applied waits until the published view's index is at least index, which the lookup of a simple token
	// and the lease calls need.
	Applied(ctx context.Context, index uint64) error

	// Propose sends r through consensus and waits for its result. r is encoded before it waits, so r and
	// the bytes it aliases may be reused once Propose returns. The wait ends by itself after the request
	// timeout.
	Propose(ctx context.Context, r *wire.Request, lane propose.Lane) (wire.Result, error)
	// ProposeConfChange does the same for a membership change, and waits as long as ctx allows.
	ProposeConfChange(ctx context.Context, cc *raftpb.ConfChange) (wire.Result, error)
	// Barrier returns once the published view is at least as new as the moment of the call.
	Barrier(ctx context.Context) error
	// View acquires the published view. The caller releases it.
	View() *apply.View
	// Tokens says who a token belongs to.
	Tokens() auth.Tokens

	OpenWatch(cfg watch.StreamConfig) *watch.Stream

	// Renew and TimeToLive are answered by the leader. An unknown lease is expire's sentinel.
	Renew(ctx context.Context, id int64) (ttl int64, err error)
	TimeToLive(ctx context.Context, id int64) (granted, remaining int64, err error)
	// Leases lists the lease ids of this member, on the leader by ascending remaining time.
	Leases(ctx context.Context) ([]int64, error)

	// DBSize is the backend's size as of its last commit, and the effective quota: <= 0 means none.
	DBSize() (total, inUse, quota int64)
	// Snapshot returns the length and the content of a consistent image of the backend. The caller closes it.
	Snapshot(ctx context.Context) (size int64, data io.ReadCloser, err error)
	Hash(ctx context.Context) (uint32, error)
	Defragment(ctx context.Context) error

	// MoveLeader hands leadership to the voter target, and returns when it is seen as leader.
	MoveLeader(ctx context.Context, target uint64) error
	// PeersSupported says whether this build can serve other members: without it none may be added.
	PeersSupported() bool
	// ActiveSince is when the connection to the member id came up, zero if it is not connected. For the
	// member itself it is the start.
	ActiveSince(id uint64) time.Time

	// Done is closed when the member begins to stop.
	Done() <-chan struct{}
}

package propose

import (
	"context"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// Lane is the queue that a request waits in.
type Lane uint8

const (
	Client Lane = iota
	System      // lease revoke and checkpoint, membership, alarms, auth: never behind a flood of writes
)

// Standing is who leads, as this member knows it: a level.
type Standing struct {
	Leader        uint64 // 0: none known
	Term          uint64
	CommittedTerm uint64 // term of the newest committed entry: Term once the leader can answer reads
	Leading       bool   // Leader is this member
}

// Refusal says why entries were not proposed. They are not in any log.
type Refusal uint8

const (
	NoLeader   Refusal = iota // no leader known, leadership is being transferred, or no way to the leader
	Overloaded                // raft's limit of uncommitted bytes
	Pending                   // an earlier conf change may be unapplied: tried again at the next tick
)

// Replicate is the edge to replicate; both wait while its intake is full.
type Replicate interface {
	Propose(ctx context.Context, entries []*raftpb.Entry) error
	ReadIndex(ctx context.Context, round uint64) error
}

// Progress is what the overload gate compares. Both may be read at any time.
type Progress interface {
	Committed() uint64 // commit index, published by replicate
	Applied() uint64   // index of the published view, by apply
}

// Links tells how long connections have held, for the text of a timeout.
type Links interface {
	ConnectedFor(id uint64, d time.Duration) bool // this member with id
	QuorumFor(d time.Duration) bool               // this member with a quorum of the voters
}

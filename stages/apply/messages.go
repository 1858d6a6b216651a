package apply

import (
	"context"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/wire"
)

// Message is what replicate sends: a Batch or an Install. Each is acknowledged, in order.
type Message interface{ message() }

// Batch is committed entries in order, without a gap to the batch before. Responses come back in the
// acknowledgement. Entries are shared with raft: nobody changes them.
type Batch struct {
	Entries   []*raftpb.Entry
	Responses []*raftpb.Message
}

// Install asks to replace the whole state by the database of a received snapshot, which is in place and
// durable. What was applied before is a prefix of it.
type Install struct{ Snapshot *raftpb.Snapshot }

func (Batch) message()   {}
func (Install) message() {}

// Ack acknowledges Batches messages, up to the entry Index.
type Ack struct {
	Batches   int
	Index     uint64
	Verdicts  []Verdict         // one for each conf change applied, in order; replayed ones have none
	Responses []*raftpb.Message // of the batches
	// Checkpoint, when not nil, asks for a disk snapshot: the database is durable up to its index. Such an
	// acknowledgement has no batches.
	Checkpoint *raftpb.Snapshot
}

// Verdict is the decision on one conf change. Change has NodeId 0 when it was refused: raft must see it all the
// same, or it would refuse the next one. Result is for whoever proposed it, once raft knows.
type Verdict struct {
	Change *raftpb.ConfChange
	Result wire.Result
}

// LeaseChangeKind says what happened to a lease.
type LeaseChangeKind uint8

const (
	LeasesReset       LeaseChangeKind = iota // forget all leases: what follows is the whole list
	LeaseGranted                             // ID, TTL, Remaining
	LeaseRevoked                             // ID
	LeaseCheckpointed                        // ID, Remaining
	LeaseLeading                             // Leading, Term
)

// LeaseChange is one message to expire.
type LeaseChange struct {
	Kind      LeaseChangeKind
	ID        int64
	TTL       int64 // granted, seconds
	Remaining int64 // seconds at the last checkpoint, 0 for the full TTL
	// Leading is sent when the first entry of a term is applied: whether this member leads in Term.
	Leading bool
	Term    uint64
}

// Out is where apply's output goes. What takes a context may wait, the rest never does.
type Out interface {
	// Events hands watch the events of one batch. A batch whose Revision is ahead of its events, as after
	// an Install, means history that only views can tell.
	Events(ctx context.Context, b wire.EventBatch) error
	// Leases hands expire what happened to leases, in order.
	Leases(ctx context.Context, changes []LeaseChange) error
	// Complete hands propose the results of a batch. The slice may be used until the next call.
	Complete(results []wire.Result)
	// Published tells propose the index of the view that readers now get.
	Published(index uint64)
	// Acknowledge answers replicate, which has room for every message it has credit for.
	Acknowledge(a Ack)
	// RaiseNoSpace asks for an entry that activates this member's NOSPACE alarm. It is asked again with
	// every write above the quota until the alarm is applied.
	RaiseNoSpace()
}

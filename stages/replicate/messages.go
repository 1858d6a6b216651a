package replicate

import (
	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/wire"
)

// Append is what persist makes durable, in this order: Snapshot, Entries, HardState. Responses are handed
// back in the acknowledgement once all of it, and all before it, is durable.
type Append struct {
	Entries   []*raftpb.Entry
	HardState *raftpb.HardState // nil when unchanged
	Snapshot  *raftpb.Snapshot  // nil but for one received from the leader
	Responses []*raftpb.Message
}

// PersistAck acknowledges Appends messages, in order, with their responses. CheckpointIndex is not 0 when
// a Checkpoint became durable. LastIndex is the last durable entry.
type PersistAck struct {
	Appends         int
	Responses       []*raftpb.Message
	LastIndex       uint64
	CheckpointIndex uint64
}

// Checkpoint is a disk snapshot: the database is durable up to its index.
type Checkpoint struct {
	Snapshot *raftpb.Snapshot
}

// Batch is committed entries for apply. Responses come back in the acknowledgement.
type Batch struct {
	Entries   []*raftpb.Entry
	Responses []*raftpb.Message
}

// Install tells apply to replace its state by the received snapshot, whose database persist has in place.
type Install struct {
	Snapshot *raftpb.Snapshot
}

// ApplyAck acknowledges Batches messages (Batch or Install) up to Index. Verdicts holds one per conf
// change in them, in order. Checkpoint, when not nil, asks for a disk snapshot.
type ApplyAck struct {
	Batches    int
	Index      uint64
	Verdicts   []Verdict
	Responses  []*raftpb.Message
	Checkpoint *raftpb.Snapshot
}

// Verdict is apply's decision on one conf change: the change, with NodeId 0 when refused, and the answer
// for whoever proposed it, delivered after raft knows the change.
type Verdict struct {
	Change *raftpb.ConfChange
	Result wire.Result
}

// Standing is who leads, as this member knows it: a level, sent when it changes.
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
	Pending                   // an earlier conf change may be unapplied; the same may be proposed again
)

// SnapshotStatus is how a snapshot that was sent to a peer ended.
type SnapshotStatus uint8

const (
	SnapshotDelivered SnapshotStatus = iota + 1
	SnapshotFailed
)

// PeerInput is one batch from the peers' side, in order: received messages, or one event. Zero fields are
// absent.
type PeerInput struct {
	Messages    []*raftpb.Message // received
	Unsent      []*raftpb.Message // accepted for sending but certainly not sent
	Unreachable uint64            // id of a peer that could not be reached for the last send
	Snapshot    SnapshotStatus    // of the snapshot sent to peer To
	To          uint64
}

// Persist is the edge to persist. It must have room for Credits.Persist Appends and one Checkpoint.
type Persist interface {
	Append(Append) error         // never waits
	Checkpoint(Checkpoint) error // never waits; one is outstanding at most
}

// Apply is the edge to apply. It must have room for Credits.Apply messages.
type Apply interface {
	Apply(Batch) error     // never waits
	Install(Install) error // never waits
	WantSnapshot()         // a follower needs a snapshot: answer with Stage.Offer; never waits
}

// Peers is the edge to the other members. Send never waits, and returns what found no room.
type Peers interface {
	Send(to uint64, msgs []*raftpb.Message) (refused []*raftpb.Message)
}

// Propose is the way back to propose; nothing of it waits.
type Propose interface {
	Refuse(entries []*raftpb.Entry, why Refusal)
	ReadIndexed(round, index uint64) // every round up to this one may read at index
	Standing(Standing)
	Backlog(bytes int64) // appended to the log but not applied
	Complete(results []wire.Result)
}

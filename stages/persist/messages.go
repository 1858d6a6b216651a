package persist

import (
	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/wire"
)

// Message is what persist receives: an Append or a Checkpoint.
type Message interface {
	// Bytes is the message's size for the mailbox's byte limit.
	Bytes() int
	message()
}

// Append is one MsgStorageAppend: what must be durable, and what may be said once it is. Every Append is
// acknowledged, with or without Responses, in the order in which it came.
//
// Within one Append the log holds the snapshot first, then the entries, then the hard state. Entries and
// Snapshot are shared with raft and are not changed by anyone.
//
// Rule: contract/disk-and-peer.md 17.9.
type Append struct {
	Entries   []*raftpb.Entry
	HardState *raftpb.HardState // nil or zero when unchanged
	Snapshot  *raftpb.Snapshot  // an incoming snapshot whose database file is already durable; nil when none
	Responses []*raftpb.Message // released once this Append and all before it are durable
}

// Checkpoint asks for a disk snapshot: Data is the v2 image, Metadata has index, term and ConfState. The
// database must be durable up to the index before this is sent. It writes the .snap file, then the log's
// snapshot record, then gives up the segments that only hold older entries.
type Checkpoint struct {
	Snapshot *raftpb.Snapshot
}

// Ack answers one or more Appends and at most one Checkpoint, in order.
type Ack struct {
	Appends         int               // number of Append messages that this acknowledges
	Responses       []*raftpb.Message // theirs, in order
	LastIndex       uint64            // last entry or snapshot index made durable by these Appends; 0 when none
	CheckpointIndex uint64            // index of the newest Checkpoint done; 0 when none
}

// Out is where acknowledgements go. Acknowledge never blocks: the receiver has room for every message that
// it has credit for.
type Out interface {
	Acknowledge(Ack) error
}

// messageBytes is what a message without entries counts.
const messageBytes = 128

// Bytes counts the encoded entries and the snapshot's image.
func (a Append) Bytes() int {
	n := messageBytes
	for _, e := range a.Entries {
		n += wire.EntrySize(e)
	}
	return n + len(a.Snapshot.GetData())
}

// Bytes counts the image.
func (c Checkpoint) Bytes() int { return messageBytes + len(c.Snapshot.GetData()) }

func (Append) message()     {}
func (Checkpoint) message() {}

// SizeOf is the size function of persist's mailbox.
func SizeOf(m Message) int { return m.Bytes() }

package wire

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// RangeRequest is etcdserverpb.RangeRequest.
type RangeRequest struct {
	Key, RangeEnd                        []byte
	Limit, Revision                      int64
	SortOrder, SortTarget                int32
	Serializable, KeysOnly, CountOnly    bool
	MinModRevision, MaxModRevision       int64
	MinCreateRevision, MaxCreateRevision int64
}

// PutRequest is etcdserverpb.PutRequest.
type PutRequest struct {
	Key, Value                       []byte
	Lease                            int64
	PrevKV, IgnoreValue, IgnoreLease bool
}

// DeleteRangeRequest is etcdserverpb.DeleteRangeRequest.
type DeleteRangeRequest struct {
	Key, RangeEnd []byte
	PrevKV        bool
}

// Compare is etcdserverpb.Compare. Int and Value hold the operand whose oneof member Operand names; a
// missing member leaves them zero.
type Compare struct {
	Result, Target int32
	Key, RangeEnd  []byte
	Operand        CompareOperand
	Int            int64
	Value          []byte
}

// CompareOperand says which oneof member of a Compare was present.
type CompareOperand uint8

const (
	OperandNone CompareOperand = iota
	OperandVersion
	OperandCreate
	OperandMod
	OperandValue
	OperandLease
)

// RequestOp is etcdserverpb.RequestOp: exactly one member is set, none if the client sent an empty one.
type RequestOp struct {
	Range  *RangeRequest
	Put    *PutRequest
	Delete *DeleteRangeRequest
	Txn    *TxnRequest
}

// TxnRequest is etcdserverpb.TxnRequest.
type TxnRequest struct {
	Compare          []Compare
	Success, Failure []RequestOp
}

// Request is etcdserverpb.InternalRaftRequest, the content of a normal raft entry: a header and exactly
// one request. The hot kinds are plain types; every other kind is Other, whose Header is not used.
type Request struct {
	ID           uint64 // header.ID, 0 only in entries of foreign origin
	Username     string // header.username, empty without auth
	AuthRevision uint64 // header.auth_revision

	Put         *PutRequest
	DeleteRange *DeleteRangeRequest
	Txn         *TxnRequest
	Compaction  *CompactionRequest
	Other       *pb.InternalRaftRequest

	// Trace is the trace context of a sampled request, the unknown top-level field 15000 that etcd
	// ignores. Apply never reads it. It does not count towards --max-request-bytes.
	Trace []byte
}

// CompactionRequest is etcdserverpb.CompactionRequest.
type CompactionRequest struct {
	Revision int64
	Physical bool
}

// Result is what applying one request gave, addressed to the waiter that proposed it.
type Result struct {
	ID       uint64        // of the request; 0 when nobody can wait for it
	Index    uint64        // log index of the entry
	Term     uint64        // its term
	Revision int64         // store revision for the response header
	Body     []byte        // hot kinds: the encoded response without its header field
	Message  proto.Message // other kinds: the response without its header; may be nil
	Err      error         // why the request had no effect; a sentinel of the package that found it

	// Physical is set by a compaction: closed once the deletions are committed on this member.
	Physical <-chan struct{}
}

// KeyValue is mvccpb.KeyValue.
type KeyValue struct {
	Key, Value                                  []byte
	CreateRevision, ModRevision, Version, Lease int64
}

// EventType is mvccpb.Event_EventType.
type EventType int32

const (
	EventPut    EventType = 0
	EventDelete EventType = 1
)

// Event is one change of one key, its parts encoded once for all watchers.
type Event struct {
	Type EventType
	Key  []byte // of the changed key
	Rev  int64  // main revision
	// Created says that the put (re)created the key, so that no previous value exists.
	Created bool
	// KV is the encoded mvccpb.KeyValue: whole for a put, key and mod_revision for a delete.
	KV []byte
	// Prev is the encoded mvccpb.KeyValue before the change. Nil when there was none, or when it was
	// not at hand: PrevUnknown then asks the watcher's stage to read it at Rev-1.
	Prev        []byte
	PrevUnknown bool
}

// EventBatch is the events of one applied batch in revision order, and the store's revision after it.
// CompactRevision is the last compaction revision, so that watch learns of compactions in FIFO order.
type EventBatch struct {
	Events          []Event
	Revision        int64
	CompactRevision int64
}

// Header is etcdserverpb.ResponseHeader.
type Header struct {
	ClusterID, MemberID uint64
	Revision            int64
	RaftTerm            uint64
}

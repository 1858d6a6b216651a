package wal

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Metadata says whose log this is. It stands at the head of every segment.
type Metadata struct {
	NodeID, ClusterID uint64
}

// Append appends m as etcdserverpb.Metadata, both fields always present.
func (m Metadata) Append(b []byte) []byte {
	b = appendUint(b, 1, m.NodeID)
	return appendUint(b, 2, m.ClusterID)
}

// DecodeMetadata reads etcdserverpb.Metadata.
func DecodeMetadata(b []byte) (Metadata, error) {
	var m Metadata
	err := uints(b, func(num protowire.Number, v uint64) {
		switch num {
		case 1:
			m.NodeID = v
		case 2:
			m.ClusterID = v
		}
	})
	if err != nil {
		return m, fmt.Errorf("decode metadata: %w", err)
	}
	return m, nil
}

// HardState is raft's: what a member may not forget. Commit may lag behind what was applied, because a
// change of it alone is not synced.
type HardState struct {
	Term, Vote, Commit uint64
}

// IsZero reports whether there is nothing to write.
func (s HardState) IsZero() bool { return s == HardState{} }

// Raft returns s in raft's words.
func (s HardState) Raft() *raftpb.HardState {
	return &raftpb.HardState{Term: &s.Term, Vote: &s.Vote, Commit: &s.Commit}
}

// append writes all three fields always, as etcd 3.7 does.
func (s HardState) append(b []byte) []byte {
	b = appendUint(b, 1, s.Term)
	b = appendUint(b, 2, s.Vote)
	return appendUint(b, 3, s.Commit)
}

func (s HardState) size() int {
	return 3 + protowire.SizeVarint(s.Term) + protowire.SizeVarint(s.Vote) + protowire.SizeVarint(s.Commit)
}

func decodeHardState(b []byte) (HardState, error) {
	var s HardState
	err := uints(b, func(num protowire.Number, v uint64) {
		switch num {
		case 1:
			s.Term = v
		case 2:
			s.Vote = v
		case 3:
			s.Commit = v
		}
	})
	if err != nil {
		return s, fmt.Errorf("decode hard state: %w", err)
	}
	return s, nil
}

// Snapshot is the log's record that everything up to Index is in a durable database. The first record of
// every log is {0, 0}; all others carry the ConfState.
type Snapshot struct {
	Index, Term uint64
	ConfState   *raftpb.ConfState // nil only at index 0
}

func (s Snapshot) append(b []byte) []byte {
	b = appendUint(b, 1, s.Index)
	b = appendUint(b, 2, s.Term)
	if s.ConfState == nil {
		return b
	}
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	return protowire.AppendBytes(b, AppendConfState(nil, s.ConfState))
}

func decodeSnapshot(b []byte) (Snapshot, error) {
	var s Snapshot
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return s, fmt.Errorf("decode snapshot record: %w", protowire.ParseError(n))
		}
		b = b[n:]
		n = protowire.ConsumeFieldValue(num, typ, b)
		if n < 0 {
			return s, fmt.Errorf("decode snapshot record: %w", protowire.ParseError(n))
		}
		switch {
		case num == 1 && typ == protowire.VarintType:
			s.Index, _ = protowire.ConsumeVarint(b)
		case num == 2 && typ == protowire.VarintType:
			s.Term, _ = protowire.ConsumeVarint(b)
		case num == 3 && typ == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(b)
			s.ConfState = &raftpb.ConfState{}
			if err := proto.Unmarshal(v, s.ConfState); err != nil {
				return s, fmt.Errorf("decode ConfState of snapshot record %d: %w", s.Index, err)
			}
		}
		b = b[n:]
	}
	return s, nil
}

// AppendConfState appends raftpb.ConfState as etcd's server writes it: ids unpacked, auto_leave always
// present.
func AppendConfState(b []byte, c *raftpb.ConfState) []byte {
	for i, ids := range [][]uint64{c.GetVoters(), c.GetLearners(), c.GetVotersOutgoing(), c.GetLearnersNext()} {
		for _, id := range ids {
			b = appendUint(b, protowire.Number(i+1), id)
		}
	}
	return appendUint(b, 5, protowire.EncodeBool(c.GetAutoLeave()))
}

func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

// uints calls fn for every varint field of the message in b.
func uints(b []byte, fn func(num protowire.Number, v uint64)) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		n = protowire.ConsumeFieldValue(num, typ, b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if typ == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(b)
			fn(num, v)
		}
		b = b[n:]
	}
	return nil
}

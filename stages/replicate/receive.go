package replicate

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// peer steps one batch from the peers' side.
func (c *core) peer(in PeerInput) {
	for _, m := range in.Messages {
		c.receive(m)
	}
	c.unsent(in.Unsent)
	if in.Unreachable != 0 {
		c.node.ReportUnreachable(in.Unreachable)
	}
	switch in.Snapshot {
	case SnapshotDelivered:
		delete(c.sending, in.To)
		c.node.ReportSnapshot(in.To, raft.SnapshotFinish)
	case SnapshotFailed:
		delete(c.sending, in.To)
		c.node.ReportSnapshot(in.To, raft.SnapshotFailure)
	}
}

func (c *core) receive(m *raftpb.Message) {
	if !admissible(m) || m.GetTo() != c.set.ID {
		return
	}
	switch m.GetType() {
	case raftpb.MsgApp:
		if len(m.GetEntries()) > 0 && c.appendBytes > c.set.AppendBytesMax {
			c.out.dropped++
			return
		}
	case raftpb.MsgReadIndex:
		// The rule of read, for the requests of learners: raft keeps those of voters until it can answer.
		if c.alone && c.standing.Leading && c.standing.CommittedTerm != c.standing.Term {
			return
		}
	}
	_ = c.node.Step(m) // a proposal that found no leader is the sender's loss: it waits and times out
}

// unsent takes back messages that certainly did not leave.
func (c *core) unsent(msgs []*raftpb.Message) {
	for _, m := range msgs {
		switch m.GetType() {
		case raftpb.MsgProp:
			c.refuse(m.GetEntries(), NoLeader)
		case raftpb.MsgSnap:
			delete(c.sending, m.GetTo())
			c.node.ReportSnapshot(m.GetTo(), raft.SnapshotFailure)
		}
	}
}

// admissible says whether a message from the network is one that raft can be trusted with: what a broken
// or lying peer could send must not stop this member.
func admissible(m *raftpb.Message) bool {
	t := m.GetType()
	if m.GetFrom() == raft.None || raft.IsLocalMsgTarget(m.GetFrom()) ||
		raft.IsLocalMsg(t) || t == raftpb.MsgForgetLeader {
		return false
	}
	switch t {
	case raftpb.MsgProp:
		return len(m.GetEntries()) > 0 && proposable(m.GetEntries())
	case raftpb.MsgReadIndex, raftpb.MsgReadIndexResp:
		return len(m.GetEntries()) == 1 && m.GetEntries()[0] != nil
	case raftpb.MsgHeartbeatResp:
		return len(m.GetContext()) == 0 || len(m.GetContext()) == 8
	case raftpb.MsgApp:
		for i, e := range m.GetEntries() {
			if e.GetIndex() != m.GetIndex()+1+uint64(i) || e.GetTerm() > m.GetTerm() {
				return false
			}
		}
	}
	return true
}

func proposable(entries []*raftpb.Entry) bool {
	for _, e := range entries {
		switch e.GetType() {
		case raftpb.EntryNormal:
		case raftpb.EntryConfChange:
			if proto.Unmarshal(e.GetData(), &raftpb.ConfChange{}) != nil {
				return false
			}
		default:
			return false // EntryConfChangeV2 is never written: contract/disk-and-peer.md 8.3
		}
	}
	return true
}

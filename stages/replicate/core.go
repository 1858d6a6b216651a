package replicate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/wire"
)

// core is the raft loop without its mailboxes: every method steps raft with one input, ready then drains
// raft into out. raft and the log are deterministic but for the election timeouts.
type core struct {
	set  Settings
	node *raft.RawNode
	log  *log
	out  output

	// As raft's last Ready told.
	standing  Standing
	commit    uint64
	hurry     bool // the only voter has not campaigned yet: it need not wait for an election timeout
	alone     bool // the only voter is this member
	confAfter uint64
	// confAfter is the applied index from which on raft takes a conf change: before, it would turn it into
	// an empty entry and nobody would answer. confStepped says that one was stepped since the last Ready.
	confStepped bool

	appends     []pendingAppend // without a credit; a second one only behind a received snapshot
	work        []pendingWork   // without a credit
	credits     struct{ persist, apply int }
	inFlight    []int64 // bytes of each unacknowledged Append, oldest first
	appendBytes int64   // of entries pending or in flight to persist

	checkpoint  *raftpb.Snapshot    // asked for, not yet handed over
	checkpoints int                 // handed over, not acknowledged: 0 or 1
	sending     map[uint64]struct{} // peers that a snapshot is on its way to
	cutAt       uint64              // applied index of the last cut

	lastTick  int64  // when, 0 before the first
	frozen    bool   // a tick came late and leadership was not confirmed since
	frozenTil uint64 // the read round that confirms it; 0 until one is stepped
}

// output is what one turn wants sent. Slices are reused by the next turn, their contents are not.
type output struct {
	appends      []Append
	checkpoint   *raftpb.Snapshot
	work         []pendingWork
	sends        []send
	refusals     []refusal
	results      []wire.Result
	round, index uint64 // newest confirmed read round, 0 for none
	standing     bool   // core.standing changed
	lostLeader   uint64 // the leader before the change
	wantSnapshot bool
	dropped      int    // MsgApps
	late         int64  // by how many nanoseconds a leader's heartbeat was late, 0 for not
	first, last  uint64 // indexes appended
	entries      int
	bytes        int64
}

type send struct {
	to   uint64
	msgs []*raftpb.Message
}

type refusal struct {
	entries []*raftpb.Entry
	why     Refusal
}

// pendingWork is a Batch, or an Install when snapshot is not nil.
type pendingWork struct {
	batch    Batch
	snapshot *raftpb.Snapshot
	owned    bool // batch's slices are ours to append to
}

type pendingAppend struct {
	Append
	owned bool // the slices are ours to append to
	bytes int64
}

func newCore(set Settings, b Boot, l raft.Logger) (*core, error) {
	set = set.withDefaults()
	lg, err := newLog(b)
	if err != nil {
		return nil, err
	}
	c := &core{set: set, log: lg, sending: make(map[uint64]struct{})}
	c.credits.persist, c.credits.apply = set.PersistCredits, set.ApplyCredits
	c.node, err = raft.NewRawNode(&raft.Config{
		ID: set.ID, ElectionTick: set.ElectionTicks, HeartbeatTick: heartbeatTicks, Storage: lg,
		AsyncStorageWrites: true, CheckQuorum: true, PreVote: set.PreVote,
		MaxSizePerMsg: messageBytesMax, MaxInflightMsgs: inflightMessages, MaxInflightBytes: inflightBytesMax,
		MaxCommittedSizePerReady: applyingBytesMax, MaxUncommittedEntriesSize: set.UncommittedBytesMax,
		Logger: l,
	})
	if err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	voters := lg.confState.GetVoters()
	if len(b.Peers) > 0 {
		if err := c.node.Bootstrap(b.Peers); err != nil {
			return nil, fmt.Errorf("bootstrap raft with %d members: %w", len(b.Peers), err)
		}
		voters = nil
		for _, p := range b.Peers {
			voters = append(voters, p.ID)
		}
	}
	c.voters(voters)
	c.hurry = c.alone || len(voters) == 0 // without voters: the first ones stand in the log's committed entries
	st := c.node.BasicStatus()
	c.commit, c.standing.Term = st.GetCommit(), st.GetTerm()
	c.standing.CommittedTerm, _ = lg.Term(c.commit)
	return c, nil
}

func (c *core) voters(ids []uint64) { c.alone = len(ids) == 1 && ids[0] == c.set.ID }

// propose steps one batch: normal entries, or one conf change alone.
func (c *core) propose(entries []*raftpb.Entry) {
	conf := entries[0].GetType() == raftpb.EntryConfChange
	if conf && c.standing.Leading && (c.confStepped || c.log.applied < c.confAfter) {
		c.refuse(entries, Pending)
		return
	}
	err := c.node.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(c.set.ID), Entries: entries})
	switch {
	case err == nil:
		c.confStepped = c.confStepped || conf
	case errors.Is(err, raft.ErrProposalDropped):
		why := NoLeader
		if c.standing.Leading && c.node.BasicStatus().LeadTransferee == raft.None {
			why = Overloaded
		}
		c.refuse(entries, why)
	default:
		panic(fmt.Sprintf("replicate: raft refused %d entries: %v", len(entries), err))
	}
}

func (c *core) refuse(entries []*raftpb.Entry, why Refusal) {
	c.out.refusals = append(c.out.refusals, refusal{entries, why})
}

// read steps one read round. A leader that has not committed in its term is not asked: alone, raft answers
// at once from a commit index that was on disk, which may lie below what it acknowledged before it was
// restarted. propose asks again when CommittedTerm reaches Term.
func (c *core) read(round uint64) {
	if c.standing.Leading && c.standing.CommittedTerm != c.standing.Term {
		return
	}
	if c.frozen && c.frozenTil == 0 {
		c.frozenTil = round
	}
	c.node.ReadIndex(binary.BigEndian.AppendUint64(make([]byte, 0, 8), round))
}

func (c *core) transfer(to uint64) { c.node.TransferLeader(to) }

// forget makes a follower forget its leader, so that it takes part in an election at once.
func (c *core) forget() {
	_ = c.node.ForgetLeader() // a leader ignores it
}

// tick advances raft's clock by one. now is monotonic nanoseconds, every is the heartbeat interval.
func (c *core) tick(now, every int64) {
	if gap := now - c.lastTick; c.lastTick != 0 {
		if c.standing.Leading && !c.alone && gap > lateHeartbeatTicks*every {
			c.out.late = gap - lateHeartbeatTicks*every
		}
		if gap > freshTicks*every {
			c.frozen, c.frozenTil = true, 0
		}
	}
	c.lastTick = now
	c.node.Tick()
}

// persisted takes persist's acknowledgement.
func (c *core) persisted(a PersistAck) {
	if a.Appends > len(c.inFlight) {
		panic(fmt.Sprintf("replicate: %d appends acknowledged, %d in flight", a.Appends, len(c.inFlight)))
	}
	for _, n := range c.inFlight[:a.Appends] {
		c.appendBytes -= n
	}
	c.inFlight = append(c.inFlight[:0], c.inFlight[a.Appends:]...)
	c.credits.persist += a.Appends
	if a.CheckpointIndex != 0 {
		c.checkpoints = 0
		c.cut()
	}
	c.respond(a.Responses)
}

// applied takes apply's acknowledgement.
func (c *core) applied(a ApplyAck) {
	c.credits.apply += a.Batches
	if c.credits.apply > c.set.ApplyCredits {
		panic(fmt.Sprintf("replicate: %d batches acknowledged, credits %d of %d",
			a.Batches, c.credits.apply, c.set.ApplyCredits))
	}
	for _, v := range a.Verdicts {
		if v.Change != nil {
			c.voters(c.node.ApplyConfChange(v.Change).GetVoters())
		}
		c.out.results = append(c.out.results, v.Result)
	}
	c.respond(a.Responses)
	if a.Checkpoint != nil {
		c.checkpoint = a.Checkpoint
	}
	if c.log.applied >= c.cutAt+cutEvery || c.log.bytes > c.set.LogBytesMax {
		c.cut()
	}
}

// respond delivers the responses of an acknowledged write, in order: to raft, or to the peers.
func (c *core) respond(msgs []*raftpb.Message) {
	for _, m := range msgs {
		switch {
		case m.GetTo() != c.set.ID:
			c.send(m)
			continue
		case m.GetType() == raftpb.MsgStorageAppendResp && m.GetSnapshot() != nil:
			c.addWork(pendingWork{snapshot: m.GetSnapshot()})
		case m.GetType() == raftpb.MsgStorageApplyResp:
			if n := len(m.GetEntries()); n > 0 {
				c.log.appliedTo(m.GetEntries()[n-1].GetIndex())
			}
		}
		_ = c.node.Step(m) // refused only when this member was removed meanwhile
	}
}

// cut drops what the log need not keep. While a snapshot is on its way, the entries behind it stay as far
// as the byte bound allows: the follower will ask for them next.
func (c *core) cut() {
	catchUp := c.set.CatchUpEntries
	if len(c.sending) > 0 {
		catchUp = math.MaxUint64
	}
	c.log.cut(c.log.cutIndex(catchUp, c.set.LogBytesMax))
	c.cutAt = c.log.applied
}

// offered takes a snapshot that apply made for a follower.
func (c *core) offered(s *raftpb.Snapshot) {
	c.log.offer, c.log.wanted = s, false
}

package replicate

import (
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func confChange(id uint64, what raftpb.ConfChangeType, node uint64) *raftpb.ConfChange {
	return &raftpb.ConfChange{Id: new(id), Type: what.Enum(), NodeId: new(node)}
}

// alone is what the only voter boots from.
func alone(entries []*raftpb.Entry, hs *raftpb.HardState) Boot {
	return Boot{Entries: entries, HardState: hs, ConfState: &raftpb.ConfState{Voters: []uint64{1}}}
}

// appendOne is the leader's message with entry i+1 of term 1, committed.
func appendOne(i uint64) *raftpb.Message {
	return &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), Index: new(i), LogTerm: new(min(i, 1)), Commit: new(i + 1),
		Entries: logEntries(i+1, i+1, 1),
	}
}

// One member and three run through the same code: only the election timeout is saved by the one.
func TestClusterOrdersProposals(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := newCluster(t, n, nil)
			if n == 1 && c.leader() == nil {
				t.Fatal("the only voter does not lead at once")
			}
			l := c.elect()
			for i := uint64(1); i <= 1000; i += 10 {
				l.propose(c, i, i+9)
				if i%3 == 0 {
					c.run()
				}
			}
			c.run()
			c.tick(1)
			c.agree(upTo(1000))
			for _, m := range c.members {
				if len(m.applied) == 0 || m.c.log.unapplied != 0 || !m.c.idle() {
					t.Errorf("member %d: %d bytes unapplied, idle %v", m.c.set.ID, m.c.log.unapplied, m.c.idle())
				}
			}
		})
	}
}

func TestFollowerForwardsAndReads(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	var f *member
	for _, m := range c.members {
		if m != l {
			f = m
		}
	}
	f.propose(c, 1, 5)
	c.run()
	f.c.read(77)
	f.turn(c)
	c.run()
	if f.round != 77 || f.readIndex < l.c.commit {
		t.Errorf("round %d at %d, leader committed %d", f.round, f.readIndex, l.c.commit)
	}
	c.tick(1)
	c.agree(upTo(5))

	c.refuse[l.c.set.ID] = true // no room on the way to the leader
	f.propose(c, 6, 7)
	if len(f.refusals) != 1 || f.refusals[0].why != NoLeader || len(f.refusals[0].entries) != 2 {
		t.Errorf("refusals %+v", f.refusals)
	}
	delete(c.refuse, l.c.set.ID)
	c.run()
	c.agree(upTo(5))
}

func TestLeaderLossElectsAnother(t *testing.T) {
	c := newCluster(t, 3, nil)
	old := c.elect()
	old.propose(c, 1, 3)
	c.run()
	c.isolate(old.c.set.ID)
	old.propose(c, 100, 110) // never committed: overwritten when the links are back
	for range 60 {
		c.tick(1)
	}
	if old.c.standing.Leader != 0 {
		t.Errorf("the isolated leader still leads: %+v", old.c.standing)
	}
	old.propose(c, 111, 111)
	if len(old.refusals) != 1 || old.refusals[0].why != NoLeader {
		t.Errorf("refusals without a leader: %+v", old.refusals)
	}
	l := c.leader()
	if l == nil || l == old {
		t.Fatal("the others have no leader")
	}
	l.propose(c, 4, 6)
	c.run()
	c.heal()
	c.tick(30)
	c.agree(upTo(6))
}

func TestConfChanges(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.elect()
	add := func(id, node uint64) {
		l.change(c, confChange(id, raftpb.ConfChangeAddNode, node))
	}
	add(50, 2)
	add(51, 3) // one is unapplied: not put into the log as an empty entry, but refused
	if len(l.refusals) != 1 || l.refusals[0].why != Pending ||
		l.refusals[0].entries[0].GetType() != raftpb.EntryConfChange {
		t.Fatalf("refusals %+v", l.refusals)
	}
	c.ids = append(c.ids, 2)
	c.members[2] = newMember(t, Settings{ID: 2, PreVote: true}, Boot{})
	c.run()
	if len(l.results) != 2 || l.results[1].ID != 50 { // the first is the bootstrap's
		t.Fatalf("results %+v", l.results)
	}
	c.tick(5)
	l.propose(c, 1, 20)
	c.run()
	c.tick(3)
	c.agree(upTo(20))
	if c.members[2].c.alone || l.c.alone {
		t.Error("a member believes to be alone")
	}

	// A refused change: NodeId 0 changes nothing and lets the next one go.
	l.work, l.slow = nil, true
	add(52, 9)
	for len(l.work) == 0 {
		c.run()
	}
	w := l.work[0]
	l.work, l.slow = nil, false
	l.index = w.batch.Entries[len(w.batch.Entries)-1].GetIndex()
	l.c.applied(ApplyAck{Batches: 1, Index: l.index, Responses: w.batch.Responses,
		Verdicts: []Verdict{{Change: &raftpb.ConfChange{NodeId: proto.Uint64(0)}}}})
	l.turn(c)
	if n := len(l.c.node.Status().Config.Voters.IDs()); n != 2 {
		t.Errorf("%d voters after a refused change", n)
	}
	l.change(c, confChange(53, raftpb.ConfChangeRemoveNode, 2))
	c.run()
	if !l.c.alone {
		t.Error("not alone after the removal")
	}
}

// A change taken at the moment of election would become an empty entry without a word: whether one of the
// entries before is a conf change, raft does not look.
func TestNewLeaderRefusesConfChangesUntilApplied(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.members[1]
	l.propose(c, 1, 2)
	c.run()
	m := newMember(t, Settings{ID: 1, PreVote: true}, alone(l.disk, l.hardState))
	c.members[1] = m
	m.turn(c)
	for !m.c.standing.Leading {
		if !m.step(c) {
			t.Fatal("stuck before the election")
		}
	}
	m.change(c, confChange(60, raftpb.ConfChangeAddLearnerNode, 2))
	if len(m.refusals) != 1 || m.refusals[0].why != Pending {
		t.Fatalf("refusals %+v", m.refusals)
	}
	c.run()
	m.c.propose(m.refusals[0].entries)
	c.run()
	if n := len(m.results); n == 0 || m.results[n-1].ID != 60 {
		t.Errorf("results %+v", m.results)
	}
}

// The commit index on disk may lie below what was acknowledged: it is written without a sync. A leader
// that is alone would answer a read from it as soon as it is elected.
func TestReadsWaitForTheFirstCommitOfTheTerm(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.members[1]
	l.propose(c, 1, 10)
	c.run()
	acknowledged := l.c.commit
	stale := &raftpb.HardState{Term: new(l.hardState.GetTerm()), Vote: new(l.hardState.GetVote()), Commit: new(uint64(2))}
	m := newMember(t, Settings{ID: 1, PreVote: true}, alone(l.disk, stale))
	c.members[1] = m
	m.turn(c)
	for round := uint64(1); !m.c.standing.Leading || m.c.standing.CommittedTerm != m.c.standing.Term; round++ {
		m.c.read(round)
		m.turn(c)
		if m.round != 0 {
			t.Fatalf("round %d answered at %d by %+v, %d were acknowledged", m.round, m.readIndex, m.c.standing, acknowledged)
		}
		if !m.step(c) {
			t.Fatal("stuck")
		}
	}
	m.c.read(1000)
	m.turn(c)
	if m.round != 1000 || m.readIndex < acknowledged {
		t.Errorf("round %d at %d, acknowledged %d", m.round, m.readIndex, acknowledged)
	}
}

// A stalled disk: everything joins one pending append, memory is what was proposed, and time, votes and
// reads go on. Afterwards all is there, in order.
func TestStalledDisk(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := newCluster(t, n, nil)
			l := c.elect()
			l.stalled = true
			for i := uint64(1); i <= 20000; i += 2 {
				l.propose(c, i, i+1)
				if i%1000 == 1 {
					l.c.read(i)
					c.tick(1)
					if l.round != i {
						t.Fatalf("round %d is not answered", i)
					}
				}
			}
			if !l.c.standing.Leading {
				t.Error("leadership lost to a stalled disk")
			}
			if len(l.appends) > l.c.set.PersistCredits || len(l.c.appends) > 1 {
				t.Errorf("%d appends handed over, %d pending", len(l.appends), len(l.c.appends))
			}
			// One of three is enough slack to commit without this disk.
			if n == 1 && l.c.log.unapplied < 20000*entryOverhead {
				t.Errorf("%d bytes unapplied of 20000 entries", l.c.log.unapplied)
			}
			l.stalled = false
			c.run()
			c.tick(2)
			c.agree(upTo(20000))
			if l.c.appendBytes != 0 || l.c.log.unapplied != 0 {
				t.Errorf("%d bytes to append, %d to apply", l.c.appendBytes, l.c.log.unapplied)
			}
		})
	}
}

func TestSlowApply(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	l.slow = true
	for i := uint64(1); i <= 5000; i++ {
		l.propose(c, i, i)
		if i%100 == 0 {
			c.tick(1)
		}
	}
	c.run()
	if len(l.work) != l.c.set.ApplyCredits || len(l.c.work) != 1 {
		t.Errorf("%d batches handed over, %d pending", len(l.work), len(l.c.work))
	}
	if !l.c.standing.Leading || l.c.commit < 5000 {
		t.Errorf("standing %+v, commit %d", l.c.standing, l.c.commit)
	}
	l.slow = false
	c.run()
	c.tick(1)
	c.agree(upTo(5000))
}

// raft's own limit strikes above propose's: the whole batch is refused, at once.
func TestOverloadRefusesTheBatch(t *testing.T) {
	c := newCluster(t, 1, func(s *Settings) { s.UncommittedBytesMax = 80 })
	l := c.elect()
	l.stalled = true
	l.propose(c, 1, 8)
	l.propose(c, 9, 11)
	l.propose(c, 12, 13)
	if len(l.refusals) != 1 || l.refusals[0].why != Overloaded || len(l.refusals[0].entries) != 3 {
		t.Errorf("refusals %+v", l.refusals)
	}
	l.stalled = false
	c.run()
	c.agree([]uint64{1, 2, 3, 4, 5, 6, 7, 8, 12, 13})
}

// A follower whose disk stalls drops MsgApp above its budget, keeps following, and catches up.
func TestFollowerBoundsItsAppendBacklog(t *testing.T) {
	c := newCluster(t, 3, func(s *Settings) { s.AppendBytesMax = 20 * entryOverhead })
	l := c.elect()
	var f *member
	for _, m := range c.members {
		if m != l {
			f = m
		}
	}
	f.stalled = true
	dropped := 0
	for i := uint64(1); i <= 1000; i++ {
		l.propose(c, i, i)
		c.run()
		dropped += f.c.out.dropped
		if f.c.appendBytes > 22*(entryOverhead+8) {
			t.Fatalf("%d bytes wait for the disk at entry %d", f.c.appendBytes, i)
		}
	}
	c.tick(20)
	if f.c.standing.Leader != l.c.set.ID {
		t.Errorf("the follower lost its leader: %+v", f.c.standing)
	}
	f.stalled = false
	for range 100 {
		c.tick(1)
	}
	c.agree(upTo(1000))
}

// A follower behind the cut log gets a snapshot: asked of apply, written by persist, installed by apply
// before raft hears of it, and the log goes on behind it.
func TestSnapshotCatchUp(t *testing.T) {
	c := newCluster(t, 3, func(s *Settings) { s.CatchUpEntries = 10 })
	l := c.elect()
	var f *member
	for _, m := range c.members {
		if m != l {
			f = m
		}
	}
	c.isolate(f.c.set.ID)
	for i := uint64(1); i <= 500; i++ {
		l.propose(c, i, i)
		c.run()
	}
	if first := l.c.log.index + 1; first < 300 {
		t.Fatalf("the log begins at %d", first)
	}
	c.heal()
	for i := 0; !l.wants; i++ {
		if i > 50 {
			t.Fatal("no snapshot is wanted")
		}
		c.tick(1)
	}
	at, term := l.index, l.c.standing.Term
	l.c.offered(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		Index: new(at), Term: new(term), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}})
	for i := 0; f.installed == 0; i++ {
		if i > 50 {
			t.Fatal("no snapshot is installed")
		}
		c.tick(1)
	}
	if f.installed != at || f.trace[0] != fmt.Sprintf("snap %d", at) {
		t.Errorf("installed %d, want %d; %v", f.installed, at, f.trace)
	}
	if len(l.c.sending) != 1 {
		t.Errorf("%d snapshots on their way", len(l.c.sending))
	}
	l.c.peer(PeerInput{Snapshot: SnapshotDelivered, To: f.c.set.ID})
	l.turn(c)
	l.propose(c, 501, 510)
	c.run()
	c.tick(3)
	if f.index != l.index || f.index < 510 || len(l.c.sending) != 0 {
		t.Errorf("follower at %d, leader at %d", f.index, l.index)
	}
}

// A slow apply still has older batches when the snapshot is durable: the Install waits behind them, and
// what follows it stays apart.
func TestInstallKeepsItsPlace(t *testing.T) {
	m := newMember(t, Settings{ID: 2, ApplyCredits: 1}, Boot{ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}})
	c := &cluster{
		t: t, members: map[uint64]*member{2: m}, ids: []uint64{2}, cut: map[[2]uint64]bool{}, refuse: map[uint64]bool{},
	}
	m.slow = true
	from := func(msg *raftpb.Message) {
		msg.From, msg.To, msg.Term = new(uint64(1)), new(uint64(2)), new(uint64(1))
		m.c.peer(PeerInput{Messages: []*raftpb.Message{msg}})
		c.run()
	}
	for i := uint64(0); i < 4; i++ {
		from(appendOne(i))
	}
	meta := &raftpb.SnapshotMetadata{
		Index: new(uint64(50)), Term: new(uint64(1)), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}},
	}
	from(&raftpb.Message{Type: raftpb.MsgSnap.Enum(), Snapshot: &raftpb.Snapshot{Metadata: meta}})
	for i := uint64(50); i < 53; i++ {
		from(appendOne(i))
	}
	var order []string
	for len(m.work) > 0 {
		if w := m.work[0]; w.snapshot != nil {
			order = append(order, fmt.Sprintf("install %d", w.snapshot.GetMetadata().GetIndex()))
		} else {
			es := w.batch.Entries
			order = append(order, fmt.Sprintf("apply %d-%d", es[0].GetIndex(), es[len(es)-1].GetIndex()))
		}
		m.apply(c)
	}
	if want := []string{"apply 1-1", "apply 2-4", "install 50", "apply 51-53"}; !slices.Equal(order, want) {
		t.Errorf("got %q, want %q", order, want)
	}
	if m.c.log.unapplied != 0 || !m.c.idle() {
		t.Errorf("%d bytes unapplied, idle %v", m.c.log.unapplied, m.c.idle())
	}
}

func TestTransferForgetUnreachable(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	to := l.c.set.ID%3 + 1
	l.c.transfer(to)
	l.turn(c)
	c.run()
	c.tick(2)
	if now := c.leader(); now == nil || now.c.set.ID != to {
		t.Fatalf("leadership was not transferred to %d", to)
	}
	l.c.forget()
	l.turn(c)
	if l.c.standing.Leader != 0 {
		t.Errorf("a follower still knows leader %d", l.c.standing.Leader)
	}
	c.tick(2)
	if l.c.standing.Leader != to {
		t.Errorf("the leader's heartbeat was not heard: %+v", l.c.standing)
	}
	now := c.members[to]
	now.c.peer(PeerInput{Unreachable: l.c.set.ID})
	now.turn(c)
	if st := now.c.node.Status().Progress[l.c.set.ID].State.String(); st != "StateProbe" {
		t.Errorf("an unreachable peer is in %s", st)
	}
	now.propose(c, 1, 3)
	c.run()
	c.tick(2)
	c.agree(upTo(3))
}

// While leadership is transferred, proposals are dropped by raft: refused at once.
func TestTransferRefusesProposals(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	to := l.c.set.ID%3 + 1
	c.isolate(to)
	l.propose(c, 1, 1) // so that the transferee is behind and is not told at once
	l.c.transfer(to)
	l.propose(c, 2, 3)
	if len(l.refusals) != 1 || l.refusals[0].why != NoLeader {
		t.Errorf("refusals %+v", l.refusals)
	}
}

func TestFrozenProcessIsNotFreshUntilConfirmed(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	l.c.tick(l.c.lastTick+300, 100)
	if l.c.frozen || l.c.out.late == 0 {
		t.Errorf("after 3 intervals: frozen %v, late %d", l.c.frozen, l.c.out.late)
	}
	l.c.tick(l.c.lastTick+301, 100)
	l.c.tick(l.c.lastTick+100, 100)
	if !l.c.frozen {
		t.Error("the tick after a freeze hides it")
	}
	l.c.read(9)
	l.turn(c)
	if !l.c.frozen {
		t.Error("confirmed before a quorum answered")
	}
	c.run()
	if l.c.frozen {
		t.Error("a read round does not confirm")
	}
}

// What a broken or lying peer sends must not stop this member.
func TestInadmissibleMessages(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	me, other := l.c.set.ID, l.c.set.ID%3+1
	bad := []*raftpb.Message{
		{},
		{Type: raftpb.MsgHup.Enum()},
		{Type: raftpb.MsgStorageAppendResp.Enum(), From: new(raft.LocalAppendThread), Index: new(uint64(1))},
		{Type: raftpb.MsgStorageApplyResp.Enum(), From: new(raft.LocalApplyThread)},
		{Type: raftpb.MsgBeat.Enum()},
		{Type: raftpb.MsgForgetLeader.Enum()},
		{Type: raftpb.MsgProp.Enum()},
		{Type: raftpb.MsgProp.Enum(), Entries: []*raftpb.Entry{{Type: raftpb.EntryConfChange.Enum(), Data: []byte{0xff}}}},
		{Type: raftpb.MsgProp.Enum(), Entries: []*raftpb.Entry{{Type: raftpb.EntryConfChangeV2.Enum()}}},
		{Type: raftpb.MsgReadIndex.Enum()},
		{Type: raftpb.MsgReadIndexResp.Enum()},
		{Type: raftpb.MsgHeartbeatResp.Enum(), Context: []byte{1}},
		{Type: raftpb.MsgApp.Enum(), Term: new(uint64(9)), Index: new(uint64(5)), Entries: logEntries(9, 9, 1)},
		{Type: raftpb.MsgApp.Enum(), Term: new(uint64(9)), Index: new(uint64(5)), Entries: logEntries(6, 6, 10)},
	}
	before := l.c.node.BasicStatus()
	for i, m := range bad {
		m.To = new(me)
		if m.From == nil {
			m.From = new(other)
		}
		l.c.peer(PeerInput{Messages: []*raftpb.Message{m}})
		l.turn(c)
		if now := l.c.node.BasicStatus(); now.GetTerm() != before.GetTerm() || now.GetCommit() != before.GetCommit() {
			t.Errorf("message %d changed the state to %v", i, now)
		}
	}
	elsewhere := &raftpb.Message{Type: raftpb.MsgApp.Enum(), To: new(other), From: new(other), Term: new(uint64(9))}
	l.c.peer(PeerInput{Messages: []*raftpb.Message{elsewhere}})
	l.turn(c)
	if l.c.standing.Term != before.GetTerm() {
		t.Error("a message for another member was stepped")
	}
}

// A checkpoint leaves behind every append that waited before it; one is outstanding at a time.
func TestCheckpoints(t *testing.T) {
	c := newCluster(t, 1, func(s *Settings) { s.CatchUpEntries = 5 })
	l := c.elect()
	for i := uint64(1); i <= 50; i++ {
		l.propose(c, i, i)
		c.run()
	}
	snap := func(i uint64) *raftpb.Snapshot {
		return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(i), Term: new(uint64(2))}}
	}
	l.stalled = true
	for i := uint64(51); i <= 60; i++ {
		l.propose(c, i, i)
	}
	l.c.applied(ApplyAck{Checkpoint: snap(40)})
	l.turn(c)
	if l.checkpoint != nil {
		t.Fatal("the checkpoint overtook a pending append")
	}
	l.stalled = false
	c.run()
	if l.checkpoint.GetMetadata().GetIndex() != 40 {
		t.Fatalf("checkpoint %v", l.checkpoint)
	}
	l.c.applied(ApplyAck{Checkpoint: snap(45)})
	l.c.applied(ApplyAck{Checkpoint: snap(46)})
	l.turn(c)
	if l.checkpoint.GetMetadata().GetIndex() != 40 || l.c.idle() {
		t.Errorf("a second checkpoint is outstanding: %v", l.checkpoint)
	}
	l.c.persisted(PersistAck{CheckpointIndex: 40})
	l.turn(c)
	if l.checkpoint.GetMetadata().GetIndex() != 46 {
		t.Errorf("checkpoint %v, want the newest", l.checkpoint)
	}
	if kept := l.c.log.last() - l.c.log.index; kept != 5 {
		t.Errorf("%d entries kept after the checkpoint", kept)
	}
	l.c.persisted(PersistAck{CheckpointIndex: 46})
	l.turn(c)
	if !l.c.idle() {
		t.Error("not idle")
	}
}

// Entries of a deposed leader that never reached the disk are not written, but answered.
func TestPendingAppendsAreOverwritten(t *testing.T) {
	c := newCluster(t, 3, func(s *Settings) { s.PersistCredits = 1 })
	old := c.elect()
	c.isolate(old.c.set.ID)
	old.stalled = true
	old.propose(c, 100, 100) // in flight
	old.propose(c, 101, 120) // pending
	for range 60 {
		c.tick(1)
	}
	l := c.leader()
	l.propose(c, 1, 5)
	c.run()
	c.heal()
	for range 10 {
		c.tick(1)
	}
	if n := len(old.c.appends); n != 1 {
		t.Fatalf("%d pending appends", n)
	}
	for _, e := range old.c.appends[0].Entries {
		if e.GetTerm() != l.c.standing.Term {
			t.Errorf("entry %d of term %d waits for the disk", e.GetIndex(), e.GetTerm())
		}
	}
	old.stalled = false
	c.run()
	c.tick(3)
	c.agree(upTo(5))
	if old.c.appendBytes != 0 {
		t.Errorf("%d bytes left to append", old.c.appendBytes)
	}
}

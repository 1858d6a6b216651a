package replicate

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// ready drains raft completely into out, then hands out what credits allow. It is called once after a
// batch of inputs.
func (c *core) ready() {
	for {
		c.campaign()
		if !c.node.HasReady() {
			break
		}
		rd := c.node.Ready()
		c.take(&rd)
	}
	c.confStepped = false
	c.flush()
	if c.log.wanted {
		c.log.wanted = false
		c.out.wantSnapshot = true
	}
}

// campaign makes the only voter lead without waiting for an election timeout. raft refuses while conf
// changes are committed and not applied, so that it waits for all that was committed at boot.
func (c *core) campaign() {
	if !c.hurry || !c.alone || c.log.applied < c.commit {
		return
	}
	c.hurry = false
	_ = c.node.Campaign()
}

// take distributes one Ready. Entries enter the log now, not on the acknowledgement: raft reads them from
// there only once it was told that they are durable.
func (c *core) take(rd *raft.Ready) {
	for i := range rd.ReadStates {
		c.readState(&rd.ReadStates[i])
	}
	if !raft.IsEmptySnap(rd.Snapshot) {
		m := rd.Snapshot.GetMetadata()
		c.log.restore(m.GetIndex(), m.GetTerm())
		c.cutAt = m.GetIndex()
		c.voters(m.GetConfState().GetVoters())
	}
	c.append(rd.Entries)
	c.stand(rd)
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			c.addAppend(m)
		case raft.LocalApplyThread:
			c.addWork(pendingWork{batch: Batch{Entries: m.GetEntries(), Responses: m.GetResponses()}})
		default:
			if m.GetType() == raftpb.MsgSnap {
				c.sending[m.GetTo()] = struct{}{}
			}
			c.send(m)
		}
	}
}

func (c *core) readState(rs *raft.ReadState) {
	if len(rs.RequestCtx) != 8 {
		return // not one of ours
	}
	round := binary.BigEndian.Uint64(rs.RequestCtx)
	if c.frozenTil != 0 && round >= c.frozenTil {
		c.frozen, c.frozenTil = false, 0
	}
	if round > c.out.round {
		c.out.round, c.out.index = round, rs.Index
	}
}

func (c *core) append(entries []*raftpb.Entry) {
	if len(entries) == 0 {
		return
	}
	c.log.append(entries)
	for _, e := range entries {
		if e.GetType() == raftpb.EntryConfChange {
			c.confAfter = e.GetIndex()
		}
		c.out.bytes += int64(len(e.GetData()))
	}
	if c.out.entries == 0 {
		c.out.first = entries[0].GetIndex()
	}
	c.out.first = min(c.out.first, entries[0].GetIndex())
	c.out.last = entries[len(entries)-1].GetIndex()
	c.out.entries += len(entries)
}

// stand follows soft and hard state. It comes after the entries, since the commit index may point at one.
func (c *core) stand(rd *raft.Ready) {
	was := c.standing
	if s := rd.SoftState; s != nil {
		c.standing.Leader, c.standing.Leading = s.Lead, s.RaftState == raft.StateLeader
	}
	if !raft.IsEmptyHardState(rd.HardState) {
		c.standing.Term, c.commit = rd.HardState.GetTerm(), rd.HardState.GetCommit()
		term, err := c.log.Term(c.commit)
		if err != nil {
			panic(fmt.Sprintf("replicate: no term for commit %d in a log of (%d, %d]", c.commit, c.log.index, c.log.last()))
		}
		c.standing.CommittedTerm = term
	}
	if c.standing.Leading && (!was.Leading || was.Term != c.standing.Term) {
		c.confAfter = c.log.last() // as raft: some conf change may be among these
		c.frozen, c.frozenTil = false, 0
	}
	if c.standing != was {
		if !c.out.standing {
			c.out.lostLeader = was.Leader
		}
		c.out.standing = true
	}
}

// send adds m to what leaves for its peer, all of one turn together.
func (c *core) send(m *raftpb.Message) {
	for i := range c.out.sends {
		if c.out.sends[i].to == m.GetTo() {
			c.out.sends[i].msgs = append(c.out.sends[i].msgs, m)
			return
		}
	}
	c.out.sends = append(c.out.sends, send{m.GetTo(), []*raftpb.Message{m}})
}

// addAppend joins one MsgStorageAppend with what waits. A received snapshot begins an Append of its own,
// so that what was logged before it is written before it; what follows may join it.
func (c *core) addAppend(m *raftpb.Message) {
	a := Append{Entries: m.GetEntries(), Responses: m.GetResponses(), Snapshot: m.GetSnapshot()}
	if m.Term != nil || m.Vote != nil || m.Commit != nil {
		a.HardState = &raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}
	}
	n := len(c.appends)
	if n == 0 || a.Snapshot != nil {
		p := pendingAppend{Append: a, bytes: entriesBytes(a.Entries)}
		c.appends = append(c.appends, p)
		c.appendBytes += p.bytes
		return
	}
	p := &c.appends[n-1]
	if !p.owned {
		p.Entries = append([]*raftpb.Entry(nil), p.Entries...)
		p.Responses = append([]*raftpb.Message(nil), p.Responses...)
		p.owned = true
	}
	keep := kept(p.Entries, a.Entries)
	grown := entriesBytes(a.Entries) - entriesBytes(p.Entries[keep:])
	p.Entries = append(p.Entries[:keep], a.Entries...)
	p.bytes += grown
	c.appendBytes += grown
	p.Responses = append(p.Responses, a.Responses...)
	if a.HardState != nil {
		p.HardState = a.HardState
	}
}

// kept returns how many of entries stay when more follows. Those that more overwrites, of a deposed
// leader, never reached the disk and need not be written first.
func kept(entries, more []*raftpb.Entry) int {
	if len(entries) == 0 || len(more) == 0 {
		return len(entries)
	}
	first, next := entries[0].GetIndex(), more[0].GetIndex()
	if next > first+uint64(len(entries)) {
		panic(fmt.Sprintf("replicate: entry %d joins entries [%d, %d)", next, first, first+uint64(len(entries))))
	}
	return int(max(next, first) - first)
}

// addWork joins w with what waits for apply, in order; an Install stays apart.
func (c *core) addWork(w pendingWork) {
	n := len(c.work)
	if n == 0 || w.snapshot != nil || c.work[n-1].snapshot != nil {
		c.work = append(c.work, w)
		return
	}
	p := &c.work[n-1]
	if !p.owned {
		p.batch.Entries = append([]*raftpb.Entry(nil), p.batch.Entries...)
		p.batch.Responses = append([]*raftpb.Message(nil), p.batch.Responses...)
		p.owned = true
	}
	p.batch.Entries = append(p.batch.Entries, w.batch.Entries...)
	p.batch.Responses = append(p.batch.Responses, w.batch.Responses...)
}

// flush hands out what credits allow. A checkpoint leaves once nothing waits in front of it: the hard
// state with its commit index must be in the WAL before the snapshot record.
func (c *core) flush() {
	n := min(len(c.appends), c.credits.persist)
	for i := range n {
		c.out.appends = append(c.out.appends, c.appends[i].Append)
		c.inFlight = append(c.inFlight, c.appends[i].bytes)
	}
	c.appends = shift(c.appends, n)
	c.credits.persist -= n
	if len(c.appends) == 0 && c.checkpoint != nil && c.checkpoints == 0 {
		c.out.checkpoint, c.checkpoint, c.checkpoints = c.checkpoint, nil, 1
	}
	n = min(len(c.work), c.credits.apply)
	c.out.work = append(c.out.work, c.work[:n]...)
	c.work = shift(c.work, n)
	c.credits.apply -= n
}

// shift drops the first n elements in place, leaving no pointer to them.
func shift[T any](s []T, n int) []T {
	rest := copy(s, s[n:])
	clear(s[rest:])
	return s[:rest]
}

// idle says that nothing waits here and everything handed over was acknowledged.
func (c *core) idle() bool {
	return len(c.appends) == 0 && len(c.work) == 0 && len(c.inFlight) == 0 && c.checkpoints == 0 &&
		c.checkpoint == nil && c.credits.apply == c.set.ApplyCredits
}

// reset forgets the turn's output and keeps its slices.
func (c *core) reset() {
	o := &c.out
	clear(o.appends)
	clear(o.work)
	clear(o.sends)
	clear(o.refusals)
	clear(o.results)
	*o = output{appends: o.appends[:0], work: o.work[:0], sends: o.sends[:0], refusals: o.refusals[:0]}
}

package persist

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/persist/wal"
)

// step is one thing to do, in order. Exactly one of the first three is set, or the state.
type step struct {
	entries    []*raftpb.Entry
	file       *raftpb.Snapshot // save as a .snap file
	checkpoint bool             // file is a disk snapshot, not an incoming one
	record     *wal.Snapshot
	state      wal.HardState // zero when this is no state step
}

// plan is one write of the log: everything that waited, merged.
type plan struct {
	steps   []step
	sync    bool   // the whole must be durable before the acknowledgement
	release uint64 // the snapshot up to which old segments may go once it is durable; 0 for none
	ack     Ack
	bytes   int // by Message.Bytes
	term    uint64
	first   uint64 // entry indexes of the batch, for the stage's stamp
	last    uint64
	entries int
}

// reset empties the plan, keeping its memory. The responses are given away with each Ack.
func (p *plan) reset() {
	clear(p.steps)
	*p = plan{steps: p.steps[:0]}
}

// core merges messages into plans and knows when the disk must be waited for.
type core struct {
	state wal.HardState // last written
	last  uint64        // last entry or snapshot index written
}

// merge adds one message to the plan.
func (c *core) merge(p *plan, m Message) {
	p.bytes += m.Bytes()
	switch m := m.(type) {
	case Append:
		c.append(p, m)
	case Checkpoint:
		c.checkpoint(p, m)
	default:
		panic(fmt.Sprintf("persist: unknown message %T", m))
	}
}

// append keeps the order that a reader needs: snapshot, entries, hard state. Between a snapshot and entries
// stands a hard state that makes the snapshot valid: a write torn behind the entries would else leave entries
// that fit behind no valid snapshot, and a log that cannot be opened.
func (c *core) append(p *plan, m Append) {
	p.ack.Appends++
	p.ack.Responses = append(p.ack.Responses, m.Responses...)
	if s := m.Snapshot; s != nil && s.GetMetadata().GetIndex() > 0 {
		c.snapshot(p, s, false)
		c.last = s.GetMetadata().GetIndex()
		p.ack.LastIndex = c.last
		if c.state.Commit < c.last {
			validating := &raftpb.HardState{Term: &c.state.Term, Vote: &c.state.Vote, Commit: &c.last}
			if m.HardState != nil {
				validating.Term, validating.Vote = m.HardState.Term, m.HardState.Vote
			}
			c.hardState(p, validating)
		}
	}
	if len(m.Entries) > 0 {
		c.entries(p, m.Entries)
	}
	if m.HardState != nil {
		c.hardState(p, m.HardState)
	}
}

// entries checks that the log stays without a gap; a lower index overwrites, and is raft's right.
func (c *core) entries(p *plan, entries []*raftpb.Entry) {
	first, last := entries[0].GetIndex(), entries[len(entries)-1].GetIndex()
	if first > c.last+1 || last-first+1 != uint64(len(entries)) {
		panic(fmt.Sprintf("persist: %d entries %d to %d after %d", len(entries), first, last, c.last))
	}
	p.steps = append(p.steps, step{entries: entries})
	p.sync = true
	c.last, p.ack.LastIndex = last, last
	if p.first == 0 || first < p.first {
		p.first = first
	}
	p.last, p.term = last, entries[len(entries)-1].GetTerm()
	p.entries += len(entries)
}

// hardState writes a state that says something new. The commit index never falls: a checkpoint may already
// have said a higher one than a state that waited at replicate, and a snapshot record above the last commit
// is void.
func (c *core) hardState(p *plan, h *raftpb.HardState) {
	s := wal.HardState{Term: h.GetTerm(), Vote: h.GetVote(), Commit: max(h.GetCommit(), c.state.Commit)}
	if s == c.state || (wal.HardState{Term: s.Term, Vote: s.Vote, Commit: h.GetCommit()}).IsZero() {
		return
	}
	if s.Term < c.state.Term {
		panic(fmt.Sprintf("persist: hard state of term %d after term %d", s.Term, c.state.Term))
	}
	if s.Term != c.state.Term || s.Vote != c.state.Vote {
		p.sync = true
	}
	p.steps = append(p.steps, step{state: s})
	c.state = s
}

// checkpoint: the entries up to the index are applied, hence committed, whether the state that says so has
// come yet or not. Without it the snapshot record would not count, while the segments before it go.
func (c *core) checkpoint(p *plan, m Checkpoint) {
	index := m.Snapshot.GetMetadata().GetIndex()
	if index == 0 || index > c.last {
		panic(fmt.Sprintf("persist: checkpoint at %d, last entry %d", index, c.last))
	}
	if c.state.Commit < index {
		c.state.Commit = index
		p.steps = append(p.steps, step{state: c.state})
	}
	c.snapshot(p, m.Snapshot, true)
	p.ack.CheckpointIndex = max(p.ack.CheckpointIndex, index)
}

// snapshot writes the .snap file first: the record says that it is there.
func (c *core) snapshot(p *plan, s *raftpb.Snapshot, checkpoint bool) {
	meta := s.GetMetadata()
	if meta.GetConfState() == nil {
		panic(fmt.Sprintf("persist: snapshot at %d (term %d) without ConfState", meta.GetIndex(), meta.GetTerm()))
	}
	p.steps = append(p.steps,
		step{file: s, checkpoint: checkpoint},
		step{record: &wal.Snapshot{Index: meta.GetIndex(), Term: meta.GetTerm(), ConfState: meta.GetConfState()}})
	p.sync = true
	p.release = max(p.release, meta.GetIndex())
}

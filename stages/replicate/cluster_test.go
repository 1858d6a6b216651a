package replicate

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"sluice/stages/wire"
)

// member is one core with a disk and a state machine that do as the test says: what the core hands out
// waits in appends and work until it is acknowledged, one message at a time.
type member struct {
	t          *testing.T
	c          *core
	appends    []Append
	work       []pendingWork
	disk       []*raftpb.Entry // durable, from the snapshot on
	base       uint64          // index before disk[0]
	hardState  *raftpb.HardState
	applied    []*raftpb.Entry
	index      uint64
	confState  *raftpb.ConfState
	installed  uint64
	results    []wire.Result
	refusals   []refusal
	round      uint64
	readIndex  uint64
	wants      bool
	checkpoint *raftpb.Snapshot
	stalled    bool // the disk acknowledges nothing
	slow       bool // the state machine acknowledges nothing
	trace      []string
}

// cluster is members and a network in one goroutine.
type cluster struct {
	t       *testing.T
	members map[uint64]*member
	ids     []uint64
	net     []*raftpb.Message
	cut     map[[2]uint64]bool // from, to
	refuse  map[uint64]bool    // no room on the way to this member
}

func newMember(t *testing.T, set Settings, b Boot) *member {
	t.Helper()
	c, err := newCore(set, b, newLogger(zap.NewNop()))
	if err != nil {
		t.Fatal(err)
	}
	m := &member{t: t, c: c, base: b.Index, index: b.Index, disk: slices.Clone(b.Entries), hardState: b.HardState,
		confState: &raftpb.ConfState{}}
	if b.ConfState != nil {
		m.confState = b.ConfState
	}
	return m
}

func newCluster(t *testing.T, n int, change func(*Settings)) *cluster {
	c := &cluster{t: t, members: map[uint64]*member{}, cut: map[[2]uint64]bool{}, refuse: map[uint64]bool{}}
	var peers []raft.Peer
	for i := range n {
		c.ids = append(c.ids, uint64(i+1))
		peers = append(peers, raft.Peer{ID: uint64(i + 1)})
	}
	for _, id := range c.ids {
		set := Settings{ID: id, PreVote: true}
		if change != nil {
			change(&set)
		}
		c.members[id] = newMember(t, set, Boot{Peers: peers})
	}
	c.run()
	return c
}

// turn drains the core as the shell does and takes what it hands out.
func (m *member) turn(c *cluster) {
	m.c.ready()
	o := &m.c.out
	m.appends = append(m.appends, o.appends...)
	m.work = append(m.work, o.work...)
	for _, s := range o.sends {
		if c.refuse[s.to] {
			m.c.unsent(s.msgs)
			continue
		}
		for _, msg := range s.msgs {
			if msg.GetTo() != s.to || msg.GetTo() == m.c.set.ID {
				m.t.Fatalf("member %d: message to %d in the batch for %d", m.c.set.ID, msg.GetTo(), s.to)
			}
			// Over the wire and back, as between two processes.
			b, err := proto.Marshal(msg)
			if err != nil {
				m.t.Fatal(err)
			}
			got := &raftpb.Message{}
			if err := proto.Unmarshal(b, got); err != nil {
				m.t.Fatal(err)
			}
			c.net = append(c.net, got)
		}
	}
	m.refusals = append(m.refusals, o.refusals...)
	m.results = append(m.results, o.results...)
	if o.round != 0 {
		m.round, m.readIndex = o.round, o.index
	}
	m.wants = m.wants || o.wantSnapshot
	if o.checkpoint != nil {
		m.checkpoint = o.checkpoint
	}
	if n := len(m.c.inFlight); n > m.c.set.PersistCredits || len(m.appends) > m.c.set.PersistCredits {
		m.t.Fatalf("%d appends in flight with %d credits", n, m.c.set.PersistCredits)
	}
	if len(m.work) > m.c.set.ApplyCredits {
		m.t.Fatalf("%d batches in flight with %d credits", len(m.work), m.c.set.ApplyCredits)
	}
	m.c.reset()
}

// persist makes the oldest append durable and acknowledges it.
func (m *member) persist(c *cluster) {
	a := m.appends[0]
	m.appends = m.appends[1:]
	if s := a.Snapshot; s != nil {
		m.base, m.disk = s.GetMetadata().GetIndex(), nil
		m.trace = append(m.trace, fmt.Sprintf("snap %d", m.base))
	}
	if len(a.Entries) > 0 {
		at := a.Entries[0].GetIndex() - m.base - 1
		if at > uint64(len(m.disk)) {
			m.t.Fatalf("member %d: entry %d written behind %d", m.c.set.ID, a.Entries[0].GetIndex(), m.base+uint64(len(m.disk)))
		}
		m.disk = append(m.disk[:at:at], a.Entries...)
	}
	if a.HardState != nil {
		m.hardState = a.HardState
	}
	m.c.persisted(PersistAck{Appends: 1, Responses: a.Responses, LastIndex: m.base + uint64(len(m.disk))})
	m.turn(c)
}

// apply applies the oldest batch and acknowledges it.
func (m *member) apply(c *cluster) {
	w := m.work[0]
	m.work = m.work[1:]
	ack := ApplyAck{Batches: 1, Responses: w.batch.Responses}
	if w.snapshot != nil {
		m.installed = w.snapshot.GetMetadata().GetIndex()
		m.index, m.confState = m.installed, w.snapshot.GetMetadata().GetConfState()
	}
	for _, e := range w.batch.Entries {
		if e.GetIndex() != m.index+1 {
			m.t.Fatalf("member %d: entry %d applied after %d", m.c.set.ID, e.GetIndex(), m.index)
		}
		if e.GetIndex() > m.base+uint64(len(m.disk)) {
			m.t.Fatalf("member %d: entry %d applied before it was durable (%d)",
				m.c.set.ID, e.GetIndex(), m.base+uint64(len(m.disk)))
		}
		m.index = e.GetIndex()
		m.applied = append(m.applied, e)
		if e.GetType() == raftpb.EntryConfChange {
			cc := &raftpb.ConfChange{}
			if err := proto.Unmarshal(e.GetData(), cc); err != nil {
				m.t.Fatal(err)
			}
			ack.Verdicts = append(ack.Verdicts, Verdict{Change: cc, Result: wire.Result{ID: cc.GetId(), Index: m.index}})
		}
	}
	ack.Index = m.index
	m.c.applied(ack)
	m.turn(c)
}

// step does one thing on m's disk and state machine, as far as they are not stalled.
func (m *member) step(c *cluster) (did bool) {
	if len(m.appends) > 0 && !m.stalled {
		m.persist(c)
		did = true
	}
	if len(m.work) > 0 && !m.slow {
		m.apply(c)
		did = true
	}
	return did
}

// run lets everything happen until nothing does.
func (c *cluster) run() {
	for _, id := range c.ids {
		c.members[id].turn(c)
	}
	for did := true; did; {
		did = false
		net := c.net
		c.net = nil
		for _, msg := range net {
			m := c.members[msg.GetTo()]
			if m == nil || c.cut[[2]uint64{msg.GetFrom(), msg.GetTo()}] {
				continue
			}
			m.c.peer(PeerInput{Messages: []*raftpb.Message{msg}})
			m.turn(c)
			did = true
		}
		for _, id := range c.ids {
			if m := c.members[id]; m != nil && m.step(c) {
				did = true
			}
		}
	}
}

// tick lets n ticks pass on all members.
func (c *cluster) tick(n int) {
	for range n {
		for _, id := range c.ids {
			if m := c.members[id]; m != nil {
				m.c.tick(m.c.lastTick+100, 100)
				m.turn(c)
			}
		}
		c.run()
	}
}

// elect lets time pass until all agree on a leader that has committed in its term.
func (c *cluster) elect() *member {
	c.t.Helper()
	for range 100 {
		c.tick(1)
		if l := c.leader(); l != nil {
			return l
		}
	}
	c.t.Fatal("no leader after 100 ticks")
	return nil
}

func (c *cluster) leader() *member {
	for _, id := range c.ids {
		if m := c.members[id]; m != nil && m.c.standing.Leading && m.c.standing.CommittedTerm == m.c.standing.Term {
			for _, o := range c.members {
				if o != nil && !c.cut[[2]uint64{id, o.c.set.ID}] && o.c.standing.Leader != id {
					return nil
				}
			}
			return m
		}
	}
	return nil
}

// isolate cuts all links of id, heal restores all.
func (c *cluster) isolate(id uint64) {
	for _, o := range c.ids {
		if o != id {
			c.cut[[2]uint64{id, o}], c.cut[[2]uint64{o, id}] = true, true
		}
	}
}

func (c *cluster) heal() { clear(c.cut) }

func entry(id uint64) *raftpb.Entry {
	return &raftpb.Entry{Data: binary.BigEndian.AppendUint64(nil, id)}
}

// proposed steps a batch of entries with ids from to to.
func (m *member) propose(c *cluster, from, to uint64) {
	var es []*raftpb.Entry
	for id := from; id <= to; id++ {
		es = append(es, entry(id))
	}
	m.c.propose(es)
	m.turn(c)
}

func (m *member) change(c *cluster, cc *raftpb.ConfChange) {
	data, err := proto.Marshal(cc)
	if err != nil {
		m.t.Fatal(err)
	}
	m.c.propose([]*raftpb.Entry{{Type: raftpb.EntryConfChange.Enum(), Data: data}})
	m.turn(c)
}

// values are the ids applied, in order.
func (m *member) values() (ids []uint64) {
	for _, e := range m.applied {
		if e.GetType() == raftpb.EntryNormal && len(e.GetData()) == 8 {
			ids = append(ids, binary.BigEndian.Uint64(e.GetData()))
		}
	}
	return ids
}

func upTo(n uint64) (ids []uint64) {
	for i := uint64(1); i <= n; i++ {
		ids = append(ids, i)
	}
	return ids
}

func (c *cluster) agree(want []uint64) {
	c.t.Helper()
	for _, id := range c.ids {
		if m := c.members[id]; m != nil && !slices.Equal(m.values(), want) {
			c.t.Errorf("member %d applied %d values %.80v, want %d", id, len(m.values()), fmt.Sprint(m.values()), len(want))
		}
	}
}

package replicate

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "seed of the random clusters; 0 runs a few")
	roundsFlag = flag.Int("rounds", 400, "random steps per cluster")
)

// Random clusters: messages are lost, links break, disks and state machines stall, members die and come
// back from what was durable. All apply the same entries in the same order, a read index never lies below
// what was applied anywhere when the round began, and when the faults stop everybody catches up.
//
// Only raft's own election timeouts do not follow from the seed.
func TestRandomClusters(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		r := &randomRun{
			t: t, rnd: rand.New(rand.NewPCG(seed, 7)),
			history: map[uint64]*raftpb.Entry{}, began: map[uint64]uint64{},
		}
		r.c = newCluster(t, 3, func(s *Settings) {
			s.PersistCredits, s.ApplyCredits = 1+int(seed%2), 1+int(seed/2%2)
			s.AppendBytesMax = 200 * entryOverhead
		})
		for range *roundsFlag {
			r.round()
		}
		r.settle()
		t.Logf("seed %d: %d proposed, %d applied, %d restarts, %d reads answered, term %d",
			seed, r.next, r.highest, r.restarts, r.answered, r.c.leader().c.standing.Term)
		if t.Failed() {
			t.Fatalf("replay with -seed %d", seed)
		}
	}
}

type randomRun struct {
	t       *testing.T
	c       *cluster
	rnd     *rand.Rand
	next    uint64
	reads   uint64
	history map[uint64]*raftpb.Entry // by index, as first applied by anybody
	highest uint64                   // applied anywhere
	began   map[uint64]uint64        // read round -> highest when it began

	restarts, answered int
}

func (r *randomRun) round() {
	c := r.c
	m := c.members[c.ids[r.rnd.IntN(len(c.ids))]]
	switch r.rnd.IntN(12) {
	case 0, 1, 2, 3:
		n := uint64(r.rnd.IntN(20)) + 1
		m.propose(c, r.next+1, r.next+n)
		r.next += n
	case 4, 5:
		r.reads++
		r.began[r.reads] = r.highest
		m.c.read(r.reads)
		m.turn(c)
	case 6:
		m.stalled = !m.stalled
	case 7:
		m.slow = !m.slow
	case 8:
		c.isolate(m.c.set.ID)
	case 9:
		c.heal()
	case 10:
		if r.rnd.IntN(4) == 0 {
			r.restart(m)
		}
	}
	r.some(r.rnd.IntN(30))
	if r.rnd.IntN(2) == 0 {
		for _, id := range c.ids {
			c.members[id].c.tick(c.members[id].c.lastTick+100, 100)
			c.members[id].turn(c)
		}
	}
	r.check()
}

// some does n random single things: deliver, lose or keep a message, let a disk or machine work.
func (r *randomRun) some(n int) {
	c := r.c
	for range n {
		if len(c.net) > 0 && r.rnd.IntN(3) > 0 {
			i := r.rnd.IntN(min(len(c.net), 3)) // nearly in order
			msg := c.net[i]
			c.net = slices.Delete(c.net, i, i+1)
			if r.rnd.IntN(20) == 0 || c.cut[[2]uint64{msg.GetFrom(), msg.GetTo()}] {
				continue
			}
			to := c.members[msg.GetTo()]
			to.c.peer(PeerInput{Messages: []*raftpb.Message{msg}})
			to.turn(c)
			continue
		}
		c.members[c.ids[r.rnd.IntN(len(c.ids))]].step(c)
	}
	if len(c.net) > 5000 {
		c.net = c.net[len(c.net)-1000:]
	}
}

// restart loses all that was not durable; the state machine is rebuilt from the log.
func (r *randomRun) restart(m *member) {
	id := m.c.set.ID
	boot := Boot{Entries: m.disk, HardState: m.hardState, ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}
	n := newMember(r.t, m.c.set, boot)
	n.c.lastTick = m.c.lastTick
	r.restarts++
	r.c.members[id] = n
	n.turn(r.c)
}

func (r *randomRun) check() {
	for _, id := range r.c.ids {
		m := r.c.members[id]
		for _, e := range m.applied {
			first := r.history[e.GetIndex()]
			if first == nil {
				r.history[e.GetIndex()] = e
				r.highest = max(r.highest, e.GetIndex())
			} else if first.GetTerm() != e.GetTerm() || !slices.Equal(first.GetData(), e.GetData()) {
				r.t.Fatalf("member %d applied %v at %d, another %v", id, e, e.GetIndex(), first)
			}
		}
		m.applied = m.applied[:0]
		if m.round != 0 {
			if began := r.began[m.round]; m.readIndex < began {
				r.t.Fatalf("member %d reads at %d in round %d, which began when %d was applied", id, m.readIndex, m.round, began)
			}
			m.round = 0
			r.answered++
		}
	}
}

// settle ends all faults: a leader must come, take a proposal, and everybody must have it.
func (r *randomRun) settle() {
	c := r.c
	c.heal()
	for _, m := range c.members {
		m.stalled, m.slow = false, false
	}
	c.run()
	r.check()
	l := c.elect()
	l.propose(c, r.next+1, r.next+1)
	for range 30 {
		c.tick(1)
		r.check()
	}
	for _, m := range c.members {
		if m.index != l.index || !m.c.idle() || m.c.appendBytes != 0 || m.c.log.unapplied != 0 {
			r.t.Errorf("member %d is at %d, the leader at %d; idle %v, %d bytes to append, %d to apply",
				m.c.set.ID, m.index, l.index, m.c.idle(), m.c.appendBytes, m.c.log.unapplied)
		}
	}
	if len(r.history) < 100 {
		r.t.Errorf("only %d entries were applied", len(r.history))
	}
	ids := make(map[uint64]uint64)
	for i, e := range r.history {
		if len(e.GetData()) == 8 {
			n := binary.BigEndian.Uint64(e.GetData())
			if was, ok := ids[n]; ok {
				r.t.Errorf("proposal %d is at %d and %d", n, was, i)
			}
			ids[n] = i
		}
	}
}

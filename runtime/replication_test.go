package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/mailbox"
	"sluice/stages/propose"
	"sluice/stages/replicate"
	"sluice/stages/wire"
)

// replication is propose and replicate as this package wires them, with a disk and a state machine that take as
// long as the test says.
type replication struct {
	t       *testing.T
	propose *propose.Stage
	raft    *replicate.Stage
	disk    *mailbox.Mailbox[any] // Append or Checkpoint
	machine *mailbox.Mailbox[replicate.Batch]
	pause   func(what string) // between taking a message and acknowledging it
	applied atomic.Uint64
	durable atomic.Uint64
	order   []uint64 // ids in the order applied; owned by the machine until stop
	backlog atomic.Int64
	peak    atomic.Int64
	ends    sync.WaitGroup
	ticker  context.CancelFunc
	done    [2]chan error
}

// Persist, Apply, Peers, Propose for replicate.
func (p *replication) Append(a replicate.Append) error {
	return p.disk.Sender(mailbox.Refuse).Send(context.Background(), a)
}
func (p *replication) Checkpoint(c replicate.Checkpoint) error {
	return p.disk.Sender(mailbox.Refuse).Send(context.Background(), c)
}
func (p *replication) Apply(b replicate.Batch) error {
	return p.machine.Sender(mailbox.Refuse).Send(context.Background(), b)
}
func (p *replication) Install(replicate.Install) error                  { return errors.New("no snapshots here") }
func (p *replication) WantSnapshot()                                    {}
func (p *replication) Send(uint64, []*raftpb.Message) []*raftpb.Message { return nil }
func (p *replication) ReadIndexed(round, index uint64)                  { p.propose.ReadIndexed(round, index) }
func (p *replication) Complete(results []wire.Result)                   { p.propose.Complete(results) }
func (p *replication) Standing(st replicate.Standing)                   { p.propose.Standing(propose.Standing(st)) }
func (p *replication) Refuse(es []*raftpb.Entry, why replicate.Refusal) {
	p.propose.Refuse(es, propose.Refusal(why))
}
func (p *replication) Backlog(n int64) {
	p.backlog.Store(n)
	p.peak.Store(max(p.peak.Load(), n))
	p.propose.Backlog(n)
}

// Progress for propose; replicate's stage is made after it.
func (p *replication) Committed() uint64 { return p.raft.Committed() }
func (p *replication) Applied() uint64   { return p.applied.Load() }
func (p *replication) Propose(ctx context.Context, es []*raftpb.Entry) error {
	return p.raft.Propose(ctx, es)
}
func (p *replication) ReadIndex(ctx context.Context, round uint64) error {
	return p.raft.ReadIndex(ctx, round)
}

func startReplication(t *testing.T, capacity int, pause func(string), change func(*propose.Config)) *replication {
	t.Helper()
	p := &replication{t: t, pause: pause}
	credits := min(capacity, 2)
	pc := propose.Config{
		MemberID: 0xff01, StartMillis: 1, ClientMessages: capacity, SystemMessages: capacity,
		Replicate: p, Progress: p,
	}
	if change != nil {
		change(&pc)
	}
	p.propose = propose.New(pc)
	var err error
	p.raft, err = replicate.New(replicate.Config{
		Settings: replicate.Settings{
			ID: 1, PreVote: true, PersistCredits: credits, ApplyCredits: credits, CatchUpEntries: 100,
		},
		Boot: replicate.Boot{Peers: []raft.Peer{{ID: 1}}}, Tick: 100 * time.Millisecond,
		IntakeMessages: capacity, PeerMessages: capacity,
		Persist: p, Apply: p, Peers: p, Propose: p,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.disk = mailbox.New[any](mailbox.Config{Name: "persist", Capacity: credits + 1})
	p.machine = mailbox.New[replicate.Batch](mailbox.Config{Name: "apply", Capacity: credits})
	ticks, cancel := context.WithCancel(t.Context())
	p.ticker = cancel
	p.ends.Go(p.runDisk)
	p.ends.Go(p.runMachine)
	p.ends.Go(func() {
		for every := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-every.C:
				p.raft.Tick()
				p.propose.Tick()
			case <-ticks.Done():
				every.Stop()
				return
			}
		}
	})
	for i, run := range []func(context.Context) error{p.propose.Run, p.raft.Run} {
		p.done[i] = make(chan error, 1)
		go func() { p.done[i] <- run(t.Context()) }()
	}
	return p
}

// stop ends the pipeline from the near end, as runtime does, and checks that each stage drained.
func (p *replication) stop() {
	p.t.Helper()
	p.propose.Close()
	if err := <-p.done[0]; !errors.Is(err, mailbox.ErrClosed) {
		p.t.Errorf("propose ended with %v", err)
	}
	p.raft.Close()
	if err := <-p.done[1]; !errors.Is(err, mailbox.ErrClosed) {
		p.t.Errorf("replicate ended with %v", err)
	}
	p.disk.Close()
	p.machine.Close()
	p.ticker()
	p.ends.Wait()
	p.propose.Abandon()
}

func (p *replication) runDisk() {
	for {
		batch, err := p.disk.Receiver().Receive(context.Background(), nil)
		if err != nil {
			return
		}
		p.pause("disk")
		var ack replicate.PersistAck
		for _, m := range batch {
			switch m := m.(type) {
			case replicate.Append:
				ack.Appends++
				ack.Responses = append(ack.Responses, m.Responses...)
				for _, e := range m.Entries {
					if want := p.durable.Load() + 1; e.GetIndex() != want {
						p.t.Errorf("entry %d written, want %d", e.GetIndex(), want)
					}
					p.durable.Store(e.GetIndex())
				}
			case replicate.Checkpoint:
				ack.CheckpointIndex = m.Snapshot.GetMetadata().GetIndex()
			}
		}
		p.raft.Persisted(ack)
	}
}

func (p *replication) runMachine() {
	checkpoint := uint64(0)
	for {
		batch, err := p.machine.Receiver().Receive(context.Background(), nil)
		if err != nil {
			return
		}
		for _, b := range batch {
			p.pause("machine")
			ack := replicate.ApplyAck{Batches: 1, Responses: b.Responses}
			var results []wire.Result
			for _, e := range b.Entries {
				if e.GetIndex() != p.applied.Load()+1 || e.GetIndex() > p.durable.Load() {
					p.t.Errorf("entry %d applied after %d, durable %d", e.GetIndex(), p.applied.Load(), p.durable.Load())
				}
				p.applied.Store(e.GetIndex())
				results = append(results, p.applyEntry(e, &ack)...)
			}
			ack.Index = p.applied.Load()
			if ack.Index > checkpoint+500 {
				checkpoint = ack.Index
				ack.Checkpoint = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(checkpoint), Term: new(uint64(2))}}
			}
			p.propose.Complete(results)
			p.propose.Published(ack.Index)
			p.raft.Applied(ack)
		}
	}
}

func (p *replication) applyEntry(e *raftpb.Entry, ack *replicate.ApplyAck) []wire.Result {
	if e.GetType() == raftpb.EntryConfChange {
		cc := &raftpb.ConfChange{}
		if err := proto.Unmarshal(e.GetData(), cc); err != nil {
			p.t.Error(err)
		}
		result := wire.Result{ID: cc.GetId(), Index: e.GetIndex()}
		ack.Verdicts = append(ack.Verdicts, replicate.Verdict{Change: cc, Result: result})
		return nil
	}
	if len(e.GetData()) == 0 {
		return nil
	}
	var r wire.Request
	if err := r.Decode(e.GetData()); err != nil {
		p.t.Error(err)
	}
	p.order = append(p.order, r.ID)
	return []wire.Result{{ID: r.ID, Index: e.GetIndex(), Body: r.Put.Key}}
}

// Everything completes once, with its own result; what was acknowledged before a read began is in the view
// that the read gets; nothing deadlocks, whatever the sizes and the delays.
func TestReplication(t *testing.T) {
	for _, capacity := range []int{1, 2, 1000} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("capacity=%d/seed=%d", capacity, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { runReplication(t, capacity, seed) })
			})
		}
	}
}

func runReplication(t *testing.T, capacity int, seed uint64) {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 1))
	draw := func(n int64) int64 { mu.Lock(); defer mu.Unlock(); return rnd.Int64N(n) }
	pause := func(string) {
		switch draw(20) {
		case 0:
			time.Sleep(time.Duration(draw(int64(300 * time.Millisecond)))) // a stall
		case 1, 2, 3, 4, 5, 6, 7, 8:
			time.Sleep(time.Duration(draw(int64(2 * time.Millisecond))))
		}
	}
	p := startReplication(t, capacity, pause, func(c *propose.Config) { c.CellsFirst, c.UncommittedBytes = 4, 4096 })
	var acknowledged atomic.Uint64
	var writers, readers sync.WaitGroup
	const clients, each = 60, 50
	for i := range clients {
		writers.Go(func() {
			for j := range each {
				key := fmt.Sprintf("%d/%d", i, j)
				r := &wire.Request{Put: &wire.PutRequest{Key: []byte(key), Value: make([]byte, 100)}}
				res, err := p.propose.Propose(t.Context(), r, propose.Lane(i%2))
				if err != nil || string(res.Body) != key {
					t.Errorf("%s: %q, %v", key, res.Body, err)
					return
				}
				for was := acknowledged.Load(); res.Index > was && !acknowledged.CompareAndSwap(was, res.Index); {
					was = acknowledged.Load()
				}
			}
		})
	}
	stop := make(chan struct{})
	for range 10 {
		readers.Go(func() {
			for {
				before := acknowledged.Load()
				if err := p.propose.Barrier(t.Context()); err != nil {
					t.Error(err)
					return
				}
				if view := p.applied.Load(); view < before {
					t.Errorf("a read at %d after %d was acknowledged", view, before)
				}
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(draw(int64(5 * time.Millisecond)))):
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	p.stop()
	seen := make(map[uint64]bool)
	for _, id := range p.order {
		if seen[id] {
			t.Errorf("request %x applied twice", id)
		}
		seen[id] = true
	}
	if len(p.order) != clients*each {
		t.Errorf("%d requests applied, want %d", len(p.order), clients*each)
	}
}

// A stalled disk with 20,000 proposals: what is appended stays bounded, time goes on, reads are answered;
// when the disk comes back, whoever still waits is served.
func TestStalledDiskIsBounded(t *testing.T) {
	for _, capacity := range []int{1, 1000} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stalled atomic.Bool
				release := make(chan struct{})
				pause := func(what string) {
					if what == "disk" && stalled.Load() {
						<-release
					}
				}
				const limit = 1 << 20
				p := startReplication(t, capacity, pause, func(c *propose.Config) { c.UncommittedBytes = limit })
				if err := p.propose.Barrier(t.Context()); err != nil {
					t.Fatal(err)
				}
				stalled.Store(true)
				var answered, late atomic.Int32
				var clients sync.WaitGroup
				for range 20_000 {
					clients.Go(func() {
						r := &wire.Request{Put: &wire.PutRequest{Key: []byte("k"), Value: make([]byte, 1000)}}
						switch _, err := p.propose.Propose(t.Context(), r, propose.Client); err {
						case nil:
							answered.Add(1)
						case propose.ErrTimeout:
							late.Add(1)
						default:
							t.Error(err)
						}
					})
				}
				for range 10 {
					time.Sleep(300 * time.Millisecond)
					if err := p.propose.Barrier(t.Context()); err != nil {
						t.Errorf("a read during the stall: %v", err)
					}
					if age := p.raft.TickAge(); age > 100*time.Millisecond || !p.raft.Fresh() {
						t.Errorf("the last tick is %v old", age)
					}
				}
				// The intake may hold 8 MiB more at the large size; a batch is at most 1 MiB.
				if peak := p.peak.Load(); peak < limit || peak > 10*limit {
					t.Errorf("%d bytes appended at the limit of %d", peak, limit)
				}
				if st := p.raft.Standing(); !st.Leading {
					t.Errorf("leadership lost: %+v", st)
				}
				time.Sleep(2 * time.Second)
				stalled.Store(false)
				close(release)
				clients.Wait()
				if answered.Load() != 20_000 {
					t.Errorf("%d answered, %d late", answered.Load(), late.Load())
				}
				p.stop()
			})
		})
	}
}

func TestConfChangeIsAnsweredOnceRaftKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplication(t, 1, func(string) { time.Sleep(time.Millisecond) }, nil)
		var changes sync.WaitGroup
		for i := range uint64(5) {
			changes.Go(func() {
				cc := &raftpb.ConfChange{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: proto.Uint64(i + 2)}
				res, err := p.propose.ProposeConfChange(t.Context(), cc)
				if err != nil || res.ID != cc.GetId() {
					t.Errorf("learner %d: %+v, %v", i+2, res, err)
				}
			})
		}
		changes.Wait()
		time.Sleep(time.Second)
		if n := len(p.raft.Status().Config.Learners); n != 5 {
			t.Errorf("%d learners", n)
		}
		p.stop()
	})
}

func TestReplicationHardStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplication(t, 1, func(string) {}, nil)
		s, err := replicate.New(replicate.Config{
			Settings: replicate.Settings{ID: 1}, Boot: replicate.Boot{Peers: []raft.Peer{{ID: 1}}}, Tick: time.Second,
			IntakeMessages: 1, PeerMessages: 1, Persist: broken{p}, Apply: p, Peers: p, Propose: p,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context()); !errors.Is(err, errDisk) {
			t.Errorf("Run ended with %v", err)
		}
		p.stop()
	})
}

var errDisk = errors.New("disk gone")

type broken struct{ *replication }

func (broken) Append(replicate.Append) error { return errDisk }

// raft's own panic about an impossible state ends the stage with an error.
func TestRaftPanicEndsTheStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplication(t, 10, func(string) {}, nil)
		if err := p.propose.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		leader := &raftpb.Message{
			Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(9)), To: new(uint64(1)),
			Term: new(uint64(50)), Commit: new(uint64(1000)),
		}
		if err := p.raft.Receive(t.Context(), replicate.PeerInput{Messages: []*raftpb.Message{leader}}); err != nil {
			t.Fatal(err)
		}
		err := <-p.done[1]
		if err == nil || errors.Is(err, mailbox.ErrClosed) {
			t.Errorf("Run ended with %v", err)
		}
		p.done[1] <- mailbox.ErrClosed
		p.stop()
	})
}

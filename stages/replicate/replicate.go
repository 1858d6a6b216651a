package replicate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"sluice/mailbox"
	"sluice/tracing"
)

// intake is one input from this member's side; exactly one field is set.
type intake struct {
	entries    []*raftpb.Entry
	round      uint64
	transferee uint64
	offer      *raftpb.Snapshot
	forget     bool
}

// ack is one acknowledgement from persist or apply.
type ack struct {
	persist PersistAck
	apply   ApplyAck
	applied bool // apply is meant
}

// Stage is the raft loop. New makes it, Run runs it.
type Stage struct {
	// Fixed at New.
	cfg   Config
	log   *zap.Logger
	raft  *logger
	clock func() int64

	acks   *mailbox.Mailbox[ack]
	intake *mailbox.Mailbox[intake]
	peers  *mailbox.Mailbox[PeerInput]
	ticks  *mailbox.Mailbox[struct{}]

	// Owned by Run.
	core    *core
	backlog int64    // as last told
	sent    Standing // as last told
	acked   []ack
	taken   []intake
	heard   []PeerInput
	ticked  []struct{}

	published published
}

// New makes the stage from what boot found. It fails when the log does not fit together.
func New(cfg Config) (_ *Stage, err error) {
	defer catch(&err)
	cfg.Settings = cfg.Settings.withDefaults()
	cfg.Metrics = cfg.Metrics.withDefaults()
	if cfg.Clock == nil {
		cfg.Clock = tracing.Clock
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.IntakeBytesMax == 0 {
		cfg.IntakeBytesMax = 8 << 20
	}
	if cfg.PeerBytesMax == 0 {
		cfg.PeerBytesMax = 64 << 20
	}
	s := &Stage{cfg: cfg, log: cfg.Logger, raft: newLogger(cfg.Logger), clock: cfg.Clock}
	if s.core, err = newCore(cfg.Settings, cfg.Boot, s.raft); err != nil {
		return nil, err
	}
	// Every acknowledgement belongs to a credit or to the one checkpoint; persist and apply may each send
	// one more that returns nothing.
	s.acks = mailbox.New[ack](mailbox.Config{Name: "replicate-acks", Capacity: cfg.PersistCredits + cfg.ApplyCredits + 3})
	s.intake = mailbox.NewSized(mailbox.Config{
		Name: "replicate-intake", Capacity: cfg.IntakeMessages, BytesMax: cfg.IntakeBytesMax,
	}, func(in intake) int { return int(entriesBytes(in.entries)) })
	s.peers = mailbox.NewSized(mailbox.Config{
		Name: "replicate-peers", Capacity: cfg.PeerMessages, BytesMax: cfg.PeerBytesMax,
	}, PeerInput.bytes)
	s.ticks = mailbox.New[struct{}](mailbox.Config{Name: "replicate-ticks", Capacity: 1})
	s.published.init(s.core)
	return s, nil
}

// bytes is the size of a batch in the peers' inbox.
func (in PeerInput) bytes() int {
	n := int64(0)
	for _, m := range in.Messages {
		n += entryOverhead + entriesBytes(m.GetEntries())
	}
	return int(n)
}

// Mailboxes are the stage's inboxes, for meters and settings.
func (s *Stage) Mailboxes() []mailbox.Metered {
	return []mailbox.Metered{fixedRoom{s.acks}, s.intake, s.peers, s.ticks}
}

// fixedRoom is the inbox of acknowledgements to meters and settings: its capacity follows from the credits.
type fixedRoom struct{ *mailbox.Mailbox[ack] }

func (fixedRoom) SetCapacity(int) {}

// Propose hands over one batch: normal entries, or one conf change alone. It waits while the intake is
// full. The entries belong to raft from then on.
func (s *Stage) Propose(ctx context.Context, entries []*raftpb.Entry) error {
	return s.intake.Sender(mailbox.Wait).Send(ctx, intake{entries: entries})
}

// ReadIndex asks for a read index for the rounds up to round, which is not 0.
func (s *Stage) ReadIndex(ctx context.Context, round uint64) error {
	return s.intake.Sender(mailbox.Wait).Send(ctx, intake{round: round})
}

// Transfer asks that the voter to becomes leader. Whether it did shows in Standing.
func (s *Stage) Transfer(ctx context.Context, to uint64) error {
	return s.intake.Sender(mailbox.Wait).Send(ctx, intake{transferee: to})
}

// Forget makes this follower forget its leader, whose connections all broke.
func (s *Stage) Forget(ctx context.Context) error {
	return s.intake.Sender(mailbox.Wait).Send(ctx, intake{forget: true})
}

// Offer hands over the snapshot that WantSnapshot asked for.
func (s *Stage) Offer(ctx context.Context, snapshot *raftpb.Snapshot) error {
	return s.intake.Sender(mailbox.Wait).Send(ctx, intake{offer: snapshot})
}

// Receive hands over what came from the peers' side. It waits while the inbox is full.
func (s *Stage) Receive(ctx context.Context, in PeerInput) error {
	return s.peers.Sender(mailbox.Wait).Send(ctx, in)
}

// Persisted takes persist's acknowledgement. It never waits.
func (s *Stage) Persisted(a PersistAck) { s.acknowledge(ack{persist: a}) }

// Applied takes apply's acknowledgement. It never waits.
func (s *Stage) Applied(a ApplyAck) { s.acknowledge(ack{apply: a, applied: true}) }

func (s *Stage) acknowledge(a ack) {
	if err := s.acks.Sender(mailbox.Refuse).Send(context.Background(), a); errors.Is(err, mailbox.ErrFull) {
		panic(fmt.Sprintf("replicate: more acknowledgements than %d credits", s.cfg.PersistCredits+s.cfg.ApplyCredits))
	}
}

// Tick advances raft's clock. A tick that still waits is replaced: a late loop does not catch up on time.
func (s *Stage) Tick() {
	_ = s.ticks.Sender(mailbox.Latest).Send(context.Background(), struct{}{}) // closed: no time passes any more
}

// Close begins the orderly stop: nothing more is taken in, Run ends once all that was handed to persist
// and apply is acknowledged.
func (s *Stage) Close() {
	s.intake.Close()
	s.peers.Close()
	s.ticks.Close()
}

// Run is the stage. It ends with mailbox.ErrClosed, the orderly end, after Close.
func (s *Stage) Run(ctx context.Context) (err error) {
	defer catch(&err)
	if err := s.finish(0, tracing.Stamp{In: s.clock()}); err != nil { // what boot left to do, or the first campaign
		return err
	}
	for {
		var turn func() (int, error)
		select {
		case <-s.acks.Receiver().Ready():
			turn = s.turnAcks
		case <-s.peers.Receiver().Ready():
			turn = s.turnPeers
		case <-s.intake.Receiver().Ready():
			turn = s.turnIntake
		case <-s.ticks.Receiver().Ready():
			turn = s.turnTick
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		stamp := tracing.Stamp{In: s.clock()}
		n, err := turn()
		if errors.Is(err, mailbox.ErrClosed) {
			return s.drain(ctx)
		}
		if err := s.finish(n, stamp); err != nil {
			return err
		}
	}
}

// drain waits for what is still to be acknowledged, hands out what waited for credits, then ends.
func (s *Stage) drain(ctx context.Context) error {
	for !s.core.idle() {
		acks, err := s.acks.Receiver().Receive(ctx, s.acked[:0])
		if err != nil {
			return context.Cause(ctx)
		}
		stamp := tracing.Stamp{In: s.clock()}
		s.stepAcks(acks)
		if err := s.finish(len(acks), stamp); err != nil {
			return err
		}
	}
	return mailbox.ErrClosed
}

func (s *Stage) turnAcks() (int, error) {
	acks, err := s.acks.Receiver().TryReceive(s.acked[:0])
	s.stepAcks(acks)
	return len(acks), err
}

func (s *Stage) stepAcks(acks []ack) {
	for i := range acks {
		if acks[i].applied {
			s.core.applied(acks[i].apply)
		} else {
			s.core.persisted(acks[i].persist)
		}
	}
	clear(acks)
	s.acked = acks
}

func (s *Stage) turnPeers() (int, error) {
	heard, err := s.peers.Receiver().TryReceive(s.heard[:0])
	for i := range heard {
		s.core.peer(heard[i])
	}
	clear(heard)
	s.heard = heard
	return len(heard), err
}

func (s *Stage) turnIntake() (int, error) {
	taken, err := s.intake.Receiver().TryReceive(s.taken[:0])
	for i := range taken {
		switch in := &taken[i]; {
		case in.entries != nil:
			s.core.propose(in.entries)
		case in.round != 0:
			s.core.read(in.round)
		case in.transferee != 0:
			s.core.transfer(in.transferee)
		case in.offer != nil:
			s.core.offered(in.offer)
		case in.forget:
			s.core.forget()
		default:
			panic("replicate: empty intake message")
		}
	}
	clear(taken)
	s.taken = taken
	return len(taken), err
}

func (s *Stage) turnTick() (int, error) {
	ticked, err := s.ticks.Receiver().TryReceive(s.ticked[:0])
	if len(ticked) > 0 {
		s.core.tick(s.clock(), int64(s.cfg.Tick))
		s.published.status.Store(new(s.core.node.Status()))
	}
	s.ticked = ticked
	return len(ticked), err
}

// finish drains raft and delivers what the turn gave. depth is the number of inputs of the turn.
func (s *Stage) finish(depth int, stamp tracing.Stamp) error {
	c := s.core
	c.ready()
	s.published.update(c)
	if err := s.deliver(&c.out); err != nil {
		return err
	}
	if c.out.entries > 0 {
		stamp.Term, stamp.First, stamp.Last = c.standing.Term, c.out.first, c.out.last
	}
	stamp.Count, stamp.Bytes, stamp.Depth = int32(max(c.out.entries, depth)), c.out.bytes, int32(depth)
	stamp.Out = s.clock()
	s.cfg.Meter.Record(stamp)
	c.reset()
	return nil
}

// deliver sends what one turn gave; nothing of it waits.
func (s *Stage) deliver(o *output) error {
	if o.standing {
		s.stand(o.lostLeader)
	}
	for i := range o.sends {
		s.core.unsent(s.cfg.Peers.Send(o.sends[i].to, o.sends[i].msgs))
	}
	for i := range o.appends {
		if err := s.cfg.Persist.Append(o.appends[i]); err != nil {
			return fmt.Errorf("hand %d entries to persist: %w", len(o.appends[i].Entries), err)
		}
	}
	if o.checkpoint != nil {
		if err := s.cfg.Persist.Checkpoint(Checkpoint{o.checkpoint}); err != nil {
			return fmt.Errorf("hand a checkpoint to persist: %w", err)
		}
	}
	if err := s.deliverWork(o.work); err != nil {
		return err
	}
	for i := range o.refusals {
		s.cfg.Propose.Refuse(o.refusals[i].entries, o.refusals[i].why)
	}
	if o.round != 0 {
		s.cfg.Propose.ReadIndexed(o.round, o.index)
	}
	if len(o.results) > 0 {
		s.cfg.Propose.Complete(o.results)
	}
	if o.wantSnapshot {
		s.cfg.Apply.WantSnapshot()
	}
	if b := s.core.log.unapplied; b != s.backlog {
		s.backlog = b
		s.cfg.Propose.Backlog(b)
		s.cfg.Metrics.Backlog.Set(float64(b))
	}
	if o.dropped > 0 {
		s.cfg.Metrics.MsgAppDropped.Add(float64(o.dropped))
	}
	if o.late > 0 {
		s.cfg.Metrics.HeartbeatLate.Add(1)
		s.log.Warn("leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk",
			zap.Duration("heartbeat-interval", s.cfg.Tick),
			zap.Duration("expected-duration", lateHeartbeatTicks*s.cfg.Tick),
			zap.Duration("exceeded-duration", time.Duration(o.late)))
	}
	return nil
}

func (s *Stage) deliverWork(work []pendingWork) error {
	for i := range work {
		var err error
		if work[i].snapshot != nil {
			err = s.cfg.Apply.Install(Install{work[i].snapshot})
		} else {
			err = s.cfg.Apply.Apply(work[i].batch)
		}
		if err != nil {
			return fmt.Errorf("hand %d entries to apply: %w", len(work[i].batch.Entries), err)
		}
	}
	return nil
}

// stand tells the new standing to propose, the log and the gauges.
func (s *Stage) stand(lost uint64) {
	st := s.core.standing
	s.cfg.Propose.Standing(st)
	if st.Leader != lost {
		id := s.cfg.ID
		switch {
		case st.Leader == 0:
			s.raft.Infof("raft.node: %x lost leader %x at term %d", id, lost, st.Term)
		case lost == 0:
			s.raft.Infof("raft.node: %x elected leader %x at term %d", id, st.Leader, st.Term)
		default:
			s.raft.Infof("raft.node: %x changed leader from %x to %x at term %d", id, lost, st.Leader, st.Term)
		}
	}
	if st.Leader != 0 && st.Leader != s.sent.Leader {
		s.cfg.Metrics.LeaderChanges.Add(1)
	}
	s.cfg.Metrics.HasLeader.Set(level(st.Leader != 0))
	s.cfg.Metrics.IsLeader.Set(level(st.Leading))
	s.sent = st
}

func level(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// catch turns raft's panic about an impossible state into the stage's error. Other panics pass.
func catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case raftPanic:
		*err = p
	default:
		panic(p)
	}
}

// TickAge returns how long ago the loop handled a tick; a long time when it never did.
func (s *Stage) TickAge() time.Duration { return s.published.tickAge(s.clock()) }

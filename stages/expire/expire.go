package expire

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/mailbox"
	"sluice/tracing"
)

// Standing is what expire asks of replicate. Any goroutine may be asked.
type Standing interface {
	// Fresh says that this member leads as far as it knows, and that its knowledge is fresh: its last tick
	// is at most three ticks old, and no freeze went unconfirmed.
	Fresh() bool
}

// Out is where the stage's decisions go. Nothing here but Barrier may wait.
type Out interface {
	// Revoke hands over leases to revoke in propose's system lane, as decided by the leader of term; it
	// returns how many, from the front, were taken. ids belongs to the stage again when it returns.
	Revoke(term uint64, ids []int64) int
	// Checkpoint hands over one checkpoint request; false: it was not taken. Requests are proposed in
	// order. cps belongs to the receiver if taken.
	Checkpoint(term uint64, cps []Checkpoint) bool
	// Barrier is a linearizable read barrier. When it returns nil, every change that it waited for has
	// been handed to Changes. Called by the Confirmer only.
	Barrier(ctx context.Context) error
}

// Config is what runtime hands in.
type Config struct {
	In       mailbox.Receiver[Inbound] // the stage's mailbox
	Self     mailbox.Sender[Inbound]   // its sending end, policy Wait
	Out      Out
	Standing Standing

	ElectionTimeout time.Duration
	RequestTimeout  time.Duration // after it a revocation that has not come back is sent again
	RevokeRate      int           // leases per second; 0 means 1000
	// Checkpoint is the feature gate LeaseCheckpoint: the remaining time of leases longer than
	// CheckpointInterval (0 means 5m) is recorded once per interval.
	Checkpoint         bool
	CheckpointInterval time.Duration

	Now     func() int64 // monotonic nanoseconds; nil means tracing.Clock
	Metrics Metrics
	Meter   *tracing.Stage
}

// Metrics are the stage's meters; the zero value of a field discards. Grants and revocations are counted by
// apply, on every member.
type Metrics struct {
	Renewed tracing.Counter // etcd_debugging_lease_renewed_total
	Expired tracing.Counter // etcd_debugging_server_lease_expired_total
	Due     tracing.Gauge   // leases that have run out and are not revoked yet
}

const (
	revokeRateDefault         = 1000
	checkpointIntervalDefault = 5 * time.Minute
)

// Stage is the expire stage. Changes is apply's way in, Renew, TimeToLive and Leases are the lease RPCs'.
// Runtime runs Run and the Confirmer, and calls Tick.
type Stage struct {
	// Fixed at New.
	cfg       Config
	confirmer *Confirmer
	stopped   chan struct{} // closed when Run ends
	flagged   chan struct{} // capacity 1, a token means "look at tick"

	// Owned by Run.
	core  *core
	batch []Inbound
	ids   []int64

	// Published.
	tick    atomic.Bool // Tick sets, the loop clears
	replies sync.Pool   // of *reply, empty ones
}

// New makes the stage. Fields that are zero get their defaults.
func New(cfg Config) *Stage {
	if cfg.RevokeRate <= 0 {
		cfg.RevokeRate = revokeRateDefault
	}
	if cfg.CheckpointInterval <= 0 {
		cfg.CheckpointInterval = checkpointIntervalDefault
	}
	if cfg.Now == nil {
		cfg.Now = tracing.Clock
	}
	for _, c := range []*tracing.Counter{&cfg.Metrics.Renewed, &cfg.Metrics.Expired} {
		if *c == nil {
			*c = tracing.Nop
		}
	}
	if cfg.Metrics.Due == nil {
		cfg.Metrics.Due = tracing.Nop
	}
	s := &Stage{cfg: cfg, stopped: make(chan struct{}), flagged: make(chan struct{}, 1)}
	s.replies.New = func() any { return &reply{ch: make(chan answer, 1)} }
	s.core = newCore(settings{
		electionTimeout: int64(cfg.ElectionTimeout), requestTimeout: int64(cfg.RequestTimeout),
		revokeRate: int64(cfg.RevokeRate), checkpoint: cfg.Checkpoint, checkpointInterval: int64(cfg.CheckpointInterval),
	}, cfg.Now())
	s.confirmer = &Confirmer{stage: s, jobs: make(chan struct{}, 1)}
	return s
}

// Changes hands over what apply did, in log order. It may wait for room. changes belongs to the stage then.
func (s *Stage) Changes(ctx context.Context, changes []Change) error {
	return s.cfg.Self.Send(ctx, changesMsg{changes})
}

// Tick makes the stage look for leases that have run out. Called every 500 ms or oftener; never waits.
func (s *Stage) Tick() {
	s.tick.Store(true)
	select {
	case s.flagged <- struct{}{}:
	default:
	}
}

// Renew gives a lease its whole TTL again and returns it in seconds. ErrNotFound: it does not exist, or has
// run out; in the latter case the answer waits until it is revoked. ErrNotPrimary: this member does not lead.
func (s *Stage) Renew(ctx context.Context, id int64) (ttl int64, err error) {
	r := s.replies.Get().(*reply)
	a, err := s.ask(ctx, renewMsg{id, r}, r)
	return a.granted, err
}

// TimeToLive returns a lease's granted TTL and its remaining time in seconds, rounded down: negative while
// the lease is due. Errors as Renew.
func (s *Stage) TimeToLive(ctx context.Context, id int64) (granted, remaining int64, err error) {
	r := s.replies.Get().(*reply)
	a, err := s.ask(ctx, timeToLiveMsg{id, r}, r)
	return a.granted, a.remaining, err
}

// Leases lists the ids of all leases, by ascending remaining time if this member leads.
func (s *Stage) Leases(ctx context.Context) ([]int64, error) {
	r := s.replies.Get().(*reply)
	a, err := s.ask(ctx, listMsg{r}, r)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(a.leases, func(a, b remaining) int {
		if a.expiry != b.expiry {
			return compare(a.expiry, b.expiry)
		}
		return compare(a.id, b.id)
	})
	ids := make([]int64, len(a.leases))
	for i, l := range a.leases {
		ids[i] = l.id
	}
	return ids, nil
}

func compare(a, b int64) int {
	if a < b {
		return -1
	}
	return 1
}

// ask sends m and waits for its answer.
func (s *Stage) ask(ctx context.Context, m Inbound, r *reply) (answer, error) {
	if err := s.cfg.Self.Send(ctx, m); err != nil {
		s.replies.Put(r)
		return answer{}, err
	}
	select {
	case a := <-r.ch:
		s.replies.Put(r)
		return a, a.err
	case <-ctx.Done():
		r.gone.Store(true)
		return answer{}, ctx.Err()
	case <-s.stopped:
		return answer{}, ErrStopped
	}
}

// Run is the stage. It ends with mailbox.ErrClosed, the orderly end, once its mailbox is closed and empty.
func (s *Stage) Run(ctx context.Context) error {
	defer close(s.stopped)
	for {
		select {
		case <-s.cfg.In.Ready():
		case <-s.flagged:
		case <-ctx.Done():
			return ctx.Err()
		}
		batch, err := s.cfg.In.TryReceive(s.batch[:0])
		if err != nil {
			return err
		}
		s.step(batch)
		clear(batch)
		s.batch = batch
	}
}

// step works on one batch of messages and on a flagged Tick, then hands over what the core has decided.
func (s *Stage) step(batch []Inbound) {
	in, now, fresh := tracing.Clock(), s.cfg.Now(), s.cfg.Standing.Fresh()
	for _, m := range batch {
		if _, ok := m.(confirmedMsg); ok {
			s.confirmer.busy = false
		}
		s.core.step(now, fresh, m)
	}
	if s.tick.Swap(false) {
		s.core.tick(now, fresh)
	}
	if s.ids = s.core.revocations(now, fresh, s.ids[:0]); len(s.ids) > 0 {
		s.core.sent(now, s.cfg.Out.Revoke(s.core.term, s.ids))
	}
	if cps := s.core.records(now, fresh, nil); len(cps) > 0 {
		s.core.recordsSent(now, cps, s.cfg.Out.Checkpoint(s.core.term, slices.Clone(cps)))
	}
	if !s.confirmer.busy && s.core.takeConfirm() {
		s.confirmer.busy = true
		s.confirmer.jobs <- struct{}{}
	}
	s.publish()
	if len(batch) > 0 {
		n := int32(len(batch))
		s.cfg.Meter.Record(tracing.Stamp{In: in, Out: tracing.Clock(), Depth: n, Count: n})
	}
}

// publish sends the answers, none of which waits, and sets the meters.
func (s *Stage) publish() {
	out := &s.core.out
	for i := range out.answers {
		a := &out.answers[i]
		a.reply.ch <- a.answer
	}
	if out.renewed > 0 {
		s.cfg.Metrics.Renewed.Add(float64(out.renewed))
	}
	if out.expired > 0 {
		s.cfg.Metrics.Expired.Add(float64(out.expired))
	}
	s.cfg.Metrics.Due.Set(float64(s.core.overdue))
	clear(out.answers)
	*out = outputs{answers: out.answers[:0]}
}

// Confirmer makes the read barriers that the stage wants, one at a time.
type Confirmer struct {
	stage *Stage        // fixed at New
	jobs  chan struct{} // capacity 1: the stage sends only while busy is false
	busy  bool          // owned by the stage's loop
}

// Confirmer is the stage's worker, for runtime to run beside it.
func (s *Stage) Confirmer() *Confirmer { return s.confirmer }

// Run ends with mailbox.ErrClosed, the orderly end, when the stage has ended.
func (w *Confirmer) Run(ctx context.Context) error {
	for {
		select {
		case <-w.jobs:
			m := confirmedMsg{began: w.stage.cfg.Now()}
			m.ok = w.barrier(ctx)
			if err := w.stage.cfg.Self.Send(ctx, m); err != nil {
				return err
			}
		case <-w.stage.stopped:
			return mailbox.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// barrier says whether the leadership was confirmed. Why not does not matter: the asker learns that this
// member cannot answer for the lease.
func (w *Confirmer) barrier(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, w.stage.cfg.RequestTimeout)
	defer cancel()
	return w.stage.cfg.Out.Barrier(ctx) == nil
}

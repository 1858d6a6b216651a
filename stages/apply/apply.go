package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"sluice/mailbox"
	"sluice/stages/apply/alarms"
	"sluice/stages/apply/auth"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/lease"
	"sluice/stages/apply/members"
	"sluice/stages/apply/mvcc"
	"sluice/stages/wire"
	"sluice/tracing"
)

// Stage is the applier. New makes it, Run runs it; RunCompactor and RunFlusher are its workers, which must run
// as long as Run does.
type Stage struct {
	// Fixed at New.
	cfg     Config
	log     *zap.Logger
	work    *mailbox.Mailbox[work]       // from the workers; Run receives
	jobs    *mailbox.Mailbox[compaction] // to the compactor: one at a time
	flushes *mailbox.Mailbox[flush]      // to the flusher: see flushesMax
	stopped chan struct{}                // closed when Run has ended

	// Owned by Run.
	core        *core
	store       *mvcc.Store
	generation  int // of the state: counts installed snapshots
	out         outcome
	req         wire.Request
	inbox       []Message
	tasks       []work
	physical    []physicalWaiter // of compactions that are recorded and not yet committed
	compacting  bool             // the compactor has a job
	sentCompact int64            // compaction revision that watch knows
	checkpoint  *raftpb.Snapshot // waits for its flush
	forced      bool             // the next checkpoint is due whatever the number of entries
	checkpoints uint64           // index of the last disk snapshot asked for
	removed     bool             // told
	members     *members.Table   // as published last, for the meters

	// Published.
	views published
}

// flushesMax is how many flushes can be outstanding: one checkpoint and one compaction, and as many again of a
// database that an Install has just replaced, whose flushes end at once.
const flushesMax = 4

// New rebuilds the state from cfg.Backend and publishes its view.
func New(cfg Config) (*Stage, error) {
	cfg = cfg.withDefaults()
	s := &Stage{
		cfg: cfg, log: cfg.Logger, checkpoints: cfg.CheckpointIndex,
		work:    mailbox.New[work](mailbox.Config{Name: "apply-work", Capacity: cfg.WorkCapacity}),
		jobs:    mailbox.New[compaction](mailbox.Config{Name: "apply-compactor", Capacity: 1}),
		flushes: mailbox.New[flush](mailbox.Config{Name: "apply-flusher", Capacity: flushesMax}),
		stopped: make(chan struct{}),
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	if err := s.core.members.CheckLearners(); err != nil {
		return nil, err
	}
	return s, nil
}

// load builds the state from the backend and publishes its view.
func (s *Stage) load() error {
	b := s.cfg.Backend
	r := b.Acquire()
	defer r.Release()
	index, term := b.ConsistentIndex()
	c, store, err := loadCore(s.cfg, r, b.Writer(), index, term)
	if err != nil {
		return err
	}
	s.logMigration(c.storage.raise(c.members.Table().ClusterVersion(), c.term))
	if n := c.leases.Orphans(); n > 0 {
		s.log.Warn("keys name leases that do not exist; they are kept without a lease", zap.Int("keys", n))
	}
	for _, a := range c.alarms.Alarms() {
		s.cfg.Metrics.Alarm(a.Member, a.Type, true)
	}
	s.store, s.core = store, c
	s.publish()
	return nil
}

// loadCore builds the state that r shows, as of the entry at index. Leases come before the keys, which hang
// themselves on them. r is read until the store's first Publish.
//
// Rule: contract/disk-and-peer.md section 5.1.
func loadCore(cfg Config, r backend.Reader, w backend.Writer, index, term uint64) (*core, *mvcc.Store, error) {
	c := &core{
		local: cfg.LocalID, server: cfg.ServerVersion, leaderTerm: cfg.LeaderTerm, quota: cfg.QuotaBytes,
		size: func() int64 { total, _ := cfg.Backend.Size(); return total }, index: index, term: term,
	}
	var err error
	if c.storage, err = loadStorage(r, w); err != nil {
		return nil, nil, err
	}
	if c.members, err = members.Load(r, w, cfg.LocalID, cfg.LearnersMax); err != nil {
		return nil, nil, err
	}
	if err = members.CheckServes(cfg.ServerVersion, c.members.Table().ClusterVersion()); err != nil {
		return nil, nil, err
	}
	if c.leases, err = lease.Load(r, w, cfg.LeaseTTLMin); err != nil {
		return nil, nil, err
	}
	store, err := mvcc.Load(r, w, cfg.Store, c.leases)
	if err != nil {
		return nil, nil, err
	}
	if c.auth, err = auth.Load(r, w, cfg.Tokens); err != nil {
		return nil, nil, err
	}
	if c.alarms, err = alarms.Load(r, w); err != nil {
		return nil, nil, err
	}
	c.store = store
	return c, store, nil
}

// View acquires the published view; the caller releases it. Any goroutine, until Close.
func (s *Stage) View() *View { return s.views.acquire() }

// OldestView returns how long the oldest view that a reader still holds has been published; 0 when none is held.
func (s *Stage) OldestView() time.Duration { return s.views.oldest(s.cfg.Clock.Now()) }

// Size returns the backend's size as of its last commit, and how much of it is in use.
func (s *Stage) Size() (total, inUse int64) { return s.cfg.Backend.Size() }

// OverQuota says whether a request of this Cost would take the database to its quota: what the RPCs ask before
// they propose.
func (s *Stage) OverQuota(cost int64) bool {
	if s.cfg.QuotaBytes <= 0 || cost == 0 {
		return false
	}
	total, _ := s.Size()
	return total+cost >= s.cfg.QuotaBytes
}

// Run is the stage. It ends with mailbox.ErrClosed, the orderly end, once the log mailbox is closed and empty
// and everything applied is durable.
func (s *Stage) Run(ctx context.Context) error {
	defer s.end()
	if err := s.announce(ctx, false); err != nil {
		return err
	}
	for {
		var closed bool
		var err error
		select {
		case <-s.cfg.Log.Ready():
			closed, err = s.takeLog(ctx)
		case <-s.work.Receiver().Ready():
			err = s.takeWork(ctx)
		case <-s.cfg.Backend.Wanted():
			err = s.refresh(ctx)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if closed {
			if err := s.flushAll(ctx); err != nil {
				return err
			}
			return mailbox.ErrClosed
		}
	}
}

// announce tells expire all leases and watch the revision: at the start, and after an Install. What was sent
// before no longer counts.
func (s *Stage) announce(ctx context.Context, again bool) error {
	events := wire.EventBatch{Revision: s.store.Revision(), CompactRevision: s.store.CompactRevision()}
	s.sentCompact = events.CompactRevision
	if err := s.cfg.Out.Events(ctx, events); err != nil {
		return fmt.Errorf("tell watch revision %d: %w", events.Revision, err)
	}
	table := s.core.leases.Publish()
	changes := make([]LeaseChange, 1, 1+table.Len())
	changes[0].Kind = LeasesReset
	table.Each(func(l lease.Info) bool {
		changes = append(changes, LeaseChange{Kind: LeaseGranted, ID: l.ID, TTL: l.TTL, Remaining: l.Remaining})
		return true
	})
	if again && s.core.ledTerm != 0 { // a leader gets no snapshot: whoever installs one follows
		changes = append(changes, LeaseChange{Kind: LeaseLeading, Term: s.core.ledTerm})
	}
	if err := s.cfg.Out.Leases(ctx, changes); err != nil {
		return fmt.Errorf("tell expire %d leases: %w", table.Len(), err)
	}
	s.cfg.Out.Published(s.core.index)
	s.cfg.Metrics.Applied.Set(float64(s.core.index))
	s.tellRemoval()
	s.nextCompaction()
	return nil
}

// takeLog works on all that replicate has sent. closed is the orderly end.
func (s *Stage) takeLog(ctx context.Context) (closed bool, err error) {
	in := tracing.Clock()
	msgs, err := s.cfg.Log.TryReceive(s.inbox[:0])
	if err != nil {
		return true, nil
	}
	s.inbox = msgs
	defer clear(msgs)
	for len(msgs) > 0 {
		n := 0
		for n < len(msgs) {
			if _, ok := msgs[n].(Batch); !ok {
				break
			}
			n++
		}
		if n > 0 {
			err = s.apply(ctx, msgs[:n], in, len(s.inbox))
		} else {
			n = 1
			err = s.install(ctx, msgs[0].(Install))
		}
		if err != nil {
			return false, err
		}
		msgs = msgs[n:]
	}
	return false, nil
}

// refresh does what the backend wants of an idle applier: the buffer sealed, or views on a new file or a newer
// read transaction, so that the old ones end.
func (s *Stage) refresh(ctx context.Context) error {
	if s.cfg.Backend.SealWanted() {
		if err := s.seal(ctx); err != nil {
			return err
		}
	}
	s.publish()
	return nil
}

// publish makes the state of now what readers get.
func (s *Stage) publish() {
	reader := s.cfg.Backend.Acquire()
	c := s.core
	v := &View{
		KV: s.store.Publish(reader), Leases: c.leases.Publish(), Members: c.members.Table(), Auth: c.auth.Table(),
		Alarms: c.alarms.List(), StorageVersion: c.storage.version, Index: c.index, Term: c.term,
		reader: reader, generation: s.generation, hold: &hold{born: s.cfg.Clock.Now()},
	}
	v.hold.refs.Store(1)
	s.views.set(v)
	if s.members != v.Members {
		s.members = v.Members
		learner := 0.0
		if v.Members.IsLearner() {
			learner = 1
		}
		s.cfg.Metrics.Learner.Set(learner)
	}
}

// seal hands what was written since the last seal to the backend's writer, with the index that it belongs to.
// Only between two entries. It waits while two sealed buffers are not yet durable, and may publish a view, so that
// readers see the first entries of a batch before it is announced: a view is ahead of events and results, never
// behind them.
func (s *Stage) seal(ctx context.Context) error {
	c := s.core
	seal := backend.Seal{Index: c.index, Term: c.term}
	if c.confState {
		seal.ConfState = c.members.Table().ConfStateJSON()
	}
	if err := s.fresh(func() error { return s.cfg.Backend.Seal(ctx, seal) }); err != nil {
		return fmt.Errorf("seal the backend at entry %d: %w", c.index, err)
	}
	c.confState = false
	return nil
}

// fresh makes a call to the backend that waits for its writer. When the writer in turn waits for the read
// transaction of the published view, a fresh view lets it go.
func (s *Stage) fresh(call func() error) error {
	for {
		err := call()
		if !errors.Is(err, backend.ErrStale) {
			return err
		}
		s.publish()
	}
}

// flushAll makes everything applied durable.
func (s *Stage) flushAll(ctx context.Context) error {
	if err := s.seal(ctx); err != nil {
		return err
	}
	if err := s.fresh(func() error { return s.cfg.Backend.Flush(ctx) }); err != nil {
		return fmt.Errorf("flush the backend at entry %d: %w", s.core.index, err)
	}
	return nil
}

// end lets the workers end.
func (s *Stage) end() {
	s.work.Close()
	s.jobs.Close()
	s.flushes.Close()
	close(s.stopped)
}

// Close gives back the published view, once Run has ended and nobody reads keys any more.
func (s *Stage) Close() { s.views.close() }

func (s *Stage) logMigration(steps []string) {
	for _, v := range steps {
		s.log.Info("updated storage version", zap.String("new-storage-version", v))
	}
}

package runtime

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"sluice/mailbox"
	"sluice/stages/apply"
	"sluice/stages/apply/auth"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/mvcc"
	"sluice/stages/expire"
	"sluice/stages/persist"
	"sluice/stages/propose"
	"sluice/stages/replicate"
	"sluice/stages/watch"
	"sluice/tracing"
)

// Member is one member of a cluster: all stages, connected. New builds it, Start runs it, Stop ends it.
//
//	mailbox     receiver    senders and what they meet at a full one        capacity
//	propose     propose     rpc waits                                       --mailbox-propose
//	system      propose     revoker, rpc, workers wait                      --mailbox-system
//	replicate   replicate   propose waits                                   --mailbox-replicate
//	acks        replicate   persist, apply: reserved by credits             credits + 3
//	persist     persist     replicate: reserved by credits                  credits (--mailbox-persist) + 1
//	apply       apply       replicate: reserved by credits                  credits (--mailbox-apply)
//	apply-work  apply       compactor, flusher wait                         8
//	backend     backend     apply waits                                     --mailbox-backend
//	watch       watch       apply, rpc, catch-up workers wait               --mailbox-watch
//	expire      expire      apply, rpc wait                                 --mailbox-expire
//	revoker     revoker     expire is refused and tries again               --mailbox-expire
type Member struct {
	// Fixed at New.
	cfg     Config
	log     *zap.Logger
	boot    *boot
	meters  meters
	tokens  auth.Tokens
	started time.Time

	// The stages, fixed at New, in the order in which they start.
	backend   *backend.Backend
	watch     *watch.Stage
	expire    *expire.Stage
	apply     *apply.Stage
	persist   *persist.Stage
	replicate *replicate.Stage
	propose   *propose.Stage

	// Their mailboxes, as far as runtime makes them.
	watchIn   *mailbox.Mailbox[watch.Inbound]
	expireIn  *mailbox.Mailbox[expire.Inbound]
	applyIn   *mailbox.Mailbox[apply.Message]
	persistIn *mailbox.Mailbox[persist.Message]
	revoking  *mailbox.Mailbox[revocation]

	loops    *supervisor
	applied  *appliedIndex
	noSpace  chan struct{} // capacity 1: apply asks for the NOSPACE alarm
	ready    chan struct{} // closed when the member is published in its cluster
	stopping chan struct{} // closed when Stop begins or a stage has failed
	patience time.Duration // cutPatience
	stop     stopOnce
	ending   sync.Once // the first Stop ends the member
	outcome  error     // of ending
}

// meters are the stages' histograms.
type meters struct {
	clock                                                      func() int64
	propose, replicate, persist, apply, backend, watch, expire *tracing.Stage
}

func newMeters() meters {
	return meters{
		clock: tracing.Clock, propose: tracing.NewStage("propose"), replicate: tracing.NewStage("replicate"),
		persist: tracing.NewStage("persist"), apply: tracing.NewStage("apply"), backend: tracing.NewStage("backend"),
		watch: tracing.NewStage("watch"), expire: tracing.NewStage("expire"),
	}
}

func (m meters) all() []*tracing.Stage {
	return []*tracing.Stage{m.propose, m.replicate, m.persist, m.apply, m.backend, m.watch, m.expire}
}

// New opens the data directory and builds the member. Nothing runs yet. Whoever does not Start it calls
// Abandon.
func New(cfg Config) (*Member, error) {
	cfg.Mailboxes = cfg.Mailboxes.withDefaults()
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Metrics == nil {
		cfg.Metrics = tracing.NewMetrics(false)
	}
	m := &Member{
		cfg: cfg, log: cfg.Logger, meters: newMeters(), tokens: cfg.tokens(), started: time.Now(),
		applied: newAppliedIndex(), noSpace: make(chan struct{}, 1),
		ready: make(chan struct{}), stopping: make(chan struct{}), patience: cutPatience,
	}
	var err error
	if m.boot, err = cfg.open(m.backendMetrics(), m.meters); err != nil {
		return nil, err
	}
	m.backend = m.boot.backend
	if err := m.build(); err != nil {
		m.boot.abandon()
		return nil, err
	}
	m.cfg.Metrics.SetFlow(m.mailboxes(), m.meters.all())
	m.setLive()
	return m, nil
}

// build makes the stages from the far end. Edges into stages that do not exist yet go through m.
func (m *Member) build() error {
	box := m.cfg.Mailboxes
	m.watchIn = mailbox.NewSized[watch.Inbound](mailbox.Config{Name: "watch", Capacity: box.Watch, BytesMax: 64 << 20}, watch.InboundBytes)
	m.expireIn = mailbox.New[expire.Inbound](mailbox.Config{Name: "expire", Capacity: box.Expire})
	m.applyIn = mailbox.New[apply.Message](mailbox.Config{Name: "apply", Capacity: box.Apply})
	m.persistIn = mailbox.NewSized(mailbox.Config{Name: "persist", Capacity: box.Persist + 1}, persist.SizeOf)
	m.revoking = mailbox.New[revocation](mailbox.Config{Name: "revoker", Capacity: box.Expire})

	if err := m.buildApply(); err != nil {
		return err
	}
	view := m.apply.View()
	defer view.Release()
	if len(view.Members.List()) > 1 {
		return fmt.Errorf("%w (the data directory holds %d members)", ErrOneMember, len(view.Members.List()))
	}
	if err := m.boot.catchUpLog(view.Members.ConfState(), m.log); err != nil {
		return err
	}
	if err := m.buildReplicate(view); err != nil {
		return err
	}
	m.persist = persist.New(persist.Config{
		In: m.persistIn.Receiver(), Out: persistOut{m}, WAL: m.boot.wal, Snap: m.boot.snap, Log: m.log.Named("persist"),
		MaxWALs: m.cfg.WALsMax, MaxSnapshots: m.cfg.SnapshotsMax, Meter: m.meters.persist, Metrics: m.persistMetrics(),
	})
	m.propose = propose.New(propose.Config{
		MemberID: m.boot.local, StartMillis: m.started.UnixMilli(), ElectionTimeout: m.cfg.Election,
		RequestBytesMax: int(m.cfg.RequestBytesMax), PriorityGapMax: m.priorityGap(),
		UncommittedBytes: m.cfg.UncommittedBytes, ClientMessages: box.Propose, SystemMessages: box.System,
		Replicate: m.replicate, Progress: progress{m}, Meter: m.meters.propose, Metrics: m.proposeMetrics(),
	})
	m.buildReaders(view)
	return nil
}

func (m *Member) buildApply() (err error) {
	m.apply, err = apply.New(apply.Config{
		Log: m.applyIn.Receiver(), Out: applyOut{m}, Logger: m.log.Named("apply"), Meter: m.meters.apply,
		Metrics: m.applyMetrics(), Backend: m.backend, SnapshotFile: m.boot.snap.DBPath,
		LocalID: m.boot.local, ServerVersion: m.cfg.Version,
		Store:      mvcc.Config{ValueCacheBytes: m.cfg.ValueCacheBytes, Metrics: m.storeMetrics()},
		Tokens:     m.tokens,
		LeaderTerm: m.leaderTerm, Removed: m.removed, Image: m.image,
		CheckpointIndex: m.boot.index, CheckpointEntries: m.cfg.SnapshotCount,
		LearnersMax: m.cfg.LearnersMax, LeaseTTLMin: m.cfg.leaseTTLMin(), QuotaBytes: m.cfg.QuotaBytes,
		WarningDuration: m.cfg.WarningDuration, CompactionRecordsMax: m.cfg.CompactionRecordsMax,
		CompactionPause: m.cfg.CompactionPause,
	})
	return err
}

func (m *Member) buildReplicate(view *apply.View) (err error) {
	box := m.cfg.Mailboxes
	m.replicate, err = replicate.New(replicate.Config{
		Settings: replicate.Settings{
			ID: m.boot.local, PreVote: m.cfg.PreVote, ElectionTicks: m.cfg.electionTicks(),
			CatchUpEntries: m.cfg.CatchUpEntries, PersistCredits: box.Persist, ApplyCredits: box.Apply,
			UncommittedBytesMax: max(256<<20, 2*uint64(max(m.cfg.UncommittedBytes, 0))),
		},
		Boot: replicate.Boot{
			HardState: m.boot.hard.Raft(), ConfState: view.Members.ConfState(),
			Index: m.boot.index, Term: m.boot.term, Entries: m.boot.entries,
		},
		Tick: m.cfg.Heartbeat, Logger: m.log.Named("raft"), Meter: m.meters.replicate,
		IntakeMessages: box.Replicate, PeerMessages: box.Replicate,
		Persist: replicatePersist{m}, Apply: replicateApply{m}, Peers: noPeers{}, Propose: replicatePropose{m},
		Metrics: m.replicateMetrics(),
	})
	return err
}

// buildReaders makes the stages that serve watches and leases.
func (m *Member) buildReaders(view *apply.View) {
	m.watch = watch.New(watch.Config{
		In: m.watchIn.Receiver(), Self: m.watchIn.Sender(mailbox.Wait), Views: history{m},
		Revision: view.KV.Revision(), CompactRevision: view.KV.CompactRevision(),
		ProgressInterval: m.cfg.ProgressInterval, Jitter: rand.Float64, RequestBytesMax: m.cfg.RequestBytesMax,
		WindowBytes: m.cfg.WindowBytes, Now: time.Now, Metrics: m.watchMetrics(), Meter: m.meters.watch,
	})
	m.expire = expire.New(expire.Config{
		In: m.expireIn.Receiver(), Self: m.expireIn.Sender(mailbox.Wait), Out: expireOut{m}, Standing: standing{m},
		ElectionTimeout: m.cfg.Election, RequestTimeout: m.cfg.requestTimeout(), RevokeRate: m.cfg.RevokesPerSecond,
		Checkpoint: m.cfg.LeaseCheckpoint, Metrics: m.expireMetrics(), Meter: m.meters.expire,
	})
}

// Start runs the stages from the far end. ctx is the member's life: its end is the hard stop, Stop is the
// orderly one.
func (m *Member) Start(ctx context.Context) {
	m.loops = newSupervisor(ctx)
	run := m.loops.run
	run("backend", m.backend.Run)
	run("watch", m.watch.Run)
	for _, w := range m.watch.Workers() {
		run(w.Name(), w.Run)
	}
	run("expire", m.expire.Run)
	run("expire-confirmer", m.expire.Confirmer().Run)
	run("revoker", m.revoke)
	run("apply", m.apply.Run)
	run("apply-compactor", m.apply.RunCompactor)
	run("apply-flusher", m.apply.RunFlusher)
	run("persist", m.persist.Run)
	run("persist-prepare", m.persist.Prepare)
	run("persist-purge", m.persist.Purge)
	run("replicate", m.replicate.Run)
	run("propose", m.propose.Run)
	run("clock", m.tick)
	run("alarmer", m.raiseNoSpace)
	run("publisher", m.publish)
	run("versions", m.watchVersion)
	go m.failed()
}

// failed begins the stop when a stage has failed or ctx has ended.
func (m *Member) failed() {
	select {
	case <-m.loops.ctx.Done():
		m.stop.begin(m.stopping)
		m.propose.Abandon()
	case <-m.stopping:
	}
}

// Stop ends the member in order: what was proposed is applied and made durable. It returns when everything
// has ended, with the error of the stage that failed if one did. ctx bounds the orderly part; when it ends,
// the rest is cut off, which loses nothing that was acknowledged. A stage that even then does not end,
// because the disk does not return from a call, is left behind and named in the error: nothing can be done
// about it but to end the process. A second call waits for the first and returns the same.
func (m *Member) Stop(ctx context.Context) error {
	m.stop.begin(m.stopping)
	m.ending.Do(func() { m.outcome = m.end(ctx) })
	return m.outcome
}

// cutPatience is how long loops may take to end once their context has.
const cutPatience = 5 * time.Second

func (m *Member) end(ctx context.Context) error {
	if m.loops == nil {
		m.Abandon()
		return nil
	}
	err := m.drain(ctx)
	keep := "backend" // it ends with its Close
	if err != nil || m.loops.err() != nil {
		m.loops.cancel(errors.New("the member is stopped"))
		keep = ""
	}
	m.propose.Abandon()
	stuck := m.loops.settle(m.patience, keep)
	if !slices.Contains(stuck, "apply") && !slices.Contains(stuck, "backend") {
		m.apply.Close()
		if closed := m.backend.Close(); err == nil && closed != nil && m.loops.err() == nil {
			err = closed
		}
	}
	if len(stuck) == 0 {
		m.loops.loops.Wait()
	} else {
		err = &StageError{Stage: stuck[0], Err: fmt.Errorf("%w: %s", ErrStuck, strings.Join(stuck, ", "))}
	}
	if failure := m.loops.err(); failure != nil {
		return failure
	}
	m.loops.cancel(nil)
	return err
}

// ErrStuck is the end of a member whose disk does not return from a call.
var ErrStuck = errors.New("not ended, the disk does not answer")

// drain closes mailbox after mailbox in the order of the data, and waits for each stage to end.
func (m *Member) drain(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(m.loops.ctx, cancel) // a failed stage will not drain
	defer stop()
	for _, step := range []struct {
		close func()
		loop  string
	}{
		{m.revoking.Close, "revoker"},
		{m.propose.Close, "propose"},
		{m.replicate.Close, "replicate"},
		{m.applyIn.Close, "apply"},
		{m.persistIn.Close, "persist"},
		{m.expireIn.Close, "expire"},
		{m.watchIn.Close, "watch"},
	} {
		step.close()
		if err := m.loops.await(ctx, step.loop); err != nil {
			return err
		}
	}
	return nil
}

// Abandon gives up a member that was never started.
func (m *Member) Abandon() {
	m.stop.begin(m.stopping)
	m.propose.Abandon()
	m.apply.Close()
	m.boot.abandon()
}

// Ready is closed once the member has made itself known in its cluster and serves requests.
func (m *Member) Ready() <-chan struct{} { return m.ready }

// Done is closed when the member begins to stop, for whatever reason.
func (m *Member) Done() <-chan struct{} { return m.stopping }

// Err is the failure of a stage, nil while there is none.
func (m *Member) Err() error {
	if m.loops == nil {
		return nil
	}
	return m.loops.err()
}

// mailboxes are all inboxes, for meters and settings.
func (m *Member) mailboxes() []mailbox.Metered {
	boxes := []mailbox.Metered{m.persistIn, m.applyIn, m.watchIn, m.expireIn, m.revoking, m.backend.Mailbox()}
	boxes = append(boxes, m.propose.Mailboxes()...)
	return append(boxes, m.replicate.Mailboxes()...)
}

package watch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sluice/mailbox"
	"sluice/stages/wire"
	"sluice/tracing"
)

// Config is what runtime hands in.
type Config struct {
	In   mailbox.Receiver[Inbound] // the stage's mailbox, made with InboundBytes
	Self mailbox.Sender[Inbound]   // its sending end, policy Wait

	Views   Views
	Workers int // catch-up workers; 0 means 2

	Revision        int64 // of the store when the stage starts
	CompactRevision int64

	ProgressInterval time.Duration  // 0 means 10m; raised to 100ms
	Jitter           func() float64 // in [0,1), once per stream: lengthens its interval by up to 10 %; nil: none
	RequestBytesMax  int64          // --max-request-bytes, 0 means 1.5 MiB: fragments are cut below it plus 512 KiB

	StreamMessagesMax int   // responses that wait in one stream's outbox; 0 means 256
	StreamBytesMax    int64 // their bytes; 0 means 8 MiB
	WindowRevisions   int   // recent revisions kept encoded; 0 means 10 000
	WindowBytes       int64 // their bytes; 0 means 32 MiB
	ChunkBytes        int64 // events that one catch-up response and one scan may hold; 0 means 1 MiB

	Now     func() time.Time
	Metrics Metrics
	Meter   *tracing.Stage
}

// Metrics are the stage's meters; the zero value of a field discards.
type Metrics struct {
	Streams       tracing.Gauge   // etcd_debugging_mvcc_watch_stream_total
	Watchers      tracing.Gauge   // etcd_debugging_mvcc_watcher_total
	SlowWatchers  tracing.Gauge   // etcd_debugging_mvcc_slow_watcher_total: catching up
	PendingEvents tracing.Gauge   // etcd_debugging_mvcc_pending_events_total: in outboxes
	Events        tracing.Counter // etcd_debugging_mvcc_events_total: put into outboxes
	Future        tracing.Gauge   // watchers that wait for a future revision
	Compacted     tracing.Gauge   // watchers cancelled for compaction, not yet by their client
	LagScanning   tracing.Gauge   // revisions: the farthest behind of those that wait for a scan
	LagBlocked    tracing.Gauge   // revisions: the farthest behind of those that wait for their client
	WindowBytes   tracing.Gauge   // bytes of the window of recent events
	Scans         tracing.Counter // catch-up scans of history
}

const (
	progressIntervalMin = 100 * time.Millisecond
	fragmentOverhead    = 512 * 1024 // what gRPC messages may hold beyond --max-request-bytes
)

// Stage is the watch stage. Streams are opened by the RPC layer, Events is apply's way in, and runtime runs
// Run and every Worker.
type Stage struct {
	// Fixed at New.
	cfg     Config
	workers []*Worker
	stopped chan struct{} // closed when Run ends
	flagged chan struct{} // capacity 1, a token means "look at tick and retired"

	// Owned by Run.
	core  *core
	batch []Inbound

	// Published.
	streams atomic.Int64 // open streams: Open and Close write
	pending atomic.Int64 // events in outboxes: push, pop and close write
	tick    atomic.Bool  // Tick sets, the loop clears

	mu      sync.Mutex // guards retired: Close appends, the loop takes
	retired []*Stream
}

// New makes the stage. Fields that are zero get their defaults.
func New(cfg Config) *Stage {
	cfg = cfg.withDefaults()
	s := &Stage{cfg: cfg, stopped: make(chan struct{}), flagged: make(chan struct{}, 1)}
	s.core = newCore(cfg)
	for i := range cfg.Workers {
		s.workers = append(s.workers, &Worker{
			name: fmt.Sprintf("watch-catchup-%d", i), stage: s, jobs: make(chan *job, 1),
		})
	}
	return s
}

func (cfg Config) withDefaults() Config {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	defInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	defInt(&cfg.Workers, 2)
	defInt(&cfg.StreamMessagesMax, 256)
	def(&cfg.StreamBytesMax, 8<<20)
	defInt(&cfg.WindowRevisions, 10_000)
	def(&cfg.WindowBytes, 32<<20)
	def(&cfg.ChunkBytes, 1<<20)
	def(&cfg.RequestBytesMax, 1536*1024)
	if cfg.ProgressInterval == 0 {
		cfg.ProgressInterval = 10 * time.Minute
	}
	cfg.ProgressInterval = max(cfg.ProgressInterval, progressIntervalMin)
	if cfg.Jitter == nil {
		cfg.Jitter = func() float64 { return 0 }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m := &cfg.Metrics
	for _, g := range []*tracing.Gauge{&m.Streams, &m.Watchers, &m.SlowWatchers, &m.PendingEvents, &m.Future,
		&m.Compacted, &m.LagScanning, &m.LagBlocked, &m.WindowBytes} {
		if *g == nil {
			*g = tracing.Nop
		}
	}
	for _, c := range []*tracing.Counter{&m.Events, &m.Scans} {
		if *c == nil {
			*c = tracing.Nop
		}
	}
	return cfg
}

// Events hands one applied batch over, in order. It may wait for room, never for a stream. The bytes of its
// events must not change until the batch has been processed; the stage copies what it keeps.
func (s *Stage) Events(ctx context.Context, b wire.EventBatch) error {
	n := 0
	for i := range b.Events {
		n += inboundOverhead + len(b.Events[i].Key) + len(b.Events[i].KV) + len(b.Events[i].Prev)
	}
	return s.send(ctx, eventsMsg{b, n})
}

// Tick makes the stage look at its progress timers. Called about every 100 ms; never waits.
func (s *Stage) Tick() {
	s.tick.Store(true)
	s.wake()
}

// wake makes the loop look at its flags.
func (s *Stage) wake() {
	select {
	case s.flagged <- struct{}{}:
	default:
	}
}

// send waits for room in the mailbox.
func (s *Stage) send(ctx context.Context, m Inbound) error { return s.cfg.Self.Send(ctx, m) }

// retire hands a closed stream to the loop.
func (s *Stage) retire(st *Stream) {
	s.mu.Lock()
	s.retired = append(s.retired, st)
	s.mu.Unlock()
	s.wake()
}

func (s *Stage) takeRetired() []*Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.retired
	s.retired = nil
	return taken
}

// Workers are the catch-up workers, for runtime to run beside the stage.
func (s *Stage) Workers() []*Worker { return s.workers }

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

// step works on one batch of messages and on what is flagged.
func (s *Stage) step(batch []Inbound) {
	in := tracing.Clock()
	if s.tick.Swap(false) {
		s.core.tick(s.cfg.Now())
		s.report()
	}
	bytes := 0
	for _, m := range batch {
		bytes += m.inboundBytes()
		if r, ok := m.(*result); ok {
			r.job.worker.busy = false
		}
		s.core.step(m, s.cfg.Now())
	}
	for _, st := range s.takeRetired() {
		s.core.closeStream(st)
	}
	s.dispatch()
	s.publish()
	if len(batch) > 0 {
		n := int32(len(batch))
		s.cfg.Meter.Record(tracing.Stamp{In: in, Out: tracing.Clock(), Depth: n, Count: n, Bytes: int64(bytes)})
	}
}

// dispatch gives a scan to every idle worker. It never waits: an idle worker's place is free.
func (s *Stage) dispatch() {
	for _, w := range s.workers {
		if w.busy {
			continue
		}
		j := s.core.nextJob()
		if j == nil {
			return
		}
		j.worker, w.busy = w, true
		s.cfg.Metrics.Scans.Add(1)
		w.jobs <- j
	}
}

// publish sets the meters that follow every batch.
func (s *Stage) publish() {
	m, c := &s.cfg.Metrics, s.core
	m.Events.Add(float64(c.takeDelivered()))
	m.PendingEvents.Set(float64(s.pending.Load()))
	m.Watchers.Set(float64(c.total))
	m.SlowWatchers.Set(float64(c.counts[late]))
	m.Future.Set(float64(c.counts[future]))
	m.Compacted.Set(float64(c.counts[compacted]))
	m.WindowBytes.Set(float64(c.window.bytes))
}

// report sets the meters that cost a walk, at every Tick.
func (s *Stage) report() {
	scanning, blocked := s.core.lag()
	s.cfg.Metrics.LagScanning.Set(float64(scanning))
	s.cfg.Metrics.LagBlocked.Set(float64(blocked))
}

// Worker carries out catch-up scans, one at a time.
type Worker struct {
	name  string    // fixed at New
	stage *Stage    // fixed at New
	jobs  chan *job // capacity 1: the stage sends only while busy is false
	busy  bool      // owned by the stage's loop
}

// Name is the worker's name in profiles and logs.
func (w *Worker) Name() string { return w.name }

// Run ends with mailbox.ErrClosed, the orderly end, when the stage has ended.
func (w *Worker) Run(ctx context.Context) error {
	for {
		select {
		case j := <-w.jobs:
			r, err := scan(j, w.stage.cfg.Views)
			if err != nil {
				return fmt.Errorf("scan history from revision %d: %w", j.from, err)
			}
			if err := w.stage.send(ctx, r); err != nil {
				return err
			}
		case <-w.stage.stopped:
			return mailbox.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

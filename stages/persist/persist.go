package persist

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sluice/mailbox"
	"sluice/stages/persist/snap"
	"sluice/stages/persist/wal"
	"sluice/tracing"
)

const (
	// batchBytesMax ends a merged batch, so that the buffer and the wait for an answer stay bounded when
	// big entries queue up. A larger single message is written in parts of it.
	batchBytesMax = wal.FlushBytesMax
	// SlowSync is how long an fdatasync may take without a warning.
	SlowSync = time.Second
	// PurgeInterval is the time between two passes of Purge.
	PurgeInterval = 30 * time.Second
)

// Metrics are fed by the stage; nil ones are discarded. The comments name etcd's metrics.
type Metrics struct {
	WALFsync  tracing.Observer // etcd_disk_wal_fsync_duration_seconds
	WALWrite  tracing.Observer // etcd_disk_wal_write_duration_seconds; one per write of a batch
	WALBytes  tracing.Counter  // etcd_disk_wal_write_bytes_total, a gauge there
	SnapFsync tracing.Observer // etcd_snap_fsync_duration_seconds
	SnapSave  tracing.Observer // etcd_debugging_snap_save_total_duration_seconds
}

// Config is what the stage needs. All fields but Meter, Metrics and Now are required.
type Config struct {
	In   mailbox.Receiver[Message]
	Out  Out
	WAL  *wal.WAL  // becomes the stage's own: Run closes it
	Snap *snap.Dir // becomes the stage's own
	Log  *zap.Logger

	MaxWALs      uint // --max-wals, 0 keeps all
	MaxSnapshots uint // --max-snapshots, 0 keeps all
	Meter        *tracing.Stage
	Metrics      Metrics
	Now          func() int64 // monotonic nanoseconds; nil is tracing.Clock
}

// Stage is the stage; see the package comment.
type Stage struct {
	// Fixed at New.
	Config

	// Owned by Run.
	core  core
	plan  plan
	batch []Message
}

// New returns the stage, to continue the log where it was opened.
func New(c Config) *Stage {
	for _, o := range []*tracing.Observer{&c.Metrics.WALFsync, &c.Metrics.WALWrite, &c.Metrics.SnapFsync,
		&c.Metrics.SnapSave} {
		if *o == nil {
			*o = tracing.Nop
		}
	}
	if c.Metrics.WALBytes == nil {
		c.Metrics.WALBytes = tracing.Nop
	}
	if c.Now == nil {
		c.Now = tracing.Clock
	}
	return &Stage{Config: c, core: core{state: c.WAL.State(), last: c.WAL.LastIndex()}}
}

// Run is the stage. It ends with ErrClosed, the orderly end, once its mailbox is closed and empty and the log
// is written to its last record; with the context's error at once; with any other error when the disk failed:
// then the member must stop, since nobody knows what the disk holds.
func (s *Stage) Run(ctx context.Context) error {
	defer s.WAL.Abandon() // after Close a no-op
	for {
		batch, err := s.In.Receive(ctx, s.batch[:0])
		if errors.Is(err, mailbox.ErrClosed) {
			if err := s.WAL.Close(); err != nil {
				return fmt.Errorf("close log: %w", err)
			}
			return err
		}
		if err != nil {
			return err
		}
		in := s.Now()
		for i, m := range batch {
			s.core.merge(&s.plan, m)
			if i == len(batch)-1 || s.plan.bytes >= batchBytesMax {
				if err := s.execute(in, len(batch)); err != nil {
					return err
				}
				in = s.Now()
			}
		}
		clear(batch) // what was written need not stay in memory
		s.batch = batch
	}
}

// execute carries the plan out and acknowledges it.
func (s *Stage) execute(in int64, depth int) error {
	p := &s.plan
	for i := range p.steps {
		if err := s.write(&p.steps[i]); err != nil {
			return err
		}
	}
	if p.sync || s.WAL.Buffered() >= wal.BufferBytesMax {
		if err := s.flush(p.sync); err != nil {
			return err
		}
	}
	if err := s.release(p); err != nil {
		return err
	}
	out := s.Now()
	s.Meter.Record(tracing.Stamp{
		Term: p.term, First: p.first, Last: p.last, In: in, Out: out,
		Depth: int32(depth), Count: int32(p.entries), Bytes: int64(p.bytes),
	})
	ack := p.ack
	p.reset()
	if err := s.Out.Acknowledge(ack); err != nil {
		return fmt.Errorf("acknowledge %d appends: %w", ack.Appends, err)
	}
	return nil
}

// write encodes one step into the log's buffer; a snapshot file goes to the disk at once.
func (s *Stage) write(st *step) error {
	switch {
	case st.entries != nil:
		for _, e := range st.entries {
			s.WAL.AppendEntry(e)
			if s.WAL.Buffered() < wal.FlushBytesMax {
				continue
			}
			if err := s.flush(true); err != nil {
				return err
			}
		}
	case st.file != nil:
		start := s.Now()
		timing, err := s.Snap.Save(st.file)
		if err != nil {
			return err
		}
		s.Metrics.SnapFsync.Observe(timing.Seconds())
		s.Metrics.SnapSave.Observe(seconds(s.Now() - start))
	case st.record != nil:
		s.WAL.AppendSnapshot(*st.record)
	default:
		s.WAL.AppendState(st.state)
	}
	return nil
}

// flush hands the buffer to the disk.
func (s *Stage) flush(sync bool) error {
	t, err := s.WAL.Flush(sync)
	if err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	s.Metrics.WALWrite.Observe(t.Write.Seconds())
	s.Metrics.WALBytes.Add(float64(t.Bytes))
	if !sync {
		return nil
	}
	s.Metrics.WALFsync.Observe(t.Sync.Seconds())
	if t.Sync > SlowSync {
		s.Log.Warn("slow fdatasync", zap.Duration("took", t.Sync), zap.Duration("expected-duration", SlowSync))
	}
	return nil
}

// release gives up what a durable snapshot makes useless. Database copies go only with a checkpoint: it says
// that apply is past all that it was told to install.
func (s *Stage) release(p *plan) error {
	if p.release == 0 {
		return nil
	}
	s.WAL.Release(p.release)
	s.Log.Info("saved snapshot to disk", zap.Uint64("snapshot-index", p.release))
	if p.ack.CheckpointIndex == 0 {
		return nil
	}
	removed, err := s.Snap.ReleaseDB(p.ack.CheckpointIndex)
	for _, name := range removed {
		s.Log.Info("removed a received database that is no longer needed", zap.String("path", name))
	}
	return err
}

func seconds(ns int64) float64 { return time.Duration(ns).Seconds() }

// Prepare is a worker beside Run that keeps the next segment ready, see wal.WAL.Prepare. It ends with
// ErrClosed when Run has ended, or with a disk error that must stop the member.
func (s *Stage) Prepare(ctx context.Context) error {
	err := s.WAL.Prepare(ctx)
	if errors.Is(err, wal.ErrClosed) {
		return mailbox.ErrClosed
	}
	return err
}

// Purge is a worker beside Run that removes the oldest snapshot files, database copies and released segments,
// now and every PurgeInterval, until Run has ended (ErrClosed) or ctx ends. A file that cannot be removed is
// tried again; only a warning tells.
func (s *Stage) Purge(ctx context.Context) error {
	tick := time.NewTicker(PurgeInterval)
	defer tick.Stop()
	for {
		if err := s.Snap.Purge(s.MaxSnapshots); err != nil {
			s.Log.Warn("failed to purge snapshot files", zap.Error(err))
		}
		if err := s.WAL.Purge(s.MaxWALs); err != nil {
			s.Log.Warn("failed to purge WAL files", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.WAL.Closed():
			return mailbox.ErrClosed
		case <-tick.C:
		}
	}
}

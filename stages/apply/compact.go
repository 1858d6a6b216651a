package apply

import (
	"context"
	"time"

	"go.uber.org/zap"

	"sluice/mailbox"
	"sluice/stages/apply/mvcc"
)

// compaction is a job of the compactor.
type compaction struct {
	c          *mvcc.Compaction
	generation int
	begun      time.Time
}

// finished is a compaction whose last deletes are written, and its figures for the log.
type finished struct {
	compaction
	deleted int
}

// compacted is one step of the compactor.
type compacted struct {
	compaction
	deletes [][]byte
	total   int // records deleted so far, these included
	done    bool
}

const (
	sweepPerStep = 8192             // keys of the index that one step of a sweep visits
	milliseconds = time.Millisecond // the unit of the compaction histograms
)

// nextCompaction gives the compactor the oldest compaction that is due, if it has none. The published view must
// not be older than the compaction.
func (s *Stage) nextCompaction() {
	if s.compacting {
		return
	}
	c := s.store.NextCompaction()
	if c == nil {
		return
	}
	job := compaction{c: c, generation: s.generation, begun: s.cfg.Clock.Now()}
	// A job that still waits there belongs to a database that an Install has replaced.
	if err := s.jobs.Sender(mailbox.Latest).Send(context.Background(), job); err != nil {
		panic("apply: compactor: " + err.Error()) // only the end of Run closes its mailbox
	}
	s.compacting = true
}

// RunCompactor is the worker that looks for the records which compactions have made unreachable. It reads views
// and sends apply what to delete, in small steps with pauses, so that neither disk nor applier is busy with it
// for long. It ends with mailbox.ErrClosed after Run.
func (s *Stage) RunCompactor(ctx context.Context) error {
	for {
		batch, err := s.jobs.Receiver().Receive(ctx, nil)
		if err != nil {
			return err
		}
		for _, job := range batch {
			if err := s.compact(ctx, job); err != nil {
				return err
			}
		}
	}
}

// compact carries out one compaction, then has the index swept.
func (s *Stage) compact(ctx context.Context, job compaction) error {
	send := s.work.Sender(mailbox.Wait)
	step := compacted{compaction: job}
	for !step.done {
		v := s.View()
		if v.generation != job.generation { // the database was replaced by a snapshot, which knows nothing of it
			v.Release()
			return nil
		}
		begun := s.cfg.Clock.Now()
		step.deletes, step.done = job.c.Next(v.KV, s.cfg.CompactionRecordsMax)
		v.Release()
		step.total += len(step.deletes)
		s.cfg.Metrics.CompactionPause.Observe(inMilliseconds(s.cfg.Clock.Now().Sub(begun)))
		this := step
		if err := send.Send(ctx, work{compacted: &this}); err != nil {
			return err
		}
		if !step.done {
			if err := s.pause(ctx); err != nil {
				return err
			}
		}
	}
	for {
		swept := make(chan bool, 1)
		if err := send.Send(ctx, work{swept: swept}); err != nil {
			return err
		}
		select {
		case done := <-swept:
			if done {
				return nil
			}
		case <-s.stopped:
			return mailbox.ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
}

// pause lets others have the disk and the applier for a while.
func (s *Stage) pause(ctx context.Context) error {
	select {
	case <-s.cfg.Clock.After(s.cfg.CompactionPause):
		return nil
	case <-s.stopped:
		return mailbox.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// compactionStep writes the deletes of one step; after the last it has the flusher wait for them.
func (s *Stage) compactionStep(ctx context.Context, step *compacted) error {
	if step.generation != s.generation {
		return nil
	}
	s.store.CompactionDeletes(step.deletes)
	if !step.done {
		return nil
	}
	s.store.FinishCompaction(step.c)
	s.publish() // the hash of the compaction can be asked for from now on
	return s.flushLater(ctx, flush{compaction: &finished{step.compaction, step.total}})
}

// compactionDurable ends a compaction: whoever asked to wait for it is told, and the next one begins.
func (s *Stage) compactionDurable(f *finished) {
	s.compacting = false
	s.closePhysical(f.c.Revision())
	now := s.cfg.Clock.Now()
	total, inUse := s.Size()
	s.log.Info("finished scheduled compaction",
		zap.Int64("compact-revision", f.c.Revision()),
		zap.Duration("took", now.Sub(f.begun)),
		zap.Int("number-of-keys-compacted", f.deleted),
		zap.Uint32("hash", f.c.Hash()),
		zap.Int64("current-db-size-bytes", total),
		zap.String("current-db-size", humanBytes(total)),
		zap.Int64("current-db-size-in-use-bytes", inUse),
		zap.String("current-db-size-in-use", humanBytes(inUse)),
	)
	s.cfg.Metrics.CompactionLast.Set(float64(now.Unix()))
	s.cfg.Metrics.CompactionTotal.Observe(inMilliseconds(now.Sub(f.begun)))
	s.nextCompaction()
}

// closePhysical tells those who wait for a compaction up to rev. Later ones wait on.
func (s *Stage) closePhysical(rev int64) {
	n := 0
	for _, p := range s.physical {
		if p.rev <= rev {
			close(p.done)
			continue
		}
		s.physical[n] = p
		n++
	}
	clear(s.physical[n:])
	s.physical = s.physical[:n]
}

func (s *Stage) sweep() (done bool) {
	begun := s.cfg.Clock.Now()
	done = s.store.SweepIndex(sweepPerStep)
	s.cfg.Metrics.IndexPause.Observe(inMilliseconds(s.cfg.Clock.Now().Sub(begun)))
	return done
}

func inMilliseconds(d time.Duration) float64 { return float64(d) / float64(milliseconds) }

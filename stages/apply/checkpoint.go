package apply

import (
	"context"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"sluice/mailbox"
)

// flush is what the flusher waits for: everything sealed so far is durable. It comes back to apply when it is done.
type flush struct {
	generation int
	checkpoint *raftpb.Snapshot // a disk snapshot waits for it
	compaction *finished        // a compaction waits for it
}

// RunFlusher is the worker that waits for the disk in place of the applier: at most for one checkpoint and one
// compaction. It ends with mailbox.ErrClosed after Run.
func (s *Stage) RunFlusher(ctx context.Context) error {
	for {
		batch, err := s.flushes.Receiver().Receive(ctx, nil)
		if err != nil {
			return err
		}
		for _, f := range batch {
			if err := s.cfg.Backend.Flushed(ctx); err != nil {
				return fmt.Errorf("flush the backend: %w", err)
			}
			if err := s.work.Sender(mailbox.Wait).Send(ctx, work{flushed: &f}); err != nil {
				return err
			}
		}
	}
}

// flushLater seals and has the flusher wait for it. There is room: see flushesMax.
func (s *Stage) flushLater(ctx context.Context, f flush) error {
	if err := s.seal(ctx); err != nil {
		return err
	}
	f.generation = s.generation
	if err := s.flushes.Sender(mailbox.Refuse).Send(ctx, f); err != nil {
		return fmt.Errorf("ask for a flush at entry %d: %w", s.core.index, err)
	}
	return nil
}

// checkpointIfDue begins a disk snapshot at the entry applied last, when there are more than enough entries above
// the one before or a lower cluster version asks for one. The database must be durable up to it before the
// snapshot may be: a start from the two the other way round has no database to start from.
//
// Rule: contract/disk-and-peer.md sections 3 and 17.12.
func (s *Stage) checkpointIfDue(ctx context.Context) error {
	c := s.core
	due := s.forced || c.index-min(s.checkpoints, c.index) > s.cfg.CheckpointEntries
	if !due || s.checkpoint != nil {
		return nil
	}
	table := c.members.Table()
	index, term := c.index, c.term
	s.checkpoint = &raftpb.Snapshot{
		Data:     s.cfg.Image(table),
		Metadata: &raftpb.SnapshotMetadata{Index: &index, Term: &term, ConfState: table.ConfState()},
	}
	s.forced, s.checkpoints = false, c.index
	return s.flushLater(ctx, flush{checkpoint: s.checkpoint})
}

// flushDone goes on with what waited for a flush. Nothing waits for that of a database that was replaced meanwhile.
func (s *Stage) flushDone(ctx context.Context, f *flush) error {
	if f.generation != s.generation {
		return nil
	}
	if f.compaction != nil {
		s.compactionDurable(f.compaction)
	}
	if f.checkpoint == nil {
		return nil
	}
	s.checkpoint = nil
	s.cfg.Out.Acknowledge(Ack{Index: s.core.index, Checkpoint: f.checkpoint})
	step, err := s.core.storage.lower(
		s.core.members.Table().ClusterVersion(), s.core.term, f.checkpoint.GetMetadata().GetIndex())
	if err != nil {
		s.log.Warn("failed to update storage version", zap.Error(err))
	}
	if step != "" {
		s.logMigration([]string{step})
		s.publish()
	}
	return s.checkpointIfDue(ctx)
}

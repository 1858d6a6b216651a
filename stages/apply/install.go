package apply

import (
	"context"
	"fmt"
	"math"

	"go.uber.org/zap"
)

// install replaces the whole state by the database of a received snapshot. What was written and not yet durable
// is given up, because the snapshot holds it; views of before go on showing the old state. Whoever waits for a
// request that the snapshot covers is not answered: what became of it is unknown here.
func (s *Stage) install(ctx context.Context, m Install) error {
	index := m.Snapshot.GetMetadata().GetIndex()
	if index <= s.core.index {
		return fmt.Errorf("install snapshot %d: %d entries are applied", index, s.core.index)
	}
	if s.cfg.SnapshotFile == nil {
		return fmt.Errorf("install snapshot %d: no place where its database could be", index)
	}
	s.cfg.Metrics.Installing.Set(1)
	defer s.cfg.Metrics.Installing.Set(0)
	s.log.Info("applying snapshot", zap.Uint64("current-applied-index", s.core.index),
		zap.Uint64("incoming-leader-snapshot-index", index),
		zap.Uint64("incoming-leader-snapshot-term", m.Snapshot.GetMetadata().GetTerm()))
	err := s.fresh(func() error { return s.cfg.Backend.Install(ctx, s.cfg.SnapshotFile(index)) })
	if err != nil {
		return fmt.Errorf("install snapshot %d: %w", index, err)
	}
	for _, a := range s.core.alarms.Alarms() {
		s.cfg.Metrics.Alarm(a.Member, a.Type, false) // load raises those of the snapshot
	}
	led := s.core.ledTerm
	s.generation++
	if err := s.load(); err != nil {
		return fmt.Errorf("install snapshot %d: %w", index, err)
	}
	if s.core.index != index {
		return fmt.Errorf("install snapshot %d: the consistent index of its database is %d", index, s.core.index)
	}
	s.core.ledTerm = led
	s.cfg.Tokens.Clear() // which of them an entry in between has made invalid is unknown
	s.checkpoint, s.forced, s.checkpoints = nil, false, index
	s.compacting = false
	s.closePhysical(math.MaxInt64)
	if err := s.announce(ctx, true); err != nil {
		return err
	}
	s.cfg.Out.Acknowledge(Ack{Batches: 1, Index: index})
	s.log.Info("applied snapshot", zap.Uint64("incoming-leader-snapshot-index", index))
	return nil
}

package apply

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"sluice/stages/apply/members"
	"sluice/stages/wire"
	"sluice/tracing"
)

// apply works on batches, which are all of type Batch and follow on each other: one pass over their entries, one
// view, one acknowledgement. in is when they were taken, depth how many messages waited.
func (s *Stage) apply(ctx context.Context, batches []Message, in int64, depth int) error {
	o := &s.out
	o.reset()
	ack := Ack{Batches: len(batches)}
	stamp := tracing.Stamp{In: in, Depth: int32(depth)}
	now := in
	for _, m := range batches {
		b := m.(Batch)
		for _, e := range b.Entries {
			if stamp.First == 0 {
				stamp.First = e.GetIndex()
			}
			stamp.Count++
			stamp.Bytes += int64(len(e.Data))
			now = s.entry(e, now)
			if s.cfg.Backend.SealWanted() {
				if err := s.seal(ctx); err != nil {
					return err
				}
			}
		}
		if len(batches) == 1 {
			ack.Responses = b.Responses
		} else {
			ack.Responses = append(ack.Responses, b.Responses...)
		}
	}
	s.publish()
	if err := s.send(ctx); err != nil {
		return err
	}
	ack.Index, ack.Verdicts = s.core.index, o.verdicts
	s.cfg.Out.Acknowledge(ack)
	stamp.Term, stamp.Last, stamp.Out = s.core.term, s.core.index, tracing.Clock()
	if stamp.First > stamp.Last {
		stamp.First = stamp.Last // nothing but entries that were applied before
	}
	s.cfg.Meter.Record(stamp)
	return s.afterBatch(ctx)
}

// entry applies e and returns the time after it. Metrics and warnings cost the hot path one look at the clock.
func (s *Stage) entry(e *raftpb.Entry, start int64) (end int64) {
	kind, err := s.core.step(e, &s.req, &s.out)
	end = tracing.Clock()
	if kind == KindNone || kind == KindConfChange {
		return end
	}
	took := time.Duration(end - start)
	s.cfg.Metrics.Duration(kind.String(), err == nil, took.Seconds())
	if err != nil || took > s.cfg.WarningDuration {
		s.warn(took, &s.req, &s.out.results[len(s.out.results)-1])
		end = tracing.Clock()
	}
	return end
}

// send hands on what a batch led to, in the order that readers, watchers and waiters rely on: whoever sees a
// result or an event finds at least its state in the view.
func (s *Stage) send(ctx context.Context) error {
	o := &s.out
	events := wire.EventBatch{
		Events: s.store.TakeEvents(), Revision: s.store.Revision(), CompactRevision: s.store.CompactRevision(),
	}
	if len(events.Events) > 0 || events.CompactRevision != s.sentCompact {
		s.sentCompact = events.CompactRevision
		if err := s.cfg.Out.Events(ctx, events); err != nil {
			return fmt.Errorf("tell watch of %d events up to revision %d: %w", len(events.Events), events.Revision, err)
		}
	}
	if len(o.leases) > 0 {
		if err := s.cfg.Out.Leases(ctx, o.leases); err != nil {
			return fmt.Errorf("tell expire of %d lease changes: %w", len(o.leases), err)
		}
	}
	if len(o.results) > 0 {
		s.cfg.Out.Complete(o.results)
	}
	s.cfg.Out.Published(s.core.index)
	if o.raiseNoSpace {
		s.cfg.Out.RaiseNoSpace()
	}
	return nil
}

// afterBatch does what nobody waits for.
func (s *Stage) afterBatch(ctx context.Context) error {
	o := &s.out
	s.meter(o)
	s.logMigration(o.migrated)
	s.physical = append(s.physical, o.physical...)
	s.forced = s.forced || o.checkpoint
	if o.removed {
		s.tellRemoval()
	}
	s.store.SweepIndex(sweepPerBatch)
	s.nextCompaction()
	if err := s.checkpointIfDue(ctx); err != nil {
		return err
	}
	if s.cfg.Backend.SealWanted() {
		return s.seal(ctx)
	}
	return nil
}

// sweepPerBatch is how many keys of the index a batch cleans up after a compaction.
const sweepPerBatch = 512

func (s *Stage) meter(o *outcome) {
	m := &s.cfg.Metrics
	m.Applied.Set(float64(s.core.index))
	for _, c := range o.leases {
		switch c.Kind {
		case LeaseGranted:
			m.LeasesGranted.Add(1)
			m.LeaseTTL.Observe(float64(c.TTL))
		case LeaseRevoked:
			m.LeasesRevoked.Add(1)
		}
	}
	for _, a := range o.alarms {
		m.Alarm(a.alarm.Member, a.alarm.Type, a.raised)
		if a.raised && a.alarm.Type != pb.AlarmType_NONE {
			s.log.Warn("alarm raised", zap.String("alarm", a.alarm.Type.String()),
				zap.String("from", members.Hex(a.alarm.Member)))
		} else {
			s.log.Info("alarm disarmed", zap.String("alarm", a.alarm.Type.String()),
				zap.String("from", members.Hex(a.alarm.Member)))
		}
	}
}

// tellRemoval says once that this member belongs to the cluster no more.
func (s *Stage) tellRemoval() {
	if !s.removed && s.core.members.Table().Removed(s.cfg.LocalID) {
		s.removed = true
		s.cfg.Removed()
	}
}

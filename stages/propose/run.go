package propose

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/mailbox"
	"sluice/tracing"
)

// Run is the stage. It ends with mailbox.ErrClosed, the orderly end, after Close.
func (s *Stage) Run(ctx context.Context) error {
	for {
		select {
		case <-s.lanes[System].Receiver().Ready():
		case <-s.lanes[Client].Receiver().Ready():
		case <-s.events.Receiver().Ready():
		case <-ctx.Done():
			s.Abandon()
			return context.Cause(ctx)
		}
		if err := s.gather(ctx); err != nil {
			if err != mailbox.ErrClosed { // not the orderly end: nobody will be served any more
				s.Abandon()
			}
			return err
		}
	}
}

// gather is one turn, after those who are about to send if that is worth it.
func (s *Stage) gather(ctx context.Context) error {
	s.gathered = 0
	if !s.gathering.due() {
		return s.turn(ctx)
	}
	began := s.cfg.Clock()
	runtime.Gosched()
	took := s.cfg.Clock() - began
	err := s.turn(ctx)
	s.gathering.gave(s.gathered, took)
	return err
}

// turn looks at everything, whatever the token was for: a lane that was closed when its token came must be
// looked at when the leader or the backlog opens it.
func (s *Stage) turn(ctx context.Context) error {
	closing := s.closing.Load() // before the lanes are looked at: they are closed when it is true
	var event [1]struct{}
	_, _ = s.events.Receiver().TryReceive(event[:0]) // a token only; it is never closed
	if err := s.look(ctx); err != nil {
		return err
	}
	for {
		moved := false
		for _, lane := range []Lane{System, Client} {
			sent, err := s.advance(ctx, lane)
			if err != nil {
				return err
			}
			moved = moved || sent
		}
		if err := s.look(ctx); err != nil {
			return err
		}
		if !moved {
			break
		}
	}
	if closing {
		return s.finish(ctx)
	}
	return nil
}

// finish ends the orderly stop: what could not be handed over fails. A sender that had been granted room
// when its lane closed still comes in, so both lanes are received to their end first.
func (s *Stage) finish(ctx context.Context) error {
	for _, lane := range s.lanes {
		for {
			taken, err := lane.Receiver().Receive(ctx, s.taken[:0])
			clear(taken)
			if errors.Is(err, mailbox.ErrClosed) {
				break
			} else if err != nil {
				return context.Cause(ctx)
			}
		}
	}
	s.cells.stopUnhanded(ErrStopped)
	s.reads.stop()
	return mailbox.ErrClosed
}

// look takes the levels, does what the time asks for, and asks for the read rounds that wait.
func (s *Stage) look(ctx context.Context) error {
	now := s.cfg.Clock()
	s.levels.mu.Lock()
	standing, ticked := s.levels.standing, s.levels.ticked
	s.core.backlog, s.levels.ticked = s.levels.backlog, false
	var again []request
	if ticked {
		again, s.levels.again = s.levels.again, nil
	}
	s.levels.mu.Unlock()

	s.core.confID = s.confID.Load()
	if standing != s.core.standing {
		s.core.stand(standing, now)
		if s.core.confID == 0 {
			s.confID.Store(0)
		}
		s.outlook.Store(&outlook{
			standing: standing, elected: s.core.elected, election: s.cfg.ElectionTimeout, links: s.cfg.Links,
		})
		if err := s.askAgain(ctx, s.reads.stand(standing)); err != nil {
			return err
		}
	}
	if ticked {
		for _, r := range again {
			s.core.again(r)
			s.confID.CompareAndSwap(r.id, 0)
		}
		if err := s.tick(ctx, now); err != nil {
			return err
		}
	}
	round, reads := s.reads.ask(now, s.ids.next)
	s.gathered += reads
	return s.askAgain(ctx, round)
}

// askAgain asks raft for a read round, 0 for none.
func (s *Stage) askAgain(ctx context.Context, round uint64) error {
	if round == 0 {
		return nil
	}
	if err := s.cfg.Replicate.ReadIndex(ctx, round); err != nil {
		return fmt.Errorf("ask for a read index: %w", err)
	}
	return nil
}

func (s *Stage) tick(ctx context.Context, now int64) error {
	outlook := s.outlook.Load()
	s.cells.expire(now, func(started int64, handed bool) error { return outlook.timeout(now, started, handed) })
	s.core.confExpired(now, s.timeout)
	if s.core.confID == 0 {
		s.confID.Store(0)
	}
	again, slow, failed := s.reads.tick(now)
	if slow > 0 {
		s.cfg.Metrics.SlowReads.Add(float64(slow))
	}
	if failed > 0 {
		s.cfg.Metrics.FailedReads.Add(float64(failed))
	}
	s.cfg.Metrics.Pending.Set(float64(s.cells.used.Load()))
	return s.askAgain(ctx, again)
}

// advance hands over one batch of a lane, and a conf change if its turn has come. It says whether it did.
func (s *Stage) advance(ctx context.Context, lane Lane) (moved bool, err error) {
	stamp := tracing.Stamp{In: s.cfg.Clock()}
	if s.core.open(lane) && s.core.queues[lane].len() == 0 {
		// What was taken waits here only while its lane is closed, at most one mailbox full.
		s.taken, _ = s.lanes[lane].Receiver().TryReceive(s.taken[:0]) // closed: turn's closing tells
		stamp.Depth = int32(len(s.taken))
		s.core.add(lane, s.taken)
		moved = len(s.taken) > 0
		s.gathered += len(s.taken)
		clear(s.taken)
	}
	if lane == System {
		if conf := s.core.nextConf(stamp.In, s.cells.hand); conf != nil {
			moved = true
			s.confID.Store(s.core.confID)
			if err := s.hand(ctx, conf, int64(len(conf[0].GetData())), stamp); err != nil {
				return false, err
			}
		}
	}
	entries, bytes := s.core.next(lane, s.cells.hand)
	if len(entries) == 0 {
		return moved, nil
	}
	return true, s.hand(ctx, entries, bytes, stamp)
}

func (s *Stage) hand(ctx context.Context, entries []*raftpb.Entry, bytes int64, stamp tracing.Stamp) error {
	count := len(entries) // raft owns entries after the call
	if err := s.cfg.Replicate.Propose(ctx, entries); err != nil {
		return fmt.Errorf("hand %d requests to replicate: %w", count, err)
	}
	stamp.Count, stamp.Bytes, stamp.Out = int32(count), bytes, s.cfg.Clock()
	s.cfg.Meter.Record(stamp)
	return nil
}

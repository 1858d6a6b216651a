package propose

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// reader starts a read and says how it ended.
func reader(t *testing.T, s *Stage) <-chan error {
	out := make(chan error, 1)
	go func() { out <- s.Barrier(t.Context()) }()
	synctest.Wait()
	return out
}

func pending(t *testing.T, what string, c <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		t.Errorf("%s ended with %v", what, err)
	default:
	}
}

func ended(t *testing.T, what string, c <-chan error, want error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		if !errors.Is(err, want) {
			t.Errorf("%s ended with %v, want %v", what, err, want)
		}
	default:
		t.Errorf("%s still waits", what)
	}
}

func TestBarrierWaitsForItsRoundAndForTheView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, nil)
		s.Standing(leading)
		a := reader(t, s)
		b := reader(t, s)
		if len(f.rounds) != 2 {
			t.Fatalf("%d rounds: they are not pipelined", len(f.rounds))
		}
		s.Published(100)
		pending(t, "an unconfirmed read", a)
		s.ReadIndexed(f.rounds[0], 100)
		ended(t, "the first read", a, nil)
		pending(t, "a read that began later", b)
		s.ReadIndexed(f.rounds[1], 101)
		pending(t, "a read above the view", b)
		s.Published(101)
		ended(t, "the second read", b, nil)

		c, d := reader(t, s), reader(t, s)
		s.ReadIndexed(f.rounds[3], 101) // the older answer is lost
		ended(t, "the older round", c, nil)
		ended(t, "the newer round", d, nil)
		s.ReadIndexed(f.rounds[2], 101)
		stop()
	})
}

func TestRoundsAreLimitedAndShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, nil)
		s.Standing(leading)
		s.Published(1)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if err := s.Barrier(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if len(f.rounds) != roundsMax {
			t.Fatalf("%d rounds on their way", len(f.rounds))
		}
		s.ReadIndexed(f.rounds[0], 1)
		synctest.Wait()
		if len(f.rounds) != roundsMax+1 {
			t.Fatalf("%d rounds: the others did not leave together", len(f.rounds))
		}
		s.ReadIndexed(f.rounds[roundsMax], 1)
		wg.Wait()
		stop()
	})
}

func TestRoundsAreAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, nil)
		a := reader(t, s)
		if len(f.rounds) != 0 {
			t.Fatal("asked without a leader")
		}
		ticks(s, 1)
		b := reader(t, s)
		s.Standing(Standing{Leader: 7, Term: 2, CommittedTerm: 1, Leading: true})
		synctest.Wait()
		if len(f.rounds) != 1 {
			t.Fatalf("%d rounds for all that waited", len(f.rounds))
		}
		s.Standing(leading) // first commit of the term
		synctest.Wait()
		if len(f.rounds) != 2 || f.rounds[1] != f.rounds[0] {
			t.Fatalf("rounds %v after the first commit", f.rounds)
		}
		ticks(s, 6)
		if len(f.rounds) != 3 {
			t.Fatalf("rounds %v after 600 ms", f.rounds)
		}
		s.ReadIndexed(f.rounds[0], 3)
		s.Published(3)
		ended(t, "the first", a, nil)
		ended(t, "the second", b, nil)
		ticks(s, 10)
		if len(f.rounds) != 3 {
			t.Errorf("rounds %v after the answer", f.rounds)
		}
		stop()
	})
}

func TestReadsFailWithTheirLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, nil)
		s.Standing(leading)
		confirmed := reader(t, s)
		s.ReadIndexed(f.rounds[0], 9)
		a := reader(t, s)
		s.Standing(Standing{Term: 2, CommittedTerm: 2})
		pending(t, "a read without a leader", a)
		b := reader(t, s)
		s.Standing(Standing{Leader: 8, Term: 3, CommittedTerm: 3})
		ended(t, "a read of the lost leader", a, ErrLeaderChanged)
		pending(t, "a read that never had another leader", b)
		s.ReadIndexed(f.rounds[len(f.rounds)-1], 9)
		s.Published(9)
		ended(t, "a read of the new leader", b, nil)
		ended(t, "a read that only waited for the view", confirmed, nil)
		stop()
	})
}

func TestReadsTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRaft{}
		s, stop := start(t, f, nil)
		a := reader(t, s)
		ticks(s, 30)
		b := reader(t, s)
		ticks(s, 41)
		ended(t, "the first after 7 s", a, ErrTimeout)
		pending(t, "the second after 4 s", b)
		ticks(s, 30)
		ended(t, "the second after 7 s", b, ErrTimeout)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Barrier(ctx); err != context.DeadlineExceeded {
			t.Errorf("the client's deadline: %v", err)
		}
		stop()
	})
}

package compactor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"sluice/server/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script runs a compactor in virtual time. The revision counts the seconds since the start, so a target
// tells how old what it keeps is. It returns "when>target" of every compaction that was asked for.
func script(t *testing.T, mode string, retention, length time.Duration, fail func(at time.Duration) error,
	leading func(at time.Duration) bool) []string {
	t.Helper()
	var got []string
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Run(ctx, Config{
				Mode: mode, Retention: retention, Logger: zap.NewNop(),
				Leading:  func() bool { return leading(time.Since(start)) },
				Revision: func() int64 { return int64(time.Since(start)/time.Second) + 1 },
				Compact: func(_ context.Context, revision int64) error {
					got = append(got, fmt.Sprintf("%v>%d", time.Since(start), revision))
					return fail(time.Since(start))
				},
			})
		}()
		time.Sleep(length)
		cancel()
		<-ended
	})
	return got
}

func never(time.Duration) error { return nil }
func always(time.Duration) bool { return true }
func want(t *testing.T, got []string, list ...string) {
	t.Helper()
	if !slices.Equal(got, list) {
		t.Errorf("compactions\n got %q\nwant %q", got, list)
	}
}

// Five minutes: the first compaction after the period, then every period, at the revision of a period and
// a tick ago: the window holds one sample more than a period has ticks, and is full from then on.
func TestPeriodShort(t *testing.T) {
	got := script(t, config.ModePeriodic, 5*time.Minute, 16*time.Minute, never, always)
	want(t, got, "5m0s>1", "10m0s>271", "15m0s>571")
}

// Ten hours: the first after ten hours, then hourly, always at the revision of ten hours ago.
func TestPeriodLong(t *testing.T) {
	got := script(t, config.ModePeriodic, 10*time.Hour, 12*time.Hour+time.Minute, never, always)
	want(t, got, "10h0m0s>1", "11h0m0s>3241", "12h0m0s>6841")
}

// A failed compaction is tried again at the next tick, a tenth of the interval later.
func TestRetry(t *testing.T) {
	got := script(t, config.ModePeriodic, 5*time.Minute, 11*time.Minute, func(at time.Duration) error {
		if at == 5*time.Minute {
			return errors.New("no leader")
		}
		return nil
	}, always)
	want(t, got, "5m0s>1", "5m30s>1", "10m30s>301")
}

// A follower records and does not compact; when it leads it goes on at once.
func TestFollowerRecords(t *testing.T) {
	got := script(t, config.ModePeriodic, 5*time.Minute, 13*time.Minute, never,
		func(at time.Duration) bool { return at > 12*time.Minute })
	want(t, got, "12m30s>421")
}

// By number of revisions: every five minutes, nothing while fewer were made.
func TestRevisions(t *testing.T) {
	got := script(t, config.ModeRevision, 500, 16*time.Minute, never, always)
	want(t, got, "10m0s>101", "15m0s>401")
}

// A store that does not change is compacted once.
func TestSameTargetIsSkipped(t *testing.T) {
	start := time.Unix(0, 0)
	p := newPeriodic(start, time.Second)
	p.record(7)
	if target, ok := p.due(start.Add(time.Second)); !ok || target != 7 {
		t.Fatalf("due %d %t", target, ok)
	}
	p.compacted(start.Add(time.Second), 7)
	p.record(7)
	if _, ok := p.due(start.Add(time.Hour)); ok {
		t.Error("the same revision is due again")
	}
	r := byRevision{keep: 5}
	r.record(5)
	if _, ok := r.due(start); ok {
		t.Error("revision 0 is due")
	}
	r.record(6)
	if target, ok := r.due(start); !ok || target != 1 {
		t.Errorf("due %d %t, want 1", target, ok)
	}
	r.compacted(start, 1)
	if _, ok := r.due(start); ok {
		t.Error("the same revision is due again")
	}
}

// Every window holds exactly one period; an absurdly short one still ticks.
func TestWindow(t *testing.T) {
	for _, c := range []struct {
		period time.Duration
		tick   time.Duration
		window int
	}{
		{time.Second, 100 * time.Millisecond, 11}, {5 * time.Minute, 30 * time.Second, 11},
		{time.Hour, 6 * time.Minute, 11}, {10 * time.Hour, 6 * time.Minute, 101}, {time.Nanosecond, time.Millisecond, 1},
	} {
		if p := newPeriodic(time.Time{}, c.period); p.tick != c.tick || p.window != c.window {
			t.Errorf("%v: tick %v window %d, want %v and %d", c.period, p.tick, p.window, c.tick, c.window)
		}
	}
}

package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/bench/process"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// victim is a member under load that is killed again and again.
type victim struct {
	*process.Daemon
	g         *rand.Rand
	known     [4]acknowledged
	revisions *revisionLog
}

func newVictim(t *testing.T, flags ...string) *victim {
	t.Helper()
	v := &victim{Daemon: sluice(t, flags...), revisions: &revisionLog{seen: map[int64]string{}}}
	v.g = rand.New(rand.NewPCG(seed(t), 9))
	t.Cleanup(v.Kill)
	return v
}

// round runs writers, churn and beside them the activity, kills the member when strike returns, and finds in
// the next life what was acknowledged.
func (v *victim) round(t *testing.T, activity func(ctx context.Context, c *clientv3.Client), strike func()) {
	t.Helper()
	if err := v.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := connect(t, v.Daemon)
	verify(t, c, v.known[:], v.revisions)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for w := range v.known {
		all.Go(func() { write(ctx, t, c, w, &v.known[w], v.revisions) })
	}
	all.Go(func() { churn(ctx, c, v.revisions) })
	all.Go(func() { activity(ctx, c) })
	strike()
	v.Kill()
	cancel()
	all.Wait()
	c.Close()
}

// sometime returns after a while drawn at random: the moment of a kill, not a wait for anything.
func (v *victim) sometime(most time.Duration) func() {
	return func() { time.Sleep(50*time.Millisecond + time.Duration(v.g.Int64N(int64(most)))) }
}

// finish starts the member a last time, and then the reference on its directory.
func (v *victim) finish(t *testing.T) {
	t.Helper()
	if err := v.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	verify(t, connect(t, v.Daemon), v.known[:], v.revisions)
	if v.revisions.len() == 0 {
		t.Error("nothing was acknowledged: this test tests nothing")
	}
	sameInReference(t, v.Daemon)
}

// kill -9 in the middle of what a member does rarely: the outcome is that of any other kill.
func TestKillInTheMiddle(t *testing.T) {
	t.Run("of a defragmentation", func(t *testing.T) {
		v := newVictim(t)
		for range *roundsFlag {
			v.round(t, func(ctx context.Context, c *clientv3.Client) {
				for ctx.Err() == nil {
					_, _ = c.Defragment(ctx, v.Client)
				}
			}, v.sometime(400*time.Millisecond))
			v.noLeftovers(t)
		}
		v.finish(t)
	})
	t.Run("of disk snapshots", func(t *testing.T) {
		v := newVictim(t, "--snapshot-count=3", "--max-snapshots=2", "--max-wals=2")
		for range *roundsFlag {
			v.round(t, func(context.Context, *clientv3.Client) {}, v.sometime(400*time.Millisecond))
		}
		v.finish(t)
	})
	t.Run("of a download", func(t *testing.T) {
		v := newVictim(t, "--backend-batch-interval=5ms")
		for range *roundsFlag {
			v.round(t, func(ctx context.Context, c *clientv3.Client) {
				for ctx.Err() == nil {
					if r, err := c.Snapshot(ctx); err == nil {
						_, _ = r.Read(make([]byte, 100))
						r.Close()
					}
				}
			}, v.sometime(400*time.Millisecond))
		}
		v.finish(t)
	})
	t.Run("of a segment's cut", func(t *testing.T) {
		v := newVictim(t)
		value := strings.Repeat("v", 1<<20)
		for range 2 {
			segments := v.segments()
			v.round(t, func(ctx context.Context, c *clientv3.Client) {
				var all sync.WaitGroup
				for i := range 4 {
					all.Go(func() {
						for ctx.Err() == nil {
							_, _ = c.Put(ctx, fmt.Sprint("large/", i), value)
						}
					})
				}
				all.Wait()
			}, func() {
				deadline := time.After(time.Minute)
				for { // the directory is all that a kill can be aimed by
					if now := v.segments(); len(segments) > 0 && len(now) > len(segments) {
						return
					} else if len(segments) == 0 {
						segments = now
					}
					select {
					case <-deadline:
						t.Error("no segment was cut")
						return
					case <-time.After(time.Millisecond):
					}
				}
			})
		}
		v.finish(t)
	})
}

// segments lists the log's segments.
func (v *victim) segments() []string {
	names, _ := filepath.Glob(filepath.Join(v.Dir, "member", "wal", "*.wal"))
	return names
}

// noLeftovers starts the member, which removes what an interrupted defragmentation has left.
func (v *victim) noLeftovers(t *testing.T) {
	t.Helper()
	if err := v.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(v.Dir, "member", "snap", "db.tmp*")); len(left) != 0 {
		t.Errorf("leftovers %v", left)
	}
	v.Kill()
}

// A machine that dies may keep any part of what was written last. Whatever sector or byte the log then ends at,
// also below what the database has already applied, the member starts with whole transactions, takes writes,
// and its directory is one that the reference reads alike.
func TestTornTails(t *testing.T) {
	v := newVictim(t, "--backend-batch-interval=5ms")
	v.round(t, func(context.Context, *clientv3.Client) {}, v.sometime(400*time.Millisecond))
	path, end := lastSegment(t, v.Dir)
	for i := range *roundsFlag {
		cut := end - 1 - v.g.Int64N(min(end/2, 40<<10))
		truncated := i%2 == 0
		if !truncated {
			cut = cut / 512 * 512 // what a disk writes whole or not at all
		}
		t.Run(fmt.Sprintf("%d of %d bytes, truncated %v", cut, end, truncated), func(t *testing.T) {
			d := sluice(t)
			d.Peer = v.Peer
			copyTree(t, v.Dir, d.Dir)
			tear(t, filepath.Join(d.Dir, "member", "wal", filepath.Base(path)), cut, truncated)
			start(t, d)
			c := connect(t, d)
			for w, a := range v.known {
				if have := whole(t, c, w); have > a.maybe {
					t.Errorf("writer %d: found %d, sent %d", w, have, a.maybe)
				}
			}
			if _, err := c.Put(within(t, time.Minute), "after", "v"); err != nil {
				t.Fatal(err)
			}
			d.Kill() // the repaired log must stand by itself
			start(t, d)
			if r, err := connect(t, d).Get(within(t, time.Minute), "after"); err != nil || r.Count != 1 {
				t.Errorf("a put after the repair: %v %v", r, err)
			}
			sameInReference(t, d)
		})
	}
}

// tear ends a segment at cut: by its size, or by zeros up to its old size.
func tear(t *testing.T, path string, cut int64, truncated bool) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	truncate(t, path, cut)
	if !truncated {
		truncate(t, path, info.Size())
	}
}

// whole returns the number that a writer has reached, after checking that its last transaction is all there.
func whole(t *testing.T, c *clientv3.Client, w int) int64 {
	t.Helper()
	ctx := within(t, time.Minute)
	r, err := c.Get(ctx, fmt.Sprint("writer/", w))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return 0
	}
	have, err := strconv.ParseInt(string(r.Kvs[0].Value), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Get(ctx, fmt.Sprintf("writer/%d/%d", w, have%50))
	if err != nil || len(second.Kvs) != 1 || second.Kvs[0].ModRevision != r.Kvs[0].ModRevision {
		t.Errorf("writer %d: half of transaction %d: %v %v", w, have, second, err)
	}
	return have
}

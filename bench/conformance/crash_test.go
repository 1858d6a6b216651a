package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"sluice/bench/process"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// acknowledged is what one writer knows: the highest number that the server said it keeps, and the highest
// that it may have kept.
type acknowledged struct{ sure, maybe int64 }

// kill -9 under concurrent load, many times: every acknowledged write is there after the restart, nothing
// that was never sent is there, no revision is used twice, and the hash is that of an independent reading.
func TestKill(t *testing.T) {
	const writers = 8
	d := sluice(t, "--snapshot-count=500")
	t.Cleanup(d.Kill)
	g := rand.New(rand.NewPCG(seed(t), 3))
	var known [writers]acknowledged
	revisions := &revisionLog{seen: map[int64]string{}}
	for round := range *roundsFlag {
		if err := d.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := connect(t, d)
		verify(t, c, known[:], revisions)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() { write(ctx, t, c, w, &known[w], revisions) })
		}
		wg.Go(func() { churn(ctx, c, revisions) })
		time.Sleep(time.Duration(100+g.IntN(700)) * time.Millisecond) // when the kill strikes, not a wait for anything
		d.Kill()
		cancel()
		wg.Wait()
		c.Close()
		t.Logf("round %d: %d revisions acknowledged", round, revisions.len())
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	verify(t, connect(t, d), known[:], revisions)
	sameInReference(t, d)
}

// revisionLog remembers which write each acknowledged revision belongs to.
type revisionLog struct {
	mu   sync.Mutex // guards seen: written by all writers
	seen map[int64]string
	top  int64
}

func (l *revisionLog) add(t *testing.T, rev int64, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, ok := l.seen[rev]; ok {
		t.Errorf("revision %d acknowledged for %s and for %s", rev, other, what)
	}
	l.seen[rev] = what
	l.top = max(l.top, rev)
}

func (l *revisionLog) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

func write(ctx context.Context, t *testing.T, c *clientv3.Client, writer int, a *acknowledged, revisions *revisionLog) {
	key := fmt.Sprintf("writer/%d", writer)
	for n := a.maybe + 1; ctx.Err() == nil; n++ {
		a.maybe = n
		opCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
		r, err := c.Txn(opCtx).Then(
			clientv3.OpPut(key, strconv.FormatInt(n, 10)),
			clientv3.OpPut(fmt.Sprintf("%s/%d", key, n%50), strconv.FormatInt(n, 10)),
		).Commit()
		cancel()
		if err != nil {
			return
		}
		a.sure = n
		revisions.add(t, r.Header.Revision, fmt.Sprintf("%s=%d", key, n))
	}
}

// churn deletes, compacts and leases beside the writers.
func churn(ctx context.Context, c *clientv3.Client, revisions *revisionLog) {
	for i := 0; ctx.Err() == nil; i++ {
		opCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
		if l, err := c.Grant(opCtx, 600); err == nil {
			_, _ = c.Put(opCtx, fmt.Sprintf("churn/%d", i%20), "x", clientv3.WithLease(l.ID))
			if i%2 == 0 {
				_, _ = c.Revoke(opCtx, l.ID)
			}
		}
		_, _ = c.Delete(opCtx, fmt.Sprintf("churn/%d", i%7))
		if i%10 == 9 {
			revisions.mu.Lock()
			top := revisions.top
			revisions.mu.Unlock()
			_, _ = c.Compact(opCtx, top-5)
		}
		cancel()
	}
}

func verify(t *testing.T, c *clientv3.Client, known []acknowledged, revisions *revisionLog) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for w, a := range known {
		r, err := c.Get(ctx, fmt.Sprintf("writer/%d", w))
		if err != nil {
			t.Fatal(err)
		}
		if r.Header.Revision < revisions.top {
			t.Fatalf("revision %d after the restart, %d was acknowledged before", r.Header.Revision, revisions.top)
		}
		have := int64(0)
		if len(r.Kvs) == 1 {
			have, _ = strconv.ParseInt(string(r.Kvs[0].Value), 10, 64)
		}
		if have < a.sure || have > a.maybe {
			t.Fatalf("writer %d: found %d, acknowledged %d, sent %d", w, have, a.sure, a.maybe)
		}
		// The transaction is whole: its second key holds the same number.
		if have > 0 {
			s, err := c.Get(ctx, fmt.Sprintf("writer/%d/%d", w, have%50))
			if err != nil || len(s.Kvs) != 1 || string(s.Kvs[0].Value) != string(r.Kvs[0].Value) ||
				s.Kvs[0].ModRevision != r.Kvs[0].ModRevision {
				t.Fatalf("writer %d: half of transaction %d: %v %v", w, have, s, err)
			}
		}
	}
}

// sameInReference opens a copy of d's directory in the reference, whose hash is the independent model.
func sameInReference(t *testing.T, d *process.Daemon) {
	t.Helper()
	want := read(t, d)
	stopped(t, d)
	ref := etcd(t)
	ref.Dir, ref.Peer = t.TempDir(), d.Peer
	copyTree(t, d.Dir, ref.Dir)
	start(t, ref)
	got := read(t, ref)
	if got.hash != want.hash || got.keys != want.keys || got.revision != want.revision {
		t.Fatalf("the reference reads\n%+v\nsluice\n%+v", got, want)
	}
}

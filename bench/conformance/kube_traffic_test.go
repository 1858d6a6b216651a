package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

const (
	kubePods    = "/registry/pods/"
	kubeConfigs = "/registry/configmaps/"
	kubeEvents  = "/registry/events/"
	ballastTxns = 8 // of a hundred keys
)

// kubeTraffic is one run of TestKubeTraffic.
type kubeTraffic struct {
	*server
	kube      kubernetes.Client // the stock client's Kubernetes half: what kube-apiserver writes and reads with
	seed      uint64
	history   kubeHistory
	end       atomic.Int64 // set once the writers have stopped: the revision that caches must reach
	compacted atomic.Int64 // highest revision whose compaction was asked for

	mu      sync.Mutex    // guards done and moved
	done    int64         // highest revision whose compaction was acknowledged
	moved   chan struct{} // closed when done moves
	leases  kubeLeases
	refused atomic.Int64 // guarded writes that found another revision
	chunks  atomic.Int64 // most in one stream
	gone    atomic.Int64 // paged lists that a compaction ended
}

// The traffic of kube-apiserver with the stock client, some seconds of it: guarded writes with a read on
// failure, paged and streamed lists at pinned revisions while writes run, watch caches that are held against
// the store at each progress notification, events under leases, compaction under everybody's feet, and at
// the end kill -9 beneath the open watches.
func TestKubeTraffic(t *testing.T) {
	k := &kubeTraffic{
		server: serve(t, "--watch-progress-notify-interval=100ms"), seed: seed(t), moved: make(chan struct{}),
	}
	k.kube = kubernetes.Client{Client: k.c}
	ctx := within(t, time.Minute)
	var caches, helpers sync.WaitGroup
	all := k.caches()
	k.ballast(ctx, t)
	for _, c := range all {
		caches.Go(func() {
			if err := k.run(ctx, c); err != nil {
				t.Errorf("cache of %s (breaks %v): %v", c.prefix, c.breaks, err)
			}
		})
	}
	helping, stop := context.WithCancel(ctx)
	defer stop()
	helpers.Go(func() { k.requestProgress(helping, all) })
	k.load(ctx, t)
	k.leases.await(ctx, t)
	restarted := k.restart(ctx, t)
	k.end.Store(restarted)
	caches.Wait()
	stop()
	helpers.Wait()
	k.conclude(t, all)
}

// caches are a cache per resource, one of everything, and one whose watch is cut again and again.
func (k *kubeTraffic) caches() []*kubeCache {
	all := []*kubeCache{
		{prefix: kubePods}, {prefix: kubeConfigs}, {prefix: "/registry/", keep: true},
		{prefix: kubeEvents, onDelete: k.leases.deleted}, {prefix: kubePods, breaks: true},
	}
	for _, c := range all {
		c.progressed = make(chan struct{}, 1)
	}
	return all
}

// ballast makes lists long enough for pages and chunks.
func (k *kubeTraffic) ballast(ctx context.Context, t *testing.T) {
	t.Helper()
	for i := range ballastTxns {
		var ops []clientv3.Op
		var writes []kubeWrite
		for j := range 100 {
			w := kubeWrite{key: fmt.Sprintf("%sdefault/%02d-%02d", kubeConfigs, i, j), value: kubeValue(i, j, 1500)}
			ops, writes = append(ops, clientv3.OpPut(w.key, w.value)), append(writes, w)
		}
		r, err := k.c.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			t.Fatal(err)
		}
		for j := range writes {
			writes[j].revision = r.Header.Revision
		}
		k.history.wrote(writes...)
	}
}

func kubeValue(writer, n, size int) string {
	return fmt.Sprintf("%d/%d/%s", writer, n, strings.Repeat("x", size))
}

// load runs all clients for three seconds and returns when they have stopped.
func (k *kubeTraffic) load(ctx context.Context, t *testing.T) {
	load, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	var clients sync.WaitGroup
	run := func(n int, client func(ctx context.Context, g *rand.Rand, n int) error) {
		for i := range n {
			g := rand.New(rand.NewPCG(k.seed, uint64(i)))
			clients.Go(func() {
				for load.Err() == nil {
					// A step that has begun is finished under ctx: its outcome must be known.
					if err := client(ctx, g, i); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	known := make([]map[string]int64, 4)
	for i := range known {
		known[i] = map[string]int64{}
	}
	run(len(known), func(ctx context.Context, g *rand.Rand, n int) error { return k.write(ctx, g, n, known[n]) })
	run(1, k.page)
	run(1, k.streamSome)
	clients.Go(func() { k.bucket(ctx, load, t) })
	for range 2 {
		clients.Go(func() { k.compact(ctx, load, t) })
	}
	clients.Wait()
}

// write does one guarded write of a key that only this writer knows, or of one that all contend for.
func (k *kubeTraffic) write(ctx context.Context, g *rand.Rand, writer int, known map[string]int64) error {
	key, own := fmt.Sprintf("%sns%d/pod%d", kubePods, writer, g.IntN(30)), true
	switch g.IntN(10) {
	case 0, 1, 2:
		key, own = fmt.Sprintf("%sshared/pod%d", kubePods, g.IntN(5)), false
	case 3:
		key, own = fmt.Sprintf("%sdefault/%02d-%02d", kubeConfigs, g.IntN(ballastTxns), g.IntN(100)), false
	}
	expected, value := known[key], kubeValue(writer, int(g.Uint32()), g.IntN(1000))
	var succeeded bool
	var revision int64
	var actual int64
	deletes := expected > 0 && strings.HasPrefix(key, kubePods) && g.IntN(4) == 0
	if deletes {
		r, err := k.kube.OptimisticDelete(ctx, key, expected, kubernetes.DeleteOptions{GetOnFailure: true})
		if err != nil {
			return fmt.Errorf("delete %s: %w", key, err)
		}
		succeeded, revision, actual = r.Succeeded, r.Revision, r.KV.GetModRevision()
	} else {
		r, err := k.kube.OptimisticPut(ctx, key, []byte(value), expected, kubernetes.PutOptions{GetOnFailure: true})
		if err != nil {
			return fmt.Errorf("put %s: %w", key, err)
		}
		succeeded, revision, actual = r.Succeeded, r.Revision, r.KV.GetModRevision()
	}
	if !succeeded {
		if own || actual == expected || actual > revision {
			return fmt.Errorf("%s: guard %d refused at revision %d, the key has %d", key, expected, revision, actual)
		}
		k.refused.Add(1)
		known[key] = actual
		return nil
	}
	if deletes {
		known[key] = 0
		k.history.wrote(kubeWrite{key: key, revision: revision, deleted: true})
		return nil
	}
	known[key] = revision
	k.history.wrote(kubeWrite{key: key, value: value, revision: revision})
	return nil
}

// page reads a list in pages, all at the revision of the first, as a client with limit and continue does.
func (k *kubeTraffic) page(ctx context.Context, g *rand.Rand, _ int) error {
	prefix := []string{kubePods, kubeConfigs}[g.IntN(2)]
	limit := int64(20 + g.IntN(200))
	l := kubeList{what: "page", prefix: prefix, from: prefix, limit: limit}
	end := clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix))
	for {
		pinned := l.revision
		r, err := k.c.Get(ctx, l.from, end, clientv3.WithLimit(limit), clientv3.WithRev(pinned))
		if errors.Is(err, rpctypes.ErrCompacted) && pinned < k.compacted.Load() {
			k.gone.Add(1)
			return nil // kube-apiserver answers 410, the client starts again
		}
		if err != nil {
			return fmt.Errorf("page from %s at %d: %w", l.from, pinned, err)
		}
		if r.Header.Revision < pinned {
			return fmt.Errorf("page at %d answered at %d", pinned, r.Header.Revision)
		}
		if pinned == 0 {
			l.revision = r.Header.Revision
		}
		l.kvs, l.count, l.more = r.Kvs, r.Count, r.More
		k.history.listed(l)
		if !r.More {
			return nil
		}
		l.from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// streamSome reads lists as streams: whole, limited, and pinned to the revision of one read before.
func (k *kubeTraffic) streamSome(ctx context.Context, g *rand.Rand, _ int) error {
	prefix := []string{kubePods, kubeConfigs}[g.IntN(2)]
	l, chunks, err := k.stream(ctx, prefix, 0, 0)
	if err != nil {
		return err
	}
	k.history.listed(l)
	for old := k.chunks.Load(); chunks > old && !k.chunks.CompareAndSwap(old, chunks); old = k.chunks.Load() {
	}
	p, _, err := k.stream(ctx, prefix, l.revision, int64(1+g.IntN(300)))
	if errors.Is(err, rpctypes.ErrCompacted) && l.revision < k.compacted.Load() {
		return nil
	}
	if err != nil {
		return err
	}
	k.history.listed(p)
	return nil
}

// stream reads one RangeStream. Header, count and more come with the last chunk, and only there.
func (k *kubeTraffic) stream(ctx context.Context, prefix string, revision, limit int64) (kubeList, int64, error) {
	l := kubeList{what: "stream", prefix: prefix, from: prefix, limit: limit, revision: revision}
	in, err := k.c.GetStream(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(revision), clientv3.WithLimit(limit))
	if err != nil {
		return l, 0, fmt.Errorf("stream %s: %w", prefix, err)
	}
	chunks, last := int64(0), false
	for r := range in {
		if r.Err() != nil {
			return l, chunks, fmt.Errorf("stream %s at %d: %w", prefix, revision, r.Err())
		}
		if last {
			return l, chunks, fmt.Errorf("stream %s: a chunk after the last", prefix)
		}
		chunks++
		l.kvs = append(l.kvs, r.Kvs...)
		if last = r.Header != nil; !last {
			if r.Count != 0 || r.More {
				return l, chunks, fmt.Errorf("stream %s: count %d, more %v before the last chunk", prefix, r.Count, r.More)
			}
			continue
		}
		l.count, l.more = r.Count, r.More
		if revision == 0 {
			l.revision = r.Header.Revision
		} else if r.Header.Revision < revision {
			return l, chunks, fmt.Errorf("stream %s at %d answered at %d", prefix, revision, r.Header.Revision)
		}
	}
	if !last {
		return l, chunks, fmt.Errorf("stream %s ended without its header after %d chunks", prefix, chunks)
	}
	return l, chunks, nil
}

// compact is kube-apiserver's compactor: the version of one key is the clock, and who moves it compacts what
// was current when it moved last. Two of them contend, as two apiservers do.
func (k *kubeTraffic) compact(ctx, load context.Context, t *testing.T) {
	const key = "compact_rev_key"
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for version, rev := int64(0), int64(0); ; {
		select {
		case <-tick.C:
		case <-load.Done():
			return
		}
		r, err := k.c.Txn(ctx).If(clientv3.Compare(clientv3.Version(key), "=", version)).
			Then(clientv3.OpPut(key, strconv.FormatInt(rev, 10))).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			t.Errorf("compaction's transaction: %v", err)
			return
		}
		before := rev
		rev = r.Header.Revision
		if !r.Succeeded {
			kvs := r.Responses[0].GetResponseRange().Kvs
			if len(kvs) != 1 || kvs[0].Version <= version {
				t.Errorf("version %d refused, but found %v", version, kvs)
				return
			}
			version = kvs[0].Version
			continue
		}
		version++
		if before == 0 {
			continue
		}
		for old := k.compacted.Load(); before > old && !k.compacted.CompareAndSwap(old, before); old = k.compacted.Load() {
		}
		if _, err := k.c.Compact(ctx, before); err != nil {
			t.Errorf("compact %d: %v", before, err)
			return
		}
		k.compactionDone(before)
	}
}

func (k *kubeTraffic) compactionDone(rev int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done = max(k.done, rev)
	close(k.moved)
	k.moved = make(chan struct{})
}

// awaitCompaction returns when everything before rev is compacted, or when no compaction comes any more.
func (k *kubeTraffic) awaitCompaction(ctx context.Context, rev int64) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		k.mu.Lock()
		moved, done := k.moved, k.done > rev
		k.mu.Unlock()
		if done {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// requestProgress asks on the caches' common stream, as a consistent list from cache does; again once each
// cache is done with an answer, so that a slow machine is asked less often.
func (k *kubeTraffic) requestProgress(ctx context.Context, all []*kubeCache) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		_ = k.c.RequestProgress(clientv3.WithRequireLeader(ctx)) // an interrupted stream is the watches' affair
		answered, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		for _, c := range all {
			if c.breaks { // it may be away
				continue
			}
			select {
			case <-c.progressed:
			case <-answered.Done():
			}
		}
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// restart kills the server beneath the open watches, writes on, and returns the revision of the last write.
func (k *kubeTraffic) restart(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	k.Kill()
	start(t, k.Daemon)
	if _, err := k.c.Get(ctx, kubePods); err != nil { // tried again until the client is connected; writes are not
		t.Fatal(err)
	}
	g, known := rand.New(rand.NewPCG(k.seed, 99)), map[string]int64{}
	for range 200 {
		if err := k.write(ctx, g, 9, known); err != nil {
			t.Fatal(err)
		}
	}
	r, err := k.c.Get(ctx, kubePods, clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}

// conclude holds everything that was read against everything that was written.
func (k *kubeTraffic) conclude(t *testing.T, all []*kubeCache) {
	t.Helper()
	k.history.check(t)
	for _, c := range all {
		t.Logf("cache of %s: %d keys, %d comparisons, %d overtaken by a compaction, %d resumed, %d expired",
			c.prefix, len(c.state), c.checked, c.skipped, c.resumed, c.expired)
		if c.checked < 3 || c.breaks && (c.resumed == 0 || c.expired == 0) {
			t.Errorf("the cache of %s was not put to the test", c.prefix)
		}
		if c.keep {
			k.sawAll(t, c)
		}
	}
	t.Logf("%d writes refused by their guard, %d paged lists gone by compaction, %d chunks at most, compacted at %d",
		k.refused.Load(), k.gone.Load(), k.chunks.Load(), k.compacted.Load())
	if k.refused.Load() == 0 || k.chunks.Load() < 2 || k.compacted.Load() == 0 {
		t.Error("a part of the traffic did not happen")
	}
	k.refuseOld(t)
}

// sawAll fails unless the watch of everything gave each acknowledged write once and nothing else.
func (k *kubeTraffic) sawAll(t *testing.T, c *kubeCache) {
	t.Helper()
	first := c.events[0].revision
	leased := func(w kubeWrite) bool { return strings.HasPrefix(w.key, kubeEvents) }
	seen := slices.DeleteFunc(slices.Clone(c.events), leased)
	want := slices.DeleteFunc(slices.Clone(k.history.writes), func(w kubeWrite) bool { return w.revision < first })
	slices.SortStableFunc(seen, compareWrites)
	for i := range min(len(seen), len(want)) {
		if seen[i] != want[i] {
			t.Errorf("event %d is %.60v, the write %.60v", i, seen[i], want[i])
			return
		}
	}
	if len(seen) != len(want) {
		t.Errorf("%d events of %d writes", len(seen), len(want))
	}
}

// refuseOld reads and watches from before the compaction, by every way that kube-apiserver has.
func (k *kubeTraffic) refuseOld(t *testing.T) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	prefix := clientv3.WithPrefix()
	if _, err := k.c.Get(ctx, kubePods, prefix, clientv3.WithRev(2)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("list at 2: %v", err)
	}
	if _, _, err := k.stream(ctx, kubePods, 2, 0); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("stream at 2: %v", err)
	}
	w := <-k.c.Watch(ctx, kubePods, prefix, clientv3.WithRev(2))
	if w.CompactRevision != k.compacted.Load() || !errors.Is(w.Err(), rpctypes.ErrCompacted) {
		t.Errorf("watch from 2: compacted at %d, want %d: %v", w.CompactRevision, k.compacted.Load(), w.Err())
	}
	future := k.end.Load() + 1000
	if _, err := k.c.Get(ctx, kubePods, prefix, clientv3.WithRev(future)); !errors.Is(err, rpctypes.ErrFutureRev) {
		t.Errorf("list at %d: %v", future, err)
	}
	s, err := k.c.Status(ctx, k.Client)
	if err != nil || !strings.HasPrefix(s.Version, "3.7.") || s.DbSize == 0 {
		t.Errorf("status, by which kube-apiserver trusts progress requests: %v %v", s, err)
	}
}

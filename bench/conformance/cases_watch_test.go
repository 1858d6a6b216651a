package conformance

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// watchStream is a raw watch stream.
type watchStream struct {
	pb.Watch_WatchClient
	t *testing.T
}

func (s *server) stream(t *testing.T) watchStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	w, err := s.watch.Watch(ctx, grpc.MaxCallRecvMsgSize(1<<30))
	if err != nil {
		t.Fatal(err)
	}
	return watchStream{w, t}
}

func (w watchStream) create(r *pb.WatchCreateRequest) {
	w.t.Helper()
	if err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}); err != nil {
		w.t.Fatal(err)
	}
}

func (w watchStream) cancel(id int64) {
	w.t.Helper()
	if err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}}); err != nil {
		w.t.Fatal(err)
	}
}

func (w watchStream) progress() {
	w.t.Helper()
	if err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}); err != nil && err != io.EOF {
		w.t.Error(err)
	}
}

func (w watchStream) next() *pb.WatchResponse {
	w.t.Helper()
	r, err := w.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func TestBC16(t *testing.T) {
	s := serve(t)
	for i := range 1000 {
		s.put(t, "k", fmt.Sprint(i))
	}
	a, b := s.stream(t), s.stream(t)
	a.create(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: 2})
	for _, rev := range []int64{-1, -2} {
		b.create(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: rev})
		r := b.next()
		if !r.Created || !r.Canceled || r.CancelReason != "etcdserver: mvcc: required revision has been compacted" {
			t.Errorf("start %d: %v", rev, r)
		}
	}
	b.create(&pb.WatchCreateRequest{Key: []byte("k")})
	if r := b.next(); !r.Created || r.Canceled || r.Header.Revision != 1001 {
		t.Errorf("start 0: %v", r)
	}
	a.next()
	for want := int64(2); want <= 1001; {
		for _, ev := range a.next().Events {
			if ev.Kv.ModRevision != want {
				t.Fatalf("revision %d, want %d", ev.Kv.ModRevision, want)
			}
			want++
		}
	}
}

func TestBC17(t *testing.T) {
	s := serve(t, "--compaction-batch-limit=10", "--compaction-sleep-interval=20ms")
	check := func() {
		for _, k := range []string{"a", "b", "c", "d"} {
			s.put(t, k, "v")
		}
		for i := range 500 {
			s.put(t, "filler", fmt.Sprint(i))
		}
		d, err := s.c.Delete(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		rev := d.Header.Revision
		if _, err := s.c.Compact(t.Context(), rev); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			for _, prefix := range []clientv3.OpOption{clientv3.WithRev(rev), clientv3.WithPrefix()} {
				key := "a"
				opts := []clientv3.OpOption{clientv3.WithRev(rev), prefix}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				w := <-s.c.Watch(ctx, key, opts...)
				cancel()
				if len(w.Events) != 1 || w.Events[0].Type != clientv3.EventTypeDelete || w.Events[0].Kv.ModRevision != rev {
					t.Fatalf("watch from the compaction revision %d: %+v", rev, w)
				}
			}
			if r := s.get(t, "a", clientv3.WithRange("e"), clientv3.WithRev(rev)); keys(r) != "b,c,d" {
				t.Errorf("read at the compaction revision: %s", keys(r))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if w := <-s.c.Watch(ctx, "a", clientv3.WithRev(rev-1)); w.CompactRevision != rev {
				t.Errorf("watch from %d: %+v", rev-1, w)
			}
			cancel()
			s.Kill() // in the middle of the compaction the first time
			start(t, s.Daemon)
			s = attach(t, s.Daemon)
		}
	}
	check()
}

func TestBC18(t *testing.T) {
	s := serve(t)
	w := s.stream(t)
	const watchers = 100
	for range watchers {
		w.create(&pb.WatchCreateRequest{Key: []byte("p/"), RangeEnd: []byte("p0"), PrevKv: true, StartRevision: 2})
	}
	value := strings.Repeat("v", 2000)
	for i := range 6000 { // far beyond what a stream may hold, while nobody reads
		rev := s.put(t, fmt.Sprintf("p/%d", i%50), value)
		if i%1000 == 999 {
			if _, err := s.c.Compact(t.Context(), rev-50); err != nil {
				t.Fatal(err)
			}
		}
	}
	next, open := map[int64]int64{}, watchers
	end := s.get(t, "p/").Header.Revision
	for created := 0; open > 0; {
		r := w.next()
		switch {
		case r.Created:
			created++
			next[r.WatchId] = 2
		case r.Canceled:
			if r.CompactRevision == 0 || r.CompactRevision < next[r.WatchId] {
				t.Fatalf("watcher %d at %d: %v", r.WatchId, next[r.WatchId], r)
			}
			open--
		default:
			for _, ev := range r.Events {
				if ev.Kv.ModRevision != next[r.WatchId] {
					t.Fatalf("watcher %d: revision %d, want %d", r.WatchId, ev.Kv.ModRevision, next[r.WatchId])
				}
				next[r.WatchId]++
			}
			if next[r.WatchId] == end+1 {
				open--
			}
		}
	}
}

func TestBC21(t *testing.T) {
	s := serve(t)
	for i := range 500 {
		s.put(t, fmt.Sprintf("p/%d", i%10), "v")
	}
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Second)
	defer stop()
	var wg, writers sync.WaitGroup
	for i := range 10 {
		writers.Go(func() {
			for ctx.Err() == nil {
				_, _ = s.c.Put(ctx, fmt.Sprintf("p/%d", i), "v")
			}
		})
	}
	const end = "p/end" // the last event that there is to see
	wg.Go(func() {
		writers.Wait()
		if _, err := s.c.Put(t.Context(), end, "v"); err != nil {
			t.Error(err)
		}
	})
	w := s.stream(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("p/"), RangeEnd: []byte("p0"), StartRevision: 1})
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.progress()
			case <-ctx.Done():
				_ = w.CloseSend()
				return
			}
		}
	})
	var last, progress int64
	answers := 0
	for ended := false; !ended; {
		r := w.next()
		for _, ev := range r.Events {
			if ev.Kv.ModRevision != last+1 && last != 0 || ev.Kv.ModRevision <= progress {
				t.Fatalf("event %d after event %d and progress %d", ev.Kv.ModRevision, last, progress)
			}
			last = ev.Kv.ModRevision
			ended = string(ev.Kv.Key) == end
		}
		if r.WatchId == -1 {
			answers++
			if r.Header.Revision < progress || r.Header.Revision > last && last > 501 {
				t.Fatalf("progress %d after progress %d and event %d", r.Header.Revision, progress, last)
			}
			progress = r.Header.Revision
		}
	}
	wg.Wait()
	if answers == 0 {
		t.Error("no progress answer")
	}
}

func TestBC22(t *testing.T) {
	s := serve(t)
	rev := s.put(t, "pp", "v")
	w := s.stream(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("quiet"), StartRevision: rev})
	w.progress()
	w.next()
	if r := w.next(); r.WatchId != -1 || len(r.Events) != 0 || r.Header.Revision != rev {
		t.Errorf("the first progress request: %v", r)
	}
}

func TestBC23(t *testing.T) {
	s := serve(t, "--watch-progress-notify-interval=100ms")
	c := s.put(t, "k", "v")
	w := s.stream(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: c + 3, ProgressNotify: true})
	w.next()
	w.progress()
	for range 5 {
		s.put(t, "k", "v")
	}
	for want := c + 3; want <= c+5; {
		r := w.next()
		if len(r.Events) == 0 && r.Header.Revision < c+3 {
			t.Fatalf("progress before the start: %v", r)
		}
		for _, ev := range r.Events {
			if ev.Kv.ModRevision != want {
				t.Fatalf("revision %d, want %d", ev.Kv.ModRevision, want)
			}
			want++
		}
	}
}

func TestBC25(t *testing.T) {
	s := serve(t)
	w := s.stream(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 5})
	if r := w.next(); r.WatchId != 5 || !r.Created {
		t.Fatal(r)
	}
	w.create(&pb.WatchCreateRequest{Key: []byte("b"), WatchId: 5})
	if r := w.next(); r.WatchId != -1 || !r.Canceled || !strings.Contains(r.CancelReason, "duplicate watch ID") {
		t.Fatal(r)
	}
	s.put(t, "a", "v")
	if r := w.next(); r.WatchId != 5 || len(r.Events) != 1 {
		t.Fatal(r)
	}
	var ids []int64
	for range 7 {
		w.create(&pb.WatchCreateRequest{Key: []byte("c")})
		ids = append(ids, w.next().WatchId)
	}
	if !slices.Equal(ids, []int64{0, 1, 2, 3, 4, 6, 7}) {
		t.Errorf("automatic ids %v", ids)
	}
	w.cancel(5)
	if r := w.next(); r.WatchId != 5 || !r.Canceled || r.CancelReason != "" {
		t.Error(r)
	}
	w.cancel(999)
	if err := w.Send(&pb.WatchRequest{}); err != nil {
		t.Fatal(err)
	}
	w.create(&pb.WatchCreateRequest{Key: []byte("d"), WatchId: 5})
	if r := w.next(); r.WatchId != 5 || !r.Created || r.Canceled {
		t.Error(r)
	}
}

// p99 of a hundred and more durations.
func p99(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)*99/100]
}

func TestBC28(t *testing.T) {
	s := serve(t)
	g := rand.New(rand.NewPCG(seed(t), 4))
	run := func(fragment bool, size int) {
		w := s.stream(t)
		w.create(&pb.WatchCreateRequest{Key: []byte("t/"), RangeEnd: []byte("t0"), Fragment: fragment})
		w.next()
		for range 40 {
			var ops []*pb.RequestOp
			var want []string
			used := map[string]bool{}
			for range 1 + g.IntN(100) {
				key := fmt.Sprintf("t/%d", g.IntN(200))
				if used[key] {
					continue
				}
				used[key] = true
				op := putOp(key)
				op.GetRequestPut().Value = make([]byte, 1+g.IntN(size))
				if len(ops) > 0 && size > 1000 { // the request must stay below its own limit
					op.GetRequestPut().Value = nil
				}
				ops, want = append(ops, op), append(want, key)
			}
			r, err := s.kv.Txn(t.Context(), &pb.TxnRequest{Success: ops}, grpc.MaxCallSendMsgSize(1<<24))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for more := true; more; {
				m := w.next()
				more = m.Fragment
				for _, ev := range m.Events {
					if ev.Kv.ModRevision != r.Header.Revision {
						t.Fatalf("revision %d among those of %d", ev.Kv.ModRevision, r.Header.Revision)
					}
					got = append(got, string(ev.Kv.Key))
				}
				if more && !fragment {
					t.Fatal("a fragment that was not asked for")
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("order %v, want %v", got, want)
			}
		}
	}
	run(false, 100)
	run(true, 100)
	run(true, 1400000)
}

// A revision larger than one fragment is split between events, the flag on all parts but the last.
func TestBC28Fragments(t *testing.T) {
	s := serve(t)
	for i := range 4 {
		s.put(t, fmt.Sprintf("f/%d", i), strings.Repeat("x", 1<<20))
	}
	if _, err := s.c.Delete(t.Context(), "f/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	w := s.stream(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("f/"), RangeEnd: []byte("f0"), StartRevision: 6, PrevKv: true, Fragment: true})
	w.next()
	var events []*mvccpb.Event
	parts := 0
	for more := true; more; parts++ {
		m := w.next()
		more = m.Fragment
		events = append(events, m.Events...)
	}
	if len(events) != 4 || parts < 2 {
		t.Errorf("%d events in %d parts", len(events), parts)
	}
}

func TestBC30(t *testing.T) {
	s := serve(t)
	const streams = 2000
	got := make(chan int, streams)
	ctx := within(t, time.Minute)
	for i := range streams {
		w, err := s.watch.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}}); err != nil {
			t.Fatal(err)
		}
		if r, err := w.Recv(); err != nil || !r.Created {
			t.Fatalf("stream %d: %v %v", i, r, err)
		}
		go func() {
			if r, err := w.Recv(); err == nil && len(r.Events) == 1 {
				got <- i
			}
		}()
	}
	s.put(t, "k", "v")
	for i := range streams {
		select {
		case <-got:
		case <-ctx.Done():
			t.Fatalf("%d of %d events", i, streams)
		}
	}
	t.Run("limit", func(t *testing.T) {
		s := serve(t, "--max-concurrent-streams=5")
		var live []pb.Watch_WatchClient
		for range 5 {
			w, err := s.watch.Watch(within(t, time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Recv(); err != nil {
				t.Fatal(err)
			}
			live = append(live, w)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if w, err := s.watch.Watch(ctx); err == nil {
			if r, err := w.Recv(); err == nil {
				t.Errorf("the sixth stream answered %v", r)
			}
		}
		other := attach(t, s.Daemon)
		other.put(t, "k", "v")
		for i, w := range live {
			if r, err := w.Recv(); err != nil || len(r.Events) != 1 {
				t.Errorf("stream %d: %v %v", i, r, err)
			}
		}
	})
}

func TestBC81(t *testing.T) {
	s := serve(t)
	w := s.stream(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("/registry/a/"), RangeEnd: []byte("/registry/a0"), ProgressNotify: true})
	w.next()
	for round := range 50 {
		for i := range 20 {
			s.put(t, fmt.Sprintf("/registry/%c/%d", "bc"[round%2], i), "v")
		}
		now := s.get(t, "/registry/", clientv3.WithPrefix(), clientv3.WithLimit(1)).Header.Revision
		w.progress()
		for {
			r := w.next()
			if r.Header.Revision >= now {
				break
			}
			w.progress()
		}
	}
}

// A watch created right after a put's answer never sees an event from before its creation (design.md 5).
func TestWatchAfterPut(t *testing.T) {
	s := serve(t)
	w := s.stream(t)
	for range 500 {
		rev := s.put(t, "k", "v")
		w.create(&pb.WatchCreateRequest{Key: []byte("k")})
		r := w.next()
		if !r.Created || r.Header.Revision < rev {
			t.Fatalf("created at %d after a put at %d: %v", r.Header.Revision, rev, r)
		}
		w.cancel(r.WatchId)
		if r := w.next(); !r.Canceled {
			t.Fatalf("an event from before the creation: %v", r)
		}
	}
}

package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// tape is what one watch stream has received, by watch id: control answers and events, in order. How events
// are put into responses, and what order there is between ids, is each server's affair.
type tape struct {
	stream pb.Watch_WatchClient

	mu     sync.Mutex // guards below: written by the receiving goroutine
	lines  map[int64][]string
	ended  string
	passed int64 // the last barrier
	news   chan struct{}
}

func newTape(ctx context.Context, t *testing.T, s *party) *tape {
	t.Helper()
	w, err := pb.NewWatchClient(s.conn).Watch(ctx, grpc.MaxCallRecvMsgSize(1<<30))
	if err != nil {
		t.Fatal(err)
	}
	p := &tape{stream: w, lines: map[int64][]string{}, news: make(chan struct{}, 1)}
	go p.record()
	return p
}

func (p *tape) record() {
	for {
		r, err := p.stream.Recv()
		p.mu.Lock()
		if err != nil {
			p.ended = err.Error()
			p.mu.Unlock()
			return
		}
		id := r.WatchId
		if id >= barrierID {
			if r.Created {
				p.passed = id
			}
		} else if r.Created || r.Canceled {
			p.lines[id] = append(p.lines[id], fmt.Sprintf("created %t canceled %t compacted %d revision %d %s", r.Created,
				r.Canceled, r.CompactRevision, r.Header.Revision, r.CancelReason))
		}
		for _, ev := range r.Events {
			if len(ev.Kv.Value) > 50 {
				ev.Kv.Value = fmt.Appendf(nil, "%d bytes", len(ev.Kv.Value))
			}
			if len(ev.PrevKv.GetValue()) > 50 {
				ev.PrevKv.Value = fmt.Appendf(nil, "%d bytes", len(ev.PrevKv.Value))
			}
			p.lines[id] = append(p.lines[id], strings.Join(strings.Fields(fmt.Sprint(ev)), " "))
		}
		p.mu.Unlock()
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
}

// diff returns the first difference of two tapes. What a watcher was still sent while it was being cancelled
// is a matter of chance: there the shorter list must be the beginning of the longer.
func (p *tape) diff(q *tape) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.ended != q.ended {
		return fmt.Sprintf("ended %q and %q", p.ended, q.ended)
	}
	ids := map[int64]bool{}
	for _, lines := range []map[int64][]string{p.lines, q.lines} {
		for id := range lines {
			ids[id] = true
		}
	}
	for id := range ids {
		a, b := p.lines[id], q.lines[id]
		for i := range max(len(a), len(b)) {
			switch {
			case i >= len(a):
				return fmt.Sprintf("id %d, line %d: only the second has %s", id, i, b[i])
			case i >= len(b):
				return fmt.Sprintf("id %d, line %d: only the first has %s", id, i, a[i])
			case a[i] != b[i]:
				return fmt.Sprintf("id %d, line %d:\n%s\n%s", id, i, a[i], b[i])
			}
		}
	}
	return ""
}

// agree waits until both tapes are equal, and returns the difference if they stay different.
func agree(p, q *tape, limit time.Duration) string {
	timeout := time.After(limit)
	for {
		diff := p.diff(q)
		if diff == "" {
			return ""
		}
		select {
		case <-p.news:
		case <-q.news:
		case <-timeout:
			return diff
		}
	}
}

// barrierID is where the ids of barriers begin.
const barrierID = 1000

// send sends r and waits until it has been seen to: requests are seen to in order, so a watcher that is made
// after it shows that.
func (p *tape) send(ctx context.Context, t *testing.T, r *pb.WatchRequest, barrier int64) {
	t.Helper()
	for _, m := range []*pb.WatchRequest{r, createRequest(&pb.WatchCreateRequest{Key: []byte("barrier"),
		WatchId: barrier}), cancelRequest(barrier)} {
		if err := p.stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	for {
		p.mu.Lock()
		passed := p.passed
		p.mu.Unlock()
		if passed == barrier {
			return
		}
		select {
		case <-p.news:
		case <-ctx.Done():
			t.Fatal("the watch stream hangs")
		}
	}
}

func createRequest(c *pb.WatchCreateRequest) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: c}}
}

// Several watchers on one stream, made, cancelled and overtaken by compactions between random changes.
func TestRandomWatchStream(t *testing.T) {
	p := pairUp(t, "--max-request-bytes=20000")
	g := newGenerator(seed(t))
	ctx := within(t, 5*time.Minute)
	ref, got := newTape(ctx, t, p.ref), newTape(ctx, t, p.got)
	refSide, gotSide := newSide(t, p.ref.Daemon), newSide(t, p.got.Daemon)
	w := &watchers{generator: g}
	for i := range *opsFlag / 6 { // each waits until both streams have been sent the same
		if g.chance(12) {
			r := w.request()
			for _, x := range []*tape{ref, got} {
				x.send(ctx, t, r, barrierID+int64(i))
			}
		} else {
			req := g.change()
			if r, ok := req.(*pb.CompactionRequest); ok {
				r.Revision = w.passed(r.Revision)
			}
			want, have := refSide.call(ctx, req), gotSide.call(ctx, req)
			if diff := want.diff(have); diff != "" {
				t.Fatalf("operation %d: %T %s\n%s", i, req, short(req), diff)
			}
			if want.err == nil {
				g.learn(req, want.resp)
			}
		}
		if diff := agree(ref, got, 10*time.Second); diff != "" {
			t.Fatalf("operation %d: the reference and sluice were sent\n%s", i, diff)
		}
	}
}

// watchers makes the requests of one stream.
type watchers struct {
	*generator
	starts []started
}

type started struct {
	at       time.Time
	revision int64
}

// passed returns a revision to compact at, revision at most, that no watcher still has to catch up from: whether
// a compaction overtakes one is a matter of chance.
func (w *watchers) passed(revision int64) int64 {
	for _, s := range w.starts {
		if time.Since(s.at) < 5*time.Second {
			revision = min(revision, s.revision)
		}
	}
	return max(1, revision)
}

func (w *watchers) request() *pb.WatchRequest {
	switch n := w.IntN(20); {
	case n < 4:
		return cancelRequest(w.id())
	case n == 4:
		return &pb.WatchRequest{}
	case n == 5:
		return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{}}
	}
	c := w.watch()
	c.Fragment, c.ProgressNotify = w.chance(30), w.chance(10)
	for w.chance(10) {
		c.Filters = append(c.Filters, pb.WatchCreateRequest_FilterType(w.IntN(5)-1))
	}
	if w.chance(5) {
		c.StartRevision = -1 - int64(w.IntN(3))
	}
	if w.chance(40) {
		c.WatchId = w.id()
	}
	if c.StartRevision >= w.compacted && c.StartRevision > 0 {
		w.starts = append(w.starts, started{time.Now(), c.StartRevision})
	}
	return createRequest(c)
}

func cancelRequest(id int64) *pb.WatchRequest {
	c := &pb.WatchCancelRequest{WatchId: id}
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: c}}
}

func (w *watchers) id() int64 { return int64(w.IntN(12)) - 2 }

// change is a request that watchers may see.
func (g *generator) change() proto.Message {
	switch n := g.IntN(20); {
	case n < 9:
		r := g.put()
		if g.chance(10) {
			r.Value = make([]byte, 15000) // a few of them are more than one fragment
		}
		return r
	case n < 12:
		return g.deleteRange()
	case n < 18:
		return g.txn(1)
	case n < 19:
		return &pb.CompactionRequest{Revision: max(1, g.revision-int64(g.IntN(20))), Physical: g.chance(50)}
	default:
		return &pb.LeaseGrantRequest{ID: g.grow(), TTL: 3600}
	}
}

func (g *generator) grow() int64 {
	g.nextLease++
	return g.nextLease
}

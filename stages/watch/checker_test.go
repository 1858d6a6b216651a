package watch

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/wire"
)

func newRand(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// checker holds one stream's responses against the model's complete history: every promise of
// contract/client-api.md sections 7 and 14.
type checker struct {
	store    *model
	creates  []CreateRequest // sent, not answered yet, in order
	watchers map[int64]*watched
	progress int64 // the last stream-wide one
	fragment int64 // id of a response that goes on, -2 for none
}

// watched is what the checker knows of one watcher.
type watched struct {
	req      CreateRequest
	span     span
	next     int64 // everything matching below it was delivered, or was not asked for
	parts    []*mvccpb.Event
	canceled bool // by the stage
	notified int64
}

func newChecker(m *model) *checker {
	return &checker{store: m, watchers: map[int64]*watched{}, fragment: -2}
}

// create and cancel say that a request was sent.
func (c *checker) create(req CreateRequest) { c.creates = append(c.creates, req) }

// matching returns the events that w must get with from <= revision <= to.
func (c *checker) matching(w *watched, from, to int64) []record {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	i, _ := slices.BinarySearchFunc(c.store.all, from, func(r record, rev int64) int { return int(r.rev - rev) })
	var out []record
	for ; i < len(c.store.all) && c.store.all[i].rev <= to; i++ {
		r := c.store.all[i]
		filtered := r.typ == wire.EventPut && w.req.NoPut || r.typ == wire.EventDelete && w.req.NoDelete
		if w.span.holds(r.kv.Key) && !filtered {
			out = append(out, r)
		}
	}
	return out
}

func (c *checker) revision() (rev, compact int64) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	return c.store.rev, c.store.compact
}

// take checks the next response of the stream.
func (c *checker) take(r *pb.WatchResponse) error {
	rev, _ := c.revision()
	if r.Header.Revision > rev {
		return fmt.Errorf("header revision %d beyond the store's %d", r.Header.Revision, rev)
	}
	if c.fragment != -2 && (r.WatchId != c.fragment || len(r.Events) == 0) {
		return fmt.Errorf("%d between the fragments of %d", r.WatchId, c.fragment)
	}
	if r.Created {
		return c.created(r)
	}
	if r.WatchId == broadcastID {
		return c.broadcast(r)
	}
	w := c.watchers[r.WatchId]
	switch {
	case w == nil:
		return fmt.Errorf("response for unknown watcher %d", r.WatchId)
	case r.Canceled && r.CompactRevision != 0:
		return c.compacted(w, r)
	case r.Canceled:
		delete(c.watchers, r.WatchId)
		return nil
	case w.canceled:
		return fmt.Errorf("response for cancelled watcher %d", r.WatchId)
	case len(r.Events) == 0:
		return c.notified(w, r)
	}
	return c.events(w, r)
}

func (c *checker) created(r *pb.WatchResponse) error {
	if len(c.creates) == 0 {
		return fmt.Errorf("created %d without a request", r.WatchId)
	}
	req := c.creates[0]
	c.creates = c.creates[1:]
	if r.Canceled {
		return nil
	}
	if c.watchers[r.WatchId] != nil {
		return fmt.Errorf("watcher %d created twice", r.WatchId)
	}
	w := &watched{req: req, next: req.Start}
	if w.next == 0 {
		w.next = r.Header.Revision + 1
	}
	w.span, _ = spanOf(req.Key, req.End)
	c.watchers[r.WatchId] = w
	return nil
}

func (c *checker) broadcast(r *pb.WatchResponse) error {
	if len(c.watchers) == 0 {
		return fmt.Errorf("progress %d without a watcher", r.Header.Revision)
	}
	if r.Header.Revision < c.progress {
		return fmt.Errorf("progress %d after %d", r.Header.Revision, c.progress)
	}
	c.progress = r.Header.Revision
	for id, w := range c.watchers {
		if w.canceled {
			return fmt.Errorf("progress with watcher %d cancelled", id)
		}
		if err := c.reached(id, w, r.Header.Revision); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) notified(w *watched, r *pb.WatchResponse) error {
	if !w.req.ProgressNotify {
		return fmt.Errorf("notification for watcher %d, which did not ask", r.WatchId)
	}
	if r.Header.Revision < w.notified {
		return fmt.Errorf("notification %d after %d", r.Header.Revision, w.notified)
	}
	w.notified = r.Header.Revision
	return c.reached(r.WatchId, w, r.Header.Revision)
}

// reached checks that progress up to rev is true of w, and that it was not promised too early.
func (c *checker) reached(id int64, w *watched, rev int64) error {
	if w.req.Start > rev {
		return fmt.Errorf("progress %d before watcher %d starts at %d", rev, id, w.req.Start)
	}
	if missing := c.matching(w, w.next, rev); len(missing) > 0 {
		return fmt.Errorf("progress %d before event %s@%d of watcher %d", rev, missing[0].kv.Key, missing[0].rev, id)
	}
	w.next = max(w.next, rev+1)
	return nil
}

func (c *checker) compacted(w *watched, r *pb.WatchResponse) error {
	_, compact := c.revision()
	switch {
	case w.canceled:
		return fmt.Errorf("watcher %d cancelled twice", r.WatchId)
	case r.Header.Revision != 0 || r.CancelReason != "":
		return fmt.Errorf("compaction response with revision %d, reason %q", r.Header.Revision, r.CancelReason)
	case r.CompactRevision > compact:
		return fmt.Errorf("compaction at %d, the store's is %d", r.CompactRevision, compact)
	case w.next >= r.CompactRevision && len(c.matching(w, r.CompactRevision, w.next-1)) > 0:
		return fmt.Errorf("watcher %d cancelled at %d after an event behind it", r.WatchId, r.CompactRevision)
	case w.req.Start >= r.CompactRevision:
		return fmt.Errorf("watcher %d from %d cancelled at %d", r.WatchId, w.req.Start, r.CompactRevision)
	}
	w.canceled = true
	return nil
}

// events checks one response with events, or one part of it.
func (c *checker) events(w *watched, r *pb.WatchResponse) error {
	if r.Fragment && !w.req.Fragment {
		return fmt.Errorf("fragment for watcher %d, which did not ask", r.WatchId)
	}
	w.parts = append(w.parts, r.Events...)
	if c.fragment = -2; r.Fragment {
		c.fragment = r.WatchId
		return nil
	}
	evs := w.parts
	w.parts = nil
	last := evs[len(evs)-1].Kv.ModRevision
	if last > r.Header.Revision {
		return fmt.Errorf("event at %d in a response of revision %d", last, r.Header.Revision)
	}
	want := c.matching(w, w.next, last)
	if len(want) != len(evs) {
		return fmt.Errorf("watcher %d at %d: %d events up to %d, want %d: %s",
			r.WatchId, w.next, len(evs), last, len(want), list(evs))
	}
	revs := map[int64]bool{}
	for i, ev := range evs {
		revs[ev.Kv.ModRevision] = true
		if err := c.event(w, ev, &want[i]); err != nil {
			return fmt.Errorf("watcher %d: event %d of %s: %w", r.WatchId, i, list(evs), err)
		}
	}
	if len(revs) > revsMax {
		return fmt.Errorf("%d revisions in a response", len(revs))
	}
	w.next = last + 1
	return nil
}

func (c *checker) event(w *watched, got *mvccpb.Event, want *record) error {
	ev := want.event()
	kv, err := proto.Marshal(got.Kv)
	if err != nil {
		return err
	}
	if int32(got.Type) != int32(ev.Type) || !bytes.Equal(kv, ev.KV) {
		return fmt.Errorf("is %v %v, want %v %s@%d", got.Type, got.Kv, ev.Type, ev.Key, ev.Rev)
	}
	_, compact := c.revision()
	switch {
	case got.PrevKv == nil && (!w.req.PrevKV || ev.Prev == nil || ev.Rev <= compact):
		return nil
	case got.PrevKv == nil:
		return fmt.Errorf("no previous value at %d", ev.Rev)
	case !w.req.PrevKV:
		return fmt.Errorf("a previous value that was not asked for")
	}
	prev, err := proto.Marshal(got.PrevKv)
	if err != nil {
		return err
	}
	if !bytes.Equal(prev, ev.Prev) {
		return fmt.Errorf("previous value %v, want %x", got.PrevKv, ev.Prev)
	}
	return nil
}

// mute lists the watchers that keep a progress request from being answered.
func (c *checker) mute() (ids []int64) {
	rev, _ := c.revision()
	for id, w := range c.watchers {
		if w.canceled || w.req.Start > rev {
			ids = append(ids, id)
		}
	}
	return ids
}

// finish checks, when nothing more can come, that nothing is missing: neither an event nor the answer to a
// last progress request, if all watchers of the stream have reached their start and none was cancelled.
func (c *checker) finish() error {
	rev, compact := c.revision()
	if len(c.creates) > 0 {
		return fmt.Errorf("%d creates without an answer", len(c.creates))
	}
	answered := len(c.watchers) > 0 && len(c.mute()) == 0
	for id, w := range c.watchers {
		if w.canceled {
			continue
		}
		if missing := c.matching(w, w.next, rev); len(missing) > 0 {
			return fmt.Errorf("watcher %d at %d: %d events missing from %s@%d, revision %d, compacted %d", id, w.next,
				len(missing), missing[0].kv.Key, missing[0].rev, rev, compact)
		}
	}
	if answered && c.progress < rev {
		return fmt.Errorf("progress %d at revision %d", c.progress, rev)
	}
	return nil
}

func list(evs []*mvccpb.Event) string {
	var b strings.Builder
	for _, ev := range evs[:min(len(evs), 20)] {
		fmt.Fprintf(&b, "%s@%d ", ev.Kv.Key, ev.Kv.ModRevision)
	}
	return b.String()
}

// firstOf finds the first response of watcher 0 with at least n events.
func firstOf(rs []*pb.WatchResponse, n int) int {
	return slices.IndexFunc(rs, func(r *pb.WatchResponse) bool { return r.WatchId == 0 && len(r.Events) >= n })
}

// plantedBugs break a correct stream of responses, one guarantee each.
var plantedBugs = map[string]func(rs []*pb.WatchResponse) []*pb.WatchResponse{
	"nothing wrong": nil,
	"an event left out": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		i := firstOf(rs, 1)
		return slices.Delete(rs, i, i+1)
	},
	"the last event left out": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		for i := len(rs) - 1; ; i-- {
			if rs[i].WatchId == 0 && len(rs[i].Events) > 0 {
				return append(rs[:i:i], rs[i+1:len(rs)-1]...) // and the progress answer
			}
		}
	},
	"an event twice": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		i := firstOf(rs, 1)
		return slices.Insert(rs, i, rs[i])
	},
	"two responses swapped": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		i := firstOf(rs, 1)
		j := i + 1 + firstOf(rs[i+1:], 1)
		rs[i], rs[j] = rs[j], rs[i]
		return rs
	},
	"a revision torn": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		i := firstOf(rs, 3)
		rest := proto.Clone(rs[i]).(*pb.WatchResponse)
		rs[i].Events, rest.Events = rs[i].Events[:1], rest.Events[1:]
		return slices.Insert(rs, i+1, rest)
	},
	"events of a revision out of order": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		i := firstOf(rs, 3)
		slices.Reverse(rs[i].Events)
		return rs
	},
	"a wrong previous value": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		rs[firstOf(rs, 3)].Events[0].PrevKv.Value = []byte("x")
		return rs
	},
	"a missing previous value": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		rs[firstOf(rs, 3)].Events[0].PrevKv = nil
		return rs
	},
	"a filtered event": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		i := slices.IndexFunc(rs, func(r *pb.WatchResponse) bool {
			return len(r.Events) > 0 && r.Events[0].Type == mvccpb.Event_DELETE
		})
		rs[i].WatchId = 1
		return rs
	},
	"progress ahead of events": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		i := len(rs) - 1
		return slices.Insert(rs[:i:i], firstOf(rs, 1), rs[i])
	},
	"a notification ahead of events": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		early := &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 3}}
		return slices.Insert(rs, firstOf(rs, 1), early)
	},
	"a cancel for a compaction that never was": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		return append(rs, &pb.WatchResponse{Header: &pb.ResponseHeader{}, Canceled: true, CompactRevision: 5})
	},
	"a create never answered": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		return slices.DeleteFunc(rs, func(r *pb.WatchResponse) bool { return r.WatchId == 1 })
	},
	"a progress request never answered": func(rs []*pb.WatchResponse) []*pb.WatchResponse { return rs[:len(rs)-1] },
	"an unasked fragment": func(rs []*pb.WatchResponse) []*pb.WatchResponse {
		rs[firstOf(rs, 3)].Fragment = true
		return rs
	},
}

// A checker proves itself: for each guarantee, a stream of responses that breaks it must be found out.
func TestCheckerFindsPlantedBugs(t *testing.T) {
	good := func() (*checker, []*pb.WatchResponse) {
		m := newModel()
		stage := &script{t: t, store: m, streams: map[string]*Stream{}}
		stage.do([]string{"stage"})
		stage.do([]string{"open", "S"})
		c := newChecker(m)
		for _, req := range []CreateRequest{
			{Key: []byte("a"), End: []byte("z"), PrevKV: true, Start: 2, ProgressNotify: true},
			{Key: []byte("b"), NoDelete: true},
		} {
			c.create(req)
			stage.ask("S", createMsg{stage.streams["S"], req})
		}
		for _, line := range []string{"put a 1", "put b 2", "txn a=2 b=3 c=1", "put b 4", "del a", "put c 2", "progress S"} {
			stage.do(strings.Fields(line))
		}
		var rs []*pb.WatchResponse
		for {
			it, ok, _ := stage.streams["S"].out.pop()
			if !ok {
				return c, rs
			}
			rs = append(rs, decode(t, &it.Message))
		}
	}
	run := func(c *checker, rs []*pb.WatchResponse) error {
		for _, r := range rs {
			if err := c.take(r); err != nil {
				return err
			}
		}
		return c.finish()
	}
	for name, plant := range plantedBugs {
		t.Run(name, func(t *testing.T) {
			c, rs := good()
			if plant != nil {
				rs = plant(rs)
			}
			if err := run(c, rs); (err == nil) != (plant == nil) {
				t.Errorf("checker says: %v", err)
			}
		})
	}
}

package mvcc

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

func emptyStore(t testing.TB) (*Store, *memory) {
	t.Helper()
	mem := newMemory()
	s, err := Load(mem.snapshot(), mem, Config{}, newLeases())
	if err != nil {
		t.Fatal(err)
	}
	return s, mem
}

func mustTxn(t testing.TB, s *Store, r *wire.TxnRequest) (Result, *pb.TxnResponse) {
	t.Helper()
	res, err := s.Txn(r)
	if err != nil {
		t.Fatal(err)
	}
	resp := new(pb.TxnResponse)
	if err := proto.Unmarshal(res.Body, resp); err != nil {
		t.Fatal(err)
	}
	return res, resp
}

func putOp(key, value string) wire.RequestOp {
	return wire.RequestOp{Put: &wire.PutRequest{Key: []byte(key), Value: []byte(value)}}
}

func deleteOp(key, end string) wire.RequestOp {
	return wire.RequestOp{Delete: &wire.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}
}

// TestNegativeRevisionInTxn: a negative revision means the current one, inside a transaction and after a
// compaction too (BC-05).
func TestNegativeRevisionInTxn(t *testing.T) {
	s, mem := emptyStore(t)
	for range 5 {
		mustPut(t, s, "x", "old")
	}
	compact(t, s, mem, 4, 10)
	for _, rev := range []int64{-1, -5} {
		if err := s.Compact(rev); !errors.Is(err, ErrCompacted) {
			t.Errorf("compact %d: %v", rev, err)
		}
		r := &wire.TxnRequest{Success: []wire.RequestOp{
			putOp("x", "new"), {Range: &wire.RangeRequest{Key: []byte("x"), Revision: rev}},
		}}
		if _, resp := mustTxn(t, s, r); string(resp.Responses[1].GetResponseRange().Kvs[0].Value) != "new" {
			t.Errorf("range at %d sees %v", rev, resp)
		}
	}
	if err := s.Compact(0); !errors.Is(err, ErrCompacted) {
		t.Errorf("compact 0: %v", err)
	}
}

// TestNestedSiblings: entries of a foreign leader may put and delete one key in sibling transactions, in
// both orders; the store executes them in order, in one revision (BC-10), and compacting at exactly that
// revision keeps what lives (where etcd 3.7.3 crashes).
func TestNestedSiblings(t *testing.T) {
	for _, putLast := range []bool{false, true} {
		s, mem := emptyStore(t)
		mustPut(t, s, "n1", "before")
		put := wire.RequestOp{Txn: &wire.TxnRequest{Success: []wire.RequestOp{putOp("n1", "after")}}}
		del := wire.RequestOp{Txn: &wire.TxnRequest{Success: []wire.RequestOp{deleteOp("n", "o")}}}
		r := &wire.TxnRequest{Success: []wire.RequestOp{put, del}}
		if putLast {
			r.Success = []wire.RequestOp{del, put}
		}
		res, _ := mustTxn(t, s, r)
		if res.Revision != 3 || len(s.TakeEvents()) != 3 {
			t.Fatalf("%+v", res)
		}
		check := func(v *View) {
			t.Helper()
			got := rangeOf(t, v, &wire.RangeRequest{Key: []byte("n1"), Revision: 3})
			lives := got.Count == 1 && string(got.Kvs[0].Value) == "after" && got.Kvs[0].Version == 1
			if lives != putLast {
				t.Fatalf("put last %v: %v", putLast, got)
			}
		}
		check(s.Publish(mem.snapshot()))
		compact(t, s, mem, 3, 10)
		check(s.Publish(mem.snapshot()))
		s, err := Load(mem.snapshot(), mem, Config{}, newLeases())
		if err != nil {
			t.Fatal(err)
		}
		check(s.Publish(mem.snapshot()))
	}
}

// TestDeleteTwice: two deletes of a key in one transaction count 1 and 0 and make one event (BC-09).
func TestDeleteTwice(t *testing.T) {
	s, _ := emptyStore(t)
	mustPut(t, s, "d", "1")
	s.TakeEvents()
	_, resp := mustTxn(t, s, &wire.TxnRequest{Success: []wire.RequestOp{deleteOp("d", ""), deleteOp("d", "")}})
	for i, want := range []int64{1, 0} {
		if got := resp.Responses[i].GetResponseDeleteRange().Deleted; got != want {
			t.Errorf("delete %d: %d deleted, want %d", i, got, want)
		}
	}
	if ev := s.TakeEvents(); len(ev) != 1 {
		t.Errorf("%d events", len(ev))
	}
}

// TestComparesOverNothing: BC-12.
func TestComparesOverNothing(t *testing.T) {
	s, _ := emptyStore(t)
	for i := range 5 {
		mustPut(t, s, fmt.Sprintf("k%d", i), "v")
	}
	key := func(k, end string) wire.Compare { return wire.Compare{Key: []byte(k), RangeEnd: []byte(end)} }
	with := func(
		c wire.Compare, target pb.Compare_CompareTarget, result pb.Compare_CompareResult, operand wire.CompareOperand,
	) wire.Compare {
		c.Target, c.Result, c.Operand, c.Value = int32(target), int32(result), operand, []byte("x")
		return c
	}
	for _, c := range []struct {
		cmp  wire.Compare
		want bool
	}{
		{with(key("empty/", "empty0"), pb.Compare_CREATE, pb.Compare_EQUAL, wire.OperandCreate), true},
		{with(key("empty/", "empty0"), pb.Compare_MOD, pb.Compare_GREATER, wire.OperandMod), false},
		{with(key("missing", ""), pb.Compare_VALUE, pb.Compare_NOT_EQUAL, wire.OperandValue), false},
		{with(key("missing", ""), pb.Compare_LEASE, pb.Compare_EQUAL, wire.OperandLease), true},
		{with(key("missing", ""), pb.Compare_VERSION, pb.Compare_EQUAL, wire.OperandVersion), true},
		{with(key("k", "l"), pb.Compare_VERSION, pb.Compare_GREATER, wire.OperandVersion), true},
		{with(key("k", "\x00"), pb.Compare_VERSION, pb.Compare_GREATER, wire.OperandVersion), true},
		{with(key("k1", ""), pb.Compare_VERSION, pb.Compare_EQUAL, wire.OperandMod), false},
	} {
		if _, resp := mustTxn(t, s, &wire.TxnRequest{Compare: []wire.Compare{c.cmp}}); resp.Succeeded != c.want {
			t.Errorf("%+v: %v", c.cmp, resp.Succeeded)
		}
	}
	if s.Revision() != 6 {
		t.Errorf("transactions without a change moved the revision to %d", s.Revision())
	}
}

// TestDeleteOnCompactionRevision: a watch from the compaction revision gets the deletion that sits on it, at
// any point of the compaction, after it, and after a restart (BC-17).
func TestDeleteOnCompactionRevision(t *testing.T) {
	s, mem := emptyStore(t)
	for _, k := range []string{"a", "b", "c", "d"} {
		mustPut(t, s, k, "v")
	}
	s.DeleteRange(&wire.DeleteRangeRequest{Key: []byte("a")})
	const rev = 6
	check := func(when string) {
		t.Helper()
		v := s.Publish(mem.snapshot())
		var got []wire.Event
		err := v.History(rev, rev, func(ev *wire.Event) bool { got = append(got, *ev); return true })
		if err != nil || len(got) != 1 || got[0].Type != wire.EventDelete || string(got[0].Key) != "a" {
			t.Errorf("%s: %+v, %v", when, got, err)
		}
		if err := v.History(rev-1, rev, nil); !errors.Is(err, ErrCompacted) {
			t.Errorf("%s: watch below: %v", when, err)
		}
		resp := rangeOf(t, v, &wire.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), Revision: rev})
		if resp.Count != 3 {
			t.Errorf("%s: %v", when, resp)
		}
	}
	if err := s.Compact(rev); err != nil {
		t.Fatal(err)
	}
	check("recorded")
	c := s.NextCompaction()
	for done := false; !done; {
		var deletes [][]byte
		deletes, done = c.Next(s.Publish(mem.snapshot()), 1)
		s.CompactionDeletes(deletes)
		check("under way")
	}
	s.FinishCompaction(c)
	s.SweepIndex(1000)
	check("done")
	s, err := Load(mem.snapshot(), mem, Config{}, newLeases())
	if err != nil {
		t.Fatal(err)
	}
	check("restarted")
	mustPut(t, s, "e", "v")
	compact(t, s, mem, rev+1, 10)
	if n := mem.buckets[backend.Key].Len(); n != 4 {
		t.Errorf("%d records after the next compaction, want b, c, d, e", n)
	}
}

// TestCompactionWaitsForPublish: a compaction is handed out only once the published index shows all up to
// its revision; a view from before it is refused; one runs at a time, in order.
func TestCompactionWaitsForPublish(t *testing.T) {
	s, mem := emptyStore(t)
	mustPut(t, s, "a", "1")
	old := s.Publish(mem.snapshot())
	mustPut(t, s, "a", "2")
	if err := s.Compact(3); err != nil {
		t.Fatal(err)
	}
	if s.NextCompaction() != nil {
		t.Fatal("handed out before the publish")
	}
	v := s.Publish(mem.snapshot())
	mustPut(t, s, "a", "3")
	if err := s.Compact(4); err != nil {
		t.Fatal(err)
	}
	c := s.NextCompaction()
	if c == nil || c.Revision() != 3 || s.NextCompaction() != nil {
		t.Fatal("want the first compaction, alone")
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a view from before the compaction was taken")
			}
		}()
		c.Next(old, 10)
	}()
	if deletes, done := c.Next(v, 10); len(deletes) != 1 || !done {
		t.Fatal(deletes, done)
	}
	if deletes, done := c.Next(v, 10); len(deletes) != 0 || !done {
		t.Fatal("a done compaction goes on")
	}
	s.FinishCompaction(c)
	s.Publish(mem.snapshot())
	if c = s.NextCompaction(); c == nil || c.Revision() != 4 {
		t.Fatal("the second is not due")
	}
	// An older view is as good as it was, below the compaction too.
	if resp := rangeOf(t, old, &wire.RangeRequest{Key: []byte("a"), Revision: 2}); string(resp.Kvs[0].Value) != "1" {
		t.Error(resp)
	}
	if old.Keys() != 1 {
		t.Error(old.Keys())
	}
}

// TestCountAndLimit: BC-02 and BC-03, and the page boundaries of many keys.
func TestCountAndLimit(t *testing.T) {
	s, mem := emptyStore(t)
	const n = 1000
	for i := range n {
		mustPut(t, s, fmt.Sprintf("k%04d", i*7%n), "v")
	}
	first := s.Publish(mem.snapshot())
	rev := first.Revision()
	for i := 0; i < n; i += 3 { // the pages change after the first page of a LIST was read
		s.DeleteRange(&wire.DeleteRangeRequest{Key: []byte(fmt.Sprintf("k%04d", i))})
	}
	for i := range n {
		mustPut(t, s, fmt.Sprintf("k%04d+", i), "later")
	}
	v := s.Publish(mem.snapshot())
	for limit := int64(1); limit < 1200; limit += 1 + limit/5 {
		key, left, seen := []byte("k"), int64(n), 0
		for more := true; more; {
			resp := rangeOf(t, v, &wire.RangeRequest{Key: key, RangeEnd: []byte("l"), Limit: limit, Revision: rev})
			if resp.Count != left {
				t.Fatalf("limit %d: count %d at %q, want %d", limit, resp.Count, key, left)
			}
			for _, kv := range resp.Kvs {
				if want := fmt.Sprintf("k%04d", seen); string(kv.Key) != want {
					t.Fatalf("limit %d: %s, want %s", limit, kv.Key, want)
				}
				seen++
			}
			left -= int64(len(resp.Kvs))
			if more = resp.More; more != (left > 0) {
				t.Fatalf("limit %d: more %v with %d left", limit, more, left)
			}
			key = append(resp.Kvs[len(resp.Kvs)-1].Key, 0)
		}
	}
	for _, req := range []wire.RangeRequest{
		{CountOnly: true, Limit: 2}, {Limit: 1, MinModRevision: rev + 1}, {KeysOnly: true, Limit: 2},
	} {
		req.Key, req.RangeEnd = []byte("k"), []byte("l")
		if resp := rangeOf(t, v, &req); resp.Count != v.Keys() || req.CountOnly && (len(resp.Kvs) != 0 || resp.More) {
			t.Errorf("%+v: count %d, want %d", req, resp.Count, v.Keys())
		}
	}
}

// TestReadersAndWriter: readers of held views, among them the compaction worker, and the writer share
// pages, blocks and slabs; under the race detector none sees the other's work.
func TestReadersAndWriter(t *testing.T) {
	s, mem := emptyStore(t)
	s.slabs.block = 2048
	var current atomic.Pointer[View]
	publish := func() { current.Store(s.Publish(mem.snapshot())) }
	publish()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for n := range 3 {
		wg.Go(func() {
			for i := n; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				v := current.Load()
				resp := rangeOf(t, v, &wire.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
				if resp.Count != v.Keys() {
					t.Errorf("%d keys, view has %d", resp.Count, v.Keys())
				}
				v.Get([]byte(fmt.Sprint("k", i%100)), 0)
			}
		})
	}
	var c *Compaction
	for i := range 4000 {
		mustPut(t, s, fmt.Sprint("k", i*31%100), fmt.Sprint("value ", i))
		if i%5 == 0 {
			s.DeleteRange(&wire.DeleteRangeRequest{Key: []byte(fmt.Sprint("k", i*17%100))})
		}
		if i%16 == 0 {
			publish()
		}
		if i%100 == 99 {
			if err := s.Compact(s.Revision()); err != nil {
				t.Fatal(err)
			}
			publish()
			c = s.NextCompaction()
			deletes, done := c.Next(current.Load(), 10000)
			s.CompactionDeletes(deletes)
			if done {
				s.FinishCompaction(c)
			}
			for !s.SweepIndex(20) {
				publish()
			}
		}
	}
	close(stop)
	wg.Wait()
}

// TestUnknownSort: an entry of a foreign leader may carry what validation should have refused (BC-01).
func TestUnknownSort(t *testing.T) {
	s, _ := emptyStore(t)
	mustPut(t, s, "a", "1")
	for _, r := range []*wire.RangeRequest{
		{Key: []byte("a"), SortOrder: 1, SortTarget: 99}, {Key: []byte("a"), SortOrder: 7}, {Key: []byte("a"), SortOrder: -1},
	} {
		_, resp := mustTxn(t, s, &wire.TxnRequest{Success: []wire.RequestOp{{Range: r}}})
		if resp.Responses[0].GetResponseRange().Count != 1 {
			t.Errorf("%+v: %v", r, resp)
		}
	}
}

package mvcc

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/wire"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "seed of the random tests, 0 = by the clock")
	stepsFlag = flag.Int("steps", 3000, "steps of a random test")
)

// random drives a store and the model with the same operations and compares all that can be seen.
type random struct {
	*testing.T
	*rand.Rand
	s      *Store
	mem    *memory
	model  *model
	leases *leases
	logged int // changes of the model whose events have been compared
	views  []held
	work   *Compaction
	cfg    Config
	block  int
	keys   int  // how many different keys
	thin   bool // many deletions: pages become sparse
}

// held is a view that is kept while the store goes on. forget says how far the backend that it reads shows
// deletions of compactions: none below its own compaction revision matter.
type held struct {
	v            *View
	rev, compact int64
	logged       int
}

var leaseIDs = []int64{1, 77, -5}

func newRandom(t *testing.T, seed uint64, cfg Config, block, keys int) *random {
	r := &random{
		T: t, Rand: rand.New(rand.NewPCG(seed, 1)), mem: newMemory(), model: newModel(leaseIDs...),
		leases: newLeases(leaseIDs...), cfg: cfg, block: block, keys: keys,
	}
	r.load()
	return r
}

func (r *random) load() {
	r.leases = newLeases(leaseIDs...)
	s, err := Load(r.mem.snapshot(), r.mem, r.cfg, r.leases)
	if err != nil {
		r.Fatal(err)
	}
	if r.block != 0 {
		s.slabs.block = r.block
	}
	if s.Revision() != r.model.rev || s.CompactRevision() != r.model.compact {
		r.Fatalf("loaded %v, want revision %d, compacted %d", s, r.model.rev, r.model.compact)
	}
	r.s, r.work = s, nil
	r.compareLeases()
}

func (r *random) key() []byte {
	n := r.IntN(r.keys)
	if r.IntN(20) == 0 {
		return []byte(fmt.Sprintf("k%04d/", n))
	}
	return []byte(fmt.Sprintf("k%04d", n))
}

func (r *random) span() (key, end []byte) {
	switch r.IntN(8) {
	case 0:
		return []byte{0}, []byte{0}
	case 1:
		return r.key(), []byte{0}
	case 2, 3, 4:
		return r.key(), r.key() // may be inverted or equal
	case 5:
		key = r.key()
		return key, append(bytes.Clone(key), 'x')
	}
	return r.key(), nil
}

func (r *random) value() []byte {
	n := r.IntN(60)
	if r.IntN(30) == 0 {
		n = r.IntN(2000)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + r.IntN(3))
	}
	return b
}

func (r *random) lease() int64 {
	switch r.IntN(12) {
	case 0:
		return 999 // unknown
	case 1, 2, 3:
		return leaseIDs[r.IntN(len(leaseIDs))]
	}
	return 0
}

func (r *random) putRequest() *wire.PutRequest {
	return &wire.PutRequest{
		Key: r.key(), Value: r.value(), Lease: r.lease(), PrevKV: r.IntN(3) == 0,
		IgnoreValue: r.IntN(10) == 0, IgnoreLease: r.IntN(10) == 0,
	}
}

func (r *random) deleteRequest() *wire.DeleteRangeRequest {
	d := &wire.DeleteRangeRequest{PrevKV: r.IntN(2) == 0}
	if d.Key, d.RangeEnd = r.span(); r.IntN(3) != 0 && !r.thin {
		d.RangeEnd = nil // else the store would be empty most of the time
	}
	return d
}

// someRevision is mostly one that can be read, sometimes none, below the compaction or in the future.
func (r *random) someRevision(compact, rev int64) int64 {
	switch r.IntN(10) {
	case 0:
		return -r.Int64N(3)
	case 1:
		return rev + r.Int64N(3)
	case 2:
		return max(0, compact) + r.Int64N(3) - 1
	case 3, 4, 5:
		return 0
	}
	return r.Int64N(rev + 1)
}

func (r *random) rangeRequest(compact, rev int64) *wire.RangeRequest {
	req := &wire.RangeRequest{Revision: r.someRevision(compact, rev)}
	req.CountOnly, req.KeysOnly = r.IntN(8) == 0, r.IntN(4) == 0
	req.Key, req.RangeEnd = r.span()
	if r.IntN(2) == 0 {
		req.Limit = r.Int64N(int64(r.keys)) - 1
	}
	if r.IntN(3) == 0 {
		req.SortOrder, req.SortTarget = r.Int32N(3), r.Int32N(5)
	}
	for _, filter := range []*int64{
		&req.MinModRevision, &req.MaxModRevision, &req.MinCreateRevision, &req.MaxCreateRevision,
	} {
		if r.IntN(12) == 0 {
			*filter = r.Int64N(rev+3) - 1
		}
	}
	return req
}

func (r *random) compare() wire.Compare {
	c := wire.Compare{Result: r.Int32N(5), Target: r.Int32N(6), Operand: wire.CompareOperand(r.IntN(6))}
	if c.Key = r.key(); r.IntN(3) == 0 {
		c.Key, c.RangeEnd = r.span()
	}
	if r.IntN(3) != 0 { // mostly the operand that fits the target
		c.Operand = []wire.CompareOperand{
			wire.OperandVersion, wire.OperandCreate, wire.OperandMod, wire.OperandValue, wire.OperandLease,
			wire.OperandNone,
		}[c.Target]
	}
	if c.Operand == wire.OperandValue {
		c.Value = r.value()
	} else if r.IntN(2) == 0 {
		c.Int = r.Int64N(r.model.rev + 2)
	}
	return c
}

func (r *random) txnRequest(depth int) *wire.TxnRequest {
	t := &wire.TxnRequest{}
	for range r.IntN(3) {
		t.Compare = append(t.Compare, r.compare())
	}
	for _, ops := range []*[]wire.RequestOp{&t.Success, &t.Failure} {
		for range r.IntN(5) {
			var op wire.RequestOp
			switch n := r.IntN(10); {
			case n < 3:
				op.Range = r.rangeRequest(r.model.compact, r.model.rev)
				if r.IntN(3) != 0 {
					op.Range.Revision = 0
				}
			case n < 6:
				op.Put = r.putRequest()
				op.Put.IgnoreValue = op.Put.IgnoreValue && r.IntN(4) == 0
			case n < 8:
				op.Delete = r.deleteRequest()
			case depth > 0:
				op.Txn = r.txnRequest(depth - 1)
			default:
				continue
			}
			*ops = append(*ops, op)
		}
	}
	return t
}

func (r *random) same(what string, got []byte, into, want proto.Message) {
	r.Helper()
	if err := proto.Unmarshal(got, into); err != nil {
		r.Fatalf("%s: %v", what, err)
	}
	if !proto.Equal(into, want) {
		r.Fatalf("%s:\n got  %v\n want %v", what, into, want)
	}
}

func (r *random) sameResult(what any, res Result, err, wantErr error, into, want proto.Message) {
	r.Helper()
	changed := false
	if wantErr == nil {
		changed = r.model.end()
	}
	if !errors.Is(err, wantErr) || res.Changed != changed || res.Revision != r.model.rev {
		r.Fatalf("%+v: %+v, %v; want revision %d, changed %v, %v", what, res, err, r.model.rev, changed, wantErr)
	}
	if err == nil {
		r.same(fmt.Sprintf("%+v", what), res.Body, into, want)
	}
}

// write applies one random write to both.
func (r *random) write() {
	r.Helper()
	switch n := r.IntN(20); {
	case n < 9:
		req := r.putRequest()
		res, err := r.s.Put(req)
		wantErr := r.model.checkPut(req, func(string) bool { return false })
		want := &pb.PutResponse{}
		if wantErr == nil {
			want = r.model.put(req)
		}
		r.sameResult(req, res, err, wantErr, &pb.PutResponse{}, want)
	case n < 12:
		req := r.deleteRequest()
		res, err := r.s.DeleteRange(req)
		r.sameResult(req, res, err, nil, &pb.DeleteRangeResponse{}, r.model.deleteRange(req))
	case n < 19:
		req := r.txnRequest(2)
		res, err := r.s.Txn(req)
		want, wantErr := r.model.txn(req)
		r.sameResult(req, res, err, wantErr, &pb.TxnResponse{}, want)
	default:
		id := leaseIDs[r.IntN(len(leaseIDs))]
		keys := r.model.leaseOf(id)
		for _, k := range keys {
			r.model.add(k, nil)
		}
		res := r.s.DeleteKeys(r.leases.of(id))
		r.sameResult("revoke", res, nil, nil, &pb.DeleteRangeResponse{}, &pb.DeleteRangeResponse{})
	}
}

func (r *random) compareLeases() {
	r.Helper()
	for _, id := range leaseIDs {
		if got, want := fmt.Sprint(r.leases.of(id)), fmt.Sprint(r.model.leaseOf(id)); got != want {
			r.Fatalf("lease %d holds %s, want %s", id, got, want)
		}
	}
}

// events compares what a live watcher gets.
func (r *random) events() {
	r.Helper()
	events := r.s.TakeEvents()
	if len(events) != len(r.model.log)-r.logged {
		r.Fatalf("%d events, want %d", len(events), len(r.model.log)-r.logged)
	}
	for i := range events {
		r.sameEvent(&events[i], r.model.log[r.logged+i], nil)
	}
	r.logged = len(r.model.log)
}

// sameEvent compares an event with a change. Where the event leaves prev open, it is read from v; without
// a view it stays unknown.
func (r *random) sameEvent(ev *wire.Event, c change, v *View) {
	r.Helper()
	want := r.model.event(c)
	created := c.kv != nil && c.kv.CreateRevision == c.kv.ModRevision
	if ev.Rev != c.rev || string(ev.Key) != c.key || ev.Created != created {
		r.Fatalf("event %+v, want %+v", ev, c)
	}
	filled := *ev
	if ev.PrevUnknown {
		if ev.Prev != nil {
			r.Fatalf("event %+v has a prev that is unknown", ev)
		}
		if v == nil {
			want.PrevKv = nil
		} else {
			filled.Prev, _ = v.Get(ev.Key, ev.Rev-1)
			if ev.Rev-1 < v.CompactRevision() {
				want.PrevKv = nil
			}
		}
	}
	r.same("event", wire.AppendEvent(nil, &filled, true), &mvccpb.Event{}, want)
}

func (r *random) publish() {
	r.views = append(r.views, held{r.s.Publish(r.mem.snapshot()), r.model.rev, r.model.compact, len(r.model.log)})
	if len(r.views) > 8 {
		r.views = append(r.views[:2], r.views[3:]...) // a few stay long
		if r.IntN(4) == 0 {
			r.views = r.views[1:]
		}
	}
}

// compaction moves the compactions on by one random step.
func (r *random) compaction() {
	r.Helper()
	if r.IntN(3) == 0 {
		rev := r.someRevision(r.model.compact, r.model.rev)
		err := r.s.Compact(rev)
		switch {
		case rev <= r.model.compact:
			if !errors.Is(err, ErrCompacted) {
				r.Fatal(err)
			}
		case rev > r.model.rev:
			if !errors.Is(err, ErrFutureRev) {
				r.Fatal(err)
			}
		case err != nil:
			r.Fatal(err)
		default:
			r.model.compact = rev
		}
		r.publish()
	}
	if r.work == nil {
		r.work = r.s.NextCompaction()
	}
	if r.work != nil {
		r.publish()
		deletes, done := r.work.Next(r.views[len(r.views)-1].v, 1+r.IntN(20))
		r.s.CompactionDeletes(deletes)
		if done {
			r.s.FinishCompaction(r.work)
			r.work = nil
		}
	}
	if r.IntN(2) == 0 {
		r.s.SweepIndex(r.IntN(40) * (1 + r.IntN(20)))
	}
}

// fill puts every key once.
func (r *random) fill() {
	for n := range r.keys {
		req := &wire.PutRequest{Key: []byte(fmt.Sprintf("k%04d", n)), Value: []byte("v")}
		res, err := r.s.Put(req)
		r.sameResult(req, res, err, nil, &pb.PutResponse{}, r.model.put(req))
	}
}

func (r *random) steps(n int) {
	r.publish()
	for range n {
		switch x := r.IntN(100); {
		case x < 60:
			r.write()
		case x < 75:
			r.events()
			r.publish()
		case x < 92:
			r.read()
		case x < 98:
			r.compaction()
		case x < 99 && r.IntN(4) == 0:
			// A restart: what is not in the backend is lost, so events not taken are, too.
			r.events()
			r.load()
			r.publish()
		}
		r.invariants()
	}
	r.compareLeases()
}

// TestRandom compares the store with the slow obvious model under random operations, with reads of views
// that are held across batches, compactions in steps, and restarts.
func TestRandom(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for _, c := range []struct {
		name  string
		cfg   Config
		block int
		keys  int
	}{
		{"few keys", Config{}, 0, 12},
		{"many keys", Config{}, 4096, 400},
		{"no values in memory", Config{ValueCacheBytes: -1}, 0, 40},
		{"some values in memory", Config{ValueCacheBytes: 6 << 10}, 1 << 10, 150},
		{"small slabs", Config{}, 512, 150},
		{"many deletions", Config{}, 0, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Logf("-seed %d", seed)
			r := newRandom(t, seed, c.cfg, c.block, c.keys)
			if r.keys >= 1000 {
				r.fill()
				r.thin = true
			}
			r.steps(*stepsFlag)
		})
	}
}

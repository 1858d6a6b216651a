package mvcc

import (
	"bytes"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/wire"
)

// read compares random reads of a random held view.
func (r *random) read() {
	r.Helper()
	h := r.views[r.IntN(len(r.views))]
	if h.v.Revision() != h.rev || h.v.CompactRevision() != h.compact {
		r.Fatalf("view %d/%d, want %d/%d", h.v.Revision(), h.v.CompactRevision(), h.rev, h.compact)
	}
	past := *r.model // the model as the view must show it
	past.rev, past.compact = h.rev, h.compact
	for range 4 {
		req := r.rangeRequest(h.compact, h.rev)
		r.readRange(h.v, &past, req)
		r.readChunks(h.v, &past, req)
	}
	t := &wire.TxnRequest{Compare: []wire.Compare{r.compare()}}
	for range r.IntN(4) {
		t.Success = append(t.Success, wire.RequestOp{Range: r.rangeRequest(h.compact, h.rev)})
		t.Failure = append(t.Failure, wire.RequestOp{Range: r.rangeRequest(h.compact, h.rev)})
	}
	bound := h.v.TxnBound(t)
	body, err := h.v.Txn(t)
	asOf := past
	asOf.keys = past.upTo(h.rev)
	want, wantErr := asOf.txn(t)
	if !errors.Is(err, wantErr) {
		r.Fatalf("read-only txn %+v: %v, want %v", t, err, wantErr)
	}
	if err == nil {
		r.same("read-only txn", body, &pb.TxnResponse{}, want)
		if int64(len(body)) > bound {
			r.Fatalf("read-only txn %+v: %d bytes, bound %d", t, len(body), bound)
		}
	}
	r.history(h)
}

// upTo is the model's keys without what came after rev.
func (m *model) upTo(rev int64) map[string][]change {
	keys := map[string][]change{}
	for k, cs := range m.keys {
		n := 0
		for n < len(cs) && cs[n].rev <= rev {
			n++
		}
		keys[k] = cs[:n]
	}
	return keys
}

// wantRange is the model's answer as of the view's revision.
func (m *model) wantRange(req *wire.RangeRequest) *pb.RangeResponse {
	at := *req
	if at.Revision <= 0 {
		at.Revision = m.rev
	}
	return m.rangeKVs(&at)
}

func (r *random) readRange(v *View, m *model, req *wire.RangeRequest) {
	r.Helper()
	wantErr := m.check(req.Revision)
	var out buffer
	bound := v.RangeBound(req)
	if err := v.Range(req, &out); !errors.Is(err, wantErr) {
		r.Fatalf("range %+v: %v, want %v", req, err, wantErr)
	}
	r.readOne(v, req, out, wantErr)
	if wantErr != nil {
		if len(out) != 0 {
			r.Fatalf("refused range wrote %x", out)
		}
		return
	}
	if int64(len(out)) > bound {
		r.Fatalf("range %+v: %d bytes, bound %d", req, len(out), bound)
	}
	r.same(fmt.Sprintf("range %+v of %v", req, r.s), out, &pb.RangeResponse{}, m.wantRange(req))
	key := r.key()
	kv, ok := v.Get(key, req.Revision)
	at := req.Revision
	if at <= 0 {
		at = m.rev
	}
	want := m.at(string(key), at)
	if ok != (want != nil) {
		r.Fatalf("get %s at %d: %v, want %v", key, at, ok, want)
	}
	if ok {
		r.same("get", kv, &mvccpb.KeyValue{}, want)
	}
}

// readOne checks RangeOne against what Range gave: the same bytes, or nothing at all when they may be too many
// or req is not a plain get. Of a request that is none it makes one.
func (r *random) readOne(v *View, req *wire.RangeRequest, out []byte, wantErr error) {
	r.Helper()
	if len(req.RangeEnd) != 0 || req.CountOnly || req.KeysOnly || hasFilter(req) {
		var one buffer
		if done, err := v.RangeOne(req, 1<<20, &one); done || err != nil || len(one) != 0 {
			r.Fatalf("%+v is no plain get: done %v, %v, wrote %x", req, done, err, one)
		}
		plain := &wire.RangeRequest{Key: req.Key, Revision: req.Revision}
		var whole buffer
		if err := v.Range(plain, &whole); !errors.Is(err, wantErr) {
			r.Fatalf("range %+v: %v, want %v", plain, err, wantErr)
		}
		req, out = plain, whole
	}
	for _, most := range []int64{1 << 20, r.Int64N(150)} {
		var one buffer
		done, err := v.RangeOne(req, most, &one)
		switch {
		case !errors.Is(err, wantErr):
			r.Fatalf("one of %+v: %v, want %v", req, err, wantErr)
		case !done && (len(one) != 0 || most == 1<<20), done && (!bytes.Equal(one, out) || int64(len(one)) > most):
			r.Fatalf("one of %+v in %d bytes: done %v, wrote %x, the range is %x", req, most, done, one, out)
		}
	}
}

// readChunks checks that the chunks of a stream, merged, are the answer, and that none is too large.
func (r *random) readChunks(v *View, m *model, req *wire.RangeRequest) {
	r.Helper()
	plain := *req
	plain.SortOrder, plain.SortTarget = 0, 0
	plain.MinModRevision, plain.MaxModRevision, plain.MinCreateRevision, plain.MaxCreateRevision = 0, 0, 0, 0
	rev := req.Revision
	if rev <= 0 {
		rev = m.rev
	}
	wantErr := m.check(rev)
	merged, c := &pb.RangeResponse{}, Cursor{}
	keysMax, bytesMax := r.IntN(6), r.Int64N(400)
	for last := false; !last; {
		var out buffer
		var err error
		if last, err = v.RangeChunk(&plain, rev, &c, keysMax, bytesMax, &out); !errors.Is(err, wantErr) {
			r.Fatalf("chunk of %+v: %v, want %v", plain, err, wantErr)
		}
		if err != nil {
			return
		}
		chunk := &pb.RangeResponse{}
		if err := proto.Unmarshal(out, chunk); err != nil {
			r.Fatal(err)
		}
		n := len(chunk.Kvs)
		if keysMax > 0 && n > keysMax || n > 1 && int64(proto.Size(&pb.RangeResponse{Kvs: chunk.Kvs})) > bytesMax {
			r.Fatalf("chunk of %d keys, %d bytes; at most %d, %d", n, len(out), keysMax, bytesMax)
		}
		if !last && (n == 0 || chunk.Count != 0 || chunk.More) {
			r.Fatalf("inner chunk %v", chunk)
		}
		proto.Merge(merged, chunk)
	}
	if c.Sent() != int64(len(merged.Kvs)) {
		r.Fatalf("cursor counts %d of %d", c.Sent(), len(merged.Kvs))
	}
	if want := m.wantRange(&plain); !proto.Equal(merged, want) {
		r.Fatalf("chunks of %+v:\n got  %v\n want %v", plain, merged, want)
	}
}

// history compares what a watcher that catches up gets.
func (r *random) history(h held) {
	r.Helper()
	from := r.Int64N(h.rev + 2)
	to := from + r.Int64N(h.rev+2)
	var want []change
	for _, c := range r.model.log[:h.logged] {
		if c.rev < from || c.rev > to {
			continue
		}
		// Of a key that changed twice at the compaction revision only what the compaction leaves is sure.
		if c.rev > h.compact || c.kv == nil || r.model.at(c.key, c.rev) == c.kv {
			want = append(want, c)
		}
	}
	n := 0
	err := h.v.History(from, to, func(ev *wire.Event) bool {
		if n < len(want) && ev.Rev == h.compact &&
			(string(ev.Key) != want[n].key || ev.Type == wire.EventPut && want[n].kv == nil || olderPut(ev, want[n].kv)) {
			return true // one that is going to be compacted
		}
		if n == len(want) {
			if ev.Rev == h.compact {
				return true
			}
			r.Fatalf("history %d-%d: too much: %+v", from, to, ev)
		}
		r.sameEvent(ev, want[n], h.v)
		n++
		return true
	})
	if from < h.compact {
		if !errors.Is(err, ErrCompacted) {
			r.Fatalf("history from %d, compacted %d: %v", from, h.compact, err)
		}
		return
	}
	if err != nil || n != len(want) {
		r.Fatalf("history %d-%d: %d events, want %d, %v", from, to, n, len(want), err)
	}
}

// invariants looks at everything inside that must be so.
func (r *random) invariants() {
	r.Helper()
	s, live, low, first := r.s, int64(0), []byte(nil), true
	used := map[uint32]uint32{}
	s.tree.Ascend(func(it item) bool {
		p, sum, tombs := it.page, summary{}, 0
		if !bytes.Equal(it.low, p.low) || first != (len(it.low) == 0) || !first && bytes.Compare(low, it.low) >= 0 {
			r.Fatalf("page %q after %q", it.low, low)
		}
		low, first = it.low, false
		if len(p.ents) > pageKeysMax {
			r.Fatalf("page of %d keys", len(p.ents))
		}
		for i := range p.ents {
			e := &p.ents[i]
			if bytes.Compare(p.key(i), it.low) < 0 || i > 0 && bytes.Compare(p.key(i-1), p.key(i)) >= 0 {
				r.Fatalf("key %q out of order", p.key(i))
			}
			sum.highest = max(sum.highest, e.main)
			if e.deleted() {
				tombs++
			} else {
				sum.live++
				sum.bytes += rowBytes(e.size)
			}
			if e.slab != noSlab {
				used[e.slab] += e.size + slabHeadBytes
				if got := recordKey(s.cached(e)); !bytes.Equal(got, p.key(i)) {
					r.Fatalf("slab has %q for %q", got, p.key(i))
				}
			}
			if e.past != 0 {
				past := p.pasts[e.past-1]
				for n := range past {
					next := e.revision
					if n+1 < len(past) {
						next = past[n+1].revision()
					}
					if past[n].revision().compare(next) >= 0 {
						r.Fatalf("past of %q out of order: %v", p.key(i), past)
					}
				}
			}
		}
		if sum.live != p.sum.live || sum.bytes != p.sum.bytes || sum.highest > p.sum.highest || tombs != p.tombs {
			r.Fatalf("page %q: %+v, %d tombstones; counted %+v, %d", it.low, p.sum, p.tombs, sum, tombs)
		}
		live += p.sum.live
		return true
	})
	if live != s.live {
		r.Fatalf("%d live keys, store says %d", live, s.live)
	}
	bytes := int64(0)
	for n := 1; n < len(s.slabs.table); n++ {
		if s.slabs.stats[n].live != used[uint32(n)] && s.slabs.table[n] != nil {
			r.Fatalf("slab %d: %d bytes live, counted %d", n, s.slabs.stats[n].live, used[uint32(n)])
		}
		if b := s.slabs.table[n]; b != nil {
			bytes += int64(len(b.mem))
		}
	}
	if bytes != s.slabs.bytes {
		r.Fatalf("slabs hold %d bytes, say %d", bytes, s.slabs.bytes)
	}
	if most := s.slabs.bytesMax + int64(s.slabs.block); s.slabs.bytesMax > 0 && bytes > most {
		r.Fatalf("slabs hold %d bytes, at most %d", bytes, most)
	}
}

// olderPut says whether ev is a put of the same revision and key before the one that made kv.
func olderPut(ev *wire.Event, kv *mvccpb.KeyValue) bool {
	var got wire.KeyValue
	return ev.Type == wire.EventPut && kv != nil && got.Decode(ev.KV) == nil && got.Version < kv.Version
}

package mvcc

import (
	"bytes"
	"cmp"
	"runtime"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"sluice/stages/wire"
)

// Fields of etcdserverpb.RangeResponse.
const (
	fieldHeader     = 1
	fieldRangeKVs   = 2
	fieldRangeMore  = 3
	fieldRangeCount = 4
)

// tailBytesMax is the most that more and count take.
const tailBytesMax = 2 + 11

// Range appends the etcdserverpb.RangeResponse to r, without its header field, to out. ErrFutureRev and
// ErrCompacted append nothing. The request has been validated: sort order and target are known ones.
//
// Rule: contract/client-api.md 6.2.
func (v *View) Range(r *wire.RangeRequest, out Sink) error {
	if err := v.check(r.Revision); err != nil {
		return err
	}
	v.metrics.Ranges.Add(1)
	v.answer(r, out)
	runtime.KeepAlive(v)
	return nil
}

// RangeOne is Range for a plain get of one key, if the answer is at most bytesMax bytes. It says false, and has
// appended and counted nothing, for any other request and for a larger answer: so that a small get looks its
// key up once, and not a first time for its bound.
func (v *View) RangeOne(r *wire.RangeRequest, bytesMax int64, out Sink) (done bool, err error) {
	sp := spanOf(r.Key, r.RangeEnd)
	if !sp.single || r.CountOnly || r.KeysOnly || hasFilter(r) {
		return false, nil
	}
	if err := v.check(r.Revision); err != nil {
		return true, err
	}
	rows, count, fits := rows{st: &v.state, out: out}, int64(0), true
	v.visit(sp, v.at(r.Revision), func(f found) bool {
		if fits = rows.size(&f)+tailBytesMax <= bytesMax; fits {
			rows.write(&f)
			count++
		}
		return false
	})
	if fits {
		v.metrics.Ranges.Add(1)
		tail(out, false, count)
	}
	runtime.KeepAlive(v)
	return fits, nil
}

func (st *state) answer(r *wire.RangeRequest, out Sink) {
	sp, rev := spanOf(r.Key, r.RangeEnd), st.at(r.Revision)
	switch {
	case r.CountOnly:
		tail(out, false, st.count(sp, rev))
	case inKeyOrder(r):
		st.answerInOrder(r, sp, rev, out)
	default:
		st.answerSorted(r, sp, rev, out)
	}
}

// inKeyOrder says that the answer is the first matching keys as the index has them.
func inKeyOrder(r *wire.RangeRequest) bool {
	return r.SortTarget == int32(pb.RangeRequest_KEY) && r.SortOrder != int32(pb.RangeRequest_DESCEND)
}

func hasFilter(r *wire.RangeRequest) bool {
	return r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
}

// passes applies the revision filters, of which 0 is off and every other value, even a negative one, is on.
func (st *state) passes(r *wire.RangeRequest, f *found) bool {
	if r.MinModRevision != 0 && f.main < r.MinModRevision || r.MaxModRevision != 0 && f.main > r.MaxModRevision {
		return false
	}
	if r.MinCreateRevision == 0 && r.MaxCreateRevision == 0 {
		return true
	}
	create := st.fields(f).CreateRevision
	return (r.MinCreateRevision == 0 || create >= r.MinCreateRevision) &&
		(r.MaxCreateRevision == 0 || create <= r.MaxCreateRevision)
}

// answerInOrder writes keys as it walks: nothing is collected.
func (st *state) answerInOrder(r *wire.RangeRequest, sp span, rev int64, out Sink) {
	rows := rows{st: st, out: out, keysOnly: r.KeysOnly}
	filter, sent, seen, more := hasFilter(r), int64(0), int64(0), false
	st.visit(sp, rev, func(f found) bool {
		if r.Limit > 0 && sent == r.Limit {
			// Without a filter this key is the one too many; with one the next match would be.
			more = !filter || st.passes(r, &f)
			return !more
		}
		seen++
		if !filter || st.passes(r, &f) {
			rows.write(&f)
			sent++
		}
		return true
	})
	if r.Limit > 0 && sent == r.Limit {
		seen = st.count(sp, rev) // the walk may have ended early
	}
	tail(out, more, seen)
}

// sortRow is a key of an answer that is sorted, with what it is sorted by.
type sortRow struct {
	found
	number int64
	bytes  []byte
}

// answerSorted collects, filters, sorts and cuts, in this order. Without an explicit order only the first
// limit+1 keys are collected before they are sorted: that the globally first may be missed is etcd's rule.
func (st *state) answerSorted(r *wire.RangeRequest, sp span, rev int64, out Sink) {
	filter, partial := hasFilter(r), false
	var all []sortRow
	seen := int64(0)
	st.visit(sp, rev, func(f found) bool {
		if !filter && r.SortOrder == int32(pb.RangeRequest_NONE) && r.Limit > 0 && seen > r.Limit {
			partial = true
			return false
		}
		seen++
		if !filter || st.passes(r, &f) {
			all = append(all, st.sortRow(r.SortTarget, f))
		}
		return true
	})
	descend := r.SortOrder == int32(pb.RangeRequest_DESCEND)
	slices.SortStableFunc(all, func(a, b sortRow) int {
		c := cmp.Compare(a.number, b.number)
		if c == 0 {
			c = bytes.Compare(a.bytes, b.bytes)
		}
		if descend {
			return -c
		}
		return c
	})
	more := r.Limit > 0 && int64(len(all)) > r.Limit
	if more {
		all = all[:r.Limit]
	}
	rows := rows{st: st, out: out, keysOnly: r.KeysOnly, lease: r.SortTarget == int32(pb.RangeRequest_VALUE)}
	for i := range all {
		rows.write(&all[i].found)
	}
	if partial {
		seen = st.count(sp, rev)
	}
	tail(out, more, seen)
}

func (st *state) sortRow(target int32, f found) sortRow {
	row := sortRow{found: f}
	switch pb.RangeRequest_SortTarget(target) {
	case pb.RangeRequest_KEY:
		row.bytes = f.key()
	case pb.RangeRequest_VERSION:
		row.number = st.fields(&f).Version
	case pb.RangeRequest_CREATE:
		row.number = st.fields(&f).CreateRevision
	case pb.RangeRequest_MOD:
		row.number = f.main
	case pb.RangeRequest_VALUE:
		row.bytes = recordValue(st.value(&f))
	}
	return row // all equal for a target that validation should have refused: key order, no crash (BC-01)
}

// recordValue returns the value of an encoded mvccpb.KeyValue, aliasing it.
func recordValue(b []byte) []byte {
	var kv wire.KeyValue
	if err := kv.Decode(b); err != nil {
		panic("mvcc: damaged record of a key: " + err.Error())
	}
	return kv.Value
}

// rows writes the kvs of a RangeResponse.
type rows struct {
	st       *state
	out      Sink
	keysOnly bool
	lease    bool // keys_only leaves the lease out, too, unless values were asked for as sort target
	scratch  []byte
}

func (w *rows) write(f *found) {
	b := w.scratch
	if w.keysOnly {
		kv := w.st.fields(f)
		kv.Key, kv.Value = f.key(), nil
		if !w.lease {
			kv.Lease = 0
		}
		b = kv.Append(b[:0])
		w.scratch = b
	} else {
		b = w.st.value(f)
	}
	head(w.out, fieldRangeKVs, len(b))
	w.out.Append(b)
}

// size bounds what write will append for f.
func (w *rows) size(f *found) int64 {
	if w.keysOnly {
		return keyRowBytes(int64(f.entry().keyBytes))
	}
	return rowBytes(f.size)
}

// keyRowBytes bounds a keys_only row for a key of n bytes: the heads of row and key, and four numbers.
func keyRowBytes(n int64) int64 { return n + 2*6 + 4*11 }

// head writes the tag and length of a field of n bytes.
func head(out Sink, num protowire.Number, n int) {
	b := out.Reserve(wire.SizeBytesField(num, n) - n)
	wire.AppendBytesHead(b[:0], num, n)
}

// tail writes what follows the kvs.
func tail(out Sink, more bool, count int64) {
	n := 0
	if more {
		n = 2
	}
	if count != 0 {
		n += 1 + protowire.SizeVarint(uint64(count))
	}
	if n > 0 {
		b := wire.AppendBoolField(out.Reserve(n)[:0], fieldRangeMore, more)
		wire.AppendIntField(b, fieldRangeCount, count)
	}
}

// RangeBound returns an upper bound of the bytes that Range will append for r; for an unsorted range
// without filters and keys_only it is exact to a few bytes. It reads no value, and pages that have not
// changed since the asked revision by their summary only.
func (v *View) RangeBound(r *wire.RangeRequest) int64 {
	if r.CountOnly || v.check(r.Revision) != nil {
		return tailBytesMax
	}
	return v.bound(r) + tailBytesMax
}

func (st *state) bound(r *wire.RangeRequest) (n int64) {
	limit := int64(newest)
	if r.Limit > 0 && inKeyOrder(r) && !hasFilter(r) {
		limit = r.Limit
	}
	rev := st.at(r.Revision)
	st.parts(spanOf(r.Key, r.RangeEnd), func(p part) bool {
		if p.settled(rev) && p.sum.live <= limit {
			limit -= p.sum.live
			n += p.sum.bytes
			if r.KeysOnly {
				n += min(0, keyRowBytes(0)*p.sum.live+int64(len(p.page.keys))-p.sum.bytes)
			}
			return limit > 0
		}
		lo, hi := p.bounds()
		for i := lo; i < hi && limit > 0; i++ {
			rec, _, ok := p.page.at(i, rev)
			switch {
			case !ok:
				continue
			case r.KeysOnly:
				n += min(rowBytes(rec.size), keyRowBytes(int64(p.page.ents[i].keyBytes)))
			default:
				n += rowBytes(rec.size)
			}
			limit--
		}
		return limit > 0
	})
	return n
}

// RangeChunk appends the next chunk of the answer to r, read at main revision rev, and moves c behind it:
// at most keysMax keys (0 = any number) and bytesMax bytes, but at least one key if any is left. The last
// chunk also holds more and count. Merged, the chunks are the answer of Range at rev. The request has
// been validated: no order but that of keys, no filter.
//
// Rule: contract/client-api.md 6.3. ErrCompacted when a compaction has passed rev.
func (v *View) RangeChunk(
	r *wire.RangeRequest, rev int64, c *Cursor, keysMax int, bytesMax int64, out Sink,
) (last bool, err error) {
	if err := v.check(rev); err != nil {
		return false, err
	}
	sp, at := spanOf(r.Key, r.RangeEnd), v.at(rev)
	if r.CountOnly {
		tail(out, false, v.count(sp, at))
		return true, nil
	}
	rest := sp
	if c.from != nil && !sp.single {
		rest.from = c.from
	}
	w := rows{st: &v.state, out: out, keysOnly: r.KeysOnly}
	n, size, last := 0, int64(0), true
	v.visit(rest, at, func(f found) bool {
		if r.Limit > 0 && c.sent == r.Limit {
			return false
		}
		row := w.size(&f)
		if n > 0 && (n == keysMax || size+row > bytesMax) {
			last = false
			c.from = append(c.from[:0], f.key()...)
			return false
		}
		w.write(&f)
		n, size = n+1, size+row
		c.sent++
		return true
	})
	if last {
		count := v.count(sp, at)
		tail(out, r.Limit > 0 && count > r.Limit, count)
	}
	runtime.KeepAlive(v)
	return last, nil
}

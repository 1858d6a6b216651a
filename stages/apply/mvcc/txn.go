package mvcc

import (
	"bytes"
	"cmp"
	"runtime"

	"google.golang.org/protobuf/encoding/protowire"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"sluice/stages/wire"
)

// Fields of etcdserverpb.TxnResponse and ResponseOp.
const (
	fieldTxnSucceeded = 2
	fieldTxnResponses = 3
	fieldOpRange      = 1
	fieldOpPut        = 2
	fieldOpDelete     = 3
	fieldOpTxn        = 4
)

// txn is one transaction being executed, in three steps: decide evaluates all compares, those of nested
// transactions on the taken path included, against the state before; check finds out whether every
// operation of that path may run, so that none is half done; run executes them in order, each seeing what
// the earlier ones wrote.
//
// Rule: contract/client-api.md 6.5, disk-and-peer.md 9.1.
type txn struct {
	st    *state
	store *Store // nil for a read-only one
	path  []bool // the outcome of each transaction's compares, in the order in which the path meets them
	step  int    // how far a walk along path has come
	gone  []span // check: what earlier operations will have deleted
	late  error  // check: found on the way, for when nothing else is wrong
	out   buffer
	max   int  // bytes that out may hold
	over  bool // it would hold more: the changes are made, the answer is lost
	count counts
}

// Txn applies a transaction. ErrFutureRev, ErrCompacted, ErrLeaseNotFound or ErrKeyNotFound of any
// operation on the taken path refuse all of it. ErrAnswerTooLarge comes with the result of changes that were made.
func (s *Store) Txn(r *wire.TxnRequest) (Result, error) {
	t := txn{st: &s.state, store: s, path: s.path[:0], out: buffer(s.scratch[:0]), max: s.changeMax}
	t.decide(r)
	s.path = t.path
	if err := cmp.Or(t.check(r), t.late); err != nil {
		return Result{Revision: s.rev}, err
	}
	before := s.counts
	t.step = 0
	t.run(r)
	s.scratch = t.out
	if cap(s.scratch) > arenaBlockBytes {
		s.scratch = nil // one large answer must not stay for ever
	}
	s.counts.ranges += t.count.ranges
	if s.counts.sum()-before.sum() > 1 {
		s.counts.txns++
	}
	if t.over {
		return s.end(nil), ErrAnswerTooLarge
	}
	return s.end(append(s.arena.take(len(t.out)), t.out...)), nil
}

// Txn executes a read-only transaction and returns the encoded TxnResponse without its header field. Errors are
// those of Store's, of which ErrAnswerTooLarge says here, too, that there is no answer.
func (v *View) Txn(r *wire.TxnRequest) (body []byte, err error) {
	t := txn{st: &v.state, max: v.readMax}
	t.decide(r)
	if err := t.check(r); err != nil {
		return nil, err
	}
	t.step = 0
	// What is not taken counts for nothing, and what is too large is never made room for.
	t.out = make(buffer, 0, min(t.bound(r)+tailBytesMax, int64(t.max)))
	t.step = 0
	t.run(r)
	if t.over {
		return nil, ErrAnswerTooLarge
	}
	v.metrics.Ranges.Add(float64(t.count.ranges))
	if t.count.ranges > 1 {
		v.metrics.Txns.Add(1)
	}
	runtime.KeepAlive(v)
	return t.out, nil
}

// opBytesMax bounds what a response operation adds to its answer: three heads and a header of a revision.
const opBytesMax = 3*11 + 13 + tailBytesMax

// TxnBound returns an upper bound of the bytes of a read-only transaction's answer.
func (v *View) TxnBound(r *wire.TxnRequest) int64 {
	return max(v.opsBound(r.Success), v.opsBound(r.Failure)) + tailBytesMax
}

func (v *View) opsBound(ops []wire.RequestOp) (n int64) {
	for i := range ops {
		n += opBytesMax
		switch op := &ops[i]; {
		case op.Range != nil:
			n += v.RangeBound(op.Range)
		case op.Txn != nil:
			n += v.TxnBound(op.Txn)
		}
	}
	return n
}

// bound is TxnBound for the path taken.
func (t *txn) bound(r *wire.TxnRequest) (n int64) {
	ops := branch(r, t.taken())
	for i := range ops {
		n += opBytesMax
		switch op := &ops[i]; {
		case op.Range != nil && !op.Range.CountOnly:
			n += t.st.bound(op.Range)
		case op.Txn != nil:
			n += t.bound(op.Txn)
		}
	}
	return n
}

// branch returns the operations of r that its compares chose.
func branch(r *wire.TxnRequest, succeeded bool) []wire.RequestOp {
	if succeeded {
		return r.Success
	}
	return r.Failure
}

func (t *txn) decide(r *wire.TxnRequest) {
	succeeded := true
	for i := range r.Compare {
		if !t.st.holds(&r.Compare[i]) {
			succeeded = false
			break
		}
	}
	t.path = append(t.path, succeeded)
	ops := branch(r, succeeded)
	for i := range ops {
		if ops[i].Txn != nil {
			t.decide(ops[i].Txn)
		}
	}
}

// taken returns the outcome of the next transaction on the path.
func (t *txn) taken() bool {
	t.step++
	return t.path[t.step-1]
}

func (t *txn) check(r *wire.TxnRequest) error {
	ops := branch(r, t.taken())
	for i := range ops {
		var err error
		switch op := &ops[i]; {
		case op.Range != nil:
			err = t.st.check(op.Range.Revision)
		case op.Put != nil:
			err = t.checkPut(op.Put)
		case op.Delete != nil:
			t.gone = append(t.gone, spanOf(op.Delete.Key, op.Delete.RangeEnd))
		case op.Txn != nil:
			err = t.check(op.Txn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkPut also refuses to keep the value or lease of a key that an earlier operation will have deleted. It
// cannot be refused later, in the middle of the writes, where etcd ends its process. Whatever etcd refuses
// the transaction for comes first.
func (t *txn) checkPut(r *wire.PutRequest) error {
	if t.store == nil {
		panic("mvcc: put in a read-only transaction")
	}
	err := t.store.checkPut(r)
	if err != nil || !r.IgnoreValue && !r.IgnoreLease {
		return err
	}
	for _, sp := range t.gone {
		if sp.contains(r.Key) {
			t.late = ErrKeyNotFound
		}
	}
	return nil
}

func (sp span) contains(key []byte) bool {
	if sp.single {
		return bytes.Equal(sp.from, key)
	}
	return bytes.Compare(key, sp.from) >= 0 && (sp.to == nil || bytes.Compare(key, sp.to) < 0)
}

func (t *txn) run(r *wire.TxnRequest) {
	succeeded := t.taken()
	t.out = wire.AppendBoolField(t.out, fieldTxnSucceeded, succeeded)
	ops := branch(r, succeeded)
	for i := range ops {
		t.runOp(&ops[i])
	}
}

// Append is the Sink of the transaction's ranges. What goes beyond the answer's limit is dropped.
func (t *txn) Append(p []byte) {
	if t.fits(len(p)) {
		t.out = append(t.out, p...)
	}
}

// Reserve is the Sink's, too.
func (t *txn) Reserve(n int) []byte {
	if !t.fits(n) {
		return make([]byte, n)
	}
	return t.out.Reserve(n)
}

func (t *txn) runOp(op *wire.RequestOp) {
	start, field := len(t.out), protowire.Number(0)
	switch {
	case op.Range != nil:
		field = fieldOpRange
		t.header()
		if !t.over {
			t.st.answer(op.Range, t)
		}
		t.count.ranges++
	case op.Put != nil:
		field = fieldOpPut
		prev := t.store.put(op.Put)
		t.header()
		if op.Put.PrevKV && prev != nil && t.fits(len(prev)) {
			t.out = wire.AppendBytesField(t.out, fieldPutPrev, prev)
		}
	case op.Delete != nil:
		field = fieldOpDelete
		if t.store == nil {
			panic("mvcc: delete in a read-only transaction")
		}
		n, prevs := t.store.deleteRange(spanOf(op.Delete.Key, op.Delete.RangeEnd), op.Delete.PrevKV)
		t.header()
		if t.fits(deletedSize(n, prevs)) {
			t.out = appendDeleted(t.out, n, prevs)
		}
	case op.Txn != nil:
		field = fieldOpTxn
		t.out = wire.AppendBytesField(t.out, fieldHeader, nil) // present but empty
		t.run(op.Txn)
	}
	t.out.wrap(start, field)
}

// fits says whether n bytes more may be added to the answer.
func (t *txn) fits(n int) bool {
	t.over = t.over || len(t.out)+n > t.max
	return !t.over
}

// header writes an inner response's: the revision before until the first effective change, then the new one.
func (t *txn) header() {
	rev := t.st.rev
	if t.store != nil && t.store.changes > 0 {
		rev++
	}
	t.out = wire.Header{Revision: rev}.AppendField(t.out)
}

// buffer is a Sink that is one slice.
type buffer []byte

func (b *buffer) Append(p []byte) { *b = append(*b, p...) }

func (b *buffer) Reserve(n int) []byte {
	at := len(*b)
	*b = append(*b, make([]byte, n)...)
	return (*b)[at : at+n : at+n]
}

// wrap makes the bytes from start on the member field of a ResponseOp, and that an element of the
// responses. Heads are put in front of what is already encoded: one move instead of sizing all in advance.
func (b *buffer) wrap(start int, field protowire.Number) {
	n := len(*b) - start
	var heads [24]byte
	h := heads[:0]
	if field == 0 {
		h = wire.AppendBytesHead(h, fieldTxnResponses, n)
	} else {
		h = wire.AppendBytesHead(h, fieldTxnResponses, wire.SizeBytesField(field, n))
		h = wire.AppendBytesHead(h, field, n)
	}
	*b = append(*b, h...)
	copy((*b)[start+len(h):], (*b)[start:start+n])
	copy((*b)[start:], h)
}

// holds evaluates one compare: every existing key of its interval must satisfy it; when there is none, it
// is about an absent key.
func (st *state) holds(c *wire.Compare) bool {
	ok, exists := true, false
	st.visit(spanOf(c.Key, c.RangeEnd), newest, func(f found) bool {
		exists = true
		ok = st.satisfies(c, &f)
		return ok
	})
	if !exists {
		// A missing value satisfies nothing, not even "not equal"; missing numbers are 0.
		return c.Target != int32(pb.Compare_VALUE) && verdict(c, cmp.Compare(0, operand(c)))
	}
	return ok
}

func (st *state) satisfies(c *wire.Compare, f *found) bool {
	e := f.entry()
	switch pb.Compare_CompareTarget(c.Target) {
	case pb.Compare_VALUE:
		var want []byte
		if c.Operand == wire.OperandValue {
			want = c.Value
		}
		return verdict(c, bytes.Compare(recordValue(st.value(f)), want))
	case pb.Compare_CREATE:
		return verdict(c, cmp.Compare(e.create, operand(c)))
	case pb.Compare_MOD:
		return verdict(c, cmp.Compare(e.main, operand(c)))
	case pb.Compare_VERSION:
		return verdict(c, cmp.Compare(e.version, operand(c)))
	case pb.Compare_LEASE:
		return verdict(c, cmp.Compare(e.lease, operand(c)))
	}
	return verdict(c, 0) // an unknown target compares as equal
}

// operand returns the number to compare with: 0 when the oneof member is not the target's.
func operand(c *wire.Compare) int64 {
	var want wire.CompareOperand
	switch pb.Compare_CompareTarget(c.Target) {
	case pb.Compare_VERSION:
		want = wire.OperandVersion
	case pb.Compare_CREATE:
		want = wire.OperandCreate
	case pb.Compare_MOD:
		want = wire.OperandMod
	case pb.Compare_LEASE:
		want = wire.OperandLease
	}
	if want == wire.OperandNone || c.Operand != want {
		return 0
	}
	return c.Int
}

// verdict turns the order of stored and given value into the answer. An unknown result is true.
func verdict(c *wire.Compare, order int) bool {
	switch pb.Compare_CompareResult(c.Result) {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_GREATER:
		return order > 0
	case pb.Compare_LESS:
		return order < 0
	}
	return true
}

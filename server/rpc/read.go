package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"sluice/stages/apply"
	"sluice/stages/apply/auth"
	"sluice/stages/apply/mvcc"
	"sluice/stages/wire"
)

// headerBytesMax bounds an encoded header field.
const headerBytesMax = 64

// reader is a read whose answer can be bounded before it is made.
type reader interface {
	check(v *apply.View, who auth.Identity) error // the caller's rights
	// small appends the body if that is found to be small without a look for its bound, else nothing.
	small(v *apply.View, a *answer) (done bool, err error)
	bound(v *apply.View) int64           // bytes of the answer's body, at most
	read(v *apply.View, a *answer) error // appends the body
}

type rangeReader wire.RangeRequest

func (r *rangeReader) check(v *apply.View, who auth.Identity) error {
	return v.Auth.CheckRange(who, r.Key, r.RangeEnd)
}
func (r *rangeReader) small(v *apply.View, a *answer) (done bool, err error) {
	return v.KV.RangeOne((*wire.RangeRequest)(r), smallAnswerBytes-headerBytesMax, a)
}
func (r *rangeReader) bound(v *apply.View) int64 { return v.KV.RangeBound((*wire.RangeRequest)(r)) }
func (r *rangeReader) read(v *apply.View, a *answer) error {
	return v.KV.Range((*wire.RangeRequest)(r), a)
}

type txnReader wire.TxnRequest

func (r *txnReader) check(v *apply.View, who auth.Identity) error {
	return checkReadTxn(v.Auth, who, (*wire.TxnRequest)(r))
}
func (r *txnReader) small(*apply.View, *answer) (done bool, err error) { return false, nil }
func (r *txnReader) bound(v *apply.View) int64                         { return v.KV.TxnBound((*wire.TxnRequest)(r)) }
func (r *txnReader) read(v *apply.View, a *answer) error {
	body, err := v.KV.Txn((*wire.TxnRequest)(r))
	a.body(body)
	return err
}

// serveRange answers a Range from the published view, after a barrier unless it is serializable.
func (s *Server) serveRange(ctx context.Context, c *call) (*reply, error) {
	if err := checkRange(&c.rng); err != nil {
		return nil, err
	}
	start := s.cfg.Now()
	r, err := s.readAnswer(ctx, (*rangeReader)(&c.rng), c.rng.Serializable)
	s.rangeDone(&c.rng, start, r, err)
	return r, err
}

// readTxn answers a txn that changes nothing, in the same way.
func (s *Server) readTxn(ctx context.Context, txn *wire.TxnRequest, serializable bool) (*reply, error) {
	start := s.cfg.Now()
	r, err := s.readAnswer(ctx, (*txnReader)(txn), serializable)
	s.readTxnDone(txn, start, r, err)
	return r, err
}

// readAnswer makes the answer to one read. A large one waits in the read budget before it takes the view that
// it reads from, so that nobody holds a view while waiting.
func (s *Server) readAnswer(ctx context.Context, rd reader, serializable bool) (*reply, error) {
	if !serializable {
		if err := s.m.Barrier(ctx); err != nil {
			return nil, err
		}
	}
	v, who, err := s.readView(ctx)
	if err != nil {
		return nil, err
	}
	if err := rd.check(v, who); err != nil {
		v.Release()
		return nil, err
	}
	a := newAnswer(s.cfg.Buffers, 0)
	a.header(s.header(v.KV.Revision()))
	done, err := rd.small(v, a)
	if done || err != nil {
		v.Release()
	} else {
		a.drop()
		if a, err = s.boundedAnswer(ctx, v, rd); a == nil {
			return nil, err
		}
	}
	if err == nil {
		err = s.unchanged(who)
	}
	if err == nil && a.tooLarge() {
		err = status.Errorf(codes.ResourceExhausted, "grpc: trying to send message larger than max (%d vs. %d)",
			a.size, a.max)
	}
	if err != nil {
		a.drop()
		return nil, err
	}
	return a.done(), nil
}

// boundedAnswer makes an answer of any size, and releases v. The answer is nil if it got no share of the budget.
func (s *Server) boundedAnswer(ctx context.Context, v *apply.View, rd reader) (*answer, error) {
	bound := rd.bound(v) + headerBytesMax
	a := newAnswer(s.cfg.Buffers, int(bound))
	if bound > smallAnswerBytes {
		v.Release()
		g, err := s.budget.acquire(ctx, bound, s.cfg.Buffers)
		if err != nil {
			return nil, err
		}
		v = s.m.View()
		if now := rd.bound(v) + headerBytesMax; now > bound {
			g.charge(now - bound)
		}
		a.counted(g)
	}
	a.header(s.header(v.KV.Revision()))
	err := rd.read(v, a)
	v.Release()
	return a, err
}

// RangeStream's first chunk is small, to answer soon; the chunks then grow towards what a request may hold.
const (
	streamKeysMin  = 10
	streamValueMax = 1536 << 10 // a chunk may be above its limit by one value
)

// rangeStream is the state of one RangeStream between its chunks.
type rangeStream struct {
	req      *wire.RangeRequest
	who      auth.Identity
	revision int64 // of all chunks, and of the header
	pinned   int64 // revision that is read
	cursor   mvcc.Cursor
	keysMax  int
}

// serveRangeStream answers a Range in chunks that all show one revision. Each takes a view of its own, for as
// long as it copies, so that a client that reads slowly holds back nothing but its own next chunk.
func (s *Server) serveRangeStream(ss grpc.ServerStream) error {
	ctx := ss.Context()
	c := &call{kind: callRange}
	if err := ss.RecvMsg(c); err != nil {
		return err
	}
	defer c.reset()
	if err := checkRangeStream(&c.rng); err != nil {
		return err
	}
	if !c.rng.Serializable {
		if err := s.m.Barrier(ctx); err != nil {
			return err
		}
	}
	v, who, err := s.readView(ctx)
	if err != nil {
		return err
	}
	st := &rangeStream{
		req: &c.rng, who: who, revision: v.KV.Revision(), pinned: c.rng.Revision, keysMax: streamKeysMin,
	}
	if st.pinned <= 0 {
		st.pinned = st.revision
	}
	err = v.Auth.CheckRange(who, c.rng.Key, c.rng.RangeEnd)
	bound := v.KV.RangeBound(&c.rng)
	v.Release()
	if err != nil {
		return err
	}
	for last := false; !last; {
		var r *reply
		if r, last, err = s.streamChunk(ctx, st, bound); err != nil {
			return err
		}
		size := int64(r.size)
		if err := ss.SendMsg(r); err != nil {
			return err
		}
		st.adapt(size, s.cfg.RequestBytesMax)
	}
	return s.unchanged(who)
}

// adapt sizes the next chunk by the last one.
func (st *rangeStream) adapt(size, target int64) {
	switch {
	case size < target/2:
		st.keysMax = min(2*st.keysMax, 1<<20)
	case size > 2*target:
		st.keysMax = max(1, st.keysMax/2)
	}
}

// streamChunk makes one message. bound is what the whole answer was bounded by at its start.
func (s *Server) streamChunk(ctx context.Context, st *rangeStream, bound int64) (*reply, bool, error) {
	share := min(bound+headerBytesMax, s.cfg.RequestBytesMax+streamValueMax)
	a := newAnswer(s.cfg.Buffers, 0)
	if share > smallAnswerBytes {
		g, err := s.budget.acquire(ctx, share, s.cfg.Buffers)
		if err != nil {
			return nil, false, err
		}
		a.counted(g)
	}
	v := s.m.View()
	last, err := v.KV.RangeChunk(st.req, st.pinned, &st.cursor, st.keysMax, s.cfg.RequestBytesMax, a)
	v.Release()
	if err != nil {
		a.drop()
		return nil, false, err
	}
	var head []byte
	if last {
		head = s.header(st.revision).AppendField(nil)
	}
	a.prefix(append(wire.AppendBytesHead(nil, 1, len(head)+a.size), head...))
	return a.done(), last, nil
}

// countFields counts the length-delimited fields num in a body that is spread over chunks; for log lines only.
func (r *reply) countFields(num protowire.Number) (n int64) {
	for b := r.bufs.Materialize(); len(b) > 0; {
		f, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return n
		}
		size := protowire.ConsumeFieldValue(f, typ, b[tag:])
		if size < 0 {
			return n
		}
		if f == num {
			n++
		}
		b = b[tag+size:]
	}
	return n
}

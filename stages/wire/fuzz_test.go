package wire

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// decoder is one of our messages beside the generated one.
type decoder[M any] struct {
	decode    func(m *M, b []byte) error
	generated func(m *M) proto.Message
	empty     func() proto.Message
	encode    func(m *M, b []byte) []byte
	size      func(m *M) int
}

// check compares the two on b: both take it, as the same message, or both refuse it. What was taken is
// encoded to the same bytes.
func (d decoder[M]) check(t *testing.T, b []byte) {
	t.Helper()
	in := bytes.Clone(b)
	var m M
	err := d.decode(&m, in)
	want := d.empty()
	wantErr := proto.Unmarshal(b, want)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%x: %v; generated code: %v", b, err, wantErr)
	}
	if err != nil {
		return
	}
	dropUnknown(want.ProtoReflect())
	got := d.generated(&m)
	if !proto.Equal(got, want) {
		t.Fatalf("%x:\n got  %v\n want %v", b, got, want)
	}
	d.checkEncoding(t, &m)
	if !bytes.Equal(in, b) {
		t.Fatalf("decoding %x changed its input", b)
	}
}

// checkEncoding compares our bytes for m with the generated code's.
func (d decoder[M]) checkEncoding(t *testing.T, m *M) {
	t.Helper()
	want, err := proto.MarshalOptions{Deterministic: true}.Marshal(d.generated(m))
	if err != nil {
		t.Fatal(err)
	}
	got := d.encode(m, []byte("front"))
	if string(got[:5]) != "front" || !bytes.Equal(got[5:], want) {
		t.Fatalf("%v:\n got  %x\n want %x", d.generated(m), got, want)
	}
	if n := d.size(m); n != len(want) {
		t.Fatalf("%v: size %d, %d bytes", d.generated(m), n, len(want))
	}
	var again M
	if err := d.decode(&again, want); err != nil || !proto.Equal(d.generated(&again), d.generated(m)) {
		t.Fatalf("%x does not survive: %v", want, err)
	}
}

var (
	keyValues = decoder[KeyValue]{
		(*KeyValue).Decode, func(m *KeyValue) proto.Message { return m.generated() },
		func() proto.Message { return new(mvccpb.KeyValue) }, (*KeyValue).Append, (*KeyValue).Size,
	}
	ranges = decoder[RangeRequest]{
		(*RangeRequest).Decode, func(m *RangeRequest) proto.Message { return m.generated() },
		func() proto.Message { return new(pb.RangeRequest) }, (*RangeRequest).Append, (*RangeRequest).Size,
	}
	puts = decoder[PutRequest]{
		(*PutRequest).Decode, func(m *PutRequest) proto.Message { return m.generated() },
		func() proto.Message { return new(pb.PutRequest) }, (*PutRequest).Append, (*PutRequest).Size,
	}
	deletes = decoder[DeleteRangeRequest]{
		(*DeleteRangeRequest).Decode, func(m *DeleteRangeRequest) proto.Message { return m.generated() },
		func() proto.Message { return new(pb.DeleteRangeRequest) },
		(*DeleteRangeRequest).Append, (*DeleteRangeRequest).Size,
	}
	txns = decoder[TxnRequest]{
		(*TxnRequest).Decode, func(m *TxnRequest) proto.Message { return m.generated() },
		func() proto.Message { return new(pb.TxnRequest) }, (*TxnRequest).Append, (*TxnRequest).Size,
	}
)

// corpus is random messages of every kind, whole and damaged.
func corpus(f *testing.F, encode func(g gen) []byte) {
	for seed := range uint64(200) {
		g := newGen(seed)
		b := encode(g)
		f.Add(b)
		f.Add(g.damage(b))
	}
}

func FuzzKeyValue(f *testing.F) {
	corpus(f, func(g gen) []byte { return g.keyValue().Append(nil) })
	f.Fuzz(func(t *testing.T, b []byte) { keyValues.check(t, b) })
}

func FuzzRangeRequest(f *testing.F) {
	corpus(f, func(g gen) []byte { return g.rangeRequest().Append(nil) })
	f.Fuzz(func(t *testing.T, b []byte) { ranges.check(t, b) })
}

func FuzzPutRequest(f *testing.F) {
	corpus(f, func(g gen) []byte { return g.put().Append(nil) })
	f.Fuzz(func(t *testing.T, b []byte) { puts.check(t, b) })
}

func FuzzDeleteRangeRequest(f *testing.F) {
	corpus(f, func(g gen) []byte { return g.deleteRange().Append(nil) })
	f.Fuzz(func(t *testing.T, b []byte) { deletes.check(t, b) })
}

func FuzzTxnRequest(f *testing.F) {
	corpus(f, func(g gen) []byte { return g.txn(3).Append(nil) })
	f.Fuzz(func(t *testing.T, b []byte) { txns.check(t, b) })
}

func FuzzCompactionRequest(f *testing.F) {
	corpus(f, func(g gen) []byte {
		b, _ := proto.Marshal(&pb.CompactionRequest{Revision: g.int(), Physical: g.bool()})
		return b
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r CompactionRequest
		var want pb.CompactionRequest
		err, wantErr := r.Decode(b), proto.Unmarshal(b, &want)
		same := r.Revision == want.Revision && r.Physical == want.Physical
		if (err == nil) != (wantErr == nil) || err == nil && !same {
			t.Fatalf("%x: %+v, %v; want %v, %v", b, r, err, &want, wantErr)
		}
	})
}

func FuzzEntry(f *testing.F) {
	corpus(f, func(g gen) []byte { return AppendEntry(nil, g.entry()) })
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeEntry(b)
		var want raftpb.Entry
		wantErr := proto.Unmarshal(b, &want)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%x: %v; generated code: %v", b, err, wantErr)
		}
		if err == nil && !sameEntry(e, &want) {
			t.Fatalf("%x:\n got  %v\n want %v", b, e, &want)
		}
	})
}

func FuzzRequest(f *testing.F) {
	corpus(f, func(g gen) []byte {
		b := g.request().Append(nil)
		if g.IntN(4) == 0 { // the form of old entries: an id beside an empty header
			b = append(protowire.AppendVarint([]byte{0x08}, g.Uint64()), b...)
		}
		return b
	})
	f.Fuzz(func(t *testing.T, b []byte) { checkRequest(t, b) })
}

func checkRequest(t *testing.T, b []byte) {
	t.Helper()
	var r Request
	var want pb.InternalRaftRequest
	err, wantErr := r.Decode(b), proto.Unmarshal(b, &want)
	if err != nil && wantErr == nil {
		t.Fatalf("%x: %v", b, err)
	}
	if err != nil {
		return
	}
	hot := r.Put != nil || r.DeleteRange != nil || r.Txn != nil || r.Compaction != nil
	if wantErr != nil {
		// Beside a hot request no other is looked at. No member writes an entry that has both.
		if !hot {
			t.Fatalf("%x: taken; generated code: %v", b, wantErr)
		}
		return
	}
	if hot == (r.Other != nil) && hot {
		t.Fatalf("%x: hot and other", b)
	}
	dropUnknown(want.ProtoReflect())
	id := want.GetHeader().GetID()
	if id == 0 {
		id = want.ID
	}
	h := want.GetHeader()
	if r.ID != id || r.Username != h.GetUsername() || r.AuthRevision != h.GetAuthRevision() {
		t.Fatalf("%x: header %d %q %d, want %v", b, r.ID, r.Username, r.AuthRevision, want.Header)
	}
	same := func(name string, got, want proto.Message, present bool) {
		t.Helper()
		if present != want.ProtoReflect().IsValid() || present && !proto.Equal(got, want) {
			t.Fatalf("%x: %s\n got  %v\n want %v", b, name, got, want)
		}
	}
	if r.Other != nil {
		dropUnknown(r.Other.ProtoReflect())
		same("other", r.Other, &want, true)
		return
	}
	if r.Put != nil {
		same("put", r.Put.generated(), want.Put, true)
	}
	if r.DeleteRange != nil {
		same("delete", r.DeleteRange.generated(), want.DeleteRange, true)
	}
	if r.Txn != nil {
		same("txn", r.Txn.generated(), want.Txn, true)
	}
	if r.Compaction != nil {
		same("compaction", r.Compaction.generated(), want.Compaction, true)
	}
	if (r.Put == nil) != (want.Put == nil) || (r.DeleteRange == nil) != (want.DeleteRange == nil) ||
		(r.Txn == nil) != (want.Txn == nil) || (r.Compaction == nil) != (want.Compaction == nil) {
		t.Fatalf("%x: got %+v, want %v", b, r, &want)
	}
}

// gen makes random messages.
type gen struct{ *rand.Rand }

func newGen(seed uint64) gen { return gen{rand.New(rand.NewPCG(seed, 7))} }

func (g gen) bool() bool { return g.IntN(2) == 0 }

// int is often 0 or small, sometimes negative or large.
func (g gen) int() int64 {
	switch g.IntN(5) {
	case 0:
		return 0
	case 1:
		return g.Int64N(300)
	case 2:
		return -g.Int64N(300)
	}
	return int64(g.Uint64() >> g.IntN(64))
}

func (g gen) bytes() []byte {
	b := make([]byte, g.IntN(6)*g.IntN(60))
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	if len(b) == 0 && g.bool() {
		return nil
	}
	return b
}

// damage changes one byte, cuts the end off, or adds an unknown field.
func (g gen) damage(b []byte) []byte {
	b = bytes.Clone(b)
	switch n := g.IntN(6); {
	case n < 2 && len(b) > 0:
		b[g.IntN(len(b))] ^= byte(1 << g.IntN(8))
	case n < 3 && len(b) > 0:
		b = b[:g.IntN(len(b))]
	default:
		b = append(b, g.unknown()...)
	}
	return b
}

// unknown is a field that no message has, of any wire type.
func (g gen) unknown() []byte {
	num := protowire.Number(5000 + g.IntN(1<<20))
	switch g.IntN(5) {
	case 0:
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), g.Uint64())
	case 1:
		return protowire.AppendFixed32(protowire.AppendTag(nil, num, protowire.Fixed32Type), g.Uint32())
	case 2:
		return protowire.AppendFixed64(protowire.AppendTag(nil, num, protowire.Fixed64Type), g.Uint64())
	case 3:
		b := protowire.AppendTag(nil, num, protowire.StartGroupType)
		b = append(b, g.put().Append(nil)...)
		return protowire.AppendTag(b, num, protowire.EndGroupType)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), g.bytes())
}

func (g gen) keyValue() *KeyValue {
	return &KeyValue{g.bytes(), g.bytes(), g.int(), g.int(), g.int(), g.int()}
}

func (g gen) rangeRequest() *RangeRequest {
	return &RangeRequest{
		g.bytes(), g.bytes(), g.int(), g.int(), int32(g.int()), int32(g.int()), g.bool(), g.bool(), g.bool(),
		g.int(), g.int(), g.int(), g.int(),
	}
}

func (g gen) put() *PutRequest {
	return &PutRequest{g.bytes(), g.bytes(), g.int(), g.bool(), g.bool(), g.bool()}
}

func (g gen) deleteRange() *DeleteRangeRequest {
	return &DeleteRangeRequest{g.bytes(), g.bytes(), g.bool()}
}

func (g gen) compare() Compare {
	c := Compare{
		Result: int32(g.int()), Target: int32(g.int()), Key: g.bytes(), RangeEnd: g.bytes(),
		Operand: CompareOperand(g.IntN(6)),
	}
	switch c.Operand {
	case OperandNone:
	case OperandValue:
		c.Value = g.bytes()
	default:
		c.Int = g.int()
	}
	return c
}

func (g gen) txn(depth int) *TxnRequest {
	t := &TxnRequest{}
	for range g.IntN(3) {
		t.Compare = append(t.Compare, g.compare())
	}
	for range g.IntN(4) {
		t.Success = append(t.Success, g.op(depth))
	}
	for range g.IntN(4) {
		t.Failure = append(t.Failure, g.op(depth))
	}
	return t
}

func (g gen) op(depth int) (op RequestOp) {
	switch n := g.IntN(5); {
	case n == 0:
		op.Range = g.rangeRequest()
	case n == 1:
		op.Put = g.put()
	case n == 2:
		op.Delete = g.deleteRange()
	case n == 3 && depth > 0:
		op.Txn = g.txn(depth - 1)
	}
	return op
}

func (g gen) entry() *raftpb.Entry {
	e := NewEntry(raftpb.EntryType(g.IntN(3)), g.Uint64()>>g.IntN(64), g.Uint64()>>g.IntN(64), g.bytes())
	if g.IntN(8) == 0 {
		e.Term = nil
	}
	if *e.Type == raftpb.EntryNormal {
		e.Type = nil
	}
	return e
}

// request is one of every kind. Trace contexts are left to a test of their own.
func (g gen) request() *Request {
	r := &Request{ID: g.Uint64() >> g.IntN(64), AuthRevision: g.Uint64() >> g.IntN(64)}
	if g.bool() {
		r.Username = "root ünïcode"
	}
	switch g.IntN(12) {
	case 0, 1:
		r.Put = g.put()
	case 2:
		r.DeleteRange = g.deleteRange()
	case 3, 4:
		r.Txn = g.txn(3)
	case 5:
		r.Compaction = &CompactionRequest{g.int(), g.bool()}
	case 6:
		r.Other = &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{TTL: g.int(), ID: g.int()}}
	case 7:
		r.Other = &pb.InternalRaftRequest{Range: g.rangeRequest().generated()}
	case 8:
		r.Other = &pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}}
	case 9:
		r.Other = &pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u", HashedPassword: "p"}}
	case 10:
		r.Other = &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{MemberID: g.Uint64(), Alarm: pb.AlarmType_CORRUPT}}
	case 11:
		r.Other = &pb.InternalRaftRequest{LeaseCheckpoint: &pb.LeaseCheckpointRequest{
			Checkpoints: []*pb.LeaseCheckpoint{{ID: g.int(), Remaining_TTL: g.int()}},
		}}
	}
	return r
}

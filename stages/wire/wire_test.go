package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3/raftpb"
)

// TestEncoders: random messages are encoded to the generated code's bytes, and come back the same.
func TestEncoders(t *testing.T) {
	for seed := range uint64(3000) {
		g := newGen(seed)
		keyValues.checkEncoding(t, g.keyValue())
		ranges.checkEncoding(t, g.rangeRequest())
		puts.checkEncoding(t, g.put())
		deletes.checkEncoding(t, g.deleteRange())
		txns.checkEncoding(t, g.txn(4))
	}
}

// TestDecodersOnDamage: damaged messages are taken or refused as the generated code does.
func TestDecodersOnDamage(t *testing.T) {
	for seed := range uint64(3000) {
		g := newGen(seed)
		keyValues.check(t, g.damage(g.keyValue().Append(nil)))
		ranges.check(t, g.damage(g.rangeRequest().Append(nil)))
		puts.check(t, g.damage(g.put().Append(nil)))
		deletes.check(t, g.damage(g.deleteRange().Append(nil)))
		txns.check(t, g.damage(g.txn(2).Append(nil)))
		checkRequest(t, g.damage(g.request().Append(nil)))
	}
}

// TestRequest: a request is encoded to the generated code's bytes, with its header where it belongs among
// the fields; the trace context follows as a field that the generated code passes over.
func TestRequest(t *testing.T) {
	for seed := range uint64(3000) {
		g := newGen(seed)
		r := g.request()
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.generated())
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Append(nil); !bytes.Equal(got, want) {
			t.Fatalf("%v:\n got  %x\n want %x", r.generated(), got, want)
		}
		if r.Size() != len(want) {
			t.Fatalf("%v: size %d, %d bytes", r.generated(), r.Size(), len(want))
		}
		r.Trace = []byte("trace context")
		traced := r.Append(nil)
		if r.Size() != len(want) {
			t.Fatal("the trace context counts towards the size")
		}
		var foreign pb.InternalRaftRequest
		if err := proto.Unmarshal(traced, &foreign); err != nil {
			t.Fatal(err)
		}
		dropUnknown(foreign.ProtoReflect())
		if !proto.Equal(&foreign, r.generated()) {
			t.Fatalf("with a trace the generated code reads %v, want %v", &foreign, r.generated())
		}
		var back Request
		if err := back.Decode(traced); err != nil || string(back.Trace) != "trace context" || back.ID != r.ID {
			t.Fatalf("%+v, %v", back, err)
		}
		checkRequest(t, want)
	}
}

// TestRequestAgain: puts that are decoded into the same Request leave nothing of themselves in the next one,
// and cost no memory. A request of another kind has no put.
func TestRequestAgain(t *testing.T) {
	var r Request
	for seed := range uint64(3000) {
		g := newGen(seed)
		first := Request{ID: 1, Put: g.put()}
		for _, b := range [][]byte{first.Append(nil), g.request().Append(nil)} {
			var fresh Request
			if err := errors.Join(r.Decode(b), fresh.Decode(b)); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(r, fresh) {
				t.Fatalf("seed %d: %+v, want %+v", seed, r, fresh)
			}
		}
	}
	whole := (&Request{ID: 1, Put: &PutRequest{Key: []byte("k"), Value: []byte("v"), Lease: 1, PrevKV: true}}).Append(nil)
	bare := (&Request{ID: 2, Put: &PutRequest{}}).Append(nil)
	got := testing.AllocsPerRun(100, func() {
		if r.Decode(whole) != nil || r.Decode(bare) != nil {
			t.Fatal("no longer decodes")
		}
	})
	if r.ID != 2 || r.Put.Key != nil || r.Put.Value != nil || r.Put.Lease != 0 || r.Put.PrevKV || got != 0 {
		t.Errorf("the second put is %+v, after %v allocations", *r.Put, got)
	}
}

// TestRequestWithoutHeader: entries of very old origin carry their id as field 1.
func TestRequestWithoutHeader(t *testing.T) {
	b, err := proto.Marshal(&pb.InternalRaftRequest{ID: 42, Put: &pb.PutRequest{Key: []byte("k")}})
	if err != nil {
		t.Fatal(err)
	}
	var r Request
	if err := r.Decode(b); err != nil || r.ID != 42 || r.Put == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := r.Decode(nil); err != nil || r.Put != nil || r.Other != nil || r.ID != 0 {
		t.Fatalf("empty entry: %+v, %v", r, err)
	}
}

// TestEntry: entries are framed as the generated code frames them and cost one allocation to make or read.
func TestEntry(t *testing.T) {
	for seed := range uint64(3000) {
		e := newGen(seed).entry()
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		got := AppendEntry(nil, e)
		if !bytes.Equal(got, want) || EntrySize(e) != len(want) {
			t.Fatalf("%v:\n got  %x (size %d)\n want %x", e, got, EntrySize(e), want)
		}
		back, err := DecodeEntry(got)
		if err != nil || !sameEntry(back, e) {
			t.Fatalf("%v came back as %v, %v", e, back, err)
		}
	}
	data := []byte("data")
	if n := testing.AllocsPerRun(100, func() { NewEntry(raftpb.EntryNormal, 1, 2, data) }); n > 1 {
		t.Errorf("NewEntry allocates %v times", n)
	}
}

// TestHeaderAndEvent: the parts of responses.
func TestHeaderAndEvent(t *testing.T) {
	for seed := range uint64(3000) {
		g := newGen(seed)
		h := Header{g.Uint64() >> g.IntN(64), g.Uint64() >> g.IntN(64), g.int(), g.Uint64() >> g.IntN(64)}
		want, err := proto.Marshal(&pb.PutResponse{Header: h.generated()})
		if err != nil {
			t.Fatal(err)
		}
		if got := h.AppendField(nil); !bytes.Equal(got, want) {
			t.Fatalf("header %x, want %x", got, want)
		}
		if got := h.Append(nil); len(got) != h.Size() {
			t.Fatalf("header of %d bytes says %d", len(got), h.Size())
		}
		ev := &Event{Type: EventType(g.IntN(2)), KV: g.keyValue().Append(nil)}
		if g.bool() {
			ev.Prev = g.keyValue().Append([]byte{})
		}
		withPrev := g.bool()
		gen, err := generatedEvent(ev, withPrev)
		if err != nil {
			t.Fatal(err)
		}
		if want, err = (proto.MarshalOptions{Deterministic: true}).Marshal(gen); err != nil {
			t.Fatal(err)
		}
		if got := AppendEvent(nil, ev, withPrev); !bytes.Equal(got, want) || EventSize(ev, withPrev) != len(want) {
			t.Fatalf("event %x, want %x", got, want)
		}
	}
}

// TestFieldHelpers: the helpers agree with protowire, at the borders of the length's varint too.
func TestFieldHelpers(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 16383, 16384} {
		v := bytes.Repeat([]byte{7}, n)
		want := protowire.AppendBytes(protowire.AppendTag(nil, 9, protowire.BytesType), v)
		if got := AppendBytesField(nil, 9, v); !bytes.Equal(got, want) || SizeBytesField(9, n) != len(want) {
			t.Errorf("field of %d bytes: %d, size %d", n, len(got), SizeBytesField(9, n))
		}
		if got := append(AppendBytesHead(nil, 9, n), v...); !bytes.Equal(got, want) {
			t.Errorf("head of %d bytes", n)
		}
	}
	if b := AppendBoolField(AppendIntField(nil, 3, 0), 4, false); len(b) != 0 {
		t.Errorf("zero fields are written: %x", b)
	}
	if b := AppendBoolField(AppendIntField(nil, 3, -1), 4, true); len(b) != 1+10+2 {
		t.Errorf("%x", b)
	}
}

// TestDeepNesting: hostile nesting is refused, not a stack that overflows. What is allowed of a request is
// far below.
func TestDeepNesting(t *testing.T) {
	nest := func(depth int) []byte {
		var b []byte
		for range depth {
			op := AppendBytesField(nil, 4, b)
			b = AppendBytesField(nil, 2, op)
		}
		return b
	}
	var r TxnRequest
	if err := r.Decode(nest(200)); err != nil {
		t.Errorf("200 levels: %v", err)
	}
	if err := r.Decode(nest(6000)); err == nil {
		t.Error("6000 levels are taken")
	}
}

// TestAliasing: a decoded message points into its input, and an append to one of its fields does not write
// into the next.
func TestAliasing(t *testing.T) {
	b := (&PutRequest{Key: []byte("key"), Value: []byte("value")}).Append(nil)
	want := bytes.Clone(b)
	var r PutRequest
	if err := r.Decode(b); err != nil {
		t.Fatal(err)
	}
	_ = append(r.Key, "xxxx"...)
	if !bytes.Equal(b, want) {
		t.Error("append to a field wrote into the message")
	}
	if b[2] = 'K'; string(r.Key) != "Key" {
		t.Error("the key is a copy")
	}
	if n := testing.AllocsPerRun(100, func() { r.Decode(b) }); n > 0 {
		t.Errorf("decoding a put allocates %v times", n)
	}
}

// TestUnknownEntryType: a type that the generated code does not know leaves the entry a normal one.
func TestUnknownEntryType(t *testing.T) {
	for typ := range byte(5) {
		b := []byte{0x08, typ, 0x10, 3}
		var want raftpb.Entry
		if err := proto.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		if e, err := DecodeEntry(b); err != nil || !sameEntry(e, &want) {
			t.Errorf("type %d: %v, %v; want %v", typ, e, err, &want)
		}
	}
}

// TestLegacyID: the header's id counts, wherever the old field stands.
func TestLegacyID(t *testing.T) {
	header, old := AppendBytesField(nil, fieldHeader, []byte{0x08, 5}), []byte{0x08, 9}
	none := AppendBytesField(nil, fieldHeader, []byte{0x08, 0})
	for _, c := range []struct {
		b    []byte
		want uint64
	}{
		{bytes.Join([][]byte{old, header}, nil), 5}, {bytes.Join([][]byte{header, old}, nil), 5},
		{bytes.Join([][]byte{old, none}, nil), 9}, {bytes.Join([][]byte{none, old}, nil), 9},
	} {
		var r Request
		if err := r.Decode(c.b); err != nil || r.ID != c.want {
			t.Errorf("%x: id %d, %v; want %d", c.b, r.ID, err, c.want)
		}
		checkRequest(t, c.b)
	}
}

// TestUsernameIsText: as in the generated code, a user name that is not UTF-8 is no user name.
func TestUsernameIsText(t *testing.T) {
	b := AppendBytesField(nil, fieldHeader, []byte{0x12, 1, 0xff})
	if err := proto.Unmarshal(b, &pb.InternalRaftRequest{}); err == nil {
		t.Fatal("the generated code takes it")
	}
	if err := new(Request).Decode(b); err == nil {
		t.Error("taken")
	}
}

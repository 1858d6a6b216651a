package rpc

import (
	"context"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// benchmarkHot runs one hot method as grpc does, without the network: decode, handle, encode, free.
func benchmarkHot(b *testing.B, method string, kind callKind, m proto.Message, value int) {
	member := newTestMember(b)
	s := New(Config{}, member)
	defer s.plain.Stop()
	kv := func(key string) {
		c := s.calls.Get().(*call)
		c.put.Key, c.put.Value = []byte(key), make([]byte, value)
		if _, err := s.servePut(context.Background(), c); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 100 {
		kv(fmt.Sprintf("k%03d", i))
	}
	serve := map[string]func(context.Context, *call) (*reply, error){"Range": s.serveRange, "Put": s.servePut}[method]
	handle := s.hotUnary(s.method("unary", "etcdserverpb.KV", method), kind, serve)
	ctx := metadata.NewIncomingContext(context.Background(),
		metadata.Pairs("client-api-version", "3.7", ":authority", "x"))
	raw, err := proto.Marshal(m)
	if err != nil {
		b.Fatal(err)
	}
	data := mem.BufferSlice{mem.SliceBuffer(raw)}
	decode := func(v any) error { return s.codec.Unmarshal(data, v) }
	b.ReportAllocs()
	for b.Loop() {
		r, err := handle(nil, ctx, decode, nil)
		if err != nil {
			b.Fatal(err)
		}
		bufs, err := s.codec.Marshal(r)
		if err != nil {
			b.Fatal(err)
		}
		bufs.Free()
	}
}

func BenchmarkRangeOne(b *testing.B) {
	benchmarkHot(b, "Range", callRange, &pb.RangeRequest{Key: []byte("k050")}, 256)
}

func BenchmarkRangeHundred(b *testing.B) {
	benchmarkHot(b, "Range", callRange, &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}, 1024)
}

func BenchmarkPut(b *testing.B) {
	benchmarkHot(b, "Put", callPut, &pb.PutRequest{Key: []byte("k050"), Value: make([]byte, 256)}, 256)
}

package mvcc

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/wire"
)

func mustPut(t testing.TB, s *Store, key, value string) Result {
	t.Helper()
	res, err := s.Put(&wire.PutRequest{Key: []byte(key), Value: []byte(value)})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// rangeOf reads through the API and decodes with the generated code.
func rangeOf(t testing.TB, v *View, r *wire.RangeRequest) *pb.RangeResponse {
	t.Helper()
	var out buffer
	bound := v.RangeBound(r)
	if err := v.Range(r, &out); err != nil {
		t.Fatalf("range %+v: %v", r, err)
	}
	if int64(len(out)) > bound {
		t.Fatalf("range %+v: %d bytes, bound was %d", r, len(out), bound)
	}
	resp := new(pb.RangeResponse)
	if err := proto.Unmarshal(out, resp); err != nil {
		t.Fatal(err)
	}
	return resp
}

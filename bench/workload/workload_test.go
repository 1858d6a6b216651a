package workload

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// What the encoders write, the generated types read.
func TestRequests(t *testing.T) {
	check := func(got []byte, want proto.Message) {
		t.Helper()
		read := want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(got, read); err != nil {
			t.Error(err)
		} else if !proto.Equal(read, want) {
			t.Errorf("read %v, want %v", read, want)
		}
	}
	k, v := []byte("k"), []byte("v")
	check(appendPut(nil, k, v, 7), &pb.PutRequest{Key: k, Value: v, Lease: 7})
	check(appendGet(nil, k, true), &pb.RangeRequest{Key: k, Serializable: true})
	check(rangeQuery{key: "k", end: "l", limit: 5, revision: 6, keysOnly: true, countOnly: true}.append(nil),
		&pb.RangeRequest{Key: k, RangeEnd: []byte("l"), Limit: 5, Revision: 6, KeysOnly: true, CountOnly: true})
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: k, Value: v}}}
	get := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: k}}}
	check(appendGuardedPut(nil, k, v, 9), &pb.TxnRequest{
		Compare: []*pb.Compare{{
			Target: pb.Compare_MOD, Key: k, TargetUnion: &pb.Compare_ModRevision{ModRevision: 9},
		}},
		Success: []*pb.RequestOp{put}, Failure: []*pb.RequestOp{get},
	})
	check(appendWatch(nil, "k", "l", 3), &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: k, RangeEnd: []byte("l"), StartRevision: 3},
	}})
	var txn pb.TxnRequest
	if err := proto.Unmarshal(appendPuts(nil, 98, 4, v), &txn); err != nil || len(txn.Success) != 4 {
		t.Fatalf("%v, %v", &txn, err)
	}
	for i, op := range txn.Success {
		if got := string(op.GetRequestPut().Key); got != key(98+i) {
			t.Errorf("put %d is of %s", i, got)
		}
	}
}

// Keys sort by their number, so that the first n of them are one range.
func TestKeysSortByNumber(t *testing.T) {
	var keys []string
	for _, n := range []int{0, 1, 99, 100, 101, 999, 1000, 99_999, 100_000, 10_000_000} {
		keys = append(keys, key(n))
	}
	if !slices.IsSorted(keys) || len(slices.Compact(slices.Clone(keys))) != len(keys) {
		t.Errorf("%q", keys)
	}
}

// A guarded put is made with the revision that the key was last seen at, whoever told it.
func TestGuardedCallerFollowsRevisions(t *testing.T) {
	c := guardedTraffic(1, 1, 1, 10).lean(0, rand.New(rand.NewPCG(1, 2))).(*guarded)
	guard := func() int64 {
		_, msg := c.next(0, time.Time{}, nil)
		var txn pb.TxnRequest
		if err := proto.Unmarshal(msg, &txn); err != nil {
			t.Fatal(err)
		}
		return txn.Compare[0].GetModRevision()
	}
	answer := func(r *pb.TxnResponse) error {
		msg, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return c.answer(0, msg)
	}
	if got := guard(); got != 0 {
		t.Errorf("the first guard is %d", got)
	}
	found := &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte("k"), CreateRevision: 2, ModRevision: 5}}}
	if err := answer(&pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 8}, Responses: []*pb.ResponseOp{{
		Response: &pb.ResponseOp_ResponseRange{ResponseRange: found},
	}}}); err != nil {
		t.Fatal(err)
	}
	if got := guard(); got != 5 {
		t.Errorf("the guard after a read is %d", got)
	}
	if err := answer(&pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 9}, Succeeded: true}); err != nil {
		t.Fatal(err)
	}
	if got := guard(); got != 9 {
		t.Errorf("the guard after a put is %d", got)
	}
	if err := answer(&pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 9}}); err == nil {
		t.Error("a guard that failed for no reason was accepted")
	}
}

// Parts are nearly equal, and together the whole.
func TestShare(t *testing.T) {
	for _, c := range [][2]int{{64, 8}, {1000, 100}, {10, 3}, {7, 7}} {
		sum := 0
		for n := range c[1] {
			sum += share(c[0], c[1], n)
		}
		if sum != c[0] {
			t.Errorf("%d in %d parts make %d", c[0], c[1], sum)
		}
	}
}

// No two cells of a family have one name: saved results find each other by it.
func TestCellNamesDiffer(t *testing.T) {
	for _, divide := range []int{1, 5, 100} {
		for _, f := range All(Settings{Divide: divide}) {
			seen := map[string]bool{}
			for _, g := range f.Groups {
				for _, c := range g.Cells {
					if seen[c.Name] {
						t.Errorf("%s has two cells %q", f.ID, c.Name)
					}
					seen[c.Name] = true
				}
			}
		}
	}
}

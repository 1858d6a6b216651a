package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"sluice/stages/wire"
)

func decodeTxn(t testing.TB, success, failure []*pb.RequestOp) *wire.TxnRequest {
	t.Helper()
	b, err := proto.Marshal(&pb.TxnRequest{Success: success, Failure: failure})
	if err != nil {
		t.Fatal(err)
	}
	r := new(wire.TxnRequest)
	if err := r.Decode(b); err != nil {
		t.Fatal(err)
	}
	return r
}

type ops = []*pb.RequestOp

// Which operations of one list may not meet (client-api.md 6.5; bug cases BC-09, BC-10).
func TestDuplicateKeys(t *testing.T) {
	for _, c := range []struct {
		what      string
		success   ops
		failure   ops
		duplicate bool
	}{
		{"two puts of one key", ops{opPut("a"), opPut("a")}, nil, true},
		{"two keys", ops{opPut("a"), opPut("b")}, nil, false},
		{"put then delete", ops{opPut("a"), opDelete("a", "")}, nil, true},
		{"delete then put", ops{opDelete("a", "c"), opPut("b")}, nil, true},
		{"put at the end of the interval", ops{opDelete("a", "b"), opPut("b")}, nil, false},
		{"BC-09 two deletes", ops{opDelete("a", ""), opDelete("a", "")}, nil, false},
		{"overlapping deletes", ops{opDelete("a", "c"), opDelete("b", "d")}, nil, false},
		{"both branches", ops{opPut("a")}, ops{opPut("a")}, false},
		{"duplicate in the failure branch", nil, ops{opPut("a"), opPut("a")}, true},
		{"alternatives of a nested txn", ops{opTxn(ops{opPut("a")}, ops{opPut("a")})}, nil, false},
		{"alternatives, put and delete", ops{opTxn(ops{opPut("a")}, ops{opDelete("a", "")})}, nil, false},
		{"nested put, outer put", ops{opTxn(ops{opPut("a")}, nil), opPut("a")}, nil, true},
		{"nested put in the failure branch, outer put", ops{opPut("a"), opTxn(nil, ops{opPut("a")})}, nil, true},
		{"outer put, nested delete", ops{opPut("a"), opTxn(ops{opDelete("a", "")}, nil)}, nil, true},
		{"nested delete, outer put", ops{opTxn(ops{opDelete("a", "b")}, nil), opPut("a")}, nil, true},
		{"siblings put", ops{opTxn(ops{opPut("a")}, nil), opTxn(nil, ops{opPut("a")})}, nil, true},
		{"BC-10 sibling delete then put",
			ops{opTxn(ops{opDelete("n", "o")}, nil), opTxn(ops{opPut("n1")}, nil)}, nil, true},
		{"BC-10 sibling put then delete",
			ops{opTxn(ops{opPut("n1")}, nil), opTxn(ops{opDelete("n", "o")}, nil)}, nil, true},
		{"open end is not seen", ops{opDelete("a", "\x00"), opPut("m")}, nil, false},
		{"inverted interval", ops{opDelete("z", "a"), opPut("m")}, nil, false},
		{"two levels down", ops{opTxn(ops{opTxn(ops{opPut("a")}, nil)}, nil), opPut("a")}, nil, true},
		{"own alternatives around another's put",
			ops{opTxn(ops{opPut("a"), opPut("c")}, ops{opDelete("a", "d")}), opPut("b")}, nil, true},
	} {
		err := checkTxn(decodeTxn(t, c.success, c.failure), 128)
		if (err == rpctypes.ErrGRPCDuplicateKey) != c.duplicate || (err != nil && !c.duplicate) {
			t.Errorf("%s: %v, want duplicate %v", c.what, err, c.duplicate)
		}
	}
}

// slowConflict compares every pair of changes that different operations make.
func slowConflict(c changes) bool {
	for i, p := range c.puts {
		for _, q := range c.puts[i+1:] {
			if p.op != q.op && string(p.key) == string(q.key) {
				return true
			}
		}
		for _, d := range c.dels {
			if p.op == d.op {
				continue
			}
			if len(d.end) == 0 && string(p.key) == string(d.key) ||
				len(d.end) > 0 && string(d.key) <= string(p.key) && string(p.key) < string(d.end) {
				return true
			}
		}
	}
	return false
}

// The search agrees with the obvious comparison of all pairs.
func TestConflictAgainstAllPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	key := func() []byte { return []byte{byte('a' + r.IntN(8))} }
	for round := range 20_000 {
		var c changes
		for range r.IntN(6) {
			c.puts = append(c.puts, keyChange{key(), r.IntN(4)})
		}
		for range r.IntN(4) {
			d := spanChange{key: key(), op: r.IntN(4)}
			if r.IntN(2) == 0 {
				d.end = key()
			}
			c.dels = append(c.dels, d)
		}
		want := slowConflict(c)
		what := fmt.Sprintf("%+v", c)
		if got := c.conflict() != nil; got != want {
			t.Fatalf("round %d: %s: %v, want %v", round, what, got, want)
		}
	}
}

// randomOps makes nested transactions around the limits, some of them wrong in other ways.
func randomOps(rnd *rand.Rand, depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range rnd.IntN(8) {
		r.Compare = append(r.Compare, &pb.Compare{Key: []byte("k")[:min(1, rnd.IntN(30))]})
	}
	for _, list := range []*[]*pb.RequestOp{&r.Success, &r.Failure} {
		for i := range rnd.IntN(8) {
			switch n := rnd.IntN(30); {
			case n == 0:
				*list = append(*list, &pb.RequestOp{})
			case n < 8 && depth > 0:
				*list = append(*list, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: randomOps(rnd, depth-1)}})
			default:
				*list = append(*list, opPut(fmt.Sprint("k", depth, i, rnd.IntN(100))))
			}
		}
	}
	return r
}

// What the decoder forgets of a transaction that is too large never changes the verdict on it.
func TestBoundedDecode(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	verdicts := map[error]int{}
	for range 5000 {
		b, err := proto.Marshal(randomOps(rnd, 3))
		if err != nil {
			t.Fatal(err)
		}
		opsMax := rnd.IntN(12)
		var whole, bounded wire.TxnRequest
		if err := errors.Join(whole.Decode(b), bounded.DecodeBounded(b, opsMax)); err != nil {
			t.Fatal(err)
		}
		want := checkTxn(&whole, opsMax)
		if got := checkTxn(&bounded, opsMax); got != want {
			t.Fatalf("%x, at most %d: %v, want %v", b, opsMax, got, want)
		}
		verdicts[want]++
	}
	if len(verdicts) < 4 || verdicts[nil] == 0 {
		t.Errorf("the requests are too much alike: %v", verdicts)
	}
}

// Two bytes of a request do not hold a hundred of memory.
func TestManyOperations(t *testing.T) {
	for name, field := range map[string]byte{"compares": 0x0a, "success": 0x12, "failure": 0x1a} {
		b := bytes.Repeat([]byte{field, 0}, 1<<20)
		var r wire.TxnRequest
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := r.DecodeBounded(b, 128); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		allocated := after.TotalAlloc - before.TotalAlloc
		if checkTxn(&r, 128) != rpctypes.ErrGRPCTooManyOps || allocated > 1<<20 {
			t.Errorf("%s: %d bytes allocated, %v", name, allocated, checkTxn(&r, 128))
		}
	}
}

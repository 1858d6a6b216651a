package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// generator makes random requests over a small key space, so that operations meet each other. It knows
// the revisions that the reference has answered, to ask for past, present, future and compacted ones.
type generator struct {
	*rand.Rand
	revision, compacted int64
	leases              []int64
	nextLease           int64
}

func newGenerator(seed uint64) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 1)), revision: 1, compacted: -1, nextLease: 1000}
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

func (g *generator) key() []byte {
	switch g.IntN(20) {
	case 0:
		return []byte{0}
	case 1:
		return []byte{0xff, byte(g.IntN(3))}
	case 2:
		return nil
	default:
		return fmt.Appendf(nil, "k%c/%d", 'a'+g.IntN(3), g.IntN(12))
	}
}

func (g *generator) value() []byte {
	switch g.IntN(10) {
	case 0:
		return nil
	case 1:
		b := make([]byte, g.IntN(3000))
		for i := range b {
			b[i] = byte(g.IntN(256))
		}
		return b
	default:
		return fmt.Appendf(nil, "v%d", g.IntN(50))
	}
}

// interval returns a key and range end of every kind: single, prefix, open, all, inverted, empty.
func (g *generator) interval() (key, end []byte) {
	key = g.key()
	switch g.IntN(8) {
	case 0, 1, 2:
		return key, nil
	case 3:
		return key, []byte{0}
	case 4:
		return []byte{0}, []byte{0}
	case 5:
		return []byte("ka/"), []byte("ka0")
	case 6:
		return []byte("k"), []byte("l")
	default:
		return key, g.key()
	}
}

func (g *generator) lease() int64 {
	if len(g.leases) == 0 || g.chance(10) {
		return int64(g.IntN(5)) - 1
	}
	return g.leases[g.IntN(len(g.leases))]
}

// past returns a revision to read at. Inside a transaction negative ones are left out: the reference
// compares them with the compaction revision, Sluice reads the present (case BC-05).
func (g *generator) past(txn bool) int64 {
	switch g.IntN(10) {
	case 0:
		return g.revision + 1 + int64(g.IntN(3))
	case 1:
		if txn {
			return 0
		}
		return -int64(g.IntN(3))
	case 2:
		return max(g.compacted, 0)
	case 3, 4, 5:
		return max(1, g.revision-int64(g.IntN(20)))
	default:
		return 0
	}
}

func (g *generator) rangeRequest(txn bool) *pb.RangeRequest {
	r := &pb.RangeRequest{Revision: g.past(txn), Serializable: g.chance(30)}
	r.Key, r.RangeEnd = g.interval()
	if g.chance(40) {
		r.Limit = int64(g.IntN(8)) - 1
	}
	if g.chance(30) {
		r.SortOrder = pb.RangeRequest_SortOrder(g.IntN(4))
		r.SortTarget = pb.RangeRequest_SortTarget(g.IntN(6))
	}
	r.KeysOnly, r.CountOnly = g.chance(15), g.chance(10)
	if g.chance(15) {
		for _, f := range []*int64{&r.MinModRevision, &r.MaxModRevision, &r.MinCreateRevision, &r.MaxCreateRevision} {
			if g.chance(40) {
				*f = g.revision - int64(g.IntN(30))
			}
		}
	}
	return r
}

func (g *generator) put() *pb.PutRequest {
	r := &pb.PutRequest{Key: g.key(), Value: g.value(), PrevKv: g.chance(30)}
	if g.chance(30) {
		r.Lease = g.lease()
	}
	if g.chance(8) {
		r.IgnoreValue = true
		if g.chance(80) {
			r.Value = nil
		}
	}
	if g.chance(8) {
		r.IgnoreLease = true
		if g.chance(80) {
			r.Lease = 0
		}
	}
	return r
}

func (g *generator) deleteRange() *pb.DeleteRangeRequest {
	r := &pb.DeleteRangeRequest{PrevKv: g.chance(30)}
	r.Key, r.RangeEnd = g.interval()
	if g.chance(70) {
		r.RangeEnd = nil
	}
	return r
}

func (g *generator) compare() *pb.Compare {
	c := &pb.Compare{Result: pb.Compare_CompareResult(g.IntN(5)), Target: pb.Compare_CompareTarget(g.IntN(6))}
	c.Key, c.RangeEnd = g.interval()
	if g.chance(60) {
		c.RangeEnd = nil
	}
	switch g.IntN(7) {
	case 0:
		c.TargetUnion = &pb.Compare_Version{Version: int64(g.IntN(4))}
	case 1:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: g.revision - int64(g.IntN(20))}
	case 2:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: g.revision - int64(g.IntN(20))}
	case 3:
		c.TargetUnion = &pb.Compare_Value{Value: g.value()}
	case 4:
		c.TargetUnion = &pb.Compare_Lease{Lease: g.lease()}
	case 5:
		c.TargetUnion = &pb.Compare_ModRevision{}
	}
	return c
}

// txn returns a transaction of at most depth nested levels. Nested ones write their own keys: the verdict
// on sibling nested transactions that put and delete one key differs by intent (case BC-10).
func (g *generator) txn(depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range g.IntN(3) {
		r.Compare = append(r.Compare, g.compare())
	}
	nested := false
	ops := func() (ops []*pb.RequestOp) {
		for range g.IntN(4) {
			switch n := g.IntN(10); {
			case n < 4:
				ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: g.put()}})
			case n < 6:
				ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: g.rangeRequest(true)}})
			case n < 8:
				ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: g.deleteRange()}})
			case n == 8 && depth > 0 && !nested:
				nested = true // one per level: siblings would meet case BC-10
				ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: g.txn(depth - 1)}})
			case g.chance(5):
				ops = append(ops, &pb.RequestOp{})
			}
		}
		return ops
	}
	r.Success = ops()
	nested = false
	r.Failure = ops()
	return r
}

// streamed is a range that is asked for with RangeStream.
type streamed struct{ *pb.RangeRequest }

// streamRequest returns a range whose order a stream can have.
func (g *generator) streamRequest() streamed {
	r := g.rangeRequest(false)
	if r.SortTarget != pb.RangeRequest_KEY {
		r.SortOrder = pb.RangeRequest_ASCEND // refused; without an order the reference's answer is wrong
	}
	if g.chance(80) {
		r.MinModRevision, r.MaxModRevision, r.MinCreateRevision, r.MaxCreateRevision = 0, 0, 0, 0
	}
	return streamed{r}
}

// anyOp says whether an operation of r, at any depth and in any branch, satisfies fn.
func anyOp(r *pb.TxnRequest, fn func(*pb.RequestOp) bool) bool {
	for _, op := range slices.Concat(r.Success, r.Failure) {
		if fn(op) || op.GetRequestTxn() != nil && anyOp(op.GetRequestTxn(), fn) {
			return true
		}
	}
	return false
}

// closeDeletes gives open-ended deletes of a transaction with puts one key. The reference does not see that
// such a delete and a put meet: it dies when the put then needs the key (ignore_value, ignore_lease), and
// loses the key when a compaction ends at just that revision.
func closeDeletes(r *pb.TxnRequest, puts bool) {
	anyOp(r, func(op *pb.RequestOp) bool {
		if d := op.GetRequestDeleteRange(); puts && d != nil && len(d.RangeEnd) == 1 && d.RangeEnd[0] == 0 {
			d.RangeEnd = nil
		}
		return false
	})
}

// next returns the next request of any kind.
func (g *generator) next() proto.Message {
	switch n := g.IntN(100); {
	case n < 34:
		return g.put()
	case n < 48:
		return g.rangeRequest(false)
	case n < 54:
		return g.streamRequest()
	case n < 62:
		return g.deleteRange()
	case n < 86:
		r := g.txn(2)
		closeDeletes(r, anyOp(r, func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil }))
		return r
	case n < 88:
		// Physical: until a compaction has ended, what HashKV says at its revision is a matter of time.
		r := &pb.CompactionRequest{Revision: g.revision - int64(g.IntN(40)), Physical: true}
		if g.chance(10) {
			r.Revision = g.revision + int64(g.IntN(3))
		}
		if r.Revision == 0 {
			r.Revision = 1 // after a compaction at 0 the reference answers HashKV(0) from its cache, for ever
		}
		return r
	case n < 92:
		id := g.nextLease
		if g.chance(90) {
			g.nextLease++
		}
		if g.chance(10) {
			id = -id
		}
		ttl := int64(3600 + g.IntN(1000))
		if g.chance(5) {
			ttl = 9000000000 + int64(g.IntN(2))
		}
		return &pb.LeaseGrantRequest{ID: id, TTL: ttl}
	case n < 94:
		return &pb.LeaseRevokeRequest{ID: g.lease()}
	case n < 97:
		return &pb.LeaseTimeToLiveRequest{ID: g.lease(), Keys: g.chance(70)}
	case n < 98:
		return []proto.Message{
			&pb.LeaseLeasesRequest{}, &pb.LeaseKeepAliveRequest{ID: g.lease()}, &pb.StatusRequest{},
			&pb.MemberListRequest{Linearizable: g.chance(50)}, &pb.AlarmRequest{Alarm: pb.AlarmType(g.IntN(4))},
		}[g.IntN(5)]
	default:
		return &pb.HashKVRequest{Revision: g.past(false)}
	}
}

// learn takes what the reference answered.
func (g *generator) learn(req, resp proto.Message) {
	if h, ok := resp.(interface{ GetHeader() *pb.ResponseHeader }); ok && h.GetHeader().GetRevision() > g.revision {
		g.revision = h.GetHeader().GetRevision()
	}
	switch r := req.(type) {
	case *pb.CompactionRequest:
		g.compacted = r.Revision
	case *pb.LeaseGrantRequest:
		g.leases = append(g.leases, r.ID)
	case *pb.LeaseRevokeRequest:
		for i, id := range g.leases {
			if id == r.ID {
				g.leases = append(g.leases[:i], g.leases[i+1:]...)
				break
			}
		}
	}
}

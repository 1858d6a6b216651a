package rpc

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"sluice/stages/wire"
	"sluice/tracing"
)

// sizes are those at which grpc's buffers behave differently: not pooled, one pooled buffer, several.
var sizes = []int{0, 512, 1 << 10, 4 << 10, 16 << 10, 100 << 10, 600 << 10}

// wantError checks code and text as they are on the wire.
func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	got, wanted := status.Convert(err), status.Convert(want)
	if got.Code() != wanted.Code() || got.Message() != wanted.Message() {
		t.Errorf("%s: %s %q, want %s %q", what, got.Code(), got.Message(), wanted.Code(), wanted.Message())
	}
}

// Values of all sizes survive the way in and out while every freed buffer is poisoned, from many clients at once.
func TestValuesSurvivePoisonedBuffers(t *testing.T) {
	s := newServer(t)
	var clients sync.WaitGroup
	for i := range 4 {
		kv := s.kv(t)
		clients.Go(func() {
			ctx := within(t)
			for round := range 2 {
				for _, size := range sizes {
					key := fmt.Appendf(nil, "k-%d-%d", i, size)
					value := bytes.Repeat([]byte{byte('a' + i + round)}, size)
					if _, err := kv.Put(ctx, &pb.PutRequest{Key: key, Value: value}); err != nil {
						t.Error(err)
						return
					}
					got, err := kv.Range(ctx, &pb.RangeRequest{Key: key})
					if err != nil || len(got.Kvs) != 1 || !bytes.Equal(got.Kvs[0].Value, value) {
						t.Errorf("client %d: value of %d bytes came back different (%v)", i, size, err)
						return
					}
				}
			}
		})
	}
	clients.Wait()
	got, err := s.kv(t).Range(within(t), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil || got.Count != int64(4*len(sizes)) || len(got.Kvs) != 4*len(sizes) {
		t.Fatalf("range over all: %d of %d keys, %v", len(got.GetKvs()), got.GetCount(), err)
	}
	for _, kv := range got.Kvs {
		if bytes.IndexByte(kv.Value, poisonByte) >= 0 {
			t.Errorf("key %q has a poisoned value", kv.Key)
		}
	}
}

// Every buffer comes back once the answers are gone.
func TestBuffersComeBack(t *testing.T) {
	pool := NewPoisonPool()
	s := newServer(t, func(c *Config, _ *ListenConfig) { c.Buffers = pool })
	kv := s.kv(t)
	value := bytes.Repeat([]byte("v"), 100<<10)
	for i := range 10 {
		if _, err := kv.Put(within(t), &pb.PutRequest{Key: fmt.Appendf(nil, "k%d", i), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		if _, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}); err != nil {
			t.Fatal(err)
		}
	}
	s.budget.mu.Lock()
	free, limit, grants := s.budget.free, s.budget.max, len(s.budget.shares)
	s.budget.mu.Unlock()
	if free != limit || grants != 0 {
		t.Errorf("read budget: %d of %d bytes free, %d grants out", free, limit, grants)
	}
	// grpc's transport keeps a few of its own while the connection is open.
	if out := pool.Out(); out > 8 {
		t.Errorf("%d buffers are out", out)
	}
}

func TestHeaders(t *testing.T) {
	s := newServer(t)
	kv := s.kv(t)
	check := func(what string, h *pb.ResponseHeader, revision int64) {
		t.Helper()
		want := &pb.ResponseHeader{
			ClusterId: testClusterID, MemberId: testMemberID, RaftTerm: testTerm, Revision: revision,
		}
		if !proto.Equal(h, want) {
			t.Errorf("%s: header %v, want %v", what, h, want)
		}
	}
	put, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a"), Value: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	check("put", put.Header, 2)
	put, err = kv.Put(within(t), &pb.PutRequest{Key: []byte("a"), Value: []byte("2"), PrevKv: true})
	if err != nil || string(put.PrevKv.GetValue()) != "1" {
		t.Fatal(put, err)
	}
	got, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("a"), Revision: 2})
	if err != nil || string(got.Kvs[0].Value) != "1" {
		t.Fatal(got, err)
	}
	check("range at an older revision", got.Header, 3)
	del, err := kv.DeleteRange(within(t), &pb.DeleteRangeRequest{Key: []byte("x")})
	if err != nil || del.Deleted != 0 {
		t.Fatal(del, err)
	}
	check("delete of nothing", del.Header, 3)
	txn, err := kv.Txn(within(t), &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("b")}}},
	}})
	if err != nil || !txn.Succeeded || len(txn.Responses) != 1 {
		t.Fatal(txn, err)
	}
	check("txn", txn.Header, 4)
	compact, err := kv.Compact(within(t), &pb.CompactionRequest{Revision: 3, Physical: true})
	if err != nil {
		t.Fatal(err)
	}
	check("compact", compact.Header, 4)
	if _, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("a"), Revision: 2}); err == nil {
		t.Error("range below the compaction: no error")
	} else {
		wantError(t, "range below the compaction", err, rpctypes.ErrGRPCCompacted)
	}
}

// Validation, in its order (client-api.md 6.2 to 6.5, bug cases BC-01, BC-05, BC-06, BC-13).
func TestValidation(t *testing.T) {
	s := newServer(t)
	kv := s.kv(t)
	ctx := within(t)
	rng := func(r *pb.RangeRequest) error { _, err := kv.Range(ctx, r); return err }
	put := func(r *pb.PutRequest) error { _, err := kv.Put(ctx, r); return err }
	txn := func(ops ...*pb.RequestOp) error { _, err := kv.Txn(ctx, &pb.TxnRequest{Success: ops}); return err }
	a := []byte("a")
	puts := func(n int) []*pb.RequestOp {
		var ops []*pb.RequestOp
		for i := range n {
			ops = append(ops, opPut(fmt.Sprintf("p%d", i)))
		}
		return ops
	}
	for _, c := range []struct {
		what string
		err  error
		want error
	}{
		{"range without key", rng(&pb.RangeRequest{}), rpctypes.ErrGRPCEmptyKey},
		{"BC-01 sort target 99", rng(&pb.RangeRequest{Key: a, SortOrder: 1, SortTarget: 99}),
			rpctypes.ErrGRPCInvalidSortOption},
		{"BC-01 sort order 7", rng(&pb.RangeRequest{Key: a, SortOrder: 7}), rpctypes.ErrGRPCInvalidSortOption},
		{"BC-01 negative sort order", rng(&pb.RangeRequest{Key: a, SortOrder: -1}), rpctypes.ErrGRPCInvalidSortOption},
		{"BC-01 in a txn", txn(opRange(&pb.RangeRequest{Key: a, SortTarget: 99})), rpctypes.ErrGRPCInvalidSortOption},
		{"put without key", put(&pb.PutRequest{Value: a}), rpctypes.ErrGRPCEmptyKey},
		{"BC-06 value provided", put(&pb.PutRequest{Key: a, Value: a, IgnoreValue: true}),
			rpctypes.ErrGRPCValueProvided},
		{"BC-06 lease provided", put(&pb.PutRequest{Key: a, Lease: 1, IgnoreLease: true}),
			rpctypes.ErrGRPCLeaseProvided},
		{"BC-06 key not found", put(&pb.PutRequest{Key: a, IgnoreValue: true}), rpctypes.ErrGRPCKeyNotFound},
		{"unknown lease", put(&pb.PutRequest{Key: a, Lease: 99}), rpctypes.ErrGRPCLeaseNotFound},
		{"BC-13 128 ops", txn(puts(128)...), nil},
		{"BC-13 129 ops", txn(puts(129)...), rpctypes.ErrGRPCTooManyOps},
		{"BC-13 100 + nested 28", txn(append(puts(100), opTxn(puts(28), nil))...), rpctypes.ErrGRPCTooManyOps},
		{"127 ops, one nested with 2", txn(append(puts(126), opTxn([]*pb.RequestOp{opPut("x"), opPut("y")}, nil))...),
			rpctypes.ErrGRPCTooManyOps},
		{"127 ops, one nested with 1", txn(append(puts(126), opTxn([]*pb.RequestOp{opPut("x")}, nil))...), nil},
		{"BC-13 empty operation", txn(&pb.RequestOp{}), rpctypes.ErrGRPCKeyNotFound},
		{"BC-05 revision -1", rng(&pb.RangeRequest{Key: a, Revision: -1}), nil},
		{"BC-05 end below start", rng(&pb.RangeRequest{Key: []byte("b"), RangeEnd: a}), nil},
		{"future revision", rng(&pb.RangeRequest{Key: a, Revision: 1 << 40}), rpctypes.ErrGRPCFutureRev},
	} {
		if c.want == nil && c.err != nil {
			t.Errorf("%s: %v", c.what, c.err)
		} else if c.want != nil {
			wantError(t, c.what, c.err, c.want)
		}
	}
}

func opPut(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key)}}}
}

func opRange(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func opDelete(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)},
	}}
}

func opTxn(success, failure []*pb.RequestOp) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{
		RequestTxn: &pb.TxnRequest{Success: success, Failure: failure},
	}}
}

// A read-only txn needs no consensus, and one without operations not even a barrier (client-api.md 6.5).
func TestReadOnlyTxnRoutes(t *testing.T) {
	s := newServer(t)
	kv := s.kv(t)
	ctx := within(t)
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	proposed, barriers := s.m.proposed.Load(), s.m.barriers.Load()
	step := func(what string, r *pb.TxnRequest, newProposals, newBarriers int64) {
		t.Helper()
		resp, err := kv.Txn(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Header.GetRevision() == 0 {
			t.Errorf("%s: no revision", what)
		}
		proposed, barriers = proposed+newProposals, barriers+newBarriers
		if p, b := s.m.proposed.Load(), s.m.barriers.Load(); p != proposed || b != barriers {
			t.Errorf("%s: %d proposals and %d barriers, want %d and %d", what, p, b, proposed, barriers)
		}
	}
	step("linearizable reads", &pb.TxnRequest{Success: []*pb.RequestOp{
		opRange(&pb.RangeRequest{Key: []byte("a")}),
	}}, 0, 1)
	step("serializable reads", &pb.TxnRequest{Success: []*pb.RequestOp{
		opRange(&pb.RangeRequest{Key: []byte("a"), Serializable: true}),
	}}, 0, 0)
	step("compares only", &pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("a")}}}, 0, 0)
	step("nested reads", &pb.TxnRequest{Success: []*pb.RequestOp{
		opTxn([]*pb.RequestOp{opRange(&pb.RangeRequest{Key: []byte("a")})}, nil),
	}}, 1, 0)
}

// Above the quota a write is refused before it is validated, and the alarm is raised once (client-api.md 6.4).
func TestQuotaRaisesAlarm(t *testing.T) {
	s := newServer(t)
	s.m.quota.Store(1)
	kv := s.kv(t)
	ctx := within(t)
	for range 3 {
		_, err := kv.Put(ctx, &pb.PutRequest{})
		wantError(t, "put above the quota", err, rpctypes.ErrGRPCNoSpace)
	}
	_, err := kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{opTxn([]*pb.RequestOp{opPut("a")}, nil)}})
	wantError(t, "BC-13 nested txn above the quota", err, rpctypes.ErrGRPCNoSpace)
	_, err = pb.NewLeaseClient(s.dial(t)).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 10})
	wantError(t, "grant above the quota", err, rpctypes.ErrGRPCNoSpace)
	if _, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("a")}); err != nil {
		t.Errorf("delete above the quota: %v", err)
	}
	alarms, err := pb.NewMaintenanceClient(s.dial(t)).Alarm(ctx, &pb.AlarmRequest{})
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].MemberID != testMemberID {
		t.Fatalf("alarms %v, %v", alarms, err)
	}
	s.m.quota.Store(0)
	_, err = kv.Put(ctx, &pb.PutRequest{Key: []byte("a")})
	wantError(t, "put under the alarm", err, rpctypes.ErrGRPCNoSpace)
}

// RangeStream's messages, merged, are the answer of Range; only the last has a header (client-api.md 6.3).
func TestRangeStream(t *testing.T) {
	s := newServer(t)
	kv := s.kv(t)
	ctx := within(t)
	for i := range 200 {
		value := bytes.Repeat([]byte("v"), i*100)
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: fmt.Appendf(nil, "k%03d", i), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*pb.RangeRequest{
		{Key: []byte("k"), RangeEnd: []byte("l")},
		{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 7},
		{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 150},
		{Key: []byte("k"), RangeEnd: []byte("l"), CountOnly: true},
		{Key: []byte("k"), RangeEnd: []byte("l"), KeysOnly: true, Serializable: true},
		{Key: []byte("k"), RangeEnd: []byte("l"), Revision: 50},
		{Key: []byte("none")},
		{Key: []byte("k005")},
	} {
		want, err := kv.Range(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := kv.RangeStream(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		got, last := &pb.RangeResponse{}, false
		for {
			m, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if last {
				t.Error("a message after the one with the header")
			}
			last = m.RangeResponse.Header != nil
			proto.Merge(got, m.RangeResponse)
		}
		if !proto.Equal(got, want) {
			t.Errorf("%v: merged stream has %d kvs, count %d, more %v, header %v; range has %d, %d, %v, %v", r,
				len(got.Kvs), got.Count, got.More, got.Header, len(want.Kvs), want.Count, want.More, want.Header)
		}
	}
	for _, r := range []*pb.RangeRequest{
		{Key: []byte("k"), SortOrder: pb.RangeRequest_DESCEND},
		{Key: []byte("k"), SortTarget: pb.RangeRequest_MOD},
		{Key: []byte("k"), MinModRevision: 1},
	} {
		stream, err := kv.RangeStream(ctx, r)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%v: %v, want Unimplemented", r, err)
		}
	}
}

// Sizes: above the request limit the member refuses, above the message limit grpc does, and the connection
// stays usable (bug case BC-14).
func TestSizeLimits(t *testing.T) {
	s := newServer(t)
	kv := s.kv(t)
	_, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 3<<20)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("3 MB: %v", err)
	}
	want := "grpc: received message larger than max (3145736 vs. 2097152)"
	if got := status.Convert(err).Message(); got != want {
		t.Errorf("3 MB: %q, want %q", got, want)
	}
	if _, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 1<<20)}); err != nil {
		t.Error(err)
	}
}

// The stock client's own operations, through its retry, balancer and watch layers.
func TestStockClient(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	ctx := within(t)
	watch := c.Watch(ctx, "w/", clientv3.WithPrefix(), clientv3.WithPrevKV())
	lease, err := c.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "w/1", "one", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "w/1", "two"); err != nil {
		t.Fatal(err)
	}
	if r, err := c.KeepAliveOnce(ctx, lease.ID); err != nil || r.TTL != 60 {
		t.Fatal(r, err)
	}
	var seen []string
	for len(seen) < 2 {
		select {
		case r := <-watch:
			for _, ev := range r.Events {
				seen = append(seen, string(ev.Kv.Value)+"/"+string(ev.PrevKv.GetValue()))
			}
		case <-ctx.Done():
			t.Fatal("no events", seen)
		}
	}
	if fmt.Sprint(seen) != "[one/ two/one]" {
		t.Errorf("events %v", seen)
	}
	st, err := c.Status(ctx, s.address)
	if err != nil || st.Version != "3.7.3" || st.Leader != testMemberID || st.StorageVersion != "3.7.0" {
		t.Errorf("status %v, %v", st, err)
	}
	list, err := c.MemberList(ctx)
	if err != nil || len(list.Members) != 1 || list.Members[0].Name != "one" {
		t.Errorf("members %v, %v", list, err)
	}
}

// What is proposed never asks for a negative revision, at any depth.
func TestProposedRangesReadThePresent(t *testing.T) {
	r := &wire.TxnRequest{
		Success: []wire.RequestOp{
			{Range: &wire.RangeRequest{Key: []byte("a"), Revision: -1}},
			{Txn: &wire.TxnRequest{Failure: []wire.RequestOp{{Range: &wire.RangeRequest{Key: []byte("b"), Revision: -7}}}}},
		},
		Failure: []wire.RequestOp{{Range: &wire.RangeRequest{Key: []byte("c"), Revision: 5}}},
	}
	readPresent(r)
	got := []int64{r.Success[0].Range.Revision, r.Success[1].Txn.Failure[0].Range.Revision, r.Failure[0].Range.Revision}
	if !slices.Equal(got, []int64{0, 0, 5}) {
		t.Errorf("revisions %v, want 0, 0, 5", got)
	}
}

// Beyond what grpc can send an answer is counted, not stored, and refused.
func TestAnswerLimit(t *testing.T) {
	a := newAnswer(new(pool), 0)
	a.max = 100
	for range 10 {
		copy(a.Reserve(10), "head......")
		a.Append([]byte("some bytes"))
	}
	if r := a.done(); !a.tooLarge() || r.size != 200 || r.bufs.Len() != 100 {
		t.Errorf("%d bytes of %d are stored", r.bufs.Len(), r.size)
	}
	c := codec{received: tracing.Nop, sent: tracing.Nop}
	if _, err := c.Marshal(&reply{size: answerBytesMax + 1}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("encoded: %v", err)
	}
}

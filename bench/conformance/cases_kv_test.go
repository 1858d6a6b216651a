package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/bench/process"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The public bug reports of cases/bug-cases.md, each a test named by its id.

// server is one running Sluice with its client and raw stubs.
type server struct {
	*process.Daemon
	c     *clientv3.Client
	kv    pb.KVClient
	lease pb.LeaseClient
	watch pb.WatchClient
	maint pb.MaintenanceClient
}

func serve(t *testing.T, flags ...string) *server {
	t.Helper()
	d := sluice(t, flags...)
	start(t, d)
	return attach(t, d)
}

func attach(t *testing.T, d *process.Daemon) *server {
	t.Helper()
	c := connect(t, d)
	conn := c.ActiveConnection()
	return &server{d, c, pb.NewKVClient(conn), pb.NewLeaseClient(conn), pb.NewWatchClient(conn), pb.NewMaintenanceClient(conn)}
}

// put writes and returns the revision.
func (s *server) put(t *testing.T, key, value string, opts ...clientv3.OpOption) int64 {
	t.Helper()
	r, err := s.c.Put(t.Context(), key, value, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}

func (s *server) get(t *testing.T, key string, opts ...clientv3.OpOption) *clientv3.GetResponse {
	t.Helper()
	r, err := s.c.Get(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// refused fails unless err is the error of that code and text.
func refused(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	s := status.Convert(err)
	var typed interface{ Code() codes.Code }
	got := s.Code()
	if e, ok := err.(interface{ Error() string }); ok && got == codes.Unknown {
		if typed, ok = err.(interface{ Code() codes.Code }); ok {
			got = typed.Code()
		}
		if !strings.Contains(e.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
		if got != code && ok {
			t.Errorf("%s: code %v, want %v", what, got, code)
		}
		return
	}
	if err == nil || got != code || !strings.Contains(s.Message(), text) {
		t.Errorf("%s: %v, want %v %q", what, err, code, text)
	}
}

func keys(r *clientv3.GetResponse) string {
	var names []string
	for _, kv := range r.Kvs {
		names = append(names, string(kv.Key))
	}
	return strings.Join(names, ",")
}

func TestBC01(t *testing.T) {
	s := serve(t)
	s.put(t, "k", "v")
	for _, r := range []*pb.RangeRequest{
		{Key: []byte("k"), SortOrder: 1, SortTarget: 99}, {Key: []byte("k"), SortOrder: 7},
	} {
		_, err := s.kv.Range(t.Context(), r)
		refused(t, "range", err, codes.InvalidArgument, "etcdserver: invalid sort option")
		_, err = s.kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: r}}}})
		refused(t, "range in a txn", err, codes.InvalidArgument, "etcdserver: invalid sort option")
	}
	if r := s.get(t, "k"); r.Count != 1 {
		t.Fatalf("get: %v", r)
	}
}

func TestBC02(t *testing.T) {
	s := serve(t)
	for i := range 5 {
		s.put(t, fmt.Sprintf("k%d", i), "v")
	}
	for _, c := range []struct {
		opts  []clientv3.OpOption
		rows  int
		more  bool
		value string
	}{
		{[]clientv3.OpOption{clientv3.WithLimit(2)}, 2, true, "v"},
		{[]clientv3.OpOption{clientv3.WithLimit(5)}, 5, false, "v"},
		{[]clientv3.OpOption{clientv3.WithLimit(6)}, 5, false, "v"},
		{[]clientv3.OpOption{clientv3.WithLimit(2), clientv3.WithCountOnly()}, 0, false, ""},
		{[]clientv3.OpOption{clientv3.WithLimit(2), clientv3.WithKeysOnly()}, 2, true, ""},
	} {
		r := s.get(t, "k", append(c.opts, clientv3.WithRange("l"))...)
		if len(r.Kvs) != c.rows || r.Count != 5 || r.More != c.more {
			t.Errorf("%d rows, count %d, more %v; want %d, 5, %v", len(r.Kvs), r.Count, r.More, c.rows, c.more)
		}
		for _, kv := range r.Kvs {
			if string(kv.Value) != c.value || kv.Version != 1 || kv.ModRevision == 0 {
				t.Errorf("row %v", kv)
			}
		}
	}
}

func TestBC03(t *testing.T) {
	s := serve(t)
	var revs []int64
	for i := range 5 {
		revs = append(revs, s.put(t, fmt.Sprintf("k%d", i), "v"))
	}
	filter := clientv3.WithMinModRev(revs[3])
	r := s.get(t, "k", clientv3.WithPrefix(), filter)
	if len(r.Kvs) != 2 || r.Count != 5 {
		t.Errorf("filter: %d rows, count %d", len(r.Kvs), r.Count)
	}
	r = s.get(t, "k", clientv3.WithPrefix(), filter, clientv3.WithLimit(1))
	if len(r.Kvs) != 1 || r.Count != 5 || !r.More {
		t.Errorf("filter and limit: %d rows, count %d, more %v", len(r.Kvs), r.Count, r.More)
	}
	if r = s.get(t, "k", clientv3.WithPrefix(), filter, clientv3.WithCountOnly()); r.Count != 5 {
		t.Errorf("count only: %d", r.Count)
	}
}

func TestBC04(t *testing.T) {
	s := serve(t)
	for i := range 5 {
		s.put(t, fmt.Sprintf("k%d", i), fmt.Sprint(9-i))
	}
	r := s.get(t, "k", clientv3.WithPrefix(), clientv3.WithLimit(2), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))
	if keys(r) != "k4,k3" || r.Count != 5 || !r.More {
		t.Errorf("a: %s count %d more %v", keys(r), r.Count, r.More)
	}
	r = s.get(t, "k", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByValue, clientv3.SortAscend))
	if keys(r) != "k4,k3,k2,k1,k0" || len(r.Kvs[0].Value) != 0 {
		t.Errorf("b: %s", keys(r))
	}
	r = s.get(t, "k", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByValue, clientv3.SortNone))
	if keys(r) != "k4,k3,k2,k1,k0" {
		t.Errorf("c: %s", keys(r))
	}
	for i := range 100 {
		var ops []clientv3.Op
		for j := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("many/%05d", (i*100+j)*7919%10000), ""))
		}
		if _, err := s.c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	sorted := s.get(t, "many/", clientv3.WithPrefix(), clientv3.WithLimit(2), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
	plain := s.get(t, "many/", clientv3.WithPrefix(), clientv3.WithLimit(2))
	if keys(sorted) != keys(plain) || sorted.Count != 10000 || plain.Count != 10000 {
		t.Errorf("d: %s of %d and %s of %d", keys(sorted), sorted.Count, keys(plain), plain.Count)
	}
}

func TestBC05(t *testing.T) {
	s := serve(t)
	for i := range 5 {
		s.put(t, fmt.Sprintf("k%d", i), "v")
	}
	if r, err := s.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), Limit: -1}); err != nil || len(r.Kvs) != 5 {
		t.Errorf("limit -1: %v %v", r, err)
	}
	if r, err := s.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), Revision: -1}); err != nil || len(r.Kvs) != 5 {
		t.Errorf("revision -1: %v %v", r, err)
	}
	txn := func() (*pb.TxnResponse, error) {
		return s.kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("kx"), Value: []byte("1")}}},
			{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), Revision: -1}}},
		}})
	}
	if r, err := txn(); err != nil || len(r.Responses[1].GetResponseRange().Kvs) != 6 {
		t.Errorf("txn with revision -1: %v %v", r, err)
	}
	if _, err := s.c.Compact(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if r, err := txn(); err != nil || len(r.Responses[1].GetResponseRange().Kvs) != 6 {
		t.Errorf("txn with revision -1 after a compaction: %v %v", r, err)
	}
	for _, rev := range []int64{0, -5} {
		_, err := s.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: rev})
		refused(t, "compaction", err, codes.OutOfRange, "required revision has been compacted")
	}
	if r, err := s.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("l"), RangeEnd: []byte("k")}); err != nil || r.Count != 0 {
		t.Errorf("inverted: %v %v", r, err)
	}
	_, err := s.kv.Range(t.Context(), &pb.RangeRequest{})
	refused(t, "empty key", err, codes.InvalidArgument, "etcdserver: key is not provided")
}

func TestBC06(t *testing.T) {
	s := serve(t)
	l, err := s.c.Grant(t.Context(), 300)
	if err != nil {
		t.Fatal(err)
	}
	id := int64(l.ID)
	s.put(t, "there", "v")
	for _, c := range []struct {
		r    *pb.PutRequest
		code codes.Code
		text string
	}{
		{&pb.PutRequest{Key: []byte("gone"), IgnoreValue: true}, codes.InvalidArgument, "key not found"},
		{&pb.PutRequest{Key: []byte("there"), IgnoreValue: true, Value: []byte("v")}, codes.InvalidArgument, "value is provided"},
		{&pb.PutRequest{Key: []byte("gone"), IgnoreLease: true}, codes.InvalidArgument, "key not found"},
		{&pb.PutRequest{Key: []byte("there"), IgnoreLease: true, Lease: id}, codes.InvalidArgument, "lease is provided"},
		{&pb.PutRequest{Key: []byte("there"), Lease: 12345}, codes.NotFound, "requested lease not found"},
	} {
		_, err := s.kv.Put(t.Context(), c.r)
		refused(t, c.r.String(), err, c.code, c.text)
	}
	s.put(t, "on", "1", clientv3.WithLease(l.ID))
	s.put(t, "on", "2", clientv3.WithIgnoreLease())
	if r := s.get(t, "on"); r.Kvs[0].Lease != id {
		t.Errorf("ignore_lease lost the lease: %v", r.Kvs[0])
	}
	s.put(t, "on", "3")
	ttl, err := s.c.TimeToLive(t.Context(), l.ID, clientv3.WithAttachedKeys())
	if err != nil || len(ttl.Keys) != 0 {
		t.Errorf("after a plain put: %v %v", ttl, err)
	}
}

func TestBC07(t *testing.T) {
	s := serve(t)
	const clients, each = 20, 500
	revs := make([][]int64, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := range each {
				r, err := s.c.Put(t.Context(), fmt.Sprintf("c%d/%d", c, i), "v")
				if err != nil {
					t.Error(err)
					return
				}
				revs[c] = append(revs[c], r.Header.Revision)
			}
		})
	}
	wg.Wait()
	all := slices.Concat(revs...)
	slices.Sort(all)
	for i, rev := range all {
		if rev != all[0]+int64(i) {
			t.Fatalf("revision %d stands where %d belongs", rev, all[0]+int64(i))
		}
	}
	now := s.get(t, "c0/0").Header.Revision
	if len(all) != clients*each || now != all[len(all)-1] {
		t.Fatalf("%d revisions, now %d, last %d", len(all), now, all[len(all)-1])
	}
	if r, err := s.c.Delete(t.Context(), "missing"); err != nil || r.Header.Revision != now {
		t.Errorf("delete of nothing: %v %v", r, err)
	}
	if r, err := s.c.Txn(t.Context()).If(clientv3.Compare(clientv3.Version("missing"), "=", 0)).Else(clientv3.OpPut("x", "")).Commit(); err != nil || r.Header.Revision != now {
		t.Errorf("empty branch: %v %v", r, err)
	}
	if _, err := s.c.Txn(t.Context()).Then(clientv3.OpPut("x", "", clientv3.WithLease(99))).Commit(); err == nil {
		t.Error("a txn with an unknown lease succeeded")
	}
	if r := s.get(t, "x"); r.Header.Revision != now || r.Count != 0 {
		t.Errorf("after the no-ops: %v", r)
	}
}

func TestBC09(t *testing.T) {
	s := serve(t)
	rev := s.put(t, "d", "v")
	w := s.c.Watch(within(t, 10*time.Second), "d")
	r, err := s.kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("d")}}},
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("d")}}},
	}})
	if err != nil || r.Responses[0].GetResponseDeleteRange().Deleted != 1 || r.Responses[1].GetResponseDeleteRange().Deleted != 0 || r.Header.Revision != rev+1 {
		t.Fatalf("%v %v", r, err)
	}
	s.put(t, "d", "again")
	first, second := <-w, <-w
	if len(first.Events) != 1 || first.Events[0].Type != clientv3.EventTypeDelete || len(second.Events) != 1 || !second.Events[0].IsCreate() {
		t.Errorf("events %v then %v", first.Events, second.Events)
	}
}

func putOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte("v")}}}
}

func delOp(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
}

func txnOp(then, otherwise []*pb.RequestOp) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: then, Failure: otherwise}}}
}

func TestBC10(t *testing.T) {
	s := serve(t)
	puts, deletes := txnOp([]*pb.RequestOp{putOp("n1")}, nil), txnOp([]*pb.RequestOp{delOp("n", "o")}, nil)
	for name, ops := range map[string][]*pb.RequestOp{
		"put, then delete":              {puts, deletes},
		"delete, then put":              {deletes, puts},
		"put outside, then delete":      {putOp("n1"), deletes},
		"delete inside, then put":       {deletes, putOp("n1")},
		"the same put in two siblings":  {puts, puts},
		"put outside and nested deeper": {putOp("n1"), txnOp([]*pb.RequestOp{deletes}, nil)},
	} {
		_, err := s.kv.Txn(t.Context(), &pb.TxnRequest{Success: ops})
		refused(t, name, err, codes.InvalidArgument, "duplicate key given in txn request")
	}
	either := txnOp([]*pb.RequestOp{putOp("n1")}, []*pb.RequestOp{putOp("n1")})
	if _, err := s.kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{either}}); err != nil {
		t.Errorf("the same put in both branches: %v", err)
	}
}

func TestBC12(t *testing.T) {
	s := serve(t)
	for i := range 5 {
		s.put(t, fmt.Sprintf("k%d", i), "v")
	}
	missing, full := []byte("missing"), []byte("k")
	const eq, gt, ne = pb.Compare_EQUAL, pb.Compare_GREATER, pb.Compare_NOT_EQUAL
	empty, emptyEnd := []byte("empty/"), []byte("empty0")
	for _, c := range []struct {
		name string
		c    *pb.Compare
		want bool
	}{
		{"create of nothing == 0", &pb.Compare{Key: empty, RangeEnd: emptyEnd, Result: eq, Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}}, true},
		{"mod of nothing > 0", &pb.Compare{Key: empty, RangeEnd: emptyEnd, Result: gt, Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{}}, false},
		{"missing value != x", &pb.Compare{Key: missing, Result: ne, Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: []byte("x")}}, false},
		{"missing lease == 0", &pb.Compare{Key: missing, Result: eq, Target: pb.Compare_LEASE, TargetUnion: &pb.Compare_Lease{}}, true},
		{"missing version == 0", &pb.Compare{Key: missing, Result: eq, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}, true},
		{"all versions > 0", &pb.Compare{Key: full, RangeEnd: []byte("l"), Result: gt, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}, true},
		{"open end", &pb.Compare{Key: full, RangeEnd: []byte{0}, Result: gt, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}, true},
	} {
		r, err := s.kv.Txn(t.Context(), &pb.TxnRequest{Compare: []*pb.Compare{c.c}})
		if err != nil || r.Succeeded != c.want {
			t.Errorf("%s: %v %v", c.name, r, err)
		}
	}
	_, err := s.kv.Txn(t.Context(), &pb.TxnRequest{Compare: []*pb.Compare{{}}})
	refused(t, "compare without key", err, codes.InvalidArgument, "key is not provided")
}

func manyPuts(n int, size int) (ops []*pb.RequestOp) {
	for i := range n {
		op := putOp(fmt.Sprintf("p%d", i))
		op.GetRequestPut().Value = make([]byte, size)
		ops = append(ops, op)
	}
	return ops
}

func TestBC13(t *testing.T) {
	s := serve(t)
	txn := func(ops []*pb.RequestOp) error {
		_, err := s.kv.Txn(t.Context(), &pb.TxnRequest{Success: ops})
		return err
	}
	refused(t, "129 operations", txn(manyPuts(129, 1)), codes.InvalidArgument, "too many operations in txn request")
	if err := txn(manyPuts(128, 1)); err != nil {
		t.Errorf("128 operations: %v", err)
	}
	nested := manyPuts(128, 1)
	refused(t, "100 and 28 nested", txn(append(nested[:100:100], txnOp(nested[100:], nil))), codes.InvalidArgument, "too many operations in txn request")
	if err := txn([]*pb.RequestOp{{}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("empty operation: %v", err)
	}
	t.Run("quota", func(t *testing.T) {
		s := serve(t, "--quota-backend-bytes=2000000")
		_, err := s.kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{txnOp([]*pb.RequestOp{txnOp(manyPuts(20, 70000), nil)}, nil)}})
		if err != nil {
			t.Fatalf("below the quota: %v", err)
		}
		for range 3 { // the size counts once it is committed
			_, err = s.kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{txnOp([]*pb.RequestOp{txnOp(manyPuts(20, 70000), nil)}, nil)}})
			if err != nil {
				break
			}
			if _, err := s.c.HashKV(t.Context(), s.c.Endpoints()[0], 0); err != nil {
				t.Fatal(err)
			}
			if _, err := s.maint.Hash(t.Context(), &pb.HashRequest{}); err != nil { // commits
				t.Fatal(err)
			}
		}
		refused(t, "nested beyond the quota", err, codes.ResourceExhausted, "database space exceeded")
		if a, err := s.c.AlarmList(t.Context()); err != nil || len(a.Alarms) != 1 || a.Alarms[0].Alarm != pb.AlarmType_NOSPACE {
			t.Errorf("alarms: %v %v", a, err)
		}
	})
}

func TestBC14(t *testing.T) {
	s := serve(t)
	value := func(i int) string { return strings.Repeat(string(rune('a'+i%26)), 1400000) }
	last := map[string]string{}
	for i := range 60 { // past one segment of 64 MB
		key := fmt.Sprintf("big%d", i%5)
		s.put(t, key, value(i))
		last[key] = value(i)
		s.put(t, fmt.Sprintf("small%d", i), "s")
	}
	s.Kill()
	start(t, s.Daemon)
	s = attach(t, s.Daemon)
	for key, want := range last {
		if r := s.get(t, key); len(r.Kvs) != 1 || string(r.Kvs[0].Value) != want {
			t.Errorf("%s differs after kill -9", key)
		}
	}
	if r := s.get(t, "small", clientv3.WithPrefix(), clientv3.WithCountOnly()); r.Count != 60 {
		t.Errorf("%d small keys, want 60", r.Count)
	}
	_, err := s.c.Put(t.Context(), "x", strings.Repeat("x", 1600000))
	refused(t, "1.6 MB", err, codes.InvalidArgument, "etcdserver: request is too large")
	_, err = s.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("x"), Value: make([]byte, 3000000)}, grpc.MaxCallSendMsgSize(1<<24))
	refused(t, "3 MB", err, codes.ResourceExhausted, "received message larger than max")
	s.put(t, "after", "v")
}

func TestBC15(t *testing.T) {
	s := serve(t, "--quota-backend-bytes=2000000")
	ctx := context.Background()
	version, value := int64(0), ""
	for i := 0; ; i++ {
		next := fmt.Sprint(i) + strings.Repeat("x", 20000+i*100)
		r, err := s.c.Txn(ctx).If(clientv3.Compare(clientv3.Version("cas"), "=", version)).Then(clientv3.OpPut("cas", next)).Commit()
		if err != nil {
			break
		}
		if !r.Succeeded {
			t.Fatal("the compare failed without a rival")
		}
		version, value = version+1, next
		if i > 2000 {
			t.Fatal("no end of space")
		}
	}
	r := s.get(t, "cas")
	if string(r.Kvs[0].Value) != value || r.Kvs[0].Version != version {
		t.Fatalf("an answer was an error but the write happened: version %d, acknowledged %d", r.Kvs[0].Version, version)
	}
	if _, err := s.c.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Defragment(ctx, s.c.Endpoints()[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	if r, err := s.c.Txn(ctx).If(clientv3.Compare(clientv3.Version("cas"), "=", version)).Then(clientv3.OpPut("cas", "end")).Commit(); err != nil || !r.Succeeded {
		t.Errorf("after space came back: %v %v", r, err)
	}
}

func TestBC82(t *testing.T) {
	s := serve(t)
	for i := range 10 {
		s.put(t, "k", fmt.Sprint(i))
	}
	r := s.get(t, "k", clientv3.WithRev(3))
	if r.Header.Revision != 11 || r.Kvs[0].ModRevision != 3 {
		t.Errorf("range: %v", r)
	}
	txn, err := s.c.Txn(t.Context()).Then(clientv3.OpGet("k", clientv3.WithRev(3))).Commit()
	if err != nil || txn.Header.Revision != 11 || txn.Responses[0].GetResponseRange().Kvs[0].ModRevision != 3 {
		t.Errorf("txn: %v %v", txn, err)
	}
	stream, err := s.kv.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("k"), Revision: 3})
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil || m.RangeResponse.Header.GetRevision() != 11 || m.RangeResponse.Kvs[0].ModRevision != 3 {
		t.Errorf("stream: %v %v", m, err)
	}
}

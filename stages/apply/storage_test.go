package apply

import (
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/backend"
	"sluice/stages/apply/buckets"
	"sluice/stages/wire"
)

// TestStorageVersion walks the rules of contract/disk-and-peer.md section 6.3.
func TestStorageVersion(t *testing.T) {
	for _, c := range []struct {
		name, stored, cluster string
		term                  uint64
		want                  string
		steps                 int
	}{
		{"fresh, no cluster version", "", "", 2, "", 0},
		{"fresh", "", "3.7.0", 2, "3.7.0", 2},
		{"fresh, no term yet", "", "3.7.0", 0, "", 0},
		{"undecided cluster", "", "3.0.0", 2, "", 0},
		{"an old cluster", "", "3.5.0", 2, "", 0},
		{"from 3.6", "3.6.0", "3.7.0", 2, "3.7.0", 1},
		{"the same", "3.7.0", "3.7.0", 2, "3.7.0", 0},
		{"a patch of the same", "3.7.0", "3.7.2", 2, "3.7.0", 0},
		{"downwards waits", "3.7.0", "3.6.0", 2, "3.7.0", 0},
	} {
		m := buckets.New()
		if c.stored != "" {
			m.Put(backend.Meta, keyStorageVersion, []byte(c.stored))
		}
		s, err := loadStorage(m, m)
		if err != nil {
			t.Fatal(err)
		}
		steps := s.raise(c.cluster, c.term)
		got := string(m.Get(backend.Meta, keyStorageVersion))
		if got != c.want || s.version != c.want || len(steps) != c.steps {
			t.Errorf("%s: %q, steps %v, want %q", c.name, got, steps, c.want)
		}
	}
	m := buckets.New()
	m.Put(backend.Meta, keyStorageVersion, []byte("new"))
	if _, err := loadStorage(m, m); err == nil {
		t.Error("garbage was read as a version")
	}
}

// TestStorageDowngrade: behind the disk snapshot, and not while the log needs a newer release.
func TestStorageDowngrade(t *testing.T) {
	m := buckets.New()
	m.Put(backend.Meta, keyStorageVersion, []byte("3.7.0"))
	s, err := loadStorage(m, m)
	if err != nil {
		t.Fatal(err)
	}
	entry := func(index uint64, ver string) *raftpb.Entry {
		data, err := proto.Marshal(&pb.InternalRaftRequest{
			Header: &pb.RequestHeader{ID: 1}, DowngradeVersionTest: &pb.DowngradeVersionTestRequest{Ver: ver},
		})
		if err != nil {
			t.Fatal(err)
		}
		return wire.NewEntry(raftpb.EntryNormal, 1, index, data)
	}
	s.observe(entry(8, "3.7.0")) // applied before the start, and still in the log
	step, err := s.lower("3.6.0", 2, 7)
	if step != "" || err == nil || !strings.Contains(err.Error(), "WAL contains newer entries") {
		t.Errorf("entry 8 is in the log: %q, %v", step, err)
	}
	s.observe(entry(9, "3.6.0"))
	if step, err := s.lower("3.7.0", 2, 7); step != "" || err != nil {
		t.Errorf("nothing to lower: %q, %v", step, err)
	}
	if step, err := s.lower("3.6.0", 2, 9); step != "3.6.0" || err != nil {
		t.Errorf("lower: %q, %v", step, err)
	}
	if got := string(m.Get(backend.Meta, keyStorageVersion)); got != "3.6.0" {
		t.Errorf("stored %q", got)
	}
	step, err = s.lower("3.5.0", 2, 9)
	if step != "3.5.0" || err != nil || m.Get(backend.Meta, keyStorageVersion) != nil {
		t.Errorf("3.5 has no such key: %q, %v", step, err)
	}
}

// TestCost is what contract/client-api.md sections 6.4, 6.5 and 8.1 reckon.
func TestCost(t *testing.T) {
	put := func(k, v int) wire.RequestOp {
		return wire.RequestOp{Put: &wire.PutRequest{Key: make([]byte, k), Value: make([]byte, v)}}
	}
	txn := func(success, failure []wire.RequestOp) *wire.TxnRequest {
		return &wire.TxnRequest{Success: success, Failure: failure}
	}
	ops := func(ops ...wire.RequestOp) []wire.RequestOp { return ops }
	nested := wire.RequestOp{Txn: txn(ops(put(1, 1)), ops(put(1, 9)))}
	for _, c := range []struct {
		r    wire.Request
		want int64
	}{
		{wire.Request{Put: put(3, 5).Put}, 264},
		{wire.Request{Txn: txn(ops(put(1, 0), put(1, 0)), ops(put(2, 500)))}, 758},
		{wire.Request{Txn: txn(ops(put(1, 0), nested), nil)}, 257 + 266},
		{wire.Request{Txn: txn(ops(wire.RequestOp{Delete: &wire.DeleteRangeRequest{}}), nil)}, 0},
		{wire.Request{DeleteRange: &wire.DeleteRangeRequest{}}, 0},
		{wire.Request{Other: &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{}}}, 64},
		{wire.Request{Other: &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{}}}, 0},
	} {
		if got := Cost(&c.r); got != c.want {
			t.Errorf("cost %d, want %d of %+v", got, c.want, c.r)
		}
	}
}

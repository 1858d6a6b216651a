package apply

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/apply/auth"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/buckets"
	"sluice/stages/apply/members"
)

// randomEntry makes an entry of any kind. Small name spaces make refusals, overlaps and leases with keys common.
func randomEntry(t testing.TB, b *bench, rnd *rand.Rand) *raftpb.Entry {
	key := func() []byte { return []byte{'a' + byte(rnd.IntN(12))} }
	lease := func() int64 { return int64(rnd.IntN(5)) - 1 }
	name := func() string { return []string{"root", "u1", "u2"}[rnd.IntN(3)] }
	role := func() string { return []string{"root", "r1", "r2"}[rnd.IntN(3)] }
	put := func() *pb.PutRequest {
		return &pb.PutRequest{
			Key: key(), Value: []byte(fmt.Sprint(rnd.IntN(100))), Lease: lease() * int64(rnd.IntN(2)), PrevKv: rnd.IntN(3) == 0,
		}
	}
	del := func() *pb.DeleteRangeRequest {
		return &pb.DeleteRangeRequest{Key: key(), RangeEnd: [][]byte{nil, {0}, key()}[rnd.IntN(3)]}
	}
	if rnd.IntN(4) == 0 {
		b.who = auth.Identity{User: name(), Revision: b.core.auth.Table().Revision() - uint64(rnd.IntN(2))}
	}
	r := &pb.InternalRaftRequest{}
	switch n := rnd.IntN(40); n {
	case 0, 1, 2, 3, 4, 5, 6, 7, 8, 9:
		r.Put = put()
	case 10, 11, 12:
		r.DeleteRange = del()
	case 13, 14, 15, 16:
		op := func(o *pb.RequestOp) *pb.RequestOp { return o }
		r.Txn = &pb.TxnRequest{Success: []*pb.RequestOp{
			op(&pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put()}}),
			op(&pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key()}}}),
			op(&pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: del()}}),
		}, Failure: []*pb.RequestOp{
			op(&pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put()}}),
		}, Compare: []*pb.Compare{{
			Key: key(), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER,
			TargetUnion: &pb.Compare_Version{Version: int64(rnd.IntN(3))},
		}}}
	case 17, 18:
		r.Compaction = &pb.CompactionRequest{Revision: b.store.Revision() - int64(rnd.IntN(10)), Physical: rnd.IntN(2) == 0}
	case 19, 20, 21:
		r.LeaseGrant = &pb.LeaseGrantRequest{ID: lease(), TTL: int64(rnd.IntN(9))}
	case 22, 23:
		r.LeaseRevoke = &pb.LeaseRevokeRequest{ID: lease()}
	case 24:
		r.LeaseCheckpoint = &pb.LeaseCheckpointRequest{Checkpoints: []*pb.LeaseCheckpoint{{ID: lease(), Remaining_TTL: 5}}}
	case 25, 26:
		r.Alarm = &pb.AlarmRequest{
			Action: pb.AlarmRequest_AlarmAction(rnd.IntN(4)), MemberID: uint64(rnd.IntN(2)),
			Alarm: pb.AlarmType(rnd.IntN(2)),
		}
	case 27:
		r.AuthUserAdd = &pb.AuthUserAddRequest{Name: name(), HashedPassword: "eA=="}
	case 28:
		r.AuthUserGrantRole = &pb.AuthUserGrantRoleRequest{User: name(), Role: role()}
	case 29:
		r.AuthRoleAdd = &pb.AuthRoleAddRequest{Name: role()}
	case 30, 31:
		r.AuthRoleGrantPermission = &pb.AuthRoleGrantPermissionRequest{Name: role(), Perm: &authpb.Permission{
			PermType: authpb.Permission_Type(rnd.IntN(3)), Key: key(), RangeEnd: [][]byte{nil, {0}, key()}[rnd.IntN(3)],
		}}
	case 32:
		r.AuthEnable = &pb.AuthEnableRequest{}
	case 33:
		r.AuthDisable = &pb.AuthDisableRequest{}
	case 34:
		r.AuthUserDelete = &pb.AuthUserDeleteRequest{Name: name()}
	case 35:
		r.AuthRoleDelete = &pb.AuthRoleDeleteRequest{Role: role()}
	case 36:
		r.ClusterVersionSet = &membershippb.ClusterVersionSetRequest{Ver: []string{"3.5.0", "3.6.0", "3.7.0"}[rnd.IntN(3)]}
	case 37:
		id := uint64(rnd.IntN(5)) + 1
		return b.conf(t, []*raftpb.ConfChange{
			members.Add(members.Member{ID: id, PeerURLs: []string{"http://" + members.Hex(id)}, IsLearner: rnd.IntN(3) == 0}),
			members.Promote(id), members.Update(id, []string{"http://u" + members.Hex(id)}),
			members.Remove(max(id, 3)),
		}[rnd.IntN(4)])
	case 38:
		return b.next(raftpb.EntryNormal, nil)
	case 39:
		r.DowngradeInfoSet = &membershippb.DowngradeInfoSetRequest{Enabled: rnd.IntN(2) == 0, Ver: "3.6.0"}
	}
	return b.request(t, r)
}

// dump is the replicated content: what every member must have alike. storageVersion each follows by itself.
func dump(disk backend.Reader) string {
	return buckets.Dump(disk, backend.Alarm, backend.Auth, backend.AuthRoles, backend.AuthUsers, backend.Cluster,
		backend.Key, backend.Lease, backend.Members, backend.MembersRemoved) +
		fmt.Sprintf("%x", disk.Get(backend.Meta, []byte("scheduledCompactRev")))
}

func copyOf(disk *buckets.Memory) *buckets.Memory {
	c := buckets.New()
	for b := backend.Alarm; b <= backend.Meta; b++ {
		disk.Scan(b, nil, nil, func(k, v []byte) bool {
			c.Put(b, append([]byte(nil), k...), append([]byte(nil), v...))
			return true
		})
	}
	return c
}

// TestReplay: the same entries give the same buckets and the same results on another member; and a member that
// stopped at any entry, whose log is then handed out again from an earlier one on, ends in the same state.
//
// Rule: design.md section 7; contract/disk-and-peer.md section 5.3.
func TestReplay(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const n = 1500
	type stop struct {
		disk  *buckets.Memory
		index uint64
		term  uint64
	}
	first := newBench(t, buckets.New(), 0, 0)
	var entries []*raftpb.Entry
	var results []string
	var stops []stop
	for range n {
		first.term = max(first.term, 1)
		if rnd.IntN(100) == 0 {
			first.term++
		}
		e := randomEntry(t, first, rnd)
		entries = append(entries, e)
		results = append(results, first.show(first.apply(e), nil))
		if rnd.IntN(50) == 0 {
			stops = append(stops, stop{copyOf(first.disk), first.core.index, first.core.term})
		}
	}
	want := dump(first.disk)
	second := newBench(t, buckets.New(), 0, 0)
	for i, e := range entries {
		if got := second.show(second.apply(e), nil); got != results[i] {
			t.Fatalf("entry %d: result\n%swant\n%s", i, got, results[i])
		}
	}
	if got := dump(second.disk); got != want {
		t.Fatalf("another member has\n%s\nwant\n%s", got, want)
	}
	for _, st := range stops {
		again := newBench(t, st.disk, st.index, st.term)
		before := dump(again.disk)
		from := max(int(st.index)-rnd.IntN(60), 0)
		for i, e := range entries[from:] {
			got := again.show(again.apply(e), nil)
			if e.GetIndex() > st.index {
				if got != results[from+i] && len(e.Data) > 0 {
					t.Fatalf("stopped at %d: entry %d: result\n%swant\n%s", st.index, e.GetIndex(), got, results[from+i])
				}
				continue
			}
			if got != "" || dump(again.disk) != before {
				t.Fatalf("stopped at %d: entry %d, applied before, had an effect:\n%s", st.index, e.GetIndex(), got)
			}
		}
		if got := dump(again.disk); got != want {
			t.Fatalf("stopped at %d, replayed from %d:\n%s\nwant\n%s", st.index, from, got, want)
		}
	}
}

// TestBrokenLog: what no member can have written stops this one, with the numbers.
func TestBrokenLog(t *testing.T) {
	entry := func(typ raftpb.EntryType, data []byte) func(b *bench) *raftpb.Entry {
		return func(b *bench) *raftpb.Entry { return b.next(typ, data) }
	}
	for _, c := range []struct {
		name, with string
		entry      func(b *bench) *raftpb.Entry
	}{
		{"a gap", "entry 9 after 1, want 2", func(b *bench) *raftpb.Entry {
			b.index = 8
			return b.next(raftpb.EntryNormal, nil)
		}},
		{"a V2 conf change", "unknown entry type", entry(raftpb.EntryConfChangeV2, nil)},
		{"garbage", "does not decode", entry(raftpb.EntryNormal, []byte{0xff})},
		{"no id", "could not find a header", entry(raftpb.EntryNormal, []byte{0x22, 0})},
		{"no request", "not implemented apply", entry(raftpb.EntryNormal, []byte{0xa2, 0x06, 0x02, 0x08, 0x01})},
		{"an unknown request", "not implemented apply",
			entry(raftpb.EntryNormal, []byte{0xa2, 0x06, 0x02, 0x08, 0x01, 0x82, 0x7d, 0x00})},
		{"a broken conf change", "does not decode", entry(raftpb.EntryConfChange, []byte{0xff})},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, buckets.New(), 0, 0)
			b.apply(b.next(raftpb.EntryNormal, nil))
			defer func() {
				if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), c.with) {
					t.Errorf("panic %v, want one with %q", r, c.with)
				}
			}()
			b.apply(c.entry(b))
		})
	}
}

package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/members"
	"sluice/stages/wire"
)

// TestOrder: whoever sees an event, a result or an index finds its state in the view; replicate hears last.
func TestOrder(t *testing.T) {
	m := start(t, t.TempDir(), nil)
	defer m.stop()
	m.do(&pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 1, TTL: 60}})
	m.out.took()
	m.do(put("a", "1"), &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 2, TTL: 60}}, put("b", "2"))
	want := []string{
		"events 2 revision 3 view 3", "leases 1", "complete 3", "published 4 view 4", "ack 1 up to 4 checkpoint false",
	}
	if got := m.out.took(); !reflect.DeepEqual(got, want) {
		t.Errorf("order\n%q, want\n%q", got, want)
	}
}

// TestAnnounce: a start tells watch the revision and expire all leases, before anything else.
func TestAnnounce(t *testing.T) {
	dir := t.TempDir()
	m := start(t, dir, nil)
	m.do(put("a", "1"), &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: -5, TTL: 60}})
	m.stop()
	m = start(t, dir, nil)
	m.do(put("a", "2"))
	m.stop()
	if m.out.events[0].Revision != 2 || len(m.out.events[0].Events) != 0 {
		t.Errorf("first events %+v", m.out.events[0])
	}
	want := []LeaseChange{{Kind: LeasesReset}, {Kind: LeaseGranted, ID: -5, TTL: 60}}
	if !reflect.DeepEqual(m.out.leases, want) {
		t.Errorf("leases %+v, want %+v", m.out.leases, want)
	}
}

// TestReplayOnDisk: a member that is killed comes back with what was committed, skips what the log hands out
// again, and ends with the same bytes as one that was never killed.
func TestReplayOnDisk(t *testing.T) {
	dir, whole := t.TempDir(), t.TempDir()
	var log []*raftpb.Entry
	feed := func(m *member, entries []*raftpb.Entry) {
		for len(entries) > 0 {
			n := min(7, len(entries))
			m.send(Batch{Entries: entries[:n]})
			m.ack(entries[n-1].GetIndex())
			entries = entries[n:]
		}
	}
	m := start(t, whole, nil)
	for i := range 200 {
		r := put(fmt.Sprint("k", i%17), fmt.Sprint(i))
		if i%13 == 5 {
			r = &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(fmt.Sprint("k", i%17))}}
		}
		log = append(log, m.entry(r))
	}
	feed(m, log)
	m.stop()
	m = start(t, dir, nil)
	feed(m, log[:100])
	if err := m.stage.sealed(); err != nil {
		t.Fatal(err)
	}
	feed(m, log[100:150])
	m.kill()
	m = start(t, dir, nil)
	index := m.stage.core.index
	if index < 100 || index > 150 {
		t.Errorf("the database is at entry %d, want 100 to 150", index)
	}
	feed(m, log[60:])
	m.stop()
	if a, b := onDisk(t, whole), onDisk(t, dir); a != b {
		t.Errorf("databases differ:\n%s\nand after the kill\n%s", a, b)
	}
}

// sealed waits until everything applied is durable: Hash has apply seal.
func (s *Stage) sealed() error {
	_, err := s.Hash(context.Background())
	return err
}

// TestReadOnlyEntriesMoveTheIndex is BC-61: alarm lists alone lead to a disk snapshot whose database is as far.
func TestReadOnlyEntriesMoveTheIndex(t *testing.T) {
	dir := t.TempDir()
	m := start(t, dir, func(c *Config) {
		c.CheckpointEntries = 5
		c.Image = func(*members.Table) []byte { return []byte("{}") }
	})
	var cp *raftpb.Snapshot
	for range 7 {
		m.do(&pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{Action: pb.AlarmRequest_GET}})
	}
	for cp == nil {
		cp = (<-m.out.acks).Checkpoint
	}
	m.kill()
	if i := cp.GetMetadata().GetIndex(); i < 6 || i > 7 || string(cp.Data) != "{}" {
		t.Errorf("disk snapshot %v", cp)
	}
	m = start(t, dir, nil)
	defer m.stop()
	if m.index < cp.GetMetadata().GetIndex() {
		t.Errorf("after the kill the database is at %d, the snapshot at %d", m.index, cp.GetMetadata().GetIndex())
	}
}

// TestCheckpointThreshold: strictly more entries than the count, at and above it; the conf state is the members'.
func TestCheckpointThreshold(t *testing.T) {
	m := start(t, t.TempDir(), func(c *Config) { c.CheckpointEntries, c.CheckpointIndex = 4, 0 })
	defer m.stop()
	cc, err := proto.Marshal(members.Add(members.Member{ID: 1, PeerURLs: []string{"http://a:1"}}))
	if err != nil {
		t.Fatal(err)
	}
	m.index++
	m.send(Batch{Entries: []*raftpb.Entry{wire.NewEntry(raftpb.EntryConfChange, 1, m.index, cc)}})
	if a := m.ack(1); len(a.Verdicts) != 1 || a.Verdicts[0].Change.GetNodeId() != 1 {
		t.Errorf("verdicts %+v", a.Verdicts)
	}
	for range 3 {
		m.do(put("a", "1"))
	}
	if err := m.stage.sealed(); err != nil {
		t.Fatal(err)
	}
	select {
	case a := <-m.out.acks:
		t.Errorf("after four entries: %+v", a)
	default:
	}
	m.do(put("a", "1"))
	a := <-m.out.acks
	meta := a.Checkpoint.GetMetadata()
	if a.Batches != 0 || meta.GetIndex() != 5 || !reflect.DeepEqual(meta.GetConfState().GetVoters(), []uint64{1}) {
		t.Errorf("checkpoint %+v", a)
	}
	if i, _ := m.disk.Durable(); i < 5 {
		t.Errorf("the snapshot was asked for while the database was durable up to %d", i)
	}
}

// TestDowngradeForcesSnapshot: a lower cluster version asks for a disk snapshot at its entry, and the storage
// version follows behind it.
func TestDowngradeForcesSnapshot(t *testing.T) {
	m := start(t, t.TempDir(), nil)
	defer m.stop()
	version := func(v string) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{ClusterVersionSet: &membershippb.ClusterVersionSetRequest{Ver: v}}
	}
	m.do(version("3.7.0"))
	m.do(version("3.6.0"))
	if a := <-m.out.acks; a.Checkpoint.GetMetadata().GetIndex() != 2 {
		t.Errorf("ack %+v", a)
	}
	m.do(put("a", "1"))
	v := m.stage.View()
	defer v.Release()
	if v.StorageVersion != "3.6.0" || v.Members.ClusterVersion() != "3.6.0" {
		t.Errorf("storage %s, cluster %s", v.StorageVersion, v.Members.ClusterVersion())
	}
}

// TestViews: a view does not move, is given back once, and its age is seen while it is held.
func TestViews(t *testing.T) {
	m := start(t, t.TempDir(), nil)
	defer m.stop()
	m.do(put("a", "1"))
	v := m.stage.View()
	m.do(put("a", "2"), put("b", "1"))
	if v.Index != 1 || v.KV.Revision() != 2 {
		t.Errorf("the view moved to %d, revision %d", v.Index, v.KV.Revision())
	}
	if kv, ok := v.KV.Get([]byte("a"), 2); !ok || !bytes.Contains(kv, []byte("1")) {
		t.Errorf("a at 2: %x", kv)
	}
	if m.stage.OldestView() == 0 {
		t.Error("a held view has no age")
	}
	v.Release()
	if d := m.stage.OldestView(); d != 0 {
		t.Errorf("no view is held, age %s", d)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("released twice without a panic")
			}
		}()
		v.Release()
	}()
}

// TestManyViewsBehindOne: holds of released views do not pile up behind one that a reader keeps.
func TestManyViewsBehindOne(t *testing.T) {
	m := start(t, t.TempDir(), nil)
	defer m.stop()
	m.do(put("a", "1"))
	v := m.stage.View()
	defer v.Release()
	for range 3 * holdsKept {
		m.do(put("a", "2"))
	}
	m.stage.views.mu.Lock()
	defer m.stage.views.mu.Unlock()
	if n := len(m.stage.views.holds); n > 2*holdsKept {
		t.Errorf("%d holds behind one view", n)
	}
}

// TestPhysicalCompaction: who waits for it is told once the deletes are committed; the log line has its figures.
func TestPhysicalCompaction(t *testing.T) {
	dir := t.TempDir()
	m := start(t, dir, func(c *Config) { c.CompactionRecordsMax = 3 })
	for i := range 20 {
		m.do(put("a", fmt.Sprint(i)))
	}
	_, rs := m.do(&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 20, Physical: true}},
		&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 21, Physical: true}},
		&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 21, Physical: true}})
	if rs[2].Err == nil || rs[2].Physical != nil {
		t.Errorf("compaction again: %+v", rs[2])
	}
	<-rs[0].Physical
	<-rs[1].Physical
	if last := m.out.events[len(m.out.events)-1]; last.CompactRevision != 21 {
		t.Errorf("watch knows compaction revision %d, want 21", last.CompactRevision)
	}
	m.kill()
	lines := m.logs.FilterMessage("finished scheduled compaction").All()
	if len(lines) != 2 || lines[0].ContextMap()["number-of-keys-compacted"] != int64(18) {
		t.Errorf("log %+v", lines)
	}
	disk := onDisk(t, dir)
	if n := strings.Count(disk, "key 0"); n != 1 {
		t.Errorf("%d records stay, want 1:\n%s", n, disk)
	}
	if !strings.Contains(disk, "finishedCompactRev = 00000000000000155f") {
		t.Errorf("the compaction is not finished on disk:\n%s", disk)
	}
}

// TestCompactionResumes: one that a kill cut short is carried out after the start.
func TestCompactionResumes(t *testing.T) {
	dir := t.TempDir()
	m := start(t, dir, func(c *Config) { c.CompactionRecordsMax, c.CompactionPause = 1, time.Hour })
	for i := range 20 {
		m.do(put("a", fmt.Sprint(i)))
	}
	m.do(&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 20}})
	if err := m.stage.sealed(); err != nil {
		t.Fatal(err)
	}
	m.kill()
	if disk := onDisk(t, dir); strings.Contains(disk, "finishedCompactRev") {
		t.Fatalf("the compaction is finished already:\n%s", disk)
	}
	m = start(t, dir, nil)
	_, rs := m.do(&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 21, Physical: true}})
	<-rs[0].Physical
	m.stop()
	if disk := onDisk(t, dir); strings.Count(disk, "key 0") != 1 {
		t.Errorf("records stay:\n%s", disk)
	}
}

// TestInstall: the database of a snapshot replaces everything, views of before stay, expire and watch are told,
// and what waited for the old state is let go.
func TestInstall(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	leader := start(t, from, nil)
	leader.do(put("a", "leader"), &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 9, TTL: 60}})
	for i := range 30 {
		leader.do(put(fmt.Sprint("k", i), "x"))
	}
	stream, err := leader.stage.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if stream.Index != leader.index {
		t.Errorf("the image is at %d, want %d", stream.Index, leader.index)
	}
	var image bytes.Buffer
	if _, err := stream.WriteTo(&image); err != nil {
		t.Fatal(err)
	}
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}
	m := start(t, to, func(c *Config) { c.CompactionRecordsMax, c.CompactionPause = 1, time.Hour })
	for i := range 5 {
		m.do(put("old", fmt.Sprint(i)))
	}
	_, rs := m.do(&pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 1, TTL: 60}},
		&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 5, Physical: true}})
	old := m.stage.View()
	if err := os.WriteFile(m.cfg.SnapshotFile(stream.Index), image.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	index, term := stream.Index, uint64(1)
	m.send(Install{&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &index, Term: &term}}})
	if a := m.ack(index); a.Index != index {
		t.Errorf("ack %+v", a)
	}
	<-rs[1].Physical
	v := m.stage.View()
	if _, ok := v.KV.Get([]byte("old"), v.KV.Revision()); ok || v.Index != index || v.Leases.Len() != 1 {
		t.Errorf("after the installation: index %d, %d leases, old key %t", v.Index, v.Leases.Len(), ok)
	}
	if _, ok := v.Leases.Get(9); !ok {
		t.Error("the snapshot's lease is missing")
	}
	v.Release()
	if _, ok := old.KV.Get([]byte("old"), 6); !ok || old.Leases.Len() != 1 {
		t.Error("a view of before has changed")
	}
	old.Release()
	last := m.out.events[len(m.out.events)-1]
	if last.Revision != leader.stage.core.store.Revision() || len(last.Events) != 0 {
		t.Errorf("watch was told %+v", last)
	}
	if n := len(m.out.leases); m.out.leases[n-2].Kind != LeasesReset || m.out.leases[n-1].ID != 9 {
		t.Errorf("expire was told %+v", m.out.leases)
	}
	m.index = index
	m.do(put("a", "after"))
	m.stop()
	leader.do(put("a", "after"))
	leader.stop()
	if a, b := onDisk(t, from), onDisk(t, to); a != b {
		t.Errorf("leader\n%s\nfollower\n%s", a, b)
	}
}

// TestRemoved: a member that an entry removes says so once, and again after each start.
func TestRemoved(t *testing.T) {
	dir := t.TempDir()
	told := make(chan struct{}, 10)
	with := func(c *Config) { c.Removed = func() { told <- struct{}{} } }
	m := start(t, dir, with)
	for _, cc := range []*raftpb.ConfChange{
		members.Add(members.Member{ID: 1, PeerURLs: []string{"http://a:1"}}),
		members.Add(members.Member{ID: 2, PeerURLs: []string{"http://b:1"}}),
		members.Remove(1), members.Remove(1), members.Remove(2),
	} {
		data, err := proto.Marshal(cc)
		if err != nil {
			t.Fatal(err)
		}
		m.index++
		m.send(Batch{Entries: []*raftpb.Entry{wire.NewEntry(raftpb.EntryConfChange, 1, m.index, data)}})
		m.ack(m.index)
	}
	m.stop()
	if len(told) != 1 {
		t.Errorf("told %d times, want once", len(told))
	}
	m = start(t, dir, with)
	m.do(put("a", "1"))
	m.stop()
	if len(told) != 2 {
		t.Errorf("told %d times after a restart, want twice", len(told))
	}
}

// TestMergedBatches: batches that wait together are one pass and one acknowledgement, with all responses in order.
func TestMergedBatches(t *testing.T) {
	m := start(t, t.TempDir(), nil)
	defer m.stop()
	m.log.SetCapacity(10)
	m.do(put("a", "1"))
	held := make(chan struct{})
	m.out.mu.Lock()
	m.out.gate = held
	m.out.mu.Unlock()
	m.send(Batch{Entries: []*raftpb.Entry{m.entry(put("a", "2"))}})
	<-held // the stage is inside Events
	response := func(to uint64) []*raftpb.Message { return []*raftpb.Message{{To: &to}} }
	m.send(Batch{Entries: []*raftpb.Entry{m.entry(put("a", "3"))}, Responses: response(7)})
	m.send(Batch{Entries: []*raftpb.Entry{m.entry(put("a", "4")), m.entry(put("a", "5"))}, Responses: response(8)})
	held <- struct{}{}
	m.ack(2)
	a := m.ack(5)
	if a.Batches != 2 || len(a.Responses) != 2 || a.Responses[0].GetTo() != 7 || a.Responses[1].GetTo() != 8 {
		t.Errorf("ack %+v", a)
	}
}

// TestClosed: requests to a stage whose backend has ended are answered.
func TestClosed(t *testing.T) {
	m := start(t, t.TempDir(), nil)
	m.do(put("a", "1"))
	m.stop()
	if _, err := m.stage.Hash(context.Background()); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("hash after the end: %v", err)
	}
	m.stage.Close() // again: harmless
	v := m.stage.View()
	if v.Index != 1 || v.KV.Revision() != 2 {
		t.Errorf("the last view is of entry %d, revision %d", v.Index, v.KV.Revision())
	}
	v.Release()
}

// TestStopAmidCompaction: an orderly stop does not wait for the pauses of a compaction.
func TestStopAmidCompaction(t *testing.T) {
	m := start(t, t.TempDir(), func(c *Config) { c.CompactionRecordsMax, c.CompactionPause = 1, time.Hour })
	for i := range 9 {
		m.do(put("a", fmt.Sprint(i)))
	}
	m.do(&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 9, Physical: true}})
	m.stop()
}

// TestWarnings: a refused and a slow request are logged, with sizes for values and without secrets; the slow one is
// counted.
func TestWarnings(t *testing.T) {
	slow := &count{}
	m := start(t, t.TempDir(), func(c *Config) { c.WarningDuration, c.Metrics.SlowApplies = time.Nanosecond, slow })
	m.do(&pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("k"), Value: []byte("secret-value"), Lease: 404}},
		&pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "u", HashedPassword: "c2VjcmV0"}},
		&pb.InternalRaftRequest{Txn: &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: []byte("k"), Target: pb.Compare_VALUE,
				TargetUnion: &pb.Compare_Value{Value: []byte("secret")}}},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{
				Key: []byte("k"), Value: []byte("secret")}}}},
			Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
				Key: []byte("r"), RangeEnd: []byte("s")}}}},
		}})
	m.stop()
	var lines []string
	for _, l := range m.logs.All() {
		if l.Message == "apply request took too long" || l.Message == "failed to apply request" {
			lines = append(lines, fmt.Sprint(l.Message, " ", l.ContextMap()["request"], " ", l.ContextMap()["error"]))
		}
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{
		`failed to apply request header:<ID:1048577 > put:<key:"k" value_size:12 lease:404 > lease not found`,
		`apply request took too long header:<ID:1048577 > put:<key:"k" value_size:12 lease:404 > lease not found`,
		`compare:<target:3 result:0 key:"k" value_size:6 > success:<put:<key:"k" value_size:6 > > ` +
			`failure:<range:<key:"r" range_end:"s" > > > <nil>`,
		`auth_user_add`,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no line with %s in\n%s", want, all)
		}
	}
	if strings.Contains(all, "secret") || strings.Contains(all, "c2VjcmV0") || len(lines) != 4 || slow.n != 3 {
		t.Errorf("%.0f slow requests, log\n%s", slow.n, all)
	}
}

type count struct{ n float64 }

func (c *count) Add(n float64) { c.n += n }

// TestFailures: what cannot be delivered, and a backend that is gone, end the stage with one error.
func TestFailures(t *testing.T) {
	m := start(t, t.TempDir(), nil)
	m.do(put("a", "1"))
	broken := errors.New("no watch")
	m.out.mu.Lock()
	m.out.fail = broken
	m.out.mu.Unlock()
	m.send(Batch{Entries: []*raftpb.Entry{m.entry(put("a", "2"))}})
	if err := <-m.runErr; !errors.Is(err, broken) || !strings.Contains(err.Error(), "revision 3") {
		t.Errorf("run: %v", err)
	}
	m.runErr <- nil
	m.kill()
}

// TestCancel: a stage that waits for the next one ends when it is cancelled, with the cause.
func TestCancel(t *testing.T) {
	m := start(t, t.TempDir(), nil)
	held := make(chan struct{})
	m.out.mu.Lock()
	m.out.gate = held
	m.out.mu.Unlock()
	m.send(Batch{Entries: []*raftpb.Entry{m.entry(put("a", "2"))}})
	<-held
	m.cancel()
	if err := <-m.runErr; !errors.Is(err, context.Canceled) {
		t.Errorf("run: %v", err)
	}
	m.runErr <- nil
	m.kill()
}

// TestNoSpaceIsAskedFor: the alarm is asked for with every write above the quota until it is there.
func TestNoSpaceIsAskedFor(t *testing.T) {
	m := start(t, t.TempDir(), func(c *Config) { c.QuotaBytes = 1 })
	defer m.stop()
	if !m.stage.OverQuota(1) || m.stage.OverQuota(0) {
		t.Error("OverQuota is wrong")
	}
	_, rs := m.do(put("a", "1"), put("a", "2"))
	if rs[0].Err != nil || rs[1].Err != nil || m.out.raised != 1 {
		t.Errorf("%+v, asked %d times for one batch", rs, m.out.raised)
	}
	m.do(put("a", "3"))
	m.do(&pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{
		Action: pb.AlarmRequest_ACTIVATE, MemberID: 1, Alarm: pb.AlarmType_NOSPACE,
	}})
	if _, rs := m.do(put("a", "4")); !errors.Is(rs[0].Err, ErrNoSpace) {
		t.Errorf("with the alarm: %+v", rs)
	}
	v := m.stage.View()
	defer v.Release()
	if m.out.raised != 2 || v.KV.Revision() != 4 || len(v.Alarms) != 1 {
		t.Errorf("asked %d times, revision %d, alarms %v", m.out.raised, v.KV.Revision(), v.Alarms)
	}
}

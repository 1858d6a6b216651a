package members

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/backend"
	"sluice/stages/apply/buckets"
)

const testID = 0x64674cd17a494f9e // of http://127.0.0.1:24001 with token etcd-cluster

// TestIDs recomputes the example of contract/disk-and-peer.md section 7.1.
func TestIDs(t *testing.T) {
	id := MemberID([]string{"http://127.0.0.1:24001"}, "etcd-cluster")
	if id != testID {
		t.Errorf("member id %x, want %x", id, uint64(testID))
	}
	if c := ClusterID([]uint64{id}); c != 0xc3304fcae129e762 {
		t.Errorf("cluster id %x, want c3304fcae129e762", c)
	}
	urls := []string{"http://b:1", "http://a:1"}
	if MemberID(urls, "t") != MemberID([]string{"http://a:1", "http://b:1"}, "t") {
		t.Error("the order of URLs changes the id")
	}
	if urls[0] != "http://b:1" {
		t.Error("the caller's URLs were sorted in place")
	}
	if AddedID(urls, 1) == AddedID(urls, 2) {
		t.Error("an added member's id does not depend on the time")
	}
}

// TestBootstrapChangeBytes compares the conf change of the first entry with contract section 15.1.
func TestBootstrapChangeBytes(t *testing.T) {
	cc := Add(Member{ID: testID, PeerURLs: []string{"http://127.0.0.1:24001"}, Name: "m1"})
	got, err := proto.MarshalOptions{Deterministic: true}.Marshal(cc)
	if err != nil {
		t.Fatal(err)
	}
	want := "1000189e9fa5d2979ad3b364224c" + hex.EncodeToString(
		[]byte(`{"id":7234835788977491870,"peerURLs":["http://127.0.0.1:24001"],"name":"m1"}`))
	if hex.EncodeToString(got) != want {
		t.Errorf("conf change\n%x, want\n%s", got, want)
	}
	for _, c := range []struct {
		cc   *raftpb.ConfChange
		want string
	}{
		{Add(Member{ID: 7, PeerURLs: []string{"http://a:1"}, IsLearner: true}),
			`{"id":7,"peerURLs":["http://a:1"],"isLearner":true}`},
		{Promote(7), `{"id":7,"peerURLs":null,"isPromote":true}`},
		{Update(7, []string{"http://a:2"}), `{"id":7,"peerURLs":["http://a:2"]}`},
		{Remove(7), ``},
	} {
		if string(c.cc.Context) != c.want {
			t.Errorf("%s: context %s, want %s", c.cc.GetType(), c.cc.Context, c.want)
		}
	}
}

func load(t *testing.T, m *buckets.Memory) *Set {
	t.Helper()
	s, err := Load(m, m, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestVerdicts walks every rule by which a conf change is refused, in the order in which they count.
//
// Rule: contract/disk-and-peer.md section 8.3.
func TestVerdicts(t *testing.T) {
	m := buckets.New()
	s := load(t, m)
	steps := []struct {
		name string
		cc   *raftpb.ConfChange
		want error
	}{
		{"add 1", Add(Member{ID: 1, PeerURLs: []string{"http://a:1"}, Name: "one"}), nil},
		{"add 1 again", Add(Member{ID: 1, PeerURLs: []string{"http://z:1"}}), ErrIDExists},
		{"add 2 with a URL of 1", Add(Member{ID: 2, PeerURLs: []string{"http://b:1", "http://a:1"}}), ErrPeerURLExists},
		{"id before URL", Add(Member{ID: 1, PeerURLs: []string{"http://a:1"}}), ErrIDExists},
		{"add 2", Add(Member{ID: 2, PeerURLs: []string{"http://b:1"}}), nil},
		{"add learner 3", Add(Member{ID: 3, PeerURLs: []string{"http://c:1"}, IsLearner: true}), nil},
		{"a second learner", Add(Member{ID: 4, PeerURLs: []string{"http://d:1"}, IsLearner: true}), ErrTooManyLearners},
		{"URL before learners", Add(Member{ID: 4, PeerURLs: []string{"http://c:1"}, IsLearner: true}), ErrPeerURLExists},
		{"promote a voter", Promote(2), ErrNotLearner},
		{"promote nobody", Promote(9), ErrIDNotFound},
		{"promote 3", Promote(3), nil},
		{"promote 3 again", Promote(3), ErrNotLearner},
		{"update to a foreign URL", Update(2, []string{"http://a:1"}), ErrPeerURLExists},
		{"update to its own URL", Update(2, []string{"http://b:1"}), nil},
		{"update 2", Update(2, []string{"http://b:2"}), nil},
		{"update nobody", Update(9, []string{"http://x:1"}), ErrIDNotFound},
		{"remove nobody", Remove(9), ErrIDNotFound},
		{"remove 2", Remove(2), nil},
		{"remove 2 again", Remove(2), ErrIDRemoved},
		{"add the removed", Add(Member{ID: 2, PeerURLs: []string{"http://q:1"}}), ErrIDRemoved},
		{"promote the removed", Promote(2), ErrIDRemoved},
		{"update the removed", Update(2, nil), ErrIDRemoved},
		{"its URL is free again", Add(Member{ID: 5, PeerURLs: []string{"http://b:2"}}), nil},
	}
	for _, st := range steps {
		before := buckets.Dump(m)
		if err := s.Apply(st.cc); !errors.Is(err, st.want) {
			t.Errorf("%s: %v, want %v", st.name, err, st.want)
		}
		if st.want != nil && buckets.Dump(m) != before {
			t.Errorf("%s: refused, and the buckets changed", st.name)
		}
	}
	want := `members 1 = {"id":1,"peerURLs":["http://a:1"],"name":"one"}
members 3 = {"id":3,"peerURLs":["http://c:1"]}
members 5 = {"id":5,"peerURLs":["http://b:2"]}
members_removed 2 = removed
`
	if got := buckets.Dump(m); got != want {
		t.Errorf("buckets\n%swant\n%s", got, want)
	}
	if got := string(s.Table().ConfStateJSON()); got != `{"voters":[1,3,5],"auto_leave":false}` {
		t.Errorf("conf state %s", got)
	}
	if back := load(t, m).Table(); string(back.ConfStateJSON()) != string(s.Table().ConfStateJSON()) ||
		len(back.List()) != 3 || !back.Removed(2) || back.Removed(1) {
		t.Errorf("loaded again: %+v", back)
	}
}

// TestTableIsImmutable: what a reader holds does not move with later changes.
func TestTableIsImmutable(t *testing.T) {
	s := load(t, buckets.New())
	for id := uint64(1); id <= 3; id++ {
		if err := s.Apply(Add(Member{ID: id, PeerURLs: []string{"http://a:" + Hex(id)}})); err != nil {
			t.Fatal(err)
		}
	}
	old := s.Table()
	if err := s.Apply(Remove(2)); err != nil {
		t.Fatal(err)
	}
	s.Publish(1, "one", []string{"http://c:1"})
	if err := s.Apply(Update(3, []string{"http://n:1"})); err != nil {
		t.Fatal(err)
	}
	s.SetClusterVersion("3.7.0", Version{3, 7, 3})
	if len(old.List()) != 3 || old.Removed(2) || old.List()[0].Name != "" || old.ClusterVersion() != "" ||
		old.List()[2].PeerURLs[0] != "http://a:3" {
		t.Errorf("the table changed: %+v", old)
	}
}

// TestLearners: the limit is inclusive, and the local member sees its own role.
func TestLearners(t *testing.T) {
	m := buckets.New()
	s, err := Load(m, m, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int]error{1: nil, 2: nil} {
		learner := Member{ID: uint64(id), PeerURLs: []string{"http://l:" + Hex(uint64(id))}, IsLearner: true}
		if err := s.Apply(Add(learner)); !errors.Is(err, want) {
			t.Errorf("learner %d: %v", id, err)
		}
	}
	err = s.Apply(Add(Member{ID: 3, PeerURLs: []string{"http://l:3"}, IsLearner: true}))
	if !errors.Is(err, ErrTooManyLearners) {
		t.Errorf("a third learner of two: %v", err)
	}
	if err := s.CheckLearners(); err != nil {
		t.Errorf("two learners of two: %v", err)
	}
	if lowered, err := Load(m, m, 2, 1); err != nil || !errors.Is(lowered.CheckLearners(), ErrTooManyLearners) {
		t.Errorf("two learners, one allowed: %v", err)
	}
	if !s.Table().IsLearner() {
		t.Error("the local member is a learner and does not see it")
	}
	if got := string(s.Table().ConfStateJSON()); got != `{"learners":[1,2],"auto_leave":false}` {
		t.Errorf("conf state %s", got)
	}
	if err := s.Apply(Promote(2)); err != nil || s.Table().IsLearner() {
		t.Errorf("promoted: %v, learner %t", err, s.Table().IsLearner())
	}
}

// TestAttributes: a removed member's attributes are ignored, an unknown one's stop the member.
func TestAttributes(t *testing.T) {
	m := buckets.New()
	s := load(t, m)
	if err := s.Apply(Add(Member{ID: 1, PeerURLs: []string{"http://a:1"}})); err != nil {
		t.Fatal(err)
	}
	s.Publish(1, "n<1>", []string{"http://a:2"})
	want := `{"id":1,"peerURLs":["http://a:1"],"name":"n\u003c1\u003e","clientURLs":["http://a:2"]}`
	if got := string(m.Get(backend.Members, []byte("1"))); got != want {
		t.Errorf("member %s, want %s", got, want)
	}
	if err := s.Apply(Remove(1)); err != nil {
		t.Fatal(err)
	}
	s.Publish(1, "late", nil)
	if m.Get(backend.Members, []byte("1")) != nil {
		t.Error("a removed member came back with its attributes")
	}
	mustPanic(t, "member unknown", func() { s.Publish(9, "x", nil) })
}

// TestClusterVersion: lowering is told apart, and a version above the binary's cannot be served.
func TestClusterVersion(t *testing.T) {
	m := buckets.New()
	s := load(t, m)
	server := Version{3, 7, 3}
	for _, c := range []struct {
		ver     string
		lowered bool
	}{{"3.6.0", false}, {"3.7.0", false}, {"3.7.0", false}, {"3.6.0", true}} {
		if got := s.SetClusterVersion(c.ver, server); got != c.lowered {
			t.Errorf("cluster version %s: lowered %t", c.ver, got)
		}
	}
	s.SetDowngrade(Downgrade{TargetVersion: "3.6.0", Enabled: true})
	want := "cluster clusterVersion = 3.6.0\ncluster downgrade = {\"target-version\":\"3.6.0\",\"enabled\":true}\n"
	if got := buckets.Dump(m); got != want {
		t.Errorf("buckets\n%s", got)
	}
	if back := load(t, m).Table(); back.ClusterVersion() != "3.6.0" || !back.Downgrade().Enabled {
		t.Errorf("loaded again: %+v", back)
	}
	s.SetDowngrade(Downgrade{})
	if got := string(m.Get(backend.Cluster, []byte("downgrade"))); got != `{"target-version":"","enabled":false}` {
		t.Errorf("downgrade off: %s", got)
	}
	mustPanic(t, "invalid downgrade", func() { s.SetClusterVersion("3.8.0", server) })
}

// TestBrokenContext: a conf change that no member can have written stops the member.
func TestBrokenContext(t *testing.T) {
	s := load(t, buckets.New())
	bad := Add(Member{ID: 1, PeerURLs: []string{"http://a:1"}})
	bad.Context = []byte("{")
	mustPanic(t, "context", func() { _ = s.Apply(bad) })
	other := Add(Member{ID: 1, PeerURLs: []string{"http://a:1"}})
	other.NodeId = proto.Uint64(2)
	mustPanic(t, "context of", func() { _ = s.Apply(other) })
}

// TestLoadRefusesGarbage: every key that cannot be read is named.
func TestLoadRefusesGarbage(t *testing.T) {
	for _, c := range []struct {
		bucket     backend.Bucket
		key, value string
	}{
		{backend.Members, "xyz", `{"id":1}`},
		{backend.Members, "1", `{"id":2}`},
		{backend.Members, "1", `{`},
		{backend.MembersRemoved, "-", "removed"},
		{backend.Cluster, "clusterVersion", "new"},
		{backend.Cluster, "downgrade", "["},
	} {
		m := buckets.New()
		m.Put(c.bucket, []byte(c.key), []byte(c.value))
		if _, err := Load(m, m, 1, 1); err == nil || !strings.Contains(err.Error(), c.key) {
			t.Errorf("%s %s = %s: %v", c.bucket, c.key, c.value, err)
		}
	}
}

// TestParseVersion: at, below and above what a version is.
func TestParseVersion(t *testing.T) {
	for s, want := range map[string]string{
		"3.7.0": "3.7.0", "3.7.3-rc.1": "3.7.3", "3.6": "", "": "", "a.b.c": "", "3.7.0.1": "", "-1.0.0": "",
	} {
		v, err := ParseVersion(s)
		if (err != nil) != (want == "") || (err == nil && v.String() != want) {
			t.Errorf("%q: %v, %v, want %q", s, v, err, want)
		}
	}
	if AtLeast("3.5.9", 3, 6) || !AtLeast("3.6.0", 3, 6) || !AtLeast("4.0.0", 3, 6) || AtLeast("", 3, 6) {
		t.Error("AtLeast is wrong")
	}
}

func mustPanic(t *testing.T, with string, fn func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if r := recover(); r == nil || !strings.Contains(r.(string), with) {
			t.Errorf("panic %v, want one with %q", r, with)
		}
	}()
	fn()
}

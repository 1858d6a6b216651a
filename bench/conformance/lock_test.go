package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/bench/process"
	"sluice/server/rpc/electionpb"
	"sluice/server/rpc/lockpb"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// lockSide is one of two servers that are given the same calls of the Lock and Election services, and the
// transcript of what it answered.
type lockSide struct {
	*process.Daemon
	t          *testing.T
	ctx        context.Context
	c          *clientv3.Client
	lease      pb.LeaseClient
	auth       pb.AuthClient
	lock       lockpb.LockClient
	election   electionpb.ElectionClient
	header     *pb.ResponseHeader // cluster and member of every answer
	transcript []string
}

func newLockSide(t *testing.T, d *process.Daemon) *lockSide {
	t.Helper()
	start(t, d)
	conn, err := grpc.NewClient(strings.TrimPrefix(d.Client, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s := &lockSide{
		Daemon: d, t: t, ctx: within(t, time.Minute), c: connect(t, d),
		lease: pb.NewLeaseClient(conn), auth: pb.NewAuthClient(conn),
		lock: lockpb.NewLockClient(conn), election: electionpb.NewElectionClient(conn),
	}
	got, err := s.c.Get(s.ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	s.header = got.Header
	return s
}

// say notes an answer: its header's revision and fields, or its error's code and text.
func (s *lockSide) say(what string, m proto.Message, err error) {
	s.t.Helper()
	if err != nil {
		st := status.Convert(err)
		s.note("%s: %v %q", what, st.Code(), st.Message())
		return
	}
	h := m.(interface{ GetHeader() *pb.ResponseHeader }).GetHeader()
	if h.GetClusterId() != s.header.ClusterId || h.GetMemberId() != s.header.MemberId || h.GetRaftTerm() == 0 {
		s.t.Errorf("%s: %s answered with header %v", s.Program, what, h)
	}
	h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
	text, err := protojson.Marshal(m)
	if err != nil {
		s.t.Fatal(err)
	}
	s.note("%s: %s", what, compact(s.t, text))
}

func (s *lockSide) note(format string, args ...any) {
	s.transcript = append(s.transcript, fmt.Sprintf(format, args...))
}

// protobuf's own error texts hold now one kind of space, now the other.
var anySpace = regexp.MustCompile(`[\s\x{a0}]+`)

func compact(t *testing.T, text []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return b.String()
}

// state notes all keys of the store and its revision.
func (s *lockSide) state() {
	s.t.Helper()
	r, err := s.c.Get(s.ctx, "", clientv3.WithPrefix())
	if err != nil {
		s.t.Fatal(err)
	}
	var keys []string
	for _, kv := range r.Kvs {
		keys = append(keys, fmt.Sprintf("%s=%q lease %x created %d modified %d", kv.Key, kv.Value, kv.Lease,
			kv.CreateRevision, kv.ModRevision))
	}
	s.note("revision %d: %s", r.Header.Revision, strings.Join(keys, ", "))
}

func (s *lockSide) grant(ids ...int64) {
	s.t.Helper()
	for _, id := range ids {
		if _, err := s.lease.LeaseGrant(s.ctx, &pb.LeaseGrantRequest{ID: id, TTL: 600}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// await returns when n keys are below prefix.
func (s *lockSide) await(prefix string, n int64) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 15*time.Second)
	defer cancel()
	for {
		r, err := s.c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			s.t.Fatalf("%s: waits for %d keys below %s: %v\n%s", s.Program, n, prefix, err,
				strings.Join(s.transcript, "\n"))
		}
		if r.Count == n {
			return
		}
		once, stop := context.WithCancel(ctx)
		<-s.c.Watch(once, prefix, clientv3.WithPrefix(), clientv3.WithRev(r.Header.Revision+1))
		stop()
	}
}

// waiting is a call that waits.
type waiting struct {
	s      *lockSide
	what   string
	cancel context.CancelFunc
	answer chan answer
}

func (s *lockSide) begin(what string, call func(context.Context) (proto.Message, error)) *waiting {
	ctx, cancel := context.WithCancel(s.ctx)
	w := &waiting{s, what, cancel, make(chan answer, 1)}
	go func() {
		resp, err := call(ctx)
		w.answer <- answer{resp, err}
	}()
	return w
}

// end notes the answer, once there is one.
func (w *waiting) end() {
	w.s.t.Helper()
	select {
	case a := <-w.answer:
		w.s.say(w.what, a.resp, a.err)
	case <-time.After(20 * time.Second):
		w.s.t.Fatalf("%s: %s does not end\n%s", w.s.Program, w.what, strings.Join(w.s.transcript, "\n"))
	}
	w.cancel()
}

func (s *lockSide) beginLock(name string, lease int64) *waiting {
	return s.begin(fmt.Sprintf("lock %s %x", name, lease), func(ctx context.Context) (proto.Message, error) {
		return s.lock.Lock(ctx, &lockpb.LockRequest{Name: []byte(name), Lease: lease})
	})
}

func (s *lockSide) doLock(name string, lease int64) { s.beginLock(name, lease).end() }

func (s *lockSide) unlock(key string) {
	s.t.Helper()
	r, err := s.lock.Unlock(s.ctx, &lockpb.UnlockRequest{Key: []byte(key)})
	s.say("unlock "+key, r, err)
}

func (s *lockSide) beginCampaign(name string, lease int64, value string) *waiting {
	what := fmt.Sprintf("campaign %s %x %q", name, lease, value)
	return s.begin(what, func(ctx context.Context) (proto.Message, error) {
		return s.election.Campaign(ctx, &electionpb.CampaignRequest{
			Name: []byte(name), Lease: lease, Value: []byte(value),
		})
	})
}

func (s *lockSide) campaign(name string, lease int64, value string) {
	s.beginCampaign(name, lease, value).end()
}

func (s *lockSide) leader(name string) {
	s.t.Helper()
	r, err := s.election.Leader(s.ctx, &electionpb.LeaderRequest{Name: []byte(name)})
	s.say("leader "+name, r, err)
}

func (s *lockSide) proclaim(l *electionpb.LeaderKey, value string) {
	s.t.Helper()
	r, err := s.election.Proclaim(s.ctx, &electionpb.ProclaimRequest{Leader: l, Value: []byte(value)})
	s.say(fmt.Sprintf("proclaim %s rev %d %q", l.GetKey(), l.GetRev(), value), r, err)
}

func (s *lockSide) resign(l *electionpb.LeaderKey) {
	s.t.Helper()
	r, err := s.election.Resign(s.ctx, &electionpb.ResignRequest{Leader: l})
	s.say(fmt.Sprintf("resign %s rev %d", l.GetKey(), l.GetRev()), r, err)
}

// key returns the key of a candidate, with its present create revision.
func (s *lockSide) key(name string, lease int64) *electionpb.LeaderKey {
	s.t.Helper()
	key := fmt.Sprintf("%s/%x", name, lease)
	r, err := s.c.Get(s.ctx, key)
	if err != nil || len(r.Kvs) != 1 {
		s.t.Fatal(s.Program, key, r, err)
	}
	return &electionpb.LeaderKey{
		Name: []byte(name), Key: []byte(key), Rev: r.Kvs[0].CreateRevision, Lease: lease,
	}
}

// observe opens a stream; next notes its next message or its end.
func (s *lockSide) observe(ctx context.Context, name string) *observer {
	s.t.Helper()
	stream, err := s.election.Observe(ctx, &electionpb.LeaderRequest{Name: []byte(name)})
	if err != nil {
		s.t.Fatal(err)
	}
	return &observer{s, "observe " + name, stream}
}

type observer struct {
	s      *lockSide
	what   string
	stream grpc.ServerStreamingClient[electionpb.LeaderResponse]
}

func (o *observer) next() {
	o.s.t.Helper()
	m, err := o.stream.Recv()
	if errors.Is(err, io.EOF) {
		o.s.note("%s: end", o.what)
		return
	}
	o.s.say(o.what, m, err)
}

// post notes the answer of the JSON gateway.
func (s *lockSide) post(path, body string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.Client+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.note("%s %s: %d %s %s", path, body, resp.StatusCode, resp.Header.Get("Content-Type"), s.plainJSON(text))
}

// plainJSON is an answer without what differs between clusters, in one order of its fields.
func (s *lockSide) plainJSON(text []byte) string {
	s.t.Helper()
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Sprintf("%q", text)
	}
	inner := v
	if result, ok := v["result"].(map[string]any); ok {
		inner = result
	}
	if h, ok := inner["header"].(map[string]any); ok {
		if h["cluster_id"] != fmt.Sprint(s.header.ClusterId) || h["member_id"] != fmt.Sprint(s.header.MemberId) {
			s.t.Errorf("%s: header %v", s.Program, h)
		}
		delete(h, "cluster_id")
		delete(h, "member_id")
		delete(h, "raft_term")
	}
	plain, err := json.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return anySpace.ReplaceAllString(string(plain), " ")
}

// locks is a script of the Lock service.
func (s *lockSide) locks() {
	s.grant(0xa, 0xb, 0xc, 0xd, 0xabc, -7)
	s.doLock("m", 0xa)
	s.doLock("m", 0xa)
	s.doLock("", 0xa)
	s.doLock("m/x", 0xb)
	s.unlock("m/x/b")
	s.doLock("neg", -7)
	s.doLock("m", 0x999)
	b := s.beginLock("m", 0xb)
	s.await("m/", 2)
	c := s.beginLock("m", 0xc)
	s.await("m/", 3)
	s.state()
	s.unlock("m/a")
	b.end()
	s.unlock("m/nothing")
	s.unlock("")
	d := s.beginLock("m", 0xd)
	s.await("m/", 3)
	s.unlock("m/d") // not the oldest, and its session is over
	s.unlock("m/b")
	c.end()
	s.unlock("m/c")
	d.end()
	s.doLock("m", 0xc)
	gone := s.beginLock("m", 0xa)
	s.await("m/", 2)
	gone.cancel()
	s.await("m/", 1)
	<-gone.answer
	last := s.beginLock("m", 0xb)
	s.await("m/", 2)
	if _, err := s.lease.LeaseRevoke(s.ctx, &pb.LeaseRevokeRequest{ID: 0xc}); err != nil {
		s.t.Fatal(err)
	}
	last.end()
	if _, err := s.c.Put(s.ctx, "odd/abc", "put by hand"); err != nil {
		s.t.Fatal(err)
	}
	s.doLock("odd", 0xabc)
	s.state()
}

// elections is a script of the Election service.
func (s *lockSide) elections() {
	s.grant(0x1a, 0x1b, 0x1c, 0x1d)
	s.leader("e")
	empty := s.observe(s.ctx, "e")
	s.campaign("e", 0x1a, "one")
	s.campaign("e", 0x1a, "one")
	empty.next()
	first := s.key("e", 0x1a)
	s.campaign("e", 0x1a, "uno")
	empty.next()
	late := s.observe(s.ctx, "e")
	late.next()
	b := s.beginCampaign("e", 0x1b, "two")
	s.await("e/", 2)
	c := s.beginCampaign("e", 0x1c, "three")
	s.await("e/", 3)
	s.leader("e")
	s.proclaim(first, "three")
	late.next()
	second := s.key("e", 0x1b)
	s.proclaim(second, "early") // not the leader, but the key is its own
	s.proclaim(&electionpb.LeaderKey{Name: first.Name, Key: first.Key, Rev: first.Rev + 1, Lease: first.Lease}, "x")
	s.proclaim(&electionpb.LeaderKey{Name: first.Name, Key: first.Key, Rev: first.Rev, Lease: 0x999}, "x")
	s.proclaim(nil, "x")
	s.proclaim(&electionpb.LeaderKey{}, "x")
	s.state()
	s.resign(first)
	b.end()
	late.next()
	empty.next() // what was between
	empty.next()
	s.resign(first)
	s.resign(nil)
	s.resign(&electionpb.LeaderKey{})
	s.resign(&electionpb.LeaderKey{Name: first.Name, Key: second.Key, Rev: second.Rev + 1})
	s.proclaim(first, "late")
	s.leader("e")
	d := s.beginCampaign("e", 0x1d, "four")
	s.await("e/", 3)
	d.cancel()
	s.await("e/", 2)
	<-d.answer
	s.resign(second)
	c.end()
	late.next()
	empty.next()
	s.resign(s.key("e", 0x1c))
	s.leader("e")
	s.campaign("e", 0x1d, "last")
	late.next()
	empty.next()
	s.campaign("e", 0x999, "x")
	s.campaign("", 0x1d, "x")
	s.state()
}

// unleased is what lease 0 gives.
func (s *lockSide) unleased() {
	leases := func() []int64 {
		r, err := s.lease.LeaseLeases(s.ctx, &pb.LeaseLeasesRequest{})
		if err != nil {
			s.t.Fatal(err)
		}
		var ids []int64
		for _, l := range r.Leases {
			ids = append(ids, l.ID)
		}
		return ids
	}
	one := func(what string, call func()) {
		before := leases()
		call()
		fresh := slices.DeleteFunc(leases(), func(id int64) bool { return slices.Contains(before, id) })
		s.note("%s: %d new leases", what, len(fresh))
		for _, id := range fresh {
			r, err := s.lease.LeaseTimeToLive(s.ctx, &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
			if err != nil {
				s.t.Fatal(err)
			}
			keys := strings.ReplaceAll(fmt.Sprintf("%s", r.Keys), fmt.Sprintf("%x", id), "LEASE")
			s.note("%s: lease of %d with %s", what, r.GrantedTTL, keys)
		}
	}
	s.grant(0x3a)
	one("lock", func() {
		if _, err := s.lock.Lock(s.ctx, &lockpb.LockRequest{Name: []byte("z")}); err != nil {
			s.t.Error(err)
		}
	})
	one("campaign", func() {
		if _, err := s.election.Campaign(s.ctx, &electionpb.CampaignRequest{Name: []byte("y")}); err != nil {
			s.t.Error(err)
		}
	})
	s.campaign("x", 0x3a, "v")
	k := s.key("x", 0x3a)
	k.Lease = 0
	one("proclaim", func() { s.proclaim(k, "w") })
	one("proclaim refused", func() { s.proclaim(&electionpb.LeaderKey{Key: k.Key, Rev: 1}, "w") })
	one("resign", func() { s.resign(k) })
	one("leader", func() { s.leader("x") })
}

// gateway is a script of JSON requests.
func (s *lockSide) gateway() {
	s.grant(0x4a, 0x4b)
	s.post("/v3/lock/lock", `{"name":"bQ==","lease":"74"}`)
	s.post("/v3/lock/lock", `{"name":"bQ==","lease":74}`)
	s.post("/v3/lock/lock", `{"name":"bQ==","lease":9999}`)
	s.post("/v3/lock/lock", `{"name":"$$"}`)
	s.post("/v3/lock/lock", `{"nam`)
	s.post("/v3/lock/unlock", `{"key":"bS80YQ=="}`)
	s.post("/v3/lock/unlock", `{"key":"bS80YQ=="}`)
	s.post("/v3/lock/unlock", ``)
	s.post("/v3/lock/unlock", `{}`)
	s.post("/v3beta/lock/unlock", `{}`)
	s.post("/v3/lock/other", `{}`)
	s.post("/v3/election/leader", `{"name":"ZQ=="}`)
	s.post("/v3/election/leader", ``)
	s.post("/v3/election/campaign", `{"name":"ZQ==","lease":"74","value":"dg=="}`)
	s.post("/v3/election/leader", `{"name":"ZQ=="}`)
	k := s.key("e", 0x4a)
	leader := func(rev int64) string {
		return fmt.Sprintf(`{"name":"ZQ==","key":"ZS80YQ==","rev":"%d","lease":"74"}`, rev)
	}
	s.post("/v3/election/proclaim", fmt.Sprintf(`{"leader":%s,"value":"dw=="}`, leader(k.Rev)))
	s.post("/v3/election/proclaim", fmt.Sprintf(`{"leader":%s,"value":"dw=="}`, leader(k.Rev+1)))
	s.post("/v3/election/proclaim", ``)
	s.post("/v3/election/proclaim", `{}`)
	s.post("/v3/election/proclaim", `{"leader":{}}`)
	s.post("/v3/election/resign", ``)
	s.post("/v3/election/resign", `{}`)
	s.post("/v3/election/resign", `{"leader":{}}`)
	s.watchLeader(k)
	s.post("/v3/election/resign", fmt.Sprintf(`{"leader":%s}`, leader(k.Rev)))
	s.post("/v3/election/resign", fmt.Sprintf(`{"leader":%s}`, leader(k.Rev)))
	s.state()
}

// watchLeader observes over HTTP while the leader proclaims.
func (s *lockSide) watchLeader(k *electionpb.LeaderKey) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Client+"/v3/election/observe",
		strings.NewReader(`{"name":"ZQ=="}`))
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(resp.Body)
	for _, value := range []string{"", "again", "and again"} {
		if value != "" {
			s.proclaim(k, value)
		}
		var line json.RawMessage
		if err := lines.Decode(&line); err != nil {
			s.t.Fatal(err)
		}
		s.note("observe: %d %s", resp.StatusCode, s.plainJSON(line))
	}
}

// empties is requests that lack what they are about (bug case BC-75).
func (s *lockSide) empties() {
	for _, path := range []string{
		"/v3/auth/role/add", "/v3/auth/role/get", "/v3/auth/user/add", "/v3/auth/user/get", "/v3/auth/user/grant",
		"/v3/auth/role/grant", "/v3/auth/enable", "/v3/election/proclaim", "/v3/election/resign",
		"/v3/election/leader", "/v3/lock/unlock",
	} {
		s.post(path, `{}`)
		s.post(path, ``)
	}
	s.post("/v3/auth/user/add", `{"name":"u"}`)
	s.post("/v3/auth/user/add", `{"name":"v","options":{"no_password":true}}`)
	s.post("/v3/auth/user/list", `{}`)
}

// rights is what a user without all rights may do.
func (s *lockSide) rights() {
	s.t.Helper()
	try := func(_ any, err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	try(s.c.UserAdd(s.ctx, "root", "r"))
	try(s.c.UserGrantRole(s.ctx, "root", "root"))
	try(s.c.RoleAdd(s.ctx, "some"))
	try(s.c.RoleGrantPermission(s.ctx, "some", "a/", "a0", clientv3.PermissionType(clientv3.PermReadWrite)))
	try(s.c.RoleGrantPermission(s.ctx, "some", "w/", "w0", clientv3.PermissionType(clientv3.PermWrite)))
	try(s.c.RoleGrantPermission(s.ctx, "some", "r/", "r0", clientv3.PermissionType(clientv3.PermRead)))
	try(s.c.UserAdd(s.ctx, "u", "p"))
	try(s.c.UserGrantRole(s.ctx, "u", "some"))
	s.grant(0x5a, 0x5b)
	s.campaign("w", 0x5a, "v")
	try(s.c.AuthEnable(s.ctx))
	token, err := s.auth.Authenticate(s.ctx, &pb.AuthenticateRequest{Name: "u", Password: "p"})
	if err != nil {
		s.t.Fatal(err)
	}
	all := s.ctx
	for _, as := range []struct{ name, token string }{{"u", token.Token}, {"nobody", ""}, {"bad", "bad"}} {
		s.note("as %s", as.name)
		s.ctx = all
		if as.token != "" {
			s.ctx = metadata.AppendToOutgoingContext(all, "token", as.token)
		}
		s.doLock("a", 0x5a)
		s.unlock("a/5a")
		s.doLock("r", 0x5a)
		s.doLock("w", 0x5b)
		s.unlock("r/5a")
		s.campaign("a", 0x5a, "v")
		s.campaign("w", 0x5b, "v")
		s.proclaim(&electionpb.LeaderKey{Key: []byte("r/5a"), Rev: 1, Lease: 0x5a}, "v")
		s.resign(&electionpb.LeaderKey{Key: []byte("r/5a"), Rev: 1, Lease: 0x5a})
		s.leader("r")
		s.leader("w")
		s.observe(s.ctx, "w").next()
		if as.name != "u" {
			s.doLock("a", 0)
		}
	}
	s.ctx = all
	s.post("/v3/lock/lock", `{"name":"YQ=="}`)
}

// The Lock and Election services give the reference's answers, keys, revisions and errors.
func TestLockAndElection(t *testing.T) {
	for _, c := range []struct {
		name   string
		script func(*lockSide)
	}{
		{"locks", (*lockSide).locks},
		{"elections", (*lockSide).elections},
		{"unleased", (*lockSide).unleased},
		{"gateway", (*lockSide).gateway},
		{"empties", (*lockSide).empties},
		{"rights", (*lockSide).rights},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, got := newLockSide(t, etcd(t)), newLockSide(t, sluice(t))
			c.script(want)
			c.script(got)
			for i, line := range want.transcript {
				have := "nothing"
				if i < len(got.transcript) {
					have = got.transcript[i]
				}
				if have != line {
					t.Errorf("step %d: %s\nthe reference: %s", i, have, line)
				}
			}
			if len(got.transcript) > len(want.transcript) {
				t.Errorf("more than the reference says: %q", got.transcript[len(want.transcript):])
			}
		})
	}
}

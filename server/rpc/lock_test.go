package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"sluice/server/rpc/electionpb"
	"sluice/server/rpc/lockpb"
	"sluice/stages/apply/auth"
	"sluice/stages/propose"
	"sluice/stages/wire"
)

// queueTest is a server with a client of the queue's services, and leases.
type queueTest struct {
	*testServer
	t        *testing.T
	ctx      context.Context
	conn     *grpc.ClientConn
	kv       pb.KVClient
	lock     lockpb.LockClient
	election electionpb.ElectionClient
}

func newQueueTest(t *testing.T, leases ...int64) *queueTest {
	t.Helper()
	s := newServer(t)
	conn := s.dial(t)
	q := &queueTest{
		s, t, within(t), conn, pb.NewKVClient(conn), lockpb.NewLockClient(conn), electionpb.NewElectionClient(conn),
	}
	for _, id := range leases {
		if _, err := pb.NewLeaseClient(conn).LeaseGrant(q.ctx, &pb.LeaseGrantRequest{ID: id, TTL: 100}); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// unknown is an error as the services give them.
func unknown(text string) error { return status.Error(codes.Unknown, text) }

// acquire locks name, or begins to.
func (q *queueTest) acquire(ctx context.Context, name string, lease int64) error {
	_, err := q.lock.Lock(ctx, &lockpb.LockRequest{Name: []byte(name), Lease: lease})
	return err
}

func (q *queueTest) campaign(ctx context.Context, name string, lease int64, value string) error {
	_, err := q.election.Campaign(ctx, &electionpb.CampaignRequest{
		Name: []byte(name), Lease: lease, Value: []byte(value),
	})
	return err
}

// begin makes a call that waits, and returns when its key is there.
func (q *queueTest) begin(key string, call func(ctx context.Context) error) (cancel func(), ended <-chan error) {
	q.t.Helper()
	ctx, cancel := context.WithCancel(q.ctx)
	q.t.Cleanup(cancel)
	w := openWatch(q.t, q.testServer, q.ctx)
	w.create(&pb.WatchCreateRequest{Key: []byte(key)})
	w.next()
	answer := make(chan error, 1)
	go func() { answer <- call(ctx) }()
	w.next()
	return cancel, answer
}

// unlocked deletes a key.
func (q *queueTest) unlocked(key string) {
	q.t.Helper()
	if _, err := q.lock.Unlock(q.ctx, &lockpb.UnlockRequest{Key: []byte(key)}); err != nil {
		q.t.Fatal(err)
	}
}

// gone returns when a key is deleted, which it was not at the call of the function that led to it.
func (q *queueTest) gone(key string, led func()) {
	q.t.Helper()
	w := openWatch(q.t, q.testServer, q.ctx)
	w.create(&pb.WatchCreateRequest{Key: []byte(key), Filters: []pb.WatchCreateRequest_FilterType{0}})
	w.next()
	led()
	w.next()
}

// keys lists all keys, as the member has them.
func (q *queueTest) keys() string {
	q.t.Helper()
	v := q.m.View()
	defer v.Release()
	a := newAnswer(q.cfg.Buffers, 0)
	err := v.KV.Range(&wire.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}, a)
	r, err := decoded(a.done(), err, new(pb.RangeResponse))
	if err != nil {
		q.t.Fatal(err)
	}
	var keys []string
	for _, kv := range r.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return strings.Join(keys, " ")
}

func (q *queueTest) mustBe(what string, err, want error) {
	q.t.Helper()
	wantError(q.t, what, err, want)
}

func (q *queueTest) succeed(what string, err error) {
	q.t.Helper()
	if err != nil {
		q.t.Fatalf("%s: %v", what, err)
	}
}

// Many want one lock: one at a time has it, in the order of their keys, and nobody is left behind.
func TestLockExcludes(t *testing.T) {
	const n = 30
	q := newQueueTest(t)
	var clients sync.WaitGroup
	var mu sync.Mutex // guards order: only ever contended if two hold the lock
	var order []int64
	for range n {
		clients.Go(func() {
			r, err := q.lock.Lock(q.ctx, &lockpb.LockRequest{Name: []byte("m")})
			if err != nil {
				t.Error(err)
				return
			}
			if !mu.TryLock() {
				t.Error("two have the lock")
				return
			}
			got, err := q.kv.Range(q.ctx, &pb.RangeRequest{Key: r.Key})
			if err != nil || len(got.Kvs) != 1 || got.Kvs[0].Lease == 0 || r.Header.Revision < got.Kvs[0].CreateRevision {
				t.Error(r, got, err)
			} else {
				order = append(order, got.Kvs[0].CreateRevision)
			}
			mu.Unlock()
			if _, err := q.lock.Unlock(q.ctx, &lockpb.UnlockRequest{Key: r.Key}); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	if len(order) != n || !slices.IsSorted(order) {
		t.Errorf("turns in the order %v", order)
	}
	if left := q.keys(); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// Who waits for what in the end: the youngest key that is older, whichever goes first.
func TestLockWaitsForAllOlder(t *testing.T) {
	q := newQueueTest(t, 1, 2, 3)
	q.succeed("first", q.acquire(q.ctx, "m", 1))
	lock := func(lease int64) func(context.Context) error {
		return func(ctx context.Context) error { return q.acquire(ctx, "m", lease) }
	}
	_, second := q.begin("m/2", lock(2))
	_, third := q.begin("m/3", lock(3))
	q.unlocked("m/2") // it never has its turn, and the third waits on for the first
	select {
	case err := <-third:
		t.Fatal(err)
	default:
	}
	q.unlocked("m/1")
	q.mustBe("deleted while it waited", <-second, unknown("mutex: session is expired"))
	q.succeed("third", <-third)
}

// A key that is deleted and made anew by the same lease is another place, behind those that came meanwhile.
func TestLockIsNotInherited(t *testing.T) {
	q := newQueueTest(t, 1, 2, 3)
	q.succeed("first", q.acquire(q.ctx, "m", 1))
	lock := func(lease int64) func(context.Context) error {
		return func(ctx context.Context) error { return q.acquire(ctx, "m", lease) }
	}
	_, lost := q.begin("m/2", lock(2))
	_, third := q.begin("m/3", lock(3))
	q.unlocked("m/2")
	_, again := q.begin("m/2", lock(2))
	q.unlocked("m/1")
	q.mustBe("the place before", <-lost, unknown("mutex: session is expired"))
	q.succeed("third", <-third)
	q.unlocked("m/3")
	q.succeed("again", <-again)
}

// Who leaves while waiting takes the key along.
func TestCancelledWaits(t *testing.T) {
	q := newQueueTest(t, 1, 2)
	q.succeed("first", q.acquire(q.ctx, "m", 1))
	for what, call := range map[string]func(context.Context) error{
		"lock":     func(ctx context.Context) error { return q.acquire(ctx, "m", 2) },
		"campaign": func(ctx context.Context) error { return q.campaign(ctx, "m", 2, "v") },
	} {
		cancel, ended := q.begin("m/2", call)
		q.gone("m/2", cancel)
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Who leaves while the transaction that makes the key is on its way leaves none behind either. Who has had the
// turn before keeps it.
func TestCancelledEarly(t *testing.T) {
	q := newQueueTest(t, 1, 2)
	locks, elections := &lockServer{Server: q.Server}, &electionServer{Server: q.Server}
	lock := func(ctx context.Context, lease int64) error {
		_, err := locks.Lock(ctx, &lockpb.LockRequest{Name: []byte("m"), Lease: lease})
		return err
	}
	campaign := func(ctx context.Context, lease int64) error {
		_, err := elections.Campaign(ctx, &electionpb.CampaignRequest{Name: []byte("m"), Lease: lease})
		return err
	}
	early := func(want string, lease int64) {
		t.Helper()
		for what, call := range map[string]func(context.Context, int64) error{"lock": lock, "campaign": campaign} {
			ctx, cancel := context.WithCancel(q.ctx)
			hook := cancel
			q.m.proposing.Store((*func())(&hook))
			q.mustBe(what, call(ctx, lease), status.FromContextError(context.Canceled).Err())
			q.m.proposing.Store(nil)
			if got := q.keys(); got != want {
				t.Errorf("%s with lease %d: keys %q, want %q", what, lease, got, want)
			}
		}
	}
	early("", 2)
	q.succeed("lock", q.acquire(q.ctx, "m", 1))
	early("m/1", 2)
	early("m/1", 1)
}

// The key goes even if its caller's token is no longer good, and only the member can take it back.
func TestCancelledWaitWithoutToken(t *testing.T) {
	q := newQueueTest(t, 1, 2)
	root, alice := enableAuth(t, q.conn)
	asAlice := as(q.ctx, "token", alice)
	q.succeed("first", q.acquire(asAlice, "a", 1))
	asRoot := as(q.ctx, "token", root)
	plain := q.ctx
	q.ctx = asRoot // for the watches
	var opened atomic.Int32
	waits := make(chan struct{})
	hook := func() {
		if opened.Add(1) == 2 { // after the watch of begin: what the token was good for is done
			close(waits)
		}
	}
	q.m.opening.Store(&hook)
	cancel, ended := q.begin("a/2", func(ctx context.Context) error {
		return q.acquire(metadata.NewOutgoingContext(ctx, metadata.Pairs("token", alice)), "a", 2)
	})
	<-waits
	q.m.opening.Store(nil)
	_, err := pb.NewAuthClient(q.conn).UserDelete(asRoot, &pb.AuthUserDeleteRequest{Name: "alice"})
	q.succeed("delete user", err)
	r, err := pb.NewAuthClient(q.conn).Authenticate(plain, &pb.AuthenticateRequest{Name: "root", Password: "p"})
	q.succeed("login", err)
	q.ctx = as(plain, "token", r.Token)
	q.gone("a/2", cancel)
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// A wait whose reads fail in the end is over, and its key is gone: Campaign's as well as Lock's.
func TestFailedWaits(t *testing.T) {
	q := newQueueTest(t, 1, 2, 3)
	q.succeed("first", q.acquire(q.ctx, "m", 1))
	_, lock := q.begin("m/2", func(ctx context.Context) error { return q.acquire(ctx, "m", 2) })
	_, campaign := q.begin("m/3", func(ctx context.Context) error { return q.campaign(ctx, "m", 3, "") })
	refuse := func() error { return propose.ErrTimeout }
	q.m.reading.Store(&refuse)
	q.unlocked("m/1")
	q.mustBe("lock", <-lock, unknown("etcdserver: request timed out"))
	q.mustBe("campaign", <-campaign, unknown("etcdserver: request timed out"))
	if left := q.keys(); left != "" {
		t.Errorf("keys: %q", left)
	}
}

// A compaction between a read and the watch from there is no reason to give up.
func TestLockOvertakenByCompaction(t *testing.T) {
	q := newQueueTest(t, 1, 2)
	q.succeed("first", q.acquire(q.ctx, "m", 1))
	var once sync.Once
	opened := make(chan struct{})
	hook := func() {
		once.Do(func() {
			for range 3 {
				if _, err := q.kv.Put(q.ctx, &pb.PutRequest{Key: []byte("k")}); err != nil {
					t.Error(err)
				}
			}
			r, err := q.kv.Put(q.ctx, &pb.PutRequest{Key: []byte("k")})
			if err == nil {
				_, err = q.kv.Compact(q.ctx, &pb.CompactionRequest{Revision: r.Header.Revision})
			}
			if err != nil {
				t.Error(err)
			}
			close(opened)
		})
	}
	q.m.opening.Store(&hook)
	ended := make(chan error, 1)
	go func() { ended <- q.acquire(q.ctx, "m", 2) }()
	<-opened
	q.unlocked("m/1")
	q.succeed("second", <-ended)
}

// A second call of a candidate changes its value. If that fails the place is given up, the leader's too: nobody
// leads who was told of an error.
func TestCampaignAgain(t *testing.T) {
	q := newQueueTest(t, 1, 2)
	q.succeed("first", q.campaign(q.ctx, "e", 1, "one"))
	_, waits := q.begin("e/2", func(ctx context.Context) error { return q.campaign(ctx, "e", 2, "two") })
	_, again := q.begin("e/2", func(ctx context.Context) error { return q.campaign(ctx, "e", 2, "zwei") })
	proposals, refuse := 0, error(propose.ErrTimeout)
	hook := func() {
		q.m.refuse.Store(nil)
		if proposals++; proposals == 2 {
			q.m.refuse.Store(&refuse)
		}
	}
	q.m.proposing.Store(&hook)
	q.mustBe("new value", q.campaign(q.ctx, "e", 1, "uno"), unknown("etcdserver: request timed out"))
	q.m.proposing.Store(nil)
	q.succeed("candidate", <-waits)
	q.succeed("candidate, again", <-again)
	r, err := q.election.Leader(q.ctx, &electionpb.LeaderRequest{Name: []byte("e")})
	if err != nil || string(r.Kv.Value) != "zwei" {
		t.Error(r, err)
	}
	if left := q.keys(); left != "e/2" {
		t.Errorf("keys: %q", left)
	}
}

// A candidate whose key is deleted while it waits is not told that it leads.
func TestCampaignLost(t *testing.T) {
	q := newQueueTest(t, 1, 2)
	q.succeed("first", q.campaign(q.ctx, "e", 1, "one"))
	_, lost := q.begin("e/2", func(ctx context.Context) error { return q.campaign(ctx, "e", 2, "two") })
	q.unlocked("e/2")
	q.unlocked("e/1")
	q.mustBe("lost", <-lost, unknown("election: not leader"))
}

// Every error has the code Unknown but the end of a context (client-api.md 12).
func TestQueueErrors(t *testing.T) {
	q := newQueueTest(t, 1)
	leader := &electionpb.LeaderKey{Key: []byte("e/1"), Rev: 9, Lease: 1}
	calls := map[string]func() error{
		"lock":     func() error { return q.acquire(q.ctx, "e", 1) },
		"unlock":   func() error { _, err := q.lock.Unlock(q.ctx, &lockpb.UnlockRequest{Key: []byte("k")}); return err },
		"campaign": func() error { return q.campaign(q.ctx, "e", 1, "") },
		"proclaim": func() error {
			_, err := q.election.Proclaim(q.ctx, &electionpb.ProclaimRequest{Leader: leader})
			return err
		},
		"resign": func() error {
			_, err := q.election.Resign(q.ctx, &electionpb.ResignRequest{Leader: leader})
			return err
		},
		"leader": func() error {
			_, err := q.election.Leader(q.ctx, &electionpb.LeaderRequest{Name: []byte("e")})
			return err
		},
		"lease": func() error { return q.acquire(q.ctx, "e", 0) },
	}
	for _, c := range []struct{ refuse, want error }{
		{propose.ErrTimeout, unknown("etcdserver: request timed out")},
		{propose.ErrStopped, unknown("etcdserver: server stopped")},
		{propose.ErrRequestTooLarge, unknown("etcdserver: request is too large")},
		{auth.ErrOldRevision, unknown(rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthOldRevision))},
		{
			fmt.Errorf("wait: %w", context.DeadlineExceeded),
			status.Error(codes.DeadlineExceeded, "context deadline exceeded"),
		},
	} {
		q.m.refuse.Store(&c.refuse)
		for what, call := range calls {
			q.mustBe(fmt.Sprint(what, ", ", c.refuse), call(), c.want)
		}
		o, err := q.election.Observe(q.ctx, &electionpb.LeaderRequest{Name: []byte("e")})
		if err == nil {
			_, err = o.Recv()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("observe, %v: %v", c.refuse, err)
		}
	}
	q.m.refuse.Store(nil)
	q.mustBe("leader", calls["leader"](), unknown("election: no leader"))
	q.mustBe("proclaim", calls["proclaim"](), unknown("election: not leader"))
	q.mustBe("unknown lease", q.acquire(q.ctx, "e", 5), unknown("etcdserver: requested lease not found"))
	_, err := q.election.Proclaim(q.ctx, &electionpb.ProclaimRequest{})
	q.mustBe("proclaim without leader", err, unknown(`"leader" field must be provided`))
	_, err = q.election.Resign(q.ctx, &electionpb.ResignRequest{})
	q.mustBe("resign without leader", err, unknown(`"leader" field must be provided`))
	q.succeed("resign of nobody", calls["resign"]())
}

// Observe follows changes and successors, past leaders that come and go while its client does not look, and
// ends with the leader of the cluster if its client insists on one.
func TestObserve(t *testing.T) {
	q := newQueueTest(t, 1, 2, 3)
	observe := func(ctx context.Context) func() string {
		o, err := q.election.Observe(ctx, &electionpb.LeaderRequest{Name: []byte("e")})
		q.succeed("observe", err)
		return func() string {
			t.Helper()
			r, err := o.Recv()
			if err != nil {
				return status.Convert(err).Message()
			}
			if r.Header.MemberId != testMemberID || r.Header.Revision < r.Kv.ModRevision {
				t.Errorf("header %v of %v", r.Header, r.Kv)
			}
			return string(r.Kv.Key) + "=" + string(r.Kv.Value)
		}
	}
	ctx, cancel := context.WithCancel(q.ctx)
	defer cancel()
	early := observe(ctx)
	q.succeed("campaign", q.campaign(q.ctx, "e", 1, "one"))
	if got := early(); got != "e/1=one" {
		t.Error(got)
	}
	for i := range 20 {
		q.succeed("campaign again", q.campaign(q.ctx, "e", 1, fmt.Sprint(i)))
	}
	for i := range 20 {
		if got := early(); got != fmt.Sprintf("e/1=%d", i) {
			t.Errorf("change %d: %s", i, got)
		}
	}
	_, two := q.begin("e/2", func(ctx context.Context) error { return q.campaign(ctx, "e", 2, "two") })
	_, three := q.begin("e/3", func(ctx context.Context) error { return q.campaign(ctx, "e", 3, "three") })
	q.unlocked("e/1")
	q.succeed("two", <-two)
	if got := early(); got != "e/2=two" {
		t.Error(got)
	}
	q.unlocked("e/2")
	q.succeed("three", <-three)
	if got := early(); got != "e/3=three" {
		t.Error(got)
	}
	q.unlocked("e/3")
	q.succeed("campaign", q.campaign(q.ctx, "e", 1, "back"))
	if got := early(); got != "e/1=back" {
		t.Error(got)
	}
	cancel()
	if got := early(); got != "context canceled" {
		t.Error(got)
	}
}

// A stream that insists on a leader ends with it, like a watch (client-api.md 2.1).
func TestObserveInsistsOnLeader(t *testing.T) {
	s := newServer(t, func(c *Config, _ *ListenConfig) { c.ElectionTimeout = 20 * time.Millisecond })
	opened := make(chan struct{})
	hook := func() { close(opened) }
	s.m.opening.Store(&hook)
	o, err := electionpb.NewElectionClient(s.dial(t)).Observe(as(within(t), "hasleader", "true"),
		&electionpb.LeaderRequest{Name: []byte("e")})
	if err != nil {
		t.Fatal(err)
	}
	<-opened
	s.m.leader.Store(0)
	_, err = o.Recv()
	wantError(t, "observe", err, rpctypes.ErrGRPCNoLeader)
}

// The series of these services appear with their first call; those of the others are there from the start
// (operations.md 4.5). A learner serves none of them.
func TestQueueMetrics(t *testing.T) {
	q := newQueueTest(t, 1)
	series := func(service string) (n int) {
		t.Helper()
		families, err := q.cfg.Metrics.Registry().Gather()
		q.succeed("gather", err)
		for _, f := range families {
			if f.GetName() != "grpc_server_started_total" {
				continue
			}
			for _, m := range f.Metric {
				for _, l := range m.Label {
					if l.GetName() == "grpc_service" && l.GetValue() == service {
						n++
					}
				}
			}
		}
		return n
	}
	if n := series("v3lockpb.Lock") + series("v3electionpb.Election"); n != 0 || series("etcdserverpb.Auth") != 17 {
		t.Errorf("%d series before use", n)
	}
	q.succeed("lock", q.acquire(q.ctx, "m", 1))
	q.succeed("lock", q.acquire(q.ctx, "m", 1))
	if n, m := series("v3lockpb.Lock"), series("v3electionpb.Election"); n != 1 || m != 0 {
		t.Errorf("%d and %d series after a call of Lock", n, m)
	}
	learner := lockpb.NewLockClient(serveMember(t, newTestMemberAs(t, true)).dial(t))
	_, err := learner.Lock(q.ctx, &lockpb.LockRequest{})
	wantError(t, "learner", err, rpctypes.ErrGRPCNotSupportedForLearner)
}

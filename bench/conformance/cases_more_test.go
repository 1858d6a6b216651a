package conformance

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/bench/process"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// secure describes a Sluice member whose client URL has TLS with a certificate of its own making.
func secure(t *testing.T, flags ...string) *process.Daemon {
	t.Helper()
	d := sluice(t, append([]string{"--auto-tls"}, flags...)...)
	d.Client = "https" + strings.TrimPrefix(d.Client, "http")
	d.TLS = &tls.Config{InsecureSkipVerify: true} // the test made the server
	return d
}

// enableAuth makes user root, and user alice who may read a/, and returns a token of alice.
func (s *server) enableAuth(t *testing.T) (alice string) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.c.UserAdd(ctx, "root", "r"))
	must(s.c.UserGrantRole(ctx, "root", "root"))
	must(s.c.UserAdd(ctx, "alice", "a"))
	must(s.c.RoleAdd(ctx, "reader"))
	must(s.c.RoleGrantPermission(ctx, "reader", "a/", "a0", clientv3.PermissionType(clientv3.PermRead)))
	must(s.c.UserGrantRole(ctx, "alice", "reader"))
	must(s.c.AuthEnable(ctx))
	r, err := s.c.Authenticate(ctx, "alice", "a")
	must(r, err)
	return r.Token
}

func TestBC24(t *testing.T) {
	s := serve(t)
	token := s.enableAuth(t)
	root, err := s.c.Authenticate(t.Context(), "root", "r")
	if err != nil {
		t.Fatal(err)
	}
	asRoot := metadata.AppendToOutgoingContext(t.Context(), "token", root.Token)
	ctx := metadata.AppendToOutgoingContext(within(t, 20*time.Second), "token", token)
	stream, err := s.watch.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w := watchStream{stream, t}
	w.create(&pb.WatchCreateRequest{Key: []byte("a/"), RangeEnd: []byte("a0")})
	if r := w.next(); r.WatchId != 0 || !r.Created || r.Canceled {
		t.Fatal(r)
	}
	w.create(&pb.WatchCreateRequest{Key: []byte("secret")})
	if r := w.next(); r.WatchId != -1 || !r.Created || !r.Canceled || !strings.Contains(r.CancelReason, "permission denied") {
		t.Fatalf("refused create: %v", r)
	}
	w.create(&pb.WatchCreateRequest{Key: []byte("a/"), RangeEnd: []byte("a0")})
	second := w.next()
	if !second.Created || second.Canceled {
		t.Fatal(second)
	}
	put := func() {
		t.Helper()
		if _, err := s.kv.Put(asRoot, &pb.PutRequest{Key: []byte("a/1"), Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
		got := map[int64]int{}
		for range 2 {
			r := w.next()
			got[r.WatchId] += len(r.Events)
		}
		if got[0] != 1 || got[second.WatchId] != 1 {
			t.Fatalf("events by watcher: %v", got)
		}
	}
	put()
	// The token dies with the password; the next create is refused, and what is open goes on.
	if _, err := pb.NewAuthClient(s.c.ActiveConnection()).UserChangePassword(asRoot,
		&pb.AuthUserChangePasswordRequest{Name: "alice", Password: "other"}); err != nil {
		t.Fatal(err)
	}
	w.create(&pb.WatchCreateRequest{Key: []byte("a/1")})
	if r := w.next(); r.WatchId != -1 || !r.Created || !r.Canceled || r.CancelReason == "" {
		t.Fatalf("create with a dead token: %v", r)
	}
	put()
}

// A watcher that reads fast from far behind gets everything in order, and one that does not read at all
// holds nobody up, while puts go on. (How long the puts take is measured in bench, W9.)
func TestBC27(t *testing.T) {
	s := serve(t)
	const revisions = 30000
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			for i := range revisions / 100 / 16 {
				var ops []*pb.RequestOp
				for j := range 100 {
					ops = append(ops, putOp(fmt.Sprintf("p/%d/%d/%d", c, i%20, j)))
				}
				if _, err := s.kv.Txn(t.Context(), &pb.TxnRequest{Success: ops}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	stalled := s.stream(t) // created, then never read again
	stalled.create(&pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: 1, PrevKv: true})
	stalled.next()
	fast := s.stream(t)
	fast.create(&pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: 1})
	fast.next()
	var last int64
	for i := range 2000 {
		last = s.put(t, fmt.Sprintf("q/%d", i), "v")
	}
	next := int64(2)
	for next <= last {
		for _, ev := range fast.next().Events {
			if ev.Kv.ModRevision != next && ev.Kv.ModRevision != next-1 {
				t.Fatalf("revision %d, want %d", ev.Kv.ModRevision, next)
			}
			next = ev.Kv.ModRevision + 1
		}
	}
}

// Large reads on one TLS connection do not keep a watch on it from its events.
func TestBC29(t *testing.T) {
	d := secure(t)
	start(t, d)
	s, writer := attach(t, d), attach(t, d)
	value := strings.Repeat("x", 100<<10)
	for i := range 10 {
		s.put(t, fmt.Sprintf("big/%d", i), value)
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	w := s.stream(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("tick")})
	w.next()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte("big/"), RangeEnd: []byte("big0")}, grpc.MaxCallRecvMsgSize(1<<30))
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 20 {
		began := time.Now()
		rev := writer.put(t, "tick", strconv.Itoa(i))
		r := w.next()
		if len(r.Events) != 1 || r.Events[0].Kv.ModRevision != rev {
			t.Fatalf("event of revision %d: %v", rev, r)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("event %d came after %v", i, took) // the case's limit of 1 s, times 3 under load
		}
	}
	stop()
	wg.Wait()
}

// A keepalive that is sent as soon as the grant has returned never says that the lease is gone.
func TestBC34(t *testing.T) {
	s := serve(t)
	other := attach(t, s.Daemon)
	stream, err := other.lease.LeaseKeepAlive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(1000) {
		s.grant(t, i+1, 60)
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: i + 1}); err != nil {
			t.Fatal(err)
		}
		if r, err := stream.Recv(); err != nil || r.TTL != 60 {
			t.Fatalf("keepalive of a lease just granted: %v %v", r, err)
		}
	}
}

// One client appends numbers and notes each acknowledgement; after kill -9 at random moments every noted
// number is there. TestKill is the same with many clients, compactions and leases.
func TestBC64(t *testing.T) {
	d := sluice(t)
	t.Cleanup(d.Kill)
	sure := -1
	for range *roundsFlag {
		if err := d.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := attach(t, d)
		r := s.get(t, "n/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if int(r.Count) < sure+1 {
			t.Fatalf("%d numbers, %d acknowledged", r.Count, sure+1)
		}
		sure = int(r.Count) - 1 // one more than noted may have been kept
		killed := time.AfterFunc(time.Duration(50+sure%97*3)*time.Millisecond, d.Kill)
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			_, err := s.c.Put(ctx, fmt.Sprintf("n/%08d", sure+1), "v")
			cancel()
			if err != nil {
				break
			}
			sure++
		}
		killed.Stop()
		<-d.Exited()
	}
}

// What clients build on top works: sessions, mutexes, elections, software transactional memory.
func TestConcurrencyRecipes(t *testing.T) {
	s := serve(t)
	ctx := within(t, time.Minute)
	const workers, turns = 8, 10
	var wg sync.WaitGroup
	inside, total := 0, 0 // guarded by the mutex under test
	for range workers {
		wg.Go(func() {
			session, err := concurrency.NewSession(s.c, concurrency.WithTTL(10))
			if err != nil {
				t.Error(err)
				return
			}
			defer session.Close()
			m := concurrency.NewMutex(session, "/lock")
			for range turns {
				if err := m.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				if inside++; inside != 1 {
					t.Errorf("%d inside the lock", inside)
				}
				total++
				inside--
				if err := m.Unlock(ctx); err != nil {
					t.Error(err)
				}
				_, err := concurrency.NewSTM(s.c, func(stm concurrency.STM) error {
					n, _ := strconv.Atoi(stm.Get("counter"))
					stm.Put("counter", strconv.Itoa(n+1))
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if r := s.get(t, "counter"); total != workers*turns || string(r.Kvs[0].Value) != strconv.Itoa(total) {
		t.Errorf("%d turns, counter %s, want %d", total, r.Kvs[0].Value, workers*turns)
	}
	elect(ctx, t, s)
}

// elect lets two candidates lead one after the other, and an observer see both.
func elect(ctx context.Context, t *testing.T, s *server) {
	t.Helper()
	candidate := func() *concurrency.Election {
		session, err := concurrency.NewSession(s.c, concurrency.WithTTL(10))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { session.Close() })
		return concurrency.NewElection(session, "/elect")
	}
	first, second := candidate(), candidate()
	if err := first.Campaign(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	seen := second.Observe(ctx)
	if r := <-seen; string(r.Kvs[0].Value) != "one" {
		t.Fatalf("observed %v", r)
	}
	won := make(chan error, 1)
	go func() { won <- second.Campaign(ctx, "two") }()
	if err := first.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	if r := <-seen; string(r.Kvs[0].Value) != "two" {
		t.Fatalf("observed %v", r)
	}
	if _, err := candidate().Leader(ctx); err != nil && !errors.Is(err, concurrency.ErrElectionNoLeader) {
		t.Fatal(err)
	}
	if err := second.Proclaim(ctx, "three"); err != nil {
		t.Fatal(err)
	}
	if err := first.Proclaim(ctx, "four"); err == nil || errors.Is(err, rpctypes.ErrNoLeader) {
		t.Errorf("proclaimed without leading: %v", err)
	}
}

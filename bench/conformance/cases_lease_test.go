package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

func (s *server) grant(t *testing.T, id, ttl int64) *pb.LeaseGrantResponse {
	t.Helper()
	r, err := s.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *server) timeToLive(t *testing.T, id int64) *pb.LeaseTimeToLiveResponse {
	t.Helper()
	r, err := s.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestBC31(t *testing.T) {
	s := serve(t)
	s.grant(t, -5, 300)
	s.put(t, "nk", "v", clientv3.WithLease(-5))
	s.Kill()
	start(t, s.Daemon)
	s = attach(t, s.Daemon)
	if r := s.timeToLive(t, -5); r.GrantedTTL != 300 || len(r.Keys) != 1 {
		t.Fatalf("after the restart: %v", r)
	}
	if _, err := s.c.Revoke(t.Context(), -5); err != nil {
		t.Fatal(err)
	}
	if r := s.get(t, "nk"); r.Count != 0 {
		t.Error("the key outlived its lease")
	}
}

func TestBC32(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarts %v", restarts), func(t *testing.T) {
			s := serve(t)
			step := func() {
				if restarts {
					s.Kill()
					start(t, s.Daemon)
					s = attach(t, s.Daemon)
				}
			}
			s.grant(t, 77, 300)
			s.grant(t, 78, 300)
			s.put(t, "mv", "v", clientv3.WithLease(77))
			step()
			s.put(t, "mv", "v", clientv3.WithLease(78))
			step()
			if _, err := s.c.Revoke(t.Context(), 77); err != nil {
				t.Fatal(err)
			}
			if r := s.get(t, "mv"); r.Count != 1 || r.Kvs[0].Lease != 78 {
				t.Fatalf("moved key: %v", r)
			}
			s.put(t, "mv", "v")
			step()
			if r := s.timeToLive(t, 78); len(r.Keys) != 0 {
				t.Errorf("keys of 78: %q", r.Keys)
			}
			if _, err := s.c.Revoke(t.Context(), 78); err != nil {
				t.Fatal(err)
			}
			if r := s.get(t, "mv"); r.Count != 1 {
				t.Error("the key died with a lease that it had left")
			}
			s.grant(t, 79, 300)
			s.put(t, "dk", "v", clientv3.WithLease(79))
			if _, err := s.c.Delete(t.Context(), "dk"); err != nil {
				t.Fatal(err)
			}
			step()
			if _, err := s.c.Revoke(t.Context(), 79); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestBC33(t *testing.T) {
	s := serve(t)
	s.grant(t, 1, 300)
	s.grant(t, 2, 2)
	w := s.c.Watch(within(t, 30*time.Second), "expires")
	s.put(t, "expires", "v", clientv3.WithLease(2))
	for deleted := false; !deleted; {
		for _, ev := range (<-w).Events {
			deleted = deleted || ev.Type == clientv3.EventTypeDelete
		}
	}
	stream, err := s.lease.LeaseKeepAlive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ id, ttl int64 }{{99, 0}, {1, 300}, {2, 0}, {1, 300}, {0, 0}} {
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: c.id}); err != nil {
			t.Fatal(err)
		}
		if r, err := stream.Recv(); err != nil || r.ID != c.id || r.TTL != c.ttl {
			t.Errorf("keepalive of %d: %v %v, want TTL %d", c.id, r, err, c.ttl)
		}
	}
	if r := s.timeToLive(t, 99); r.TTL != -1 || r.GrantedTTL != 0 {
		t.Errorf("unknown: %v", r)
	}
	_, err = s.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: 99})
	refused(t, "revoke of an unknown lease", err, codes.NotFound, "requested lease not found")
}

func TestBC38(t *testing.T) {
	s := serve(t)
	for i, c := range []struct{ ask, get int64 }{{0, 2}, {-3, 2}, {1, 2}, {2, 2}, {3, 3}, {9000000000, 9000000000}} {
		if r := s.grant(t, int64(i+1), c.ask); r.TTL != c.get {
			t.Errorf("TTL %d gave %d, want %d", c.ask, r.TTL, c.get)
		}
	}
	_, err := s.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 6, TTL: 9000000001})
	refused(t, "too large", err, codes.OutOfRange, "too large lease TTL")
	_, err = s.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 6, TTL: 10})
	refused(t, "id twice", err, codes.FailedPrecondition, "lease already exists")
}

// Remaining time after a restart is sane: never above the granted TTL plus two election timeouts.
func TestBC36(t *testing.T) {
	s := serve(t)
	s.grant(t, 7, 100)
	for range 3 {
		if r := s.timeToLive(t, 7); r.TTL < 90 || r.TTL > 102 || r.GrantedTTL != 100 {
			t.Fatalf("remaining: %v", r)
		}
		s.Kill()
		start(t, s.Daemon)
		s = attach(t, s.Daemon)
	}
}

// A lease is not revoked before its TTL has passed since its last renewal, and goes soon after.
func TestLeaseExpiry(t *testing.T) {
	s := serve(t)
	s.grant(t, 7, 3)
	s.put(t, "k", "v", clientv3.WithLease(7))
	w := s.c.Watch(within(t, 30*time.Second), "k", clientv3.WithRev(3))
	time.Sleep(1500 * time.Millisecond) // half of the TTL: what is tested is real time
	if r, err := s.c.KeepAliveOnce(t.Context(), 7); err != nil || r.TTL != 3 {
		t.Fatalf("renewal: %v %v", r, err)
	}
	renewed := time.Now()
	if ev := (<-w).Events; len(ev) != 1 || ev[0].Type != clientv3.EventTypeDelete {
		t.Fatalf("events %v", ev)
	}
	if lived := time.Since(renewed); lived < 3*time.Second-50*time.Millisecond || lived > 6*time.Second {
		t.Errorf("revoked %v after the renewal, TTL is 3s", lived)
	}
}

func TestBC41(t *testing.T) {
	s := serve(t)
	s.grant(t, 7, 3000)
	const n = 100000
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			for i := c * n / 8; i < (c+1)*n/8; i += 100 {
				var ops []clientv3.Op
				for j := range 100 {
					ops = append(ops, clientv3.OpPut(fmt.Sprintf("l/%06d", i+j), "v", clientv3.WithLease(7)))
				}
				if _, err := s.c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	before := s.get(t, "l/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if before.Count != n {
		t.Fatalf("%d keys, want %d", before.Count, n)
	}
	ctx, stop := context.WithCancel(t.Context())
	var slowest time.Duration
	wg.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			if _, err := s.c.Get(t.Context(), "health"); err != nil {
				t.Error(err)
			}
			slowest = max(slowest, time.Since(began))
		}
	})
	if _, err := s.c.Revoke(t.Context(), 7); err != nil {
		t.Error(err)
	}
	stop()
	wg.Wait()
	if slowest > 3*time.Second {
		t.Errorf("a read waited %v for the revocation", slowest)
	}
	if r := s.get(t, "l/", clientv3.WithPrefix(), clientv3.WithCountOnly()); r.Count != 0 || r.Header.Revision <= before.Header.Revision {
		t.Errorf("after the revocation: %v", r)
	}
}

func TestBC42(t *testing.T) {
	s := serve(t)
	stream, err := s.lease.LeaseKeepAlive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(300) {
		id := 1000 + i
		s.grant(t, id, 300)
		done := make(chan error, 1)
		go func() {
			_, err := s.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: id})
			done <- err
		}()
		_ = stream.Send(&pb.LeaseKeepAliveRequest{ID: id})
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&pb.LeaseKeepAliveRequest{ID: id})
		if r, err := stream.Recv(); err != nil || r.TTL != 0 {
			t.Fatalf("renewal after the revocation: %v %v", r, err)
		}
	}
}

// Ten thousand leases that end at once go in time, and their keys with them.
func TestMassExpiry(t *testing.T) {
	s := serve(t)
	const n = 5000
	var wg sync.WaitGroup
	for c := range 50 {
		wg.Go(func() {
			for i := c; i < n; i += 50 {
				id := int64(i + 1)
				if _, err := s.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 5}); err != nil {
					t.Error(err)
					return
				}
				if _, err := s.c.Put(t.Context(), fmt.Sprintf("l/%d", id), "v", clientv3.WithLease(clientv3.LeaseID(id))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	w := s.c.Watch(within(t, time.Minute), "l/", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithRev(1))
	for gone := 0; gone < n; {
		r, ok := <-w
		if !ok {
			t.Fatalf("%d of %d keys went", gone, n)
		}
		gone += len(r.Events)
	}
	if ls, err := s.c.Leases(t.Context()); err != nil || len(ls.Leases) != 0 {
		t.Errorf("%d leases left, %v", len(ls.Leases), err)
	}
}

// LeaseLeases lists by remaining time on the leader.
func TestLeaseOrder(t *testing.T) {
	s := serve(t)
	for _, ttl := range []int64{500, 100, 900, 300} {
		s.grant(t, ttl, ttl)
	}
	r, err := s.c.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for _, l := range r.Leases {
		ids = append(ids, int64(l.ID))
	}
	if !slices.Equal(ids, []int64{100, 300, 500, 900}) {
		t.Errorf("order %v", ids)
	}
}

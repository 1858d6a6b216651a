package rpc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// watcher is a raw Watch stream.
type watcher struct {
	t *testing.T
	pb.Watch_WatchClient
}

func openWatch(t *testing.T, s *testServer, ctx context.Context) *watcher {
	t.Helper()
	w, err := pb.NewWatchClient(s.dial(t)).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &watcher{t, w}
}

func (w *watcher) create(r *pb.WatchCreateRequest) {
	w.t.Helper()
	err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *watcher) cancel(id int64) {
	w.t.Helper()
	err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
		CancelRequest: &pb.WatchCancelRequest{WatchId: id},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *watcher) next() *pb.WatchResponse {
	w.t.Helper()
	r, err := w.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	if h := r.Header; h.GetClusterId() != testClusterID || h.GetMemberId() != testMemberID || h.GetRaftTerm() != testTerm {
		w.t.Errorf("header %v", r.Header)
	}
	return r
}

// Ids on one stream (bug case BC-25).
func TestWatchIDs(t *testing.T) {
	s := newServer(t)
	w := openWatch(t, s, within(t))
	kv := s.kv(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 5})
	if r := w.next(); !r.Created || r.WatchId != 5 || r.Header.Revision != 1 {
		t.Fatal(r)
	}
	w.create(&pb.WatchCreateRequest{Key: []byte("b"), WatchId: 5})
	if r := w.next(); !r.Created || !r.Canceled || r.WatchId != -1 ||
		r.CancelReason != "mvcc: duplicate watch ID provided on the WatchStream" {
		t.Fatal(r)
	}
	if _, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	if r := w.next(); r.WatchId != 5 || len(r.Events) != 1 {
		t.Fatal(r)
	}
	for want := range int64(7) {
		if want == 5 {
			continue
		}
		w.create(&pb.WatchCreateRequest{Key: []byte("b")})
		if r := w.next(); r.WatchId != want {
			t.Fatalf("automatic id %d, want %d", r.WatchId, want)
		}
	}
	w.cancel(999)
	if err := w.Send(&pb.WatchRequest{}); err != nil {
		t.Fatal(err)
	}
	w.cancel(5)
	if r := w.next(); !r.Canceled || r.WatchId != 5 || r.Created || r.CancelReason != "" {
		t.Fatal(r)
	}
	w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 5})
	if r := w.next(); !r.Created || r.Canceled || r.WatchId != 5 {
		t.Fatal(r)
	}
}

// Half-close leaves the stream running; its context's end gives ErrGRPCWatchCanceled's code (7.1).
func TestWatchOutlivesHalfClose(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	w := openWatch(t, s, ctx)
	w.create(&pb.WatchCreateRequest{Key: []byte("a")})
	w.next()
	if err := w.CloseSend(); err != nil {
		t.Fatal(err)
	}
	kv := s.kv(t)
	for i := range 3 {
		if _, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a"), Value: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
		if r := w.next(); len(r.Events) != 1 || string(r.Events[0].Kv.Value) != fmt.Sprint(i) {
			t.Fatal(r)
		}
	}
	cancel()
	if _, err := w.Recv(); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// Events of all sizes are whole although every buffer is poisoned once it is free.
func TestWatchEventsOfAllSizes(t *testing.T) {
	s := newServer(t)
	w := openWatch(t, s, within(t))
	// A key in a message above grpc's pooling threshold: the stage must have its own copy.
	key := bytes.Repeat([]byte("k"), 3000)
	w.create(&pb.WatchCreateRequest{Key: key, PrevKv: true})
	w.next()
	w.create(&pb.WatchCreateRequest{Key: bytes.Repeat([]byte("z"), 3000)})
	w.next()
	kv := s.kv(t)
	var prev []byte
	for _, size := range sizes {
		value := bytes.Repeat([]byte("v"), size)
		if _, err := kv.Put(within(t), &pb.PutRequest{Key: key, Value: value}); err != nil {
			t.Fatal(err)
		}
		r := w.next()
		if len(r.Events) != 1 || !bytes.Equal(r.Events[0].Kv.Key, key) || !bytes.Equal(r.Events[0].Kv.Value, value) ||
			!bytes.Equal(r.Events[0].PrevKv.GetValue(), prev) {
			t.Fatalf("event with a value of %d bytes came different", size)
		}
		prev = value
	}
}

// Creates that fail do not end the stream, and are answered in order.
func TestWatchFailedCreates(t *testing.T) {
	s := newServer(t)
	w := openWatch(t, s, within(t))
	w.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: -1})
	w.create(&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("a")})
	w.create(&pb.WatchCreateRequest{Key: []byte("a")})
	reasons := []string{"etcdserver: mvcc: required revision has been compacted", "mvcc: watcher range is empty"}
	for _, reason := range reasons {
		r := w.next()
		if !r.Created || !r.Canceled || r.WatchId != -1 || r.CancelReason != reason || r.CompactRevision != 0 {
			t.Error(r)
		}
	}
	if r := w.next(); !r.Created || r.Canceled || r.WatchId != 0 {
		t.Error(r)
	}
}

// A stream that insists on a leader is refused without one, and ended when the leader is lost (2.1).
func TestHasLeader(t *testing.T) {
	s := newServer(t, func(c *Config, _ *ListenConfig) { c.ElectionTimeout = 20 * time.Millisecond })
	insist := metadata.AppendToOutgoingContext(within(t), "hasleader", "true")
	w := openWatch(t, s, insist)
	w.create(&pb.WatchCreateRequest{Key: []byte("a")})
	w.next()
	plain := openWatch(t, s, within(t))
	plain.create(&pb.WatchCreateRequest{Key: []byte("a")})
	plain.next()
	alive, err := pb.NewLeaseClient(s.dial(t)).LeaseKeepAlive(insist)
	if err != nil {
		t.Fatal(err)
	}
	if err := alive.Send(&pb.LeaseKeepAliveRequest{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if r, err := alive.Recv(); err != nil || r.TTL != 0 {
		t.Fatal(r, err)
	}
	s.m.leader.Store(0)
	_, err = w.Recv()
	wantError(t, "watch", err, rpctypes.ErrGRPCNoLeader)
	_, err = alive.Recv()
	wantError(t, "keepalive", err, rpctypes.ErrGRPCNoLeader)
	kv := s.kv(t)
	_, err = kv.Range(insist, &pb.RangeRequest{Key: []byte("a"), Serializable: true})
	wantError(t, "serializable range", err, rpctypes.ErrGRPCNoLeader)
	other := metadata.AppendToOutgoingContext(within(t), "hasleader", "1")
	if _, err := kv.Range(other, &pb.RangeRequest{Key: []byte("a"), Serializable: true}); err != nil {
		t.Errorf("hasleader 1: %v", err)
	}
	if _, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	if r := plain.next(); len(r.Events) != 1 {
		t.Error(r)
	}
}

// Keepalives are answered in order, dead leases with TTL 0; half-close ends the stream with OK (BC-33).
func TestKeepAlive(t *testing.T) {
	s := newServer(t)
	leases := pb.NewLeaseClient(s.dial(t))
	ctx := within(t)
	granted, err := leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 1})
	if err != nil || granted.TTL != 2 || granted.ID <= 0 || granted.Header.GetMemberId() != testMemberID {
		t.Fatal(granted, err)
	}
	if _, err := leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: -7, TTL: 50}); err != nil {
		t.Fatal(err)
	}
	_, err = leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: -7, TTL: 50})
	wantError(t, "grant again", err, rpctypes.ErrGRPCLeaseExist)
	_, err = leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: -7, TTL: 9000000001})
	wantError(t, "grant for too long", err, rpctypes.ErrGRPCLeaseTTLTooLarge)
	_, err = leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 0})
	wantError(t, "revoke of 0", err, rpctypes.ErrGRPCLeaseNotFound)
	ka, err := leases.LeaseKeepAlive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ids, ttls := []int64{99, granted.ID, 0, -7, 99, granted.ID}, []int64{0, 2, 0, 50, 0, 2}
	for _, id := range ids {
		if err := ka.Send(&pb.LeaseKeepAliveRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ka.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for i := range ids {
		r, err := ka.Recv()
		if err != nil || r.ID != ids[i] || r.TTL != ttls[i] || r.Header.GetRevision() != 1 {
			t.Fatalf("answer %d: %v, %v", i, r, err)
		}
	}
	if _, err := ka.Recv(); err != io.EOF {
		t.Errorf("after half-close: %v", err)
	}
	ttl, err := leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: 99, Keys: true})
	if err != nil || ttl.TTL != -1 || ttl.GrantedTTL != 0 || len(ttl.Keys) != 0 {
		t.Error(ttl, err)
	}
	if _, err := s.kv(t).Put(ctx, &pb.PutRequest{Key: []byte("k"), Lease: -7}); err != nil {
		t.Fatal(err)
	}
	ttl, err = leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: -7, Keys: true})
	if err != nil || ttl.GrantedTTL != 50 || len(ttl.Keys) != 1 {
		t.Error(ttl, err)
	}
	list, err := leases.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	if err != nil || len(list.Leases) != 2 {
		t.Error(list, err)
	}
}

// Without a leader lease calls wait for one, and give up after the request timeout (client-api.md 2.5).
func TestLeasesWithoutLeader(t *testing.T) {
	s := newServer(t, func(c *Config, _ *ListenConfig) {
		c.ElectionTimeout, c.RequestTimeout = 10*time.Millisecond, 300*time.Millisecond
	})
	leases, ctx := pb.NewLeaseClient(s.dial(t)), within(t)
	s.m.leader.Store(0)
	_, err := leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: 5})
	wantError(t, "no leader", err, rpctypes.ErrGRPCNoLeader)
	time.AfterFunc(50*time.Millisecond, func() { s.m.leader.Store(testMemberID) })
	if r, err := leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: 5}); err != nil || r.TTL != -1 {
		t.Error(r, err)
	}
	s.m.leader.Store(7)
	ka, err := leases.LeaseKeepAlive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := ka.Send(&pb.LeaseKeepAliveRequest{ID: 5}); err != nil {
		t.Fatal(err)
	}
	_, err = ka.Recv()
	wantError(t, "leader that cannot confirm", err, errNotPrimary)
}

// A renewal of a lease that has run out waits for its end however long that takes, and does not blame the leader.
func TestRenewalWaitsForTheEnd(t *testing.T) {
	s := newServer(t, func(c *Config, _ *ListenConfig) { c.RequestTimeout = 20 * time.Millisecond })
	s.m.renewing = func() { <-time.After(200 * time.Millisecond) }
	ka, err := pb.NewLeaseClient(s.dial(t)).LeaseKeepAlive(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := ka.Send(&pb.LeaseKeepAliveRequest{ID: 5}); err != nil {
		t.Fatal(err)
	}
	if r, err := ka.Recv(); err != nil || r.TTL != 0 {
		t.Error(r, err)
	}
}

// A compaction that passes the pinned revision ends a RangeStream (client-api.md 6.3).
func TestRangeStreamCompacted(t *testing.T) {
	s := newServer(t)
	fill(t, s, 60)
	kv, ctx := s.kv(t), within(t)
	stream, err := kv.RangeStream(ctx, &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // the rest waits for the client's window
		t.Fatal(err)
	}
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: 62}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	wantError(t, "stream", err, rpctypes.ErrGRPCCompacted)
}

// The hand-written decoders of streams agree with the generated ones.
func FuzzWatchRequest(f *testing.F) {
	for _, r := range []*pb.WatchRequest{
		{}, {RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}},
		{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: -3}}},
		{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte("k"), RangeEnd: []byte("z"), StartRevision: 9, ProgressNotify: true, PrevKv: true, WatchId: 4,
			Fragment: true, Filters: []pb.WatchCreateRequest_FilterType{0, 1, 77},
		}}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x12\x05\x08\x03\x0a\x01x")) // the id once more, as bytes: an unknown field
	f.Fuzz(func(t *testing.T, b []byte) {
		var want pb.WatchRequest
		var got watchRequest
		wantErr, gotErr := proto.Unmarshal(b, &want), got.decode(b)
		if (gotErr != nil) != (wantErr != nil) {
			t.Fatalf("%x: %v, want %v", b, gotErr, wantErr)
		}
		if wantErr != nil {
			return
		}
		switch u := want.RequestUnion.(type) {
		case nil:
			if got.kind != watchNothing {
				t.Fatalf("kind %d", got.kind)
			}
		case *pb.WatchRequest_ProgressRequest:
			if got.kind != watchProgress {
				t.Fatalf("kind %d", got.kind)
			}
		case *pb.WatchRequest_CancelRequest:
			if got.kind != watchCancel || got.cancel != u.CancelRequest.WatchId {
				t.Fatalf("%+v, want %v", got, u.CancelRequest)
			}
		case *pb.WatchRequest_CreateRequest:
			checkCreate(t, &got, u.CreateRequest)
		}
	})
}

// FuzzKeepAlive is the same for keepalives.
func FuzzKeepAlive(f *testing.F) {
	f.Add([]byte("\x08\x05"))
	f.Add([]byte("\x08\x02\x0a\x02xy"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var want pb.LeaseKeepAliveRequest
		var got call
		wantErr, gotErr := proto.Unmarshal(b, &want), got.decodeKeepAlive(b)
		if (gotErr != nil) != (wantErr != nil) {
			t.Fatalf("%x: %v, want %v", b, gotErr, wantErr)
		}
		if wantErr == nil && got.lease != want.ID {
			t.Fatalf("%x: %d, want %d", b, got.lease, want.ID)
		}
	})
}

func checkCreate(t *testing.T, got *watchRequest, want *pb.WatchCreateRequest) {
	t.Helper()
	noPut, noDelete := false, false
	for _, f := range want.Filters {
		noPut, noDelete = noPut || f == 0, noDelete || f == 1
	}
	c := &got.create
	if got.kind != watchCreate || !bytes.Equal(c.Key, want.Key) || !bytes.Equal(c.End, want.RangeEnd) ||
		c.Start != want.StartRevision || c.ID != want.WatchId || c.PrevKV != want.PrevKv ||
		c.Fragment != want.Fragment ||
		c.ProgressNotify != want.ProgressNotify || c.NoPut != noPut || c.NoDelete != noDelete {
		t.Fatalf("%+v, want %v", got, want)
	}
}

package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"sluice/stages/apply/backend"
	"sluice/stages/propose"
)

// A snapshot is blobs of 32 KiB and the SHA-256 of all of them (client-api.md 11.4).
func TestSnapshot(t *testing.T) {
	m := newTestMember(t)
	m.snapshot = strings.Repeat("0123456789abcdef", 5000)
	stream, err := pb.NewMaintenanceClient(serveMember(t, m).dial(t)).Snapshot(within(t), &pb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var blobs [][]byte
	left := uint64(len(m.snapshot))
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if r.Header != nil || r.Version != "3.7.0" {
			t.Errorf("header %v, version %q", r.Header, r.Version)
		}
		if left > 0 {
			left -= uint64(len(r.Blob))
		}
		if r.RemainingBytes != left {
			t.Errorf("%d bytes remain, want %d", r.RemainingBytes, left)
		}
		blobs = append(blobs, r.Blob)
	}
	data := bytes.Join(blobs[:len(blobs)-1], nil)
	if string(data) != m.snapshot || len(blobs) != 4 || len(blobs[0]) != 32<<10 {
		t.Errorf("%d bytes in %d blobs", len(data), len(blobs))
	}
	if sum := sha256.Sum256(data); !bytes.Equal(blobs[len(blobs)-1], sum[:]) {
		t.Error("the checksum is wrong")
	}
}

func TestMaintenance(t *testing.T) {
	s := newServer(t, func(c *Config, _ *ListenConfig) { c.StopOnDefrag = true })
	conn := s.dial(t)
	mt, ctx := pb.NewMaintenanceClient(conn), within(t)
	_, err := mt.MoveLeader(ctx, &pb.MoveLeaderRequest{TargetID: 99})
	wantError(t, "move to nobody", err, rpctypes.ErrGRPCBadLeaderTransferee)
	if _, err := mt.MoveLeader(ctx, &pb.MoveLeaderRequest{TargetID: testMemberID}); err != nil {
		t.Error(err)
	}
	s.m.leader.Store(7)
	_, err = mt.MoveLeader(ctx, &pb.MoveLeaderRequest{TargetID: testMemberID})
	wantError(t, "move by a follower", err, rpctypes.ErrGRPCNotLeader)
	s.m.leader.Store(0)
	st, err := mt.Status(ctx, &pb.StatusRequest{})
	if err != nil || len(st.Errors) != 1 || st.Errors[0] != "etcdserver: no leader" {
		t.Error(st, err)
	}
	s.m.leader.Store(testMemberID)
	_, err = mt.Alarm(ctx, &pb.AlarmRequest{Action: 9})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("unknown action: %v", err)
	}
	during := healthpb.HealthCheckResponse_UNKNOWN
	s.m.defrag = func() {
		r, err := s.health.Check(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Error(err)
		}
		during = r.GetStatus()
	}
	if r, err := mt.Defragment(ctx, &pb.DefragmentRequest{}); err != nil || r.Header != nil {
		t.Error(r, err)
	}
	after, err := s.health.Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || during != healthpb.HealthCheckResponse_NOT_SERVING ||
		after.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health during defragmentation %v, after %v", during, after)
	}
	if r, err := mt.Hash(ctx, &pb.HashRequest{}); err != nil || r.Hash != 77 || r.Header.GetRevision() != 1 {
		t.Error(r, err)
	}
	if r, err := mt.HashKV(ctx, &pb.HashKVRequest{}); err != nil || r.HashRevision != 1 {
		t.Error(r, err)
	}
	_, err = mt.HashKV(ctx, &pb.HashKVRequest{Revision: 5})
	wantError(t, "hash of the future", err, rpctypes.ErrGRPCFutureRev)
}

// The checks of a downgrade, in their order (client-api.md 11.6).
func TestDowngrade(t *testing.T) {
	mt := pb.NewMaintenanceClient(newServer(t).dial(t))
	call := func(action pb.DowngradeRequest_DowngradeAction, version string) (*pb.DowngradeResponse, error) {
		return mt.Downgrade(within(t), &pb.DowngradeRequest{Action: action, Version: version})
	}
	for _, v := range []string{"", "3", "abc"} {
		_, err := call(pb.DowngradeRequest_VALIDATE, v)
		wantError(t, v, err, rpctypes.ErrGRPCWrongDowngradeVersionFormat)
	}
	for _, v := range []string{"3.7", "3.5", "3.8.0", "4.6"} {
		_, err := call(pb.DowngradeRequest_ENABLE, v)
		wantError(t, v, err, rpctypes.ErrGRPCInvalidDowngradeTargetVersion)
	}
	if r, err := call(pb.DowngradeRequest_VALIDATE, "3.6.5"); err != nil || r.Version != "3.7" {
		t.Error(r, err)
	}
	if _, err := call(pb.DowngradeRequest_ENABLE, "3.6"); err != nil {
		t.Error(err)
	}
	_, err := call(pb.DowngradeRequest_VALIDATE, "3.6")
	wantError(t, "second job", err, rpctypes.ErrGRPCDowngradeInProcess)
	for range 2 {
		if _, err := call(pb.DowngradeRequest_CANCEL, ""); err != nil {
			t.Error(err)
		}
	}
	_, err = call(9, "")
	wantError(t, "unknown action", err, status.Error(codes.Unknown, "etcdserver: unknown method"))
}

// Membership of a cluster of one that cannot have more (client-api.md 10; bug case BC-56).
func TestCluster(t *testing.T) {
	s := newServer(t)
	cl, ctx := pb.NewClusterClient(s.dial(t)), within(t)
	for _, urls := range [][]string{
		nil, {"127.0.0.1:1"}, {"http://x"}, {"http://127.0.0.1:1/path"}, {"ftp://127.0.0.1:1"},
	} {
		_, err := cl.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: urls})
		wantError(t, strings.Join(urls, ","), err, rpctypes.ErrGRPCMemberBadURLs)
	}
	_, err := cl.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"http://127.0.0.1:2380"}})
	wantError(t, "existing URL", err, rpctypes.ErrGRPCPeerURLExist)
	_, err = cl.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"http://127.0.0.1:9"}})
	wantError(t, "new member", err, rpctypes.ErrGRPCUnhealthy)
	_, err = cl.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: testMemberID})
	wantError(t, "the only member", err, errNotEnoughStarted)
	_, err = cl.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: 99})
	wantError(t, "unknown member", err, rpctypes.ErrGRPCMemberNotFound)
	_, err = cl.MemberPromote(ctx, &pb.MemberPromoteRequest{ID: testMemberID})
	wantError(t, "a voter", err, rpctypes.ErrGRPCMemberNotLearner)
	_, err = cl.MemberPromote(ctx, &pb.MemberPromoteRequest{ID: 99})
	wantError(t, "nobody", err, rpctypes.ErrGRPCMemberNotFound)
	_, err = cl.MemberUpdate(ctx, &pb.MemberUpdateRequest{ID: testMemberID, PeerURLs: []string{"bad"}})
	wantError(t, "bad URL", err, rpctypes.ErrGRPCMemberBadURLs)
	r, err := cl.MemberUpdate(ctx, &pb.MemberUpdateRequest{ID: testMemberID, PeerURLs: []string{"http://127.0.0.1:7"}})
	if err != nil || len(r.Members) != 1 || r.Members[0].PeerURLs[0] != "http://127.0.0.1:7" ||
		r.Header.Revision != 0 {
		t.Error(r, err)
	}
	before := s.m.barriers.Load()
	for _, linearizable := range []bool{false, true} {
		if r, err := cl.MemberList(ctx, &pb.MemberListRequest{Linearizable: linearizable}); err != nil ||
			r.Header.Revision != 0 || r.Header.MemberId != testMemberID ||
			r.Members[0].ClientURLs[0] != "http://127.0.0.1:2379" {
			t.Error(r, err)
		}
	}
	if n := s.m.barriers.Load() - before; n != 1 {
		t.Errorf("%d barriers", n)
	}
}

// A member that serves others adds them, unless a strict check stands against it.
func TestMemberAddWithPeers(t *testing.T) {
	m := newTestMember(t)
	m.peers = true
	cl, ctx := pb.NewClusterClient(serveMember(t, m).dial(t)), within(t)
	r, err := cl.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"http://b:2", " http://a:1"}, IsLearner: true})
	if err != nil || len(r.Members) != 2 || !r.Member.IsLearner ||
		strings.Join(r.Member.PeerURLs, ",") != "http://a:1,http://b:2" {
		t.Fatal(r, err)
	}
	_, err = cl.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"http://c:1"}, IsLearner: true})
	wantError(t, "second learner", err, rpctypes.ErrGRPCTooManyLearners)
	if r, err := cl.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: r.Member.ID}); err != nil || len(r.Members) != 1 {
		t.Error(r, err)
	}
	if _, err := cl.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"http://d:1"}}); err != nil {
		t.Error(err)
	}
	_, err = cl.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"http://e:1"}})
	wantError(t, "third voter while the second has not started", err, errNotEnoughStarted)
}

// What a learner answers, checked before the request is (client-api.md 2.6).
func TestLearner(t *testing.T) {
	s := serveMember(t, newTestMemberAs(t, true))
	conn, ctx := s.dial(t), within(t)
	kv := pb.NewKVClient(conn)
	if _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), Serializable: true}); err != nil {
		t.Error(err)
	}
	_, err := kv.Range(ctx, &pb.RangeRequest{Serializable: true})
	wantError(t, "serializable range without key", err, rpctypes.ErrGRPCEmptyKey)
	if _, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}); err != nil {
		t.Error(err)
	}
	snap, err := pb.NewMaintenanceClient(conn).Snapshot(ctx, &pb.SnapshotRequest{})
	if err == nil {
		_, err = snap.Recv()
	}
	if err != nil {
		t.Errorf("snapshot: %v", err)
	}
	refused := func(what string, err error) { wantError(t, what, err, rpctypes.ErrGRPCNotSupportedForLearner) }
	_, err = kv.Range(ctx, &pb.RangeRequest{})
	refused("linearizable range without key", err)
	_, err = kv.Txn(ctx, &pb.TxnRequest{})
	refused("empty txn", err)
	_, err = pb.NewClusterClient(conn).MemberList(ctx, &pb.MemberListRequest{})
	refused("member list", err)
	_, err = pb.NewAuthClient(conn).AuthStatus(ctx, &pb.AuthStatusRequest{})
	refused("auth status", err)
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	refused("health", err)
	rs, err := kv.RangeStream(ctx, &pb.RangeRequest{Key: []byte("a"), Serializable: true})
	if err == nil {
		_, err = rs.Recv()
	}
	refused("range stream", err)
	w, err := pb.NewWatchClient(conn).Watch(ctx)
	if err == nil {
		_, err = w.Recv()
	}
	refused("watch", err)
}

// What the member refuses reaches the client as the catalogue says (client-api.md 2.4).
func TestRefusals(t *testing.T) {
	s := newServer(t)
	kv := s.kv(t)
	for _, c := range []struct{ refusal, put, get error }{
		{propose.ErrTimeout, rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeout},
		{propose.ErrLeaderChanged, rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCLeaderChanged},
		{propose.ErrStopped, rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCStopped},
		{propose.ErrTooManyRequests, errTooManyRequests, errTooManyRequests},
		{propose.ErrRequestTooLarge, rpctypes.ErrGRPCRequestTooLarge, rpctypes.ErrGRPCRequestTooLarge},
		{context.Canceled, rpctypes.ErrGRPCCanceled, status.Error(codes.Canceled, "context canceled")},
		{context.DeadlineExceeded, status.Error(codes.DeadlineExceeded, "context deadline exceeded"),
			status.Error(codes.DeadlineExceeded, "context deadline exceeded")},
	} {
		s.m.refuse.Store(&c.refusal)
		_, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a")})
		wantError(t, "put: "+c.refusal.Error(), err, c.put)
		_, err = kv.Range(within(t), &pb.RangeRequest{Key: []byte("a")})
		wantError(t, "get: "+c.refusal.Error(), err, c.get)
	}
}

func as(ctx context.Context, key, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, key, token)
}

// enableAuth makes root with password p and alice, who may read and write a.
func enableAuth(t *testing.T, conn *grpc.ClientConn) (root, alice string) {
	t.Helper()
	a, ctx := pb.NewAuthClient(conn), within(t)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(a.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "root", Password: "p"}))
	must(a.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}))
	must(a.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "r"}))
	must(a.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{Name: "r", Perm: permission("a/", "a0")}))
	must(a.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "alice", Password: "q"}))
	must(a.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "alice", Role: "r"}))
	must(a.AuthEnable(ctx, &pb.AuthEnableRequest{}))
	login := func(name, password string) string {
		r, err := a.Authenticate(ctx, &pb.AuthenticateRequest{Name: name, Password: password})
		must(r, err)
		return r.Token
	}
	_, err := a.Authenticate(ctx, &pb.AuthenticateRequest{Name: "root", Password: "wrong"})
	wantError(t, "wrong password", err, rpctypes.ErrGRPCAuthFailed)
	return login("root", "p"), login("alice", "q")
}

// Rights at the edge (client-api.md 9.6 to 9.8; bug case BC-51).
func TestAuth(t *testing.T) {
	s := newServer(t)
	conn := s.dial(t)
	_, err := pb.NewAuthClient(conn).Authenticate(within(t), &pb.AuthenticateRequest{Name: "x", Password: "y"})
	wantError(t, "login while off", err, rpctypes.ErrGRPCAuthNotEnabled)
	root, alice := enableAuth(t, conn)
	kv, mt, ctx := pb.NewKVClient(conn), pb.NewMaintenanceClient(conn), within(t)
	asRoot, asAlice := as(ctx, "token", root), as(ctx, "token", "Bearer "+alice)
	get := func(ctx context.Context, key string) error {
		_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
		return err
	}
	for what, c := range map[string]struct{ err, want error }{
		"nobody":            {get(ctx, "a/1"), rpctypes.ErrGRPCUserEmpty},
		"alice":             {get(asAlice, "a/1"), nil},
		"alice elsewhere":   {get(asAlice, "b"), rpctypes.ErrGRPCPermissionDenied},
		"root":              {get(asRoot, "b"), nil},
		"authorization":     {get(as(ctx, "authorization", "Bearer "+alice), "a/1"), nil},
		"lower-case bearer": {get(as(ctx, "authorization", "bearer "+alice), "a/1"), rpctypes.ErrGRPCInvalidAuthToken},
		"token first":       {get(as(as(ctx, "token", "x"), "authorization", alice), "a/1"), rpctypes.ErrGRPCInvalidAuthToken},
		"made-up token":     {get(as(ctx, "token", "abcdefghijklmnop.1"), "a/1"), rpctypes.ErrGRPCInvalidAuthToken},
	} {
		if c.want == nil && c.err != nil {
			t.Errorf("%s: %v", what, c.err)
		} else if c.want != nil {
			wantError(t, what, c.err, c.want)
		}
	}
	_, err = kv.Txn(asAlice, &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: []byte("secret")}},
		Success: []*pb.RequestOp{opRange(&pb.RangeRequest{Key: []byte("a/1")})},
	})
	wantError(t, "read txn with a compare elsewhere", err, rpctypes.ErrGRPCPermissionDenied)
	_, err = kv.Put(asAlice, &pb.PutRequest{Key: []byte("b")})
	wantError(t, "put elsewhere", err, rpctypes.ErrGRPCPermissionDenied)
	if _, err := mt.Status(asAlice, &pb.StatusRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := pb.NewClusterClient(conn).MemberList(asAlice, &pb.MemberListRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := mt.Alarm(asAlice, &pb.AlarmRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := pb.NewAuthClient(conn).AuthStatus(ctx, &pb.AuthStatusRequest{}); err != nil {
		t.Error(err)
	}
	denied := func(what string, err error) { wantError(t, what, err, rpctypes.ErrGRPCPermissionDenied) }
	_, err = mt.Defragment(asAlice, &pb.DefragmentRequest{})
	denied("defragment", err)
	_, err = mt.Hash(asAlice, &pb.HashRequest{})
	denied("hash", err)
	_, err = mt.HashKV(asAlice, &pb.HashKVRequest{})
	denied("hashkv", err)
	_, err = kv.Compact(asAlice, &pb.CompactionRequest{Revision: 1})
	denied("compact", err)
	_, err = mt.MoveLeader(asAlice, &pb.MoveLeaderRequest{})
	denied("move leader", err)
	snap, err := mt.Snapshot(asAlice, &pb.SnapshotRequest{})
	if err == nil {
		_, err = snap.Recv()
	}
	denied("snapshot", err)
	_, err = pb.NewAuthClient(conn).UserAdd(asAlice, &pb.AuthUserAddRequest{})
	denied("user add without a name", err)
	_, err = kv.Compact(ctx, &pb.CompactionRequest{Revision: 1})
	wantError(t, "compact by nobody", err, rpctypes.ErrGRPCUserEmpty)
}

// A refused create is answered in its turn, and hurts nobody else on the stream (bug case BC-24).
func TestWatchRefusals(t *testing.T) {
	s := newServer(t)
	conn := s.dial(t)
	_, alice := enableAuth(t, conn)
	w := openWatch(t, s, as(within(t), "token", alice))
	for _, key := range []string{"a/1", "secret", "a/1"} {
		w.create(&pb.WatchCreateRequest{Key: []byte(key)})
	}
	if r := w.next(); !r.Created || r.Canceled || r.WatchId != 0 {
		t.Fatal(r)
	}
	if r := w.next(); !r.Created || !r.Canceled || r.WatchId != -1 ||
		r.CancelReason != "rpc error: code = PermissionDenied desc = etcdserver: permission denied" {
		t.Fatal(r)
	}
	if r := w.next(); !r.Created || r.Canceled || r.WatchId != 1 {
		t.Fatal(r)
	}
	_, err := pb.NewKVClient(conn).Put(as(within(t), "token", alice), &pb.PutRequest{Key: []byte("a/1")})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if r := w.next(); len(r.Events) != 1 {
			t.Fatal(r)
		}
	}
	for token, reason := range map[string]string{
		"":    "rpc error: code = InvalidArgument desc = etcdserver: user name is empty",
		"bad": "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
	} {
		ctx := within(t)
		if token != "" {
			ctx = as(ctx, "token", token)
		}
		other := openWatch(t, s, ctx)
		other.create(&pb.WatchCreateRequest{Key: []byte("a/1")})
		if r := other.next(); r.CancelReason != reason {
			t.Errorf("token %q: %q, want %q", token, r.CancelReason, reason)
		}
	}
}

// The common name of a client's certificate is its user, but never that of the gateway's own hop (9.7).
func TestCommonNameIdentity(t *testing.T) {
	a := newAuthority(t)
	a.issue("server", "127.0.0.1")
	rootCert, unknown := a.issue("root"), a.issue("nobody")
	o := a.options()
	o.TrustedCAFile, o.ClientCertAuth = filepath.Join(a.dir, "ca.pem"), true
	s := newServer(t, withTLS(a.server(o)), func(c *Config, _ *ListenConfig) { c.ClientCertAuth = true })
	local, err := s.DialLocal()
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	_, alice := enableAuth(t, local)
	dial := func(cert tls.Certificate, protos ...string) *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(
			&tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{cert}, NextProtos: protos})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	get := func(conn *grpc.ClientConn, ctx context.Context, key string) error {
		_, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte(key)})
		return err
	}
	// A client that offers http/1.1 too is served by way of net/http, and known all the same.
	for _, protos := range [][]string{nil, {"h2", "http/1.1"}} {
		conn := dial(rootCert, protos...)
		if err := get(conn, within(t), "any"); err != nil {
			t.Errorf("%v: root's certificate: %v", protos, err)
		}
		wantError(t, "a token takes precedence", get(conn, as(within(t), "token", alice), "any"),
			rpctypes.ErrGRPCPermissionDenied)
		wantError(t, "gateway", get(conn, as(within(t), "grpcgateway-accept", "x"), "any"), rpctypes.ErrGRPCUserEmpty)
		wantError(t, "unknown name", get(dial(unknown, protos...), within(t), "any"), rpctypes.ErrGRPCPermissionDenied)
	}
	wantError(t, "local hop", get(local, within(t), "any"), rpctypes.ErrGRPCUserEmpty)
}

func permission(key, end string) *authpb.Permission {
	return &authpb.Permission{PermType: 2, Key: []byte(key), RangeEnd: []byte(end)}
}

// A name that cannot be stored is refused before it is proposed.
func TestNameLimit(t *testing.T) {
	s := newServer(t)
	users, ctx := pb.NewAuthClient(s.dial(t)), within(t)
	name, before := strings.Repeat("n", backend.KeyBytesMax+1), s.m.CommitIndex()
	_, err := users.UserAdd(ctx, &pb.AuthUserAddRequest{Name: name, Password: "p"})
	wantError(t, "user", err, rpctypes.ErrGRPCRequestTooLarge)
	_, err = users.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: name})
	wantError(t, "role", err, rpctypes.ErrGRPCRequestTooLarge)
	if n := s.m.CommitIndex() - before; n != 0 {
		t.Errorf("%d entries were written", n)
	}
	if _, err := users.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: name[1:]}); err != nil {
		t.Errorf("the longest name: %v", err)
	}
}

package faults

import (
	"context"
	"math"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sluice/runtime"
	"sluice/server/rpc"
	"sluice/stages/apply/members"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = time.Minute

// sizes are the capacities that every trap is tried with.
var sizes = map[string]runtime.Mailboxes{
	"default": {},
	"size 1":  {Propose: 1, System: 1, Replicate: 1, Persist: 1, Apply: 1, Watch: 1, Expire: 1, Backend: 1},
}

// served is a member and its gRPC services on a port of its own.
type served struct {
	*runtime.Member
	cfg     runtime.Config
	address string
	pool    *rpc.PoisonPool
	server  *rpc.Server
	ended   chan error
	cut     bool // a connection was cut: grpc leaves what it has queued to the garbage collector
}

// serve starts a member whose buffers are poisoned, until the test ends.
func serve(t *testing.T, boxes runtime.Mailboxes, change func(*runtime.Config, *rpc.Config)) *served {
	t.Helper()
	s := &served{pool: rpc.NewPoisonPool(), ended: make(chan error, 1)}
	s.cfg = runtime.Config{
		Name: "m1", DataDir: filepath.Join(t.TempDir(), "data"), InitialCluster: "m1=http://127.0.0.1:2",
		AdvertiseClientURLs: []string{"http://127.0.0.1:1"}, AdvertisePeerURLs: []string{"http://127.0.0.1:2"},
		InitialClusterToken: "etcd-cluster", NewCluster: true, Heartbeat: 100 * time.Millisecond, Election: time.Second,
		PreVote: true, SnapshotCount: 10_000, CatchUpEntries: 5000, WALsMax: 5, SnapshotsMax: 5, LearnersMax: 1,
		RequestBytesMax: 1572864, Version: members.Version{Major: 3, Minor: 7, Patch: 3}, TokenTTL: time.Minute,
		Mailboxes: boxes, SegmentBytes: 4 << 20,
	}
	services := rpc.Config{ServerVersion: "3.7.3", BcryptCost: 4, LearnersMax: 1, Buffers: s.pool}
	if change != nil {
		change(&s.cfg, &services)
	}
	var err error
	if s.Member, err = runtime.New(s.cfg); err != nil {
		t.Fatal(err)
	}
	s.Start(context.Background())
	select {
	case <-s.Ready():
	case <-s.Done():
		t.Fatal(s.Stop(context.Background()))
	}
	endpoints, err := rpc.Listen(t.Context(), rpc.ListenConfig{Client: []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}})
	if err != nil {
		t.Fatal(err)
	}
	s.address = endpoints[0].Addr().String()
	s.server = rpc.New(services, s.Member)
	go func() { s.ended <- s.server.Serve(context.Background(), endpoints, http.NotFoundHandler()) }()
	t.Cleanup(func() { s.stop(t) })
	return s
}

// stop ends the services, then the member, and checks that every buffer has come back.
func (s *served) stop(t *testing.T) {
	if s.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.server.Shutdown(ctx)
	s.server = nil
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
	if n := s.pool.Out(); n != 0 && !s.cut {
		t.Errorf("%d buffers were not given back", n)
	}
}

// dial connects a plain gRPC client with small windows, so that what it does not read stays at the server.
func (s *served) dial(t *testing.T, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	const window = 64 << 10
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
	}, opts...)
	conn, err := grpc.NewClient("passthrough:///"+s.address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// valve is a connection that stops reading after some bytes, until it is opened.
type valve struct {
	net.Conn
	left   int
	closed chan struct{} // when reading has stopped
	open   chan struct{}
	once   sync.Once
}

// dialValve connects a client that reads bytes and then no more until open is called. stalled is closed once
// it has stopped.
func (s *served) dialValve(t *testing.T, bytes int) (conn *grpc.ClientConn, stalled <-chan struct{}, open func()) {
	v := &valve{left: bytes, closed: make(chan struct{}), open: make(chan struct{})}
	open = sync.OnceFunc(func() { close(v.open) })
	conn = s.dial(t, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		var err error
		v.Conn, err = d.DialContext(ctx, "tcp", address)
		return v, err
	}))
	t.Cleanup(open) // before the connection is closed
	return conn, v.closed, open
}

func (v *valve) Read(p []byte) (int, error) {
	if v.left <= 0 {
		v.once.Do(func() { close(v.closed) })
		<-v.open
		v.left = math.MaxInt
	}
	n, err := v.Conn.Read(p)
	v.left -= n
	return n, err
}

// within is a context that a test's calls must finish in.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (s *served) path() string { return filepath.Join(s.cfg.DataDir, "member", "snap", "db") }

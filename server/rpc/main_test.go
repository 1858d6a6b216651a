package rpc

import (
	"context"
	"crypto/tls"
	"io"
	"math"
	"net/http"
	"net/url"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

// testServer is a served member.
type testServer struct {
	*Server
	m       *testMember
	address string // of the first endpoint
	ended   chan error
}

type serverOption func(*Config, *ListenConfig)

func withTLS(c *tls.Config) serverOption {
	return func(_ *Config, l *ListenConfig) {
		l.TLS = c
		l.Client = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	}
}

// serveMember serves m on a port of its own, with a handler that answers "http".
func serveMember(t testing.TB, m *testMember, opts ...serverOption) *testServer {
	t.Helper()
	cfg := Config{
		ServerVersion: "3.7.3", StrictReconfig: true, LearnersMax: 1, BcryptCost: 4,
		Buffers: NewPoisonPool(), StreamWorkers: 4, KeepAliveMinTime: 5 * time.Second,
	}
	listen := ListenConfig{Client: []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}}
	for _, o := range opts {
		o(&cfg, &listen)
	}
	endpoints, err := Listen(t.Context(), listen)
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{Server: New(cfg, m), m: m, address: endpoints[0].Addr().String(), ended: make(chan error, 1)}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "http") })
	go func() { s.ended <- s.Serve(context.Background(), endpoints, handler) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.Shutdown(ctx)
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func newServer(t testing.TB, opts ...serverOption) *testServer {
	t.Helper()
	return serveMember(t, newTestMember(t), opts...)
}

// dial connects a plain gRPC client.
func (s *testServer) dial(t testing.TB, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	}, opts...)
	conn, err := grpc.NewClient("passthrough:///"+s.address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (s *testServer) kv(t testing.TB) pb.KVClient { return pb.NewKVClient(s.dial(t)) }

// client is the stock client.
func (s *testServer) client(t testing.TB) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{s.address}, DialTimeout: patience, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// within is a context that a test's calls must finish in.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

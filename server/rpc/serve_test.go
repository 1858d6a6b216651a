package rpc

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// authority signs the certificates of one test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	last int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir(), last: 1}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a.key = key
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool = x509.NewCertPool()
	a.pool.AddCert(a.cert)
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// issue writes <name>.pem and <name>-key.pem for a certificate with this common name and these host names.
func (a *authority) issue(name string, hosts ...string) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.last++
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(a.last), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	certFile := a.write(name+".pem", "CERTIFICATE", der)
	cert, err := tls.LoadX509KeyPair(certFile, a.write(name+"-key.pem", "EC PRIVATE KEY", keyDER))
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

func (a *authority) options() TLSOptions {
	return TLSOptions{CertFile: filepath.Join(a.dir, "server.pem"), KeyFile: filepath.Join(a.dir, "server-key.pem")}
}

func (a *authority) server(o TLSOptions) *tls.Config {
	a.t.Helper()
	c, err := ServerTLS(o)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

func secureServer(t *testing.T, opts ...serverOption) (*testServer, *authority) {
	t.Helper()
	a := newAuthority(t)
	a.issue("server", "127.0.0.1", "localhost")
	return newServer(t, append([]serverOption{withTLS(a.server(a.options()))}, opts...)...), a
}

// hello makes a TLS handshake that offers these protocols.
func hello(t *testing.T, s *testServer, a *authority, protos ...string) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: a.pool, NextProtos: protos})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// h1 sends one HTTP/1.1 request and returns status and body.
func h1(t *testing.T, c net.Conn) (int, string) {
	t.Helper()
	fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// h2 sends one HTTP/2 request of this content type over c.
func h2(t *testing.T, c net.Conn, scheme, contentType string) (int, string) {
	t.Helper()
	cc, err := (&http2.Transport{AllowHTTP: true}).NewClientConn(c)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	r, _ := http.NewRequestWithContext(within(t), http.MethodPost, scheme+"://h/v3/kv/range", strings.NewReader("{}"))
	r.Header.Set("Content-Type", contentType)
	resp, err := cc.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// rangeOver makes a gRPC call on a connection that was made by hand.
func rangeOver(t *testing.T, c net.Conn) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(handshakenClient{}),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return c, nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kv := pb.NewKVClient(conn)
	if _, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 5000)}); err != nil {
		return err
	}
	resp, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("k")})
	if err == nil && len(resp.Kvs) != 1 {
		err = fmt.Errorf("%d keys", len(resp.Kvs))
	}
	return err
}

// handshakenClient lets a gRPC client use a connection as it is.
type handshakenClient struct{ handshaken }

func (handshakenClient) ClientHandshake(
	_ context.Context, _ string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return raw, authInfo{conn: &clientConn{}}, nil
}

// Who offers what decides who serves (design.md section 3, "Transport").
func TestALPN(t *testing.T) {
	s, a := secureServer(t)
	if code, body := h1(t, hello(t, s, a)); code != 200 || body != "http" {
		t.Errorf("no ALPN: %d %q", code, body)
	}
	if code, body := h1(t, hello(t, s, a, "http/1.1")); code != 200 || body != "http" {
		t.Errorf("http/1.1: %d %q", code, body)
	}
	both := hello(t, s, a, "h2", "http/1.1")
	if p := both.ConnectionState().NegotiatedProtocol; p != "h2" {
		t.Fatalf("both: negotiated %q", p)
	}
	if code, body := h2(t, both, "https", "application/json"); code != 200 || body != "http" {
		t.Errorf("both, JSON over h2: %d %q", code, body)
	}
	if err := rangeOver(t, hello(t, s, a, "h2", "http/1.1")); err != nil {
		t.Errorf("both, gRPC: %v", err)
	}
	if err := rangeOver(t, hello(t, s, a, "h2")); err != nil {
		t.Errorf("only h2, gRPC: %v", err)
	}
	if code, _ := h2(t, hello(t, s, a, "h2"), "https", "application/json"); code != http.StatusUnsupportedMediaType {
		t.Errorf("only h2, JSON: %d", code)
	}
	if _, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: a.pool, NextProtos: []string{"foo"}}); err == nil {
		t.Error("an unknown protocol was accepted")
	}
}

func dialTCP(t *testing.T, s *testServer) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// On a plaintext port the first bytes decide, however they are cut.
func TestPlaintextPort(t *testing.T) {
	s := newServer(t)
	if code, body := h1(t, dialTCP(t, s)); code != 200 || body != "http" {
		t.Errorf("HTTP/1.1: %d %q", code, body)
	}
	if err := rangeOver(t, dialTCP(t, s)); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if code, _ := h2(t, dialTCP(t, s), "http", "application/json"); code != http.StatusUnsupportedMediaType {
		t.Errorf("h2c, JSON: %d", code)
	}
	c := dialTCP(t, s)
	for _, b := range []byte("POST /v3/kv/range HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n") {
		if _, err := c.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("byte by byte: %v, %v", resp, err)
	}
}

// A port with both schemes tells TLS and plaintext apart; one with URLs for HTTP of its own serves gRPC only.
func TestSharedAndSplitPorts(t *testing.T) {
	a := newAuthority(t)
	a.issue("server", "127.0.0.1")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	s := newServer(t, func(_ *Config, l *ListenConfig) {
		l.TLS = a.server(a.options())
		l.Client = []url.URL{{Scheme: "http", Host: address}, {Scheme: "https", Host: address}}
	})
	if code, _ := h1(t, dialTCP(t, s)); code != 200 {
		t.Errorf("plaintext: %d", code)
	}
	if err := rangeOver(t, hello(t, s, a, "h2")); err != nil {
		t.Errorf("TLS: %v", err)
	}
	split := newServer(t, func(_ *Config, l *ListenConfig) {
		l.HTTP = []url.URL{{Scheme: "unix", Host: filepath.Join(t.TempDir(), "http.sock")}}
	})
	if err := rangeOver(t, dialTCP(t, split)); err != nil {
		t.Errorf("gRPC port: %v", err)
	}
	c := dialTCP(t, split)
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	if b, _ := io.ReadAll(c); bytes.HasPrefix(b, []byte("HTTP/1")) {
		t.Errorf("gRPC port answered HTTP/1: %q", b)
	}
	httpConn, err := net.Dial("unix", split.serving.endpoints[1].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer httpConn.Close()
	if code, body := h1(t, httpConn); code != 200 || body != "http" {
		t.Errorf("HTTP socket: %d %q", code, body)
	}
}

// A stale socket file is no obstacle, and the file goes with the server.
func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	t.Run("serve", func(t *testing.T) {
		newServer(t, func(_ *Config, l *ListenConfig) { l.Client = []url.URL{{Scheme: "unix", Path: path}} })
		for _, use := range []func(net.Conn) error{
			func(c net.Conn) error { return rangeOver(t, c) },
			func(c net.Conn) error { _, body := h1(t, c); return errorUnless(body == "http", body) },
		} {
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			if err := use(c); err != nil {
				t.Error(err)
			}
			c.Close()
		}
	})
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket file after shutdown: %v", err)
	}
}

func errorUnless(ok bool, what string) error {
	if !ok {
		return errors.New(what)
	}
	return nil
}

// A connection that says nothing, or stops in its handshake, is closed.
func TestSilentConnections(t *testing.T) {
	short := func(c *Config, _ *ListenConfig) { c.HandshakeTimeout = 50 * time.Millisecond }
	plain := newServer(t, short)
	secure, _ := secureServer(t, short)
	for what, c := range map[string]struct {
		s    *testServer
		says string
	}{
		"plaintext, nothing":           {plain, ""},
		"plaintext, part of a preface": {plain, preface[:10]},
		"plaintext, only the preface":  {plain, preface},
		"plaintext, half a request":    {plain, "GET / HTTP/1.1\r\nHos"},
		"TLS, nothing":                 {secure, ""},
		"TLS, part of a hello":         {secure, "\x16\x03\x01\x02\x00\x01"},
	} {
		conn := dialTCP(t, c.s)
		if _, err := io.WriteString(conn, c.says); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Too many pings cost a plaintext client its connection, not a TLS client.
func TestKeepAliveEnforcement(t *testing.T) {
	plain := newServer(t, func(c *Config, _ *ListenConfig) { c.KeepAliveMinTime = time.Hour })
	framer := pingsFrom(t, dialTCP(t, plain), 5)
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatal("no GOAWAY", err)
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			if g.ErrCode != http2.ErrCodeEnhanceYourCalm || string(g.DebugData()) != "too_many_pings" {
				t.Errorf("GOAWAY %v %q", g.ErrCode, g.DebugData())
			}
			break
		}
	}
	secure, a := secureServer(t, func(c *Config, _ *ListenConfig) { c.KeepAliveMinTime = time.Hour })
	framer = pingsFrom(t, hello(t, secure, a, "h2"), 20)
	for acks := 0; acks < 20; {
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			t.Fatalf("GOAWAY %v %q", f.ErrCode, f.DebugData())
		case *http2.PingFrame:
			if f.IsAck() {
				acks++
			}
		}
	}
}

func pingsFrom(t *testing.T, c net.Conn, n int) *http2.Framer {
	t.Helper()
	if _, err := io.WriteString(c, preface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(c, c)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	for range n {
		if err := framer.WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	return framer
}

// settingsOf returns the concurrent streams that the server announces, 0 when it announces none.
func settingsOf(t *testing.T, c net.Conn) uint32 {
	t.Helper()
	framer := pingsFrom(t, c, 0)
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := f.(*http2.SettingsFrame); ok && !st.IsAck() {
			n, _ := st.Value(http2.SettingMaxConcurrentStreams)
			return n
		}
	}
}

// The stream limit is announced when there is one (client-api.md 1.4, bug case BC-30).
func TestStreamLimit(t *testing.T) {
	five := func(c *Config, _ *ListenConfig) { c.StreamsMax = 5 }
	if n := settingsOf(t, dialTCP(t, newServer(t))); n != 0 {
		t.Errorf("plaintext, default: %d", n)
	}
	if n := settingsOf(t, dialTCP(t, newServer(t, five))); n != 5 {
		t.Errorf("plaintext, 5: %d", n)
	}
	s, a := secureServer(t, five)
	for _, protos := range [][]string{{"h2"}, {"h2", "http/1.1"}} {
		if n := settingsOf(t, hello(t, s, a, protos...)); n != 5 {
			t.Errorf("TLS %v: %d", protos, n)
		}
	}
	unlimited, a := secureServer(t)
	if n := settingsOf(t, hello(t, unlimited, a, "h2", "http/1.1")); n != math.MaxInt32 {
		t.Errorf("TLS through net/http, default: %d", n)
	}
	conn := newServer(t, five).dial(t)
	ctx := within(t)
	for range 5 {
		w, err := pb.NewWatchClient(conn).Watch(ctx)
		if err == nil {
			err = w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
				CreateRequest: &pb.WatchCreateRequest{Key: []byte("a")},
			}})
		}
		if err == nil {
			_, err = w.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := pb.NewWatchClient(conn).Watch(short); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("sixth stream: %v", err)
	}
}

// Many watch streams over one TLS connection (bug case BC-30).
func TestManyStreams(t *testing.T) {
	s, a := secureServer(t)
	conn, err := grpc.NewClient("passthrough:///"+s.address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: a.pool})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := within(t)
	var streams []pb.Watch_WatchClient
	for range 500 {
		w, err := pb.NewWatchClient(conn).Watch(ctx)
		if err == nil {
			err = w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
				CreateRequest: &pb.WatchCreateRequest{Key: []byte("a")},
			}})
		}
		if err == nil {
			_, err = w.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, w)
	}
	if _, err := pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	for i, w := range streams {
		if r, err := w.Recv(); err != nil || len(r.Events) != 1 {
			t.Fatalf("stream %d: %v, %v", i, r, err)
		}
	}
}

// Client certificates: demanded, looked up in lists, and named in the log when refused.
func TestClientCertificates(t *testing.T) {
	a := newAuthority(t)
	a.issue("server", "127.0.0.1")
	good, revoked := a.issue("good", "client.example"), a.issue("revoked", "client.example")
	crl, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), NextUpdate: time.Now().Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{
			{SerialNumber: revoked.Leaf.SerialNumber, RevocationTime: time.Now()},
		},
	}, a.cert, a.key)
	if err != nil {
		t.Fatal(err)
	}
	crlFile := filepath.Join(a.dir, "crl.der")
	if err := os.WriteFile(crlFile, crl, 0o600); err != nil {
		t.Fatal(err)
	}
	core, logged := observer.New(zapcore.DebugLevel)
	written := make(chan struct{}, 1)
	logger := zap.New(core, zap.Hooks(func(zapcore.Entry) error {
		select {
		case written <- struct{}{}:
		default:
		}
		return nil
	}))
	serve := func(change func(*TLSOptions)) *testServer {
		o := a.options()
		o.TrustedCAFile = filepath.Join(a.dir, "ca.pem")
		change(&o)
		return newServer(t, withTLS(a.server(o)), func(c *Config, _ *ListenConfig) { c.Logger = logger })
	}
	try := func(s *testServer, certs ...tls.Certificate) error {
		c, err := tls.Dial("tcp", s.address, &tls.Config{
			RootCAs: a.pool, Certificates: certs, NextProtos: []string{"http/1.1"},
		})
		if err != nil {
			return err
		}
		defer c.Close()
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		_, err = http.ReadResponse(bufio.NewReader(c), nil)
		return err
	}
	s := serve(func(*TLSOptions) {})
	if err := try(s); err == nil {
		t.Error("the trusted CA alone must make certificates mandatory")
	}
	if err := try(s, good); err != nil {
		t.Error(err)
	}
	lists := serve(func(o *TLSOptions) {
		o.CRLFile, o.AllowedHostnames = crlFile, []string{"other", "client.example"}
	})
	if err := try(lists, good); err != nil {
		t.Error(err)
	}
	if err := try(lists, revoked); err == nil {
		t.Error("a revoked certificate was accepted")
	}
	strict := serve(func(o *TLSOptions) { o.AllowedHostnames = []string{"other"} })
	if err := try(strict, good); err == nil {
		t.Error("a certificate for another host was accepted")
	}
	// The client hears of the refusal before the server has written its line.
	for deadline := time.After(20 * time.Second); ; {
		for _, e := range logged.FilterMessage("rejected connection on client endpoint").All() {
			if e.ContextMap()["error"] == "client certificate authentication failed" {
				return
			}
		}
		select {
		case <-written:
		case <-deadline:
			t.Fatalf("log lines %v", logged.FilterMessage("rejected connection on client endpoint").All())
		}
	}
}

// A certificate that is replaced on disk is used from the next handshake on.
func TestCertificateReload(t *testing.T) {
	s, a := secureServer(t)
	first := hello(t, s, a, "h2").ConnectionState().PeerCertificates[0].SerialNumber
	a.issue("server", "127.0.0.1")
	if second := hello(t, s, a, "h2").ConnectionState().PeerCertificates[0].SerialNumber; first.Cmp(second) == 0 {
		t.Error("the old certificate is still served")
	}
}

// An orderly stop sends GOAWAY, lets short calls end, and cuts open streams when its time is over.
func TestShutdown(t *testing.T) {
	m := newTestMember(t)
	s := serveMember(t, m)
	conn := s.dial(t)
	w, err := pb.NewWatchClient(conn).Watch(within(t))
	if err != nil {
		t.Fatal(err)
	}
	err = w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte("a")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	s.Shutdown(ctx)
	if took := time.Since(start); took < 200*time.Millisecond || took > 5*time.Second {
		t.Errorf("shutdown took %v", took)
	}
	if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("watch ended with %v", err)
	}
	if _, err := net.DialTimeout("tcp", s.address, time.Second); err == nil {
		t.Error("the address is still bound")
	}
}

// The gateway's way in: calls from inside the process, streams included.
func TestLocalConnection(t *testing.T) {
	s := newServer(t)
	conn, err := s.DialLocal()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	put := &pb.PutRequest{Key: []byte("a"), Value: make([]byte, 1<<20)}
	if _, err := pb.NewKVClient(conn).Put(within(t), put); err != nil {
		t.Fatal(err)
	}
	r, err := pb.NewKVClient(conn).Range(within(t), &pb.RangeRequest{Key: []byte("a")})
	if err != nil || len(r.Kvs) != 1 || len(r.Kvs[0].Value) != 1<<20 {
		t.Fatal(err)
	}
}

// Header bytes that are not UTF-8 are refused, and nothing breaks (bug case BC-73).
func TestClientVersionHeader(t *testing.T) {
	s := newServer(t)
	kv := s.kv(t)
	ctx := metadata.AppendToOutgoingContext(within(t), "client-api-version", "3.7", "big", strings.Repeat("x", 10<<10))
	if _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")}); err != nil {
		t.Error(err)
	}
	// grpc's own client refuses to send such a header: it is sent by hand.
	cc, err := (&http2.Transport{AllowHTTP: true}).NewClientConn(dialTCP(t, s))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	body := bytes.NewReader([]byte{0, 0, 0, 0, 3, 0x0a, 1, 'a'})
	r, _ := http.NewRequestWithContext(within(t), http.MethodPost, "http://h/etcdserverpb.KV/Range", body)
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	r.Header.Set("Client-Api-Version", "\xff\xfe")
	resp, err := cc.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	code := resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status")
	text := resp.Header.Get("Grpc-Message") + resp.Trailer.Get("Grpc-Message")
	if code != "3" || text != "etcdserver: invalid client api version" {
		t.Errorf("FF FE: status %q %q", code, text)
	}
	if _, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("a")}); err != nil {
		t.Error(err)
	}
	long := metadata.AppendToOutgoingContext(within(t), "client-api-version", strings.Repeat("9", 100<<10))
	before := s.clients.n
	if _, err := kv.Range(long, &pb.RangeRequest{Key: []byte("a")}); err != nil || s.clients.n > before+1 {
		t.Error(err)
	}
	if _, kept := s.clients.known[unaryRequest].Load(unknownVersion); !kept {
		t.Error("a very long version is not counted as unknown")
	}
	for i := range clientVersionsMax + 20 {
		many := metadata.AppendToOutgoingContext(within(t), "client-api-version", fmt.Sprint(i))
		if _, err := kv.Range(many, &pb.RangeRequest{Key: []byte("a")}); err != nil {
			t.Fatal(err)
		}
	}
	if s.clients.n > clientVersionsMax+1 {
		t.Errorf("%d client versions are counted", s.clients.n)
	}
}

func TestHealthService(t *testing.T) {
	s := newServer(t)
	h := healthpb.NewHealthClient(s.dial(t))
	r, err := h.Check(within(t), &healthpb.HealthCheckRequest{})
	if err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Error(r, err)
	}
	_, err = h.Check(within(t), &healthpb.HealthCheckRequest{Service: "etcdserverpb.KV"})
	wantError(t, "check of a service", err, status.Error(codes.NotFound, "unknown service"))
	list, err := h.List(within(t), &healthpb.HealthListRequest{})
	if err != nil || len(list.Statuses) != 1 || list.Statuses[""] == nil {
		t.Error(list, err)
	}
	w, err := h.Watch(within(t), &healthpb.HealthCheckRequest{Service: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Error(r, err)
	}
}

// Unknown methods and services answer as in the reference; there is no reflection.
func TestUnknownMethods(t *testing.T) {
	conn := newServer(t).dial(t)
	for method, want := range map[string]string{
		"/etcdserverpb.KV/X":                        "unknown method X for service etcdserverpb.KV",
		"/grpc.reflection.v1.ServerReflection/Info": "unknown service grpc.reflection.v1.ServerReflection",
	} {
		err := conn.Invoke(within(t), method, &pb.RangeRequest{}, &pb.RangeResponse{})
		wantError(t, method, err, status.Error(codes.Unimplemented, want))
	}
	err := conn.Invoke(within(t), "/etcdserverpb.KV/Range", &pb.RangeRequest{}, &pb.RangeResponse{},
		grpc.ForceCodecV2(garbage{}))
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "error unmarshalling request") {
		t.Errorf("malformed message: %v", err)
	}
}

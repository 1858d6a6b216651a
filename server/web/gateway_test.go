package web

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// fakeServer answers like a member as far as the gateway can tell.
type fakeServer struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedAuthServer
}

func (fakeServer) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if len(r.Key) == 0 {
		return nil, status.Error(codes.InvalidArgument, "etcdserver: key is not provided")
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return &pb.RangeResponse{
		Header: &pb.ResponseHeader{Revision: 7},
		Kvs: []*mvccpb.KeyValue{{
			Key: r.Key, Value: []byte(strings.Join(md["authorization"], "|")), ModRevision: r.Revision,
		}},
	}, nil
}

// Watch says that each watcher was created, and with revision 1 that it was compacted; it ends with the
// client, not with its requests.
func (fakeServer) Watch(s pb.Watch_WatchServer) error {
	for {
		m, err := s.Recv()
		if err == io.EOF {
			<-s.Context().Done()
			return s.Context().Err()
		}
		if err != nil {
			return err
		}
		c := m.GetCreateRequest()
		switch {
		case c == nil:
			continue
		case string(c.Key) == "forbidden":
			return status.Error(codes.PermissionDenied, "etcdserver: permission denied")
		}
		if err := s.Send(&pb.WatchResponse{WatchId: c.WatchId, Created: true}); err != nil {
			return err
		}
		if c.StartRevision == 1 {
			if err := s.Send(&pb.WatchResponse{WatchId: c.WatchId, Canceled: true, CompactRevision: 5}); err != nil {
				return err
			}
			return status.Error(codes.OutOfRange, "late")
		}
	}
}

func (fakeServer) LeaseKeepAlive(s pb.Lease_LeaseKeepAliveServer) error {
	for {
		m, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if m.ID == 13 {
			return status.Error(codes.Unavailable, "etcdserver: no leader")
		}
		answer := &pb.LeaseKeepAliveResponse{ID: m.ID}
		if m.ID == 7 {
			answer.TTL = 100
		}
		if err := s.Send(answer); err != nil {
			return err
		}
	}
}

// serveGateway starts the handlers on a real HTTP server; h2 adds TLS and HTTP/2.
func serveGateway(t *testing.T, h2 bool, change func(*GatewayConfig)) *httptest.Server {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	fake := fakeServer{}
	pb.RegisterKVServer(server, fake)
	pb.RegisterWatchServer(server, fake)
	pb.RegisterLeaseServer(server, fake)
	pb.RegisterAuthServer(server, fake)
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(listener)
	}()
	conn, err := grpc.NewClient("passthrough:///local", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	cfg := GatewayConfig{
		Conn: conn, Logger: zap.NewNop(), BodyBytesMax: 1 << 20, CORS: []string{"*"},
		AuthEnabled: func() bool { return false },
	}
	if change != nil {
		change(&cfg)
	}
	gateway, err := NewGateway(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(newWeb(&fakeMember{leader: 1}, func(c *Config) { c.Gateway = gateway }).Client())
	if h2 {
		front.EnableHTTP2 = true
		front.StartTLS()
	} else {
		front.Start()
	}
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		conn.Close()
		server.Stop()
		<-served
	})
	return front
}

func post(t *testing.T, s *httptest.Server, path, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Header
}

// compact removes the white space that protojson adds at random.
func compact(text string) string {
	var out []string
	dec := json.NewDecoder(strings.NewReader(text))
	for {
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return strings.Join(out, "\n")
		}
		var b strings.Builder
		enc, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		b.Write(enc)
		out = append(out, b.String())
	}
}

// BC-72: the shape of unary answers and errors.
func TestGatewayShape(t *testing.T) {
	s := serveGateway(t, false, nil)
	for _, c := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"/v3/kv/range", `{"key":"YQ==","revision":"3","unknown":1,"sort_order":"NOPE"}`, 200,
			`{"header":{"revision":"7"},"kvs":[{"key":"YQ==","mod_revision":"3"}]}`},
		{"/v3/kv/range", `{"key":"YQ","revision":3}`, 200,
			`{"header":{"revision":"7"},"kvs":[{"key":"YQ==","mod_revision":"3"}]}`},
		{"/v3beta/kv/range", `{"key":"_-8"}`, 200, `{"header":{"revision":"7"},"kvs":[{"key":"/+8="}]}`},
		{"/v3/kv/range", ``, 400, `{"code":3,"message":"etcdserver: key is not provided"}`},
		{"/v3/kv/range", `{`, 400, `{"code":3,"message":"unexpected EOF"}`},
		{"/v3/foo", `{}`, 404, `{"code":5,"message":"Not Found"}`},
		{"/v3/kv/put", `{}`, 501, `{"code":12,"message":"method Put not implemented"}`},
	} {
		code, body, header := post(t, s, c.path, c.body)
		if code != c.code || compact(body) != c.want || header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s %v\nwant %d %s", c.path, c.body, code, body, header, c.code, c.want)
		}
	}
	if code, body, _ := post(t, s, "/v3/kv/range", `{"key":"$$"}`); code != 400 || !strings.Contains(body, `"code":3`) {
		t.Errorf("bad base64: %d %s", code, body)
	}
	resp, err := s.Client().Get(s.URL + "/v3/kv/range")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 501 ||
		compact(string(text)) != `{"code":12,"message":"Method Not Allowed"}` {
		t.Errorf("GET: %d %s", resp.StatusCode, text)
	}
	if code, body, _ := post(t, s, "/v3/kv/range", `{"key":"`+strings.Repeat("a", 2<<20)+`"}`); code != 429 {
		t.Errorf("body above the limit: %d %s", code, body)
	}
}

func TestGatewayHeaders(t *testing.T) {
	s := serveGateway(t, false, nil)
	for header, value := range map[string]string{"Authorization": "tok", "Grpc-Metadata-Authorization": "tok"} {
		_, body, answer := post(t, s, "/v3/kv/range", `{"key":"YQ=="}`, header, value)
		if !strings.Contains(body, "dG9r") || answer.Get("Grpc-Metadata-Content-Type") != "application/grpc" {
			t.Errorf("%s: %s %v", header, body, answer)
		}
	}
	// BC-73: bytes that no header may have are refused or passed, and the gateway lives.
	post(t, s, "/v3/kv/range", `{"key":"YQ=="}`, "Grpc-Metadata-Client-Api-Version", "\xff\xfe")
	if code, _, _ := post(t, s, "/v3/kv/range", `{"key":"YQ=="}`); code != 200 {
		t.Errorf("after a broken header: %d", code)
	}
}

func TestGatewayKeepAlive(t *testing.T) {
	s := serveGateway(t, false, nil)
	for _, c := range []struct {
		body string
		code int
		want string
	}{
		{`{"ID":"7"}{"ID":8}` + "\n" + `{"ID":"7"}`, 200,
			`{"result":{"ID":"7","TTL":"100"}}` + "\n" + `{"result":{"ID":"8"}}` + "\n" + `{"result":{"ID":"7","TTL":"100"}}`},
		{`{"ID":13}`, 503, `{"error":{"code":14,"message":"etcdserver: no leader"}}`},
		{`{"ID":7}{"ID":13}`, 200,
			`{"result":{"ID":"7","TTL":"100"}}` + "\n" + `{"error":{"code":14,"message":"etcdserver: no leader"}}`},
	} {
		if code, body, _ := post(t, s, pathKeepAlive, c.body); code != c.code || compact(body) != c.want {
			t.Errorf("%s: %d %s\nwant %d %s", c.body, code, body, c.code, c.want)
		}
	}
}

// BC-71: whatever the body, there is an answer; over HTTP/1.1 and HTTP/2.
func TestBrokenStreamBodies(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2=%t", h2), func(t *testing.T) {
			s := serveGateway(t, h2, nil)
			var all sync.WaitGroup
			for range 10 {
				for _, path := range streamPaths() {
					for body, message := range map[string]string{
						"": "request body is empty", "word": "decode request: ", `{"create_request":`: "decode request: ",
						`[1]`: "decode request: ",
					} {
						all.Go(func() {
							code, text, _ := post(t, s, path, body)
							if code != 400 || !strings.Contains(text, `{"error":{"code":3,"message":"`+message) {
								t.Errorf("%s %q: %d %s", path, body, code, text)
							}
						})
					}
				}
			}
			all.Wait()
			// A watch ends at once; a keepalive first has its answer.
			if code, body, _ := post(t, s, pathWatch, `{"create_request":{}} word`); code != 200 && code != 400 ||
				!strings.Contains(body, `{"error":{"code":3,"message":"decode request: `) {
				t.Errorf("a word behind a watch: %d %s", code, body)
			}
			if code, body, _ := post(t, s, pathKeepAlive, `{"ID":7} word`); code != 200 || !strings.HasPrefix(
				compact(body), `{"result":{"ID":"7","TTL":"100"}}`+"\n"+`{"error":{"code":3,"message":"decode request: `) {
				t.Errorf("a word behind a keepalive: %d %s", code, body)
			}
		})
	}
}

// Every JSON message is bounded, wherever it stands.
func TestMessageLimit(t *testing.T) {
	s := serveGateway(t, false, func(c *GatewayConfig) { c.BodyBytesMax = 1000 })
	const refusal = `"code":8,"message":"grpc: received message larger than max"`
	long := fmt.Sprintf(`{"key":%q}`, strings.Repeat("a", 4000))
	for path, body := range map[string]string{
		"/v3/kv/range": long, pathWatch: `{"create_request":` + long + `}`, pathKeepAlive: strings.Repeat(" ", 2000),
	} {
		if code, text, _ := post(t, s, path, body); code != 429 || !strings.Contains(compact(text), refusal) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	code, text, _ := post(t, s, pathKeepAlive, strings.Repeat(`{"ID":7}`, 1000))
	if code != 200 || strings.Count(text, `"TTL":"100"`) != 1000 {
		t.Errorf("many short ones: %d %.300s", code, text)
	}
	code, text, _ = post(t, s, pathKeepAlive, `{"ID":7}`+long)
	if code != 200 || !strings.Contains(text, `"TTL":"100"`) || !strings.Contains(compact(text), refusal) {
		t.Errorf("a long one behind a short one: %d %s", code, text)
	}
}

// Large bodies are served one after another, small ones at once; a body is read before its turn, and unharmed.
func TestLargeBodiesTakeTurns(t *testing.T) {
	g := &gateway{large: make(chan struct{}, 1)}
	admit := func(ctx context.Context, size int) (func(), bool) {
		body := &boundedBody{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat("x", size)))}
		done, admitted := g.admit(ctx, body)
		if read, err := io.ReadAll(body); admitted && (len(read) != size || err != nil) {
			t.Errorf("%d of %d bytes, %v", len(read), size, err)
		}
		return done, admitted
	}
	done, admitted := admit(t.Context(), largeBodyBytes)
	if !admitted || len(g.large) != 1 {
		t.Fatal("the first large body waits")
	}
	for range 3 {
		if _, admitted := admit(t.Context(), largeBodyBytes-1); !admitted {
			t.Error("a small body waits")
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, admitted := admit(gone, largeBodyBytes+1); admitted {
		t.Error("a client that has left is served")
	}
	next := make(chan bool)
	go func() {
		_, admitted := admit(t.Context(), 3*largeBodyBytes)
		next <- admitted
	}()
	done()
	if !<-next || len(g.large) != 1 {
		t.Error("the next large body has no turn")
	}
}

// openStream posts a body that stays open and returns a reader of the answer's lines.
func openStream(
	t *testing.T, s *httptest.Server, path string,
) (io.WriteCloser, <-chan *http.Response, context.CancelFunc) {
	t.Helper()
	body, requests := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan *http.Response, 1)
	go func() {
		defer close(answers)
		if resp, err := s.Client().Do(r); err == nil {
			answers <- resp
		}
	}()
	return requests, answers, cancel
}

// A watch goes both ways at once: a request that comes after the first answer is served, over both protocols,
// and the handler ends with its client although the body is still open.
func TestGatewayWatchBothWays(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2=%t", h2), func(t *testing.T) {
			s := serveGateway(t, h2, nil)
			requests, answers, cancel := openStream(t, s, pathWatch)
			defer requests.Close()
			defer cancel() // first: the handler must not need the body's end
			fmt.Fprint(requests, `{"create_request":{"key":"YQ==","watch_id":1}}`)
			resp := <-answers
			if resp == nil {
				t.Fatal("no answer")
			}
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			if !lines.Scan() || lines.Text() != `{"result":{"watch_id":"1","created":true}}` {
				t.Fatalf("first line %q", lines.Text())
			}
			fmt.Fprint(requests, `{"create_request":{"key":"YQ==","watch_id":2}}`)
			if !lines.Scan() || lines.Text() != `{"result":{"watch_id":"2","created":true}}` {
				t.Fatalf("second line %q", lines.Text())
			}
		})
	}
}

func TestGatewayWatchEnds(t *testing.T) {
	s := serveGateway(t, false, nil)
	code, body, _ := post(t, s, pathWatch, `{"create_request":{"key":"YQ==","start_revision":"1"}}`)
	want := `{"result":{"created":true}}` + "\n" + `{"result":{"canceled":true,"compact_revision":"5"}}` + "\n" +
		`{"error":{"code":11,"message":"late"}}`
	if code != 200 || compact(body) != want {
		t.Errorf("%d %s\nwant %s", code, body, want)
	}
	code, body, _ = post(t, s, pathWatch, `{"create_request":{"key":"Zm9yYmlkZGVu"}}`)
	if code != 403 || compact(body) != `{"error":{"code":7,"message":"etcdserver: permission denied"}}` {
		t.Errorf("error before any answer: %d %s", code, body)
	}
}

// A watch that asks for nothing is an open, idle stream, and shows it.
func TestIdleStreamShowsItsHeader(t *testing.T) {
	s := serveGateway(t, false, nil)
	requests, answers, cancel := openStream(t, s, pathWatch)
	defer cancel()
	fmt.Fprint(requests, `{}`)
	requests.Close()
	select {
	case resp := <-answers:
		if resp == nil || resp.StatusCode != 200 {
			t.Fatalf("answer %v", resp)
		}
		resp.Body.Close()
	case <-time.After(20 * idleHeader):
		t.Fatal("no header")
	}
}

func TestCertificateNameMisleads(t *testing.T) {
	listener := bufconn.Listen(1)
	defer listener.Close()
	conn, err := grpc.NewClient("passthrough:///none", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	auth := true
	gateway, err := NewGateway(t.Context(), GatewayConfig{
		Conn: conn, Logger: zap.NewNop(), BodyBytesMax: 10, AuthEnabled: func() bool { return auth },
	})
	if err != nil {
		t.Fatal(err)
	}
	named := &x509.Certificate{Subject: pkix.Name{CommonName: "alice"}}
	for _, c := range []struct {
		auth bool
		cert *x509.Certificate
		code int
	}{{true, named, 400}, {false, named, 404}, {true, &x509.Certificate{}, 404}} {
		auth = c.auth
		r := httptest.NewRequest(http.MethodPost, "/v3/none", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
		w := httptest.NewRecorder()
		gateway.ServeHTTP(w, r)
		if w.Code != c.code {
			t.Errorf("auth %t, name %q: %d %s, want %d", c.auth, c.cert.Subject.CommonName, w.Code, w.Body, c.code)
		}
	}
}

func dialWebsocket(t *testing.T, s *httptest.Server, path string, header http.Header) *websocket.Conn {
	t.Helper()
	target := "ws" + strings.TrimPrefix(s.URL, "http") + path
	conn, resp, err := websocket.DefaultDialer.DialContext(t.Context(), target, header)
	if err != nil {
		t.Fatalf("%v %v", err, resp)
	}
	resp.Body.Close()
	t.Cleanup(func() { conn.Close() })
	return conn
}

func exchange(t *testing.T, conn *websocket.Conn, request, want string) {
	t.Helper()
	if err := conn.WriteMessage(websocket.TextMessage, []byte(request)); err != nil {
		t.Fatal(err)
	}
	_, text, err := conn.ReadMessage()
	if err != nil {
		t.Fatal(err)
	}
	if got := compact(string(text)); got != want {
		t.Errorf("%s: %s, want %s", request, got, want)
	}
}

func TestWebsocket(t *testing.T) {
	s := serveGateway(t, false, nil)
	watch := dialWebsocket(t, s, pathWatch, nil)
	exchange(t, watch, `{"create_request":{"key":"YQ==","watch_id":1}}`, `{"result":{"watch_id":"1","created":true}}`)
	exchange(t, watch, `{"create_request":{"key":"YQ==","watch_id":2}}`, `{"result":{"watch_id":"2","created":true}}`)
	exchange(t, watch, `word`,
		`{"error":{"code":3,"message":"decode request: invalid character 'w' looking for beginning of value"}}`)
	if _, _, err := watch.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("end %v", err)
	}
	unary := dialWebsocket(t, s, "/v3/kv/range", http.Header{"Sec-WebSocket-Protocol": {"Bearer, tok"}})
	if unary.Subprotocol() != "Bearer" {
		t.Errorf("protocol %q", unary.Subprotocol())
	}
	exchange(t, unary, `{"key":"YQ=="}`, `{"header":{"revision":"7"},"kvs":[{"key":"YQ==","value":"QmVhcmVyIHRvaw=="}]}`)
	cookie := dialWebsocket(t, s, "/v3/kv/range", http.Header{"Cookie": {"token=tok"}})
	exchange(t, cookie, `{"key":"YQ=="}`, `{"header":{"revision":"7"},"kvs":[{"key":"YQ==","value":"QmVhcmVyIHRvaw=="}]}`)
}

func TestWebsocketOrigin(t *testing.T) {
	s := serveGateway(t, false, func(c *GatewayConfig) { c.CORS = []string{"http://a.com:80"} })
	target := "ws" + strings.TrimPrefix(s.URL, "http") + pathWatch
	for origin, ok := range map[string]bool{"http://a.com:80": true, "http://b.com:80": false, s.URL: true} {
		conn, resp, err := websocket.DefaultDialer.DialContext(t.Context(), target, http.Header{"Origin": {origin}})
		if (err == nil) != ok {
			t.Errorf("origin %s: %v", origin, err)
		}
		if conn != nil {
			conn.Close()
		}
		if resp != nil {
			resp.Body.Close()
		}
	}
}

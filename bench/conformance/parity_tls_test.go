package conformance

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
)

// secured runs d with certificates of its own and returns its https address.
func secured(t *testing.T, s *party) {
	t.Helper()
	s.Client = strings.Replace(s.Client, "http://", "https://", 1)
	s.Extra = append(s.Extra, "--auto-tls", "--self-signed-cert-validity=1")
	t.Cleanup(s.Kill)
	if err := s.Spawn(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(30 * time.Second)
	for {
		if a := s.overTLS(t.Context(), tlsCall{alpn: []string{"http/1.1"}, method: "GET", path: "/health"}); a.status == 200 {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.Exited():
			t.Fatalf("%s ended\n%s", s.Program, s.Log())
		case <-deadline:
			t.Fatalf("%s is not ready\n%s", s.Program, s.Log())
		}
	}
}

// tlsCall is a request over TLS. What the client offers decides which protocol it speaks.
type tlsCall struct {
	alpn         []string
	min, max     uint16
	http2        bool // HTTP/2 is spoken, whatever was agreed on
	method, path string
	body         []byte
	headers      []string
}

type tlsAnswer struct {
	failed      string
	alpn        string
	version     uint16
	status      int
	contentType string
	grpcStatus  string
	body        string
}

func (s *party) overTLS(ctx context.Context, c tlsCall) (a tlsAnswer) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(s.Client, "https://"))
	if err != nil {
		return tlsAnswer{failed: "dial"}
	}
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true, NextProtos: c.alpn, MinVersion: c.min, MaxVersion: c.max, // it signs its own
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return tlsAnswer{failed: "handshake"}
	}
	st := conn.ConnectionState()
	// Where only HTTP/1.1 is offered the reference agrees on nothing, which means the same.
	a = tlsAnswer{alpn: strings.TrimPrefix(st.NegotiatedProtocol, "http/1.1"), version: st.Version}
	req, err := http.NewRequestWithContext(ctx, c.method, s.Client+c.path, strings.NewReader(string(c.body)))
	if err != nil {
		a.failed = "request"
		return a
	}
	for i := 0; i < len(c.headers); i += 2 {
		req.Header.Set(c.headers[i], c.headers[i+1])
	}
	var trip http.RoundTripper
	if c.http2 {
		transport := &http2.Transport{}
		if trip, err = transport.NewClientConn(conn); err != nil {
			a.failed = "HTTP/2"
			return a
		}
	} else {
		trip = &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	}
	resp, err := trip.RoundTrip(req)
	if err != nil {
		a.failed = "no answer"
		return a
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		a.failed = "body"
	}
	a.status, a.contentType, a.body = resp.StatusCode, resp.Header.Get("Content-Type"), same(string(data))
	if strings.HasPrefix(a.contentType, "application/grpc") {
		a.body = fmt.Sprint(len(data) > 0)
		a.grpcStatus = resp.Trailer.Get("Grpc-Status") + resp.Header.Get("Grpc-Status")
	}
	return a
}

// What a client offers in its handshake, and what it then speaks, over TLS.
func TestParityTLS(t *testing.T) {
	p := &pair{&party{Daemon: etcd(t)}, &party{Daemon: sluice(t)}}
	var wg sync.WaitGroup
	for _, s := range []*party{p.ref, p.got} {
		wg.Go(func() { secured(t, s) })
	}
	wg.Wait()
	get := frame(0, encoded(t, &pb.RangeRequest{Key: []byte("k")}))
	rpc := tlsCall{method: "POST", path: pathRange, body: get, headers: grpcHeaders()}
	health := tlsCall{method: "GET", path: "/health"}
	gateway := tlsCall{method: "POST", path: "/v3/kv/range", body: []byte(`{"key":"aw=="}`)}
	other := tlsCall{method: "POST", path: pathRange, body: get, headers: []string{"Content-Type", "text/plain"}}
	for _, alpn := range [][]string{
		nil, {"h2"}, {"http/1.1"}, {"h2", "http/1.1"}, {"http/1.1", "h2"}, {"http/1.0"}, {"x"}, {"x", "h2"}, {"h2c"},
	} {
		onlyH2 := slices.Contains(alpn, "h2") && !slices.Contains(alpn, "http/1.1")
		for name, call := range map[string]tlsCall{"rpc": rpc, "health": health, "gateway": gateway, "other type": other} {
			for _, speaks := range []bool{false, true} {
				if onlyH2 && speaks && name != "rpc" {
					continue // Sluice takes who offers nothing else for a gRPC client
				}
				call.alpn, call.http2 = alpn, speaks
				ref, got := both(p, func(s *party) tlsAnswer { return s.overTLS(t.Context(), call) })
				if ref != got {
					t.Errorf("%q, HTTP/2 %v, %s\nreference: %+v\nsluice:    %+v", alpn, speaks, name, ref, got)
				}
			}
		}
	}
	for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11, tls.VersionTLS12, tls.VersionTLS13} {
		call := health
		call.alpn, call.min, call.max = []string{"http/1.1"}, version, version
		ref, got := both(p, func(s *party) tlsAnswer { return s.overTLS(t.Context(), call) })
		if ref != got {
			t.Errorf("TLS %x\nreference: %+v\nsluice:    %+v", version, ref, got)
		}
	}
}

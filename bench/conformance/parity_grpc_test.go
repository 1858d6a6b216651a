package conformance

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
)

// h2Answer is what a plain HTTP/2 client sees of a gRPC call.
type h2Answer struct {
	status                      int
	contentType                 string
	grpcStatus, message, encode string
	body                        bool
}

// frame is a message as gRPC frames it.
func frame(flag byte, m []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(m))), m...)
}

// h2 sends one request over HTTP/2 with prior knowledge.
func (s *party) h2(ctx context.Context, method, path string, body []byte, headers ...string) (a h2Answer) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	transport := &http2.Transport{AllowHTTP: true, DisableCompression: true,
		DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, s.Client+path, struct{ io.Reader }{bytes.NewReader(body)})
	if err != nil {
		return h2Answer{message: "request: " + err.Error()}
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return h2Answer{message: "transport: " + strings.ReplaceAll(err.Error(), strings.TrimPrefix(s.Client,
			"http://"), "HOST")}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return h2Answer{message: "body: " + err.Error()}
	}
	pick := func(key string) string {
		if v := resp.Trailer.Get(key); v != "" {
			return v
		}
		return resp.Header.Get(key)
	}
	return h2Answer{resp.StatusCode, resp.Header.Get("Content-Type"), pick("Grpc-Status"), pick("Grpc-Message"),
		pick("Grpc-Encoding"), len(data) > 0}
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b) // into memory
	_ = w.Close()
	return out.Bytes()
}

// h2Call is a request that goes over HTTP/2 as it is.
type h2Call struct {
	name, method, path string
	body               []byte
	headers            []string
}

const pathRange = "/etcdserverpb.KV/Range"

// grpcHeaders are those of a gRPC call, and more.
func grpcHeaders(more ...string) []string {
	return append([]string{"Content-Type", "application/grpc", "Te", "trailers"}, more...)
}

// framings are calls whose content type, frames or compression are odd.
func framings(get []byte) []h2Call {
	grpcType, with, rng := grpcHeaders(), grpcHeaders, pathRange
	return []h2Call{
		{"plain", "POST", rng, frame(0, get), grpcType},
		{"proto", "POST", rng, frame(0, get), []string{"Content-Type", "application/grpc+proto", "Te", "trailers"}},
		{"json", "POST", rng, frame(0, get), []string{"Content-Type", "application/grpc+json", "Te", "trailers"}},
		{"semicolon", "POST", rng, frame(0, get), []string{"Content-Type", "application/grpc;charset=utf-8", "Te",
			"trailers"}},
		{"web", "POST", rng, frame(0, get), []string{"Content-Type", "application/grpc-web", "Te", "trailers"}},
		{"upper", "POST", rng, frame(0, get), []string{"Content-Type", "Application/GRPC", "Te", "trailers"}},
		{"no te", "POST", rng, frame(0, get), []string{"Content-Type", "application/grpc"}},
		{"no type", "POST", rng, frame(0, get), nil},
		{"text", "POST", rng, frame(0, get), []string{"Content-Type", "text/plain"}},
		{"get", "GET", rng, nil, grpcType},
		{"put", "PUT", rng, frame(0, get), grpcType},
		{"no body", "POST", rng, nil, grpcType},
		{"half a frame head", "POST", rng, []byte{0, 0, 0}, grpcType},
		{"half a frame", "POST", rng, frame(0, get)[:6], grpcType},
		{"empty frame", "POST", rng, frame(0, nil), grpcType},
		{"two frames", "POST", rng, append(frame(0, get), frame(0, get)...), grpcType},
		{"frame and rest", "POST", rng, append(frame(0, get), 1, 2, 3), grpcType},
		{"reserved flag", "POST", rng, frame(2, get), grpcType},
		{"flag 255", "POST", rng, frame(255, get), grpcType},
		{"compressed without encoding", "POST", rng, frame(1, gzipped(get)), grpcType},
		{"gzip", "POST", rng, frame(1, gzipped(get)), with("Grpc-Encoding", "gzip")},
		{"gzip accepted", "POST", rng, frame(0, get), with("Grpc-Accept-Encoding", "gzip")},
		{"gzip announced, not used", "POST", rng, frame(0, get), with("Grpc-Encoding", "gzip")},
		{"no gzip", "POST", rng, frame(1, get), with("Grpc-Encoding", "gzip")},
		{"cut gzip", "POST", rng, frame(1, gzipped(get)[:12]), with("Grpc-Encoding", "gzip")},
		{"gzip bomb", "POST", rng, frame(1, gzipped(make([]byte, 64<<20))), with("Grpc-Encoding", "gzip")},
		{"identity", "POST", rng, frame(0, get), with("Grpc-Encoding", "identity")},
		{"identity, flagged", "POST", rng, frame(1, get), with("Grpc-Encoding", "identity")},
		{"snappy", "POST", rng, frame(1, get), with("Grpc-Encoding", "snappy")},
		{"snappy unused", "POST", rng, frame(0, get), with("Grpc-Encoding", "snappy")},
		{"announced too long", "POST", rng, []byte{0, 0xff, 0xff, 0xff, 0xff, 1}, grpcType},
		{"announced 2097153", "POST", rng, []byte{0, 0, 0x20, 0, 1, 1}, grpcType},
	}
}

// oddHeaders are calls with headers that say something to servers.
func oddHeaders(get []byte) []h2Call {
	grpcType, with, rng := grpcHeaders(), grpcHeaders, pathRange
	return []h2Call{
		{"timeout 0", "POST", rng, frame(0, get), with("Grpc-Timeout", "0n")},
		{"timeout negative", "POST", rng, frame(0, get), with("Grpc-Timeout", "-1S")},
		{"timeout word", "POST", rng, frame(0, get), with("Grpc-Timeout", "soon")},
		{"timeout without unit", "POST", rng, frame(0, get), with("Grpc-Timeout", "10")},
		{"timeout empty", "POST", rng, frame(0, get), with("Grpc-Timeout", "")},
		{"timeout long", "POST", rng, frame(0, get), with("Grpc-Timeout", "99999999H")},
		{"timeout nine digits", "POST", rng, frame(0, get), with("Grpc-Timeout", "999999999S")},
		{"user agent", "POST", rng, frame(0, get), with("User-Agent", "")},
		{"connection header", "POST", rng, frame(0, get), with("Grpc-Connection", "close")},
		{"bin metadata broken", "POST", rng, frame(0, get), with("X-Bin", "***")},
		{"bin metadata", "POST", rng, frame(0, get), with("X-Bin", "AAEC")},
		{"token, auth off", "POST", rng, frame(0, get), with("Token", "nonsense")},
		{"hasleader", "POST", rng, frame(0, get), with("Hasleader", "true")},
		{"hasleader odd", "POST", rng, frame(0, get), with("Hasleader", "TRUE")},
		{"version not UTF-8", "POST", rng, frame(0, get), with("Client-Api-Version", "\xff")},
		{"version empty", "POST", rng, frame(0, get), with("Client-Api-Version", "")},
		{"host", "POST", rng, frame(0, get), with("Host", "evil.example")},
		{"big header", "POST", rng, frame(0, get), with("X-Big", strings.Repeat("x", 100000))},
		{"query", "POST", rng + "?a=b", frame(0, get), grpcType},
	}
}

// oddPaths are calls of what does not exist, and streams that begin oddly.
func oddPaths(get []byte) []h2Call {
	grpcType, rng := grpcHeaders(), pathRange
	return []h2Call{
		{"unknown method", "POST", "/etcdserverpb.KV/Nope", frame(0, get), grpcType},
		{"unknown service", "POST", "/etcdserverpb.Nope/Range", frame(0, get), grpcType},
		{"case", "POST", "/etcdserverpb.kv/Range", frame(0, get), grpcType},
		{"no service", "POST", "/Range", frame(0, get), grpcType},
		{"root", "POST", "/", frame(0, get), grpcType},
		{"double slash", "POST", "//Range", frame(0, get), grpcType},
		{"trailing slash", "POST", rng + "/", frame(0, get), grpcType},
		{"empty method", "POST", "/etcdserverpb.KV/", frame(0, get), grpcType},
		{"reflection", "POST", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", frame(0, nil), grpcType},
		{"old reflection", "POST", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", frame(0, nil),
			grpcType},
		{"health path over h2", "GET", "/health", nil, nil},
		{"gateway over h2", "POST", "/v3/kv/range", []byte(`{"key":"aw=="}`), []string{"Content-Type", "application/json"}},
		{"stream without a request", "POST", "/etcdserverpb.Maintenance/Snapshot", nil, grpcType},
		{"stream with two", "POST", "/etcdserverpb.KV/RangeStream", append(frame(0, get), frame(0, get)...), grpcType},
		{"keepalive without one", "POST", "/etcdserverpb.Lease/LeaseKeepAlive", nil, grpcType},
		{"keepalive, garbage", "POST", "/etcdserverpb.Lease/LeaseKeepAlive", frame(0, []byte{0xff}), grpcType},
		{"watch, garbage", "POST", "/etcdserverpb.Watch/Watch", frame(0, []byte{0xff}), grpcType},
		{"watch, half a frame", "POST", "/etcdserverpb.Watch/Watch", frame(0, get)[:6], grpcType},
		{"put empty", "POST", "/etcdserverpb.KV/Put", frame(0, nil), grpcType},
	}
}

// Calls that are no proper gRPC calls get the same answer from both.
func TestParityHTTP2(t *testing.T) {
	p := pairUp(t)
	get := encoded(t, &pb.RangeRequest{Key: []byte("k")})
	for _, c := range slices.Concat(framings(get), oddHeaders(get), oddPaths(get)) {
		ref, got := both(p, func(s *party) h2Answer {
			a := s.h2(t.Context(), c.method, c.path, c.body, c.headers...)
			if a.grpcStatus == "13" && strings.Contains(a.message, "unmarshal") {
				a.message = "" // the decoders' words
			}
			return a
		})
		if ref != got {
			t.Errorf("%s:\nreference: %+v\nsluice:    %+v", c.name, ref, got)
		}
	}
	alive(t, p)
}

// alive fails unless both still serve.
func alive(t *testing.T, p *pair) {
	t.Helper()
	ref, got := both(p, func(s *party) outcome {
		return s.call(t.Context(), "/etcdserverpb.KV/Put", encoded(t, &pb.PutRequest{Key: []byte("alive")}))
	})
	if ref.code != codes.OK || !ref.equal(got) {
		t.Fatalf("afterwards:\nreference: %v\nsluice:    %v", ref, got)
	}
}

// Requests at, below and above the limits on size and number of operations.
func TestParityLimits(t *testing.T) {
	p := pairUp(t, "--max-request-bytes=65536", "--max-txn-ops=9", "--quota-backend-bytes=-1")
	put := func(n int) proto.Message { return &pb.PutRequest{Key: []byte("k"), Value: make([]byte, n)} }
	ops := func(n int, op func(i int) *pb.RequestOp) (ops []*pb.RequestOp) {
		for i := range n {
			ops = append(ops, op(i))
		}
		return ops
	}
	puts := func(n int) []*pb.RequestOp {
		return ops(n, func(i int) *pb.RequestOp {
			return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: fmt.Appendf(nil, "k%d",
				i)}}}
		})
	}
	nested := func(depth, n int) *pb.TxnRequest {
		r := &pb.TxnRequest{Success: puts(n)}
		for range depth {
			r = &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}}}
		}
		return r
	}
	check := func(name, method string, m proto.Message) {
		t.Helper()
		ref, got := both(p, func(s *party) outcome { return s.call(t.Context(), method, encoded(t, m)) })
		if !ref.equal(got) {
			t.Errorf("%s: %s\nreference: %v\nsluice:    %v", name, method, ref, got)
		}
	}
	for n := 65536 - 60; n < 65536+4; n++ {
		if n >= 65536-26 && n <= 65536-22 {
			continue // the limit counts the request's id, which may be a byte longer
		}
		check(fmt.Sprint("value of ", n), "/etcdserverpb.KV/Put", put(n))
	}
	for _, n := range []int{65536 + 524288 - 12, 65536 + 524288 - 11, 65536 + 524288 - 10, 65536 + 524288 - 9,
		65536 + 524288 - 8, 700000, 3 << 20} {
		check(fmt.Sprint("value of ", n), "/etcdserverpb.KV/Put", put(n))
		check(fmt.Sprint("read of ", n), "/etcdserverpb.KV/Range", &pb.RangeRequest{Key: make([]byte, n)})
		check(fmt.Sprint("compare with ", n), "/etcdserverpb.KV/Txn", &pb.TxnRequest{Compare: []*pb.Compare{{
			Key: []byte("k"), Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: make([]byte, n)}}}})
	}
	parityOfNames(check)
	check("huge key", "/etcdserverpb.KV/Put", &pb.PutRequest{Key: bytes.Repeat([]byte("k"), 60000)})
	check("huge key read", "/etcdserverpb.KV/Range", &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"),
		KeysOnly: true})
	check("huge key deleted", "/etcdserverpb.KV/DeleteRange", &pb.DeleteRangeRequest{Key: []byte("k"),
		RangeEnd: []byte("l"), PrevKv: true})
	for n := 7; n < 12; n++ {
		check(fmt.Sprint(n, " puts"), "/etcdserverpb.KV/Txn", &pb.TxnRequest{Success: puts(n)})
		check(fmt.Sprint(n, " failures"), "/etcdserverpb.KV/Txn", &pb.TxnRequest{Failure: puts(n)})
		compares := make([]*pb.Compare, n)
		for i := range compares {
			compares[i] = &pb.Compare{Key: []byte("k")}
		}
		check(fmt.Sprint(n, " compares"), "/etcdserverpb.KV/Txn", &pb.TxnRequest{Compare: compares})
		for depth := 1; depth < 12; depth++ {
			check(fmt.Sprint(n-7, " puts at depth ", depth), "/etcdserverpb.KV/Txn", nested(depth, n-7))
			check(fmt.Sprint(n, " puts at depth ", depth), "/etcdserverpb.KV/Txn", nested(depth, n))
		}
	}
	for _, depth := range []int{98, 99, 100, 101, 2000} {
		check(fmt.Sprint("depth ", depth), "/etcdserverpb.KV/Txn", nested(depth, 1))
	}
	alive(t, p)
}

// parityOfNames checks the limits of names and passwords.
func parityOfNames(check func(name, method string, m proto.Message)) {
	check("huge user", "/etcdserverpb.Auth/UserGet", &pb.AuthUserGetRequest{Name: strings.Repeat("u", 70000)})
	check("huge role", "/etcdserverpb.Auth/RoleAdd", &pb.AuthRoleAddRequest{Name: strings.Repeat("r", 70000)})
	check("longest role", "/etcdserverpb.Auth/RoleAdd", &pb.AuthRoleAddRequest{Name: strings.Repeat("r", 32768)})
	check("roles", "/etcdserverpb.Auth/RoleList", &pb.AuthRoleListRequest{})
	check("long password", "/etcdserverpb.Auth/UserAdd", &pb.AuthUserAddRequest{Name: "u",
		Password: strings.Repeat("p", 72)})
	check("too long password", "/etcdserverpb.Auth/UserAdd", &pb.AuthUserAddRequest{Name: "v",
		Password: strings.Repeat("p", 73)})
	check("too long password changed", "/etcdserverpb.Auth/UserChangePassword",
		&pb.AuthUserChangePasswordRequest{Name: "u", Password: strings.Repeat("p", 73)})
	check("users", "/etcdserverpb.Auth/UserList", &pb.AuthUserListRequest{})
}

// The health service and its stream.
func TestParityHealth(t *testing.T) {
	p := pairUp(t)
	for _, name := range []string{"", "etcdserverpb.KV", "x", strings.Repeat("x", 5000)} {
		for _, method := range []string{"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List"} {
			ref, got := both(p, func(s *party) outcome {
				return s.call(t.Context(), method, encoded(t, &healthpb.HealthCheckRequest{Service: name}))
			})
			if !ref.equal(got) {
				t.Errorf("%s %.20q\nreference: %v\nsluice:    %v", method, name, ref, got)
			}
		}
		ref, got := both(p, func(s *party) string {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			w, err := healthpb.NewHealthClient(s.conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: name})
			if err != nil {
				return err.Error()
			}
			r, err := w.Recv()
			return fmt.Sprint(r, err)
		})
		if ref != got {
			t.Errorf("watch %.20q\nreference: %v\nsluice:    %v", name, ref, got)
		}
	}
}

package lean

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"sluice/bench/stats"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store answers a Range with the asked number of values of a megabyte, and a put by its key.
type store struct {
	pb.UnimplementedKVServer
}

const megabyte = 1 << 20

func (store) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp := &pb.RangeResponse{Count: r.Limit}
	for n := range r.Limit {
		value := bytes.Repeat([]byte{byte(n)}, megabyte)
		resp.Kvs = append(resp.Kvs, &mvccpb.KeyValue{Key: r.Key, Value: value})
	}
	return resp, nil
}

func (store) RangeStream(r *pb.RangeRequest, s grpc.ServerStreamingServer[pb.RangeStreamResponse]) error {
	for n := range r.Limit {
		if err := s.Send(&pb.RangeStreamResponse{RangeResponse: &pb.RangeResponse{Count: n}}); err != nil {
			return err
		}
	}
	return nil
}

func (store) Put(_ context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	switch string(r.Key) {
	case "refused":
		return nil, status.Error(codes.ResourceExhausted, "no space, sorry")
	case "empty":
		return &pb.PutResponse{}, nil
	}
	return &pb.PutResponse{Header: &pb.ResponseHeader{Revision: int64(len(r.Value))}}, nil
}

// serve runs the store on three kinds of server: grpc-go, grpc-go with TLS, and net/http with TLS.
func serve(t *testing.T) map[string]func(*testing.T) *Conn {
	certificate, pool := selfSigned(t)
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	plain, secure, web := listen(), listen(), listen()
	a := grpc.NewServer()
	b := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	c := grpc.NewServer()
	for _, s := range []*grpc.Server{a, b, c} {
		pb.RegisterKVServer(s, store{})
		t.Cleanup(s.Stop)
	}
	server := &http.Server{Handler: c, TLSConfig: config}
	t.Cleanup(func() { server.Close() })
	go a.Serve(plain)
	go b.Serve(secure)
	go server.ServeTLS(web, "", "")
	dial := func(l net.Listener, config *tls.Config) func(*testing.T) *Conn {
		return func(t *testing.T) *Conn {
			conn, err := Dial(t.Context(), l.Addr().String(), config, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			return conn
		}
	}
	roots := &tls.Config{RootCAs: pool}
	return map[string]func(*testing.T) *Conn{
		"grpc": dial(plain, nil), "grpc+tls": dial(secure, roots), "http+tls": dial(web, roots),
	}
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(certificate)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func message(t *testing.T, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	put         = "/etcdserverpb.KV/Put"
	get         = "/etcdserverpb.KV/Range"
	rangeStream = "/etcdserverpb.KV/RangeStream"
)

// Each call is answered, and each answer reaches the slot that asked.
func TestClosedLoop(t *testing.T) {
	for name, dial := range serve(t) {
		t.Run(name, func(t *testing.T) {
			const inFlight, ops = 20, 1000
			c := dial(t)
			var want [inFlight]int64
			size, answers := 0, 0
			var latency stats.Histogram
			done, err := c.Run(t.Context(), Load{
				InFlight: inFlight, Ops: ops, Latency: &latency,
				Next: func(slot int, _ time.Time, dst []byte) (string, []byte) {
					size = size%700 + 1
					want[slot] = int64(size)
					return put, append(dst, message(t, &pb.PutRequest{Key: []byte("k"), Value: make([]byte, size)})...)
				},
				Answer: func(slot int, msg []byte) error {
					var resp pb.PutResponse
					if err := proto.Unmarshal(msg, &resp); err != nil {
						return err
					}
					if resp.Header.Revision != want[slot] {
						t.Errorf("slot %d received the answer of %d, asked %d", slot, resp.Header.Revision, want[slot])
					}
					answers++
					return nil
				},
			})
			if err != nil || done != ops || answers != ops || latency.Count() != ops {
				t.Errorf("%d done, %d answers, %d latencies, %v", done, answers, latency.Count(), err)
			}
			if c.Streams() != 0 {
				t.Errorf("%d streams are left", c.Streams())
			}
		})
	}
}

// An open loop begins as many calls as are due, however long the answers take.
func TestOpenLoopBeginsWhatIsDue(t *testing.T) {
	for name, dial := range serve(t) {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			var latency stats.Histogram
			done, err := dial(t).Run(t.Context(), Load{
				InFlight: 1000, Start: start, Interval: time.Millisecond, Until: start.Add(200 * time.Millisecond),
				Latency: &latency,
				Next:    func(_ int, _ time.Time, dst []byte) (string, []byte) { return put, dst },
			})
			if err != nil || done != 200 || latency.Count() != 200 {
				t.Errorf("%d calls, %d latencies, %v", done, latency.Count(), err)
			}
		})
	}
}

// Any status but OK ends the run, with its code and text.
func TestRefusedCallIsReported(t *testing.T) {
	for name, dial := range serve(t) {
		t.Run(name, func(t *testing.T) {
			n := 0
			done, err := dial(t).Run(t.Context(), Load{InFlight: 1, Ops: 10,
				Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
					key := "k"
					if n++; n == 4 {
						key = "refused"
					}
					return put, append(dst, message(t, &pb.PutRequest{Key: []byte(key)})...)
				}})
			var refused *StatusError
			if !errors.As(err, &refused) || *refused != (StatusError{8, "no space, sorry"}) || done != 3 {
				t.Errorf("%d done, %v", done, err)
			}
			_, err = dial(t).Run(t.Context(), Load{InFlight: 1, Ops: 1,
				Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
					return "/no.Such/Method", dst
				}})
			if !errors.As(err, &refused) || refused.Code != 12 {
				t.Errorf("unknown method: %v", err)
			}
		})
	}
}

// Messages that span many frames arrive whole, and more of them than one window holds.
func TestLargeAndEmptyAnswers(t *testing.T) {
	for name, dial := range serve(t) {
		t.Run(name, func(t *testing.T) {
			c := dial(t)
			for round := range 3 {
				done, err := c.Run(t.Context(), Load{
					InFlight: 2, Ops: 2,
					Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
						return get, append(dst, message(t, &pb.RangeRequest{Key: []byte("k"), Limit: 5})...)
					},
					Answer: func(_ int, msg []byte) error {
						var resp pb.RangeResponse
						if err := proto.Unmarshal(msg, &resp); err != nil {
							return err
						}
						for n, kv := range resp.Kvs {
							if !bytes.Equal(kv.Value, bytes.Repeat([]byte{byte(n)}, megabyte)) {
								t.Errorf("value %d was damaged", n)
							}
						}
						return nil
					},
				})
				if err != nil || done != 2 {
					t.Fatalf("round %d: %d done, %v", round, done, err)
				}
			}
			messages := 0
			done, err := c.Run(t.Context(), Load{
				InFlight: 1, Ops: 1,
				Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
					return rangeStream, append(dst, message(t, &pb.RangeRequest{Key: []byte("k"), Limit: 1000})...)
				},
				Answer: func(int, []byte) error { messages++; return nil },
			})
			if err != nil || done != 1 || messages != 1000 {
				t.Errorf("%d done, %d messages, %v", done, messages, err)
			}
			done, err = c.Run(t.Context(), Load{InFlight: 1, Ops: 1,
				Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
					return put, append(dst, message(t, &pb.PutRequest{Key: []byte("empty")})...)
				}})
			if err != nil || done != 1 {
				t.Errorf("an empty message: %d done, %v", done, err)
			}
		})
	}
}

// Requests that together exceed the server's window wait for it.
func TestLargeRequestsRespectTheWindow(t *testing.T) {
	for name, dial := range serve(t) {
		t.Run(name, func(t *testing.T) {
			value := make([]byte, 30<<10)
			done, err := dial(t).Run(t.Context(), Load{InFlight: 50, Ops: 300,
				Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
					return put, append(dst, message(t, &pb.PutRequest{Key: []byte("k"), Value: value})...)
				}})
			if err != nil || done != 300 {
				t.Errorf("%d done, %v", done, err)
			}
		})
	}
}

// A run ends with its context.
func TestRunEndsWithContext(t *testing.T) {
	for name, dial := range serve(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			calls := 0
			_, err := dial(t).Run(ctx, Load{InFlight: 1, Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
				if calls++; calls == 100 {
					cancel()
				}
				return put, dst
			}})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// Calls of several methods share a connection, in any order.
func TestMethodsShareAConnection(t *testing.T) {
	for name, dial := range serve(t) {
		t.Run(name, func(t *testing.T) {
			n, messages := 0, 0
			done, err := dial(t).Run(t.Context(), Load{
				InFlight: 3, Ops: 120,
				Next: func(_ int, _ time.Time, dst []byte) (string, []byte) {
					n++
					if method := []string{put, put, rangeStream, put, get, rangeStream}[n%6]; method != rangeStream {
						return method, dst
					}
					return rangeStream, append(dst, message(t, &pb.RangeRequest{Limit: 2})...)
				},
				Answer: func(int, []byte) error { messages++; return nil },
			})
			if err != nil || done != 120 || messages != 160 {
				t.Errorf("%d done, %d messages, %v", done, messages, err)
			}
		})
	}
}

package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"slices"

	gwruntime "github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb/gw"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"sluice/server/rpc/electionpb"
	"sluice/server/rpc/lockpb"
)

// GatewayConfig of the JSON gateway. Conn and Logger are needed.
type GatewayConfig struct {
	Conn   grpc.ClientConnInterface // to this member's own gRPC server
	Logger *zap.Logger
	// BodyBytesMax bounds each JSON message: a body that is one, one of a stream's body, one of a websocket.
	BodyBytesMax int64
	CORS         []string // origins that may open a websocket; "*" is all
	// AuthEnabled says whether users are checked: then the name in a client certificate would mislead.
	AuthEnabled func() bool
}

// largeBodyBytes is the size from which a JSON body waits for its turn: decoded it may be fifty times as large.
const largeBodyBytes = 256 << 10

// gateway serves /v3/ by translating JSON to gRPC calls.
type gateway struct {
	cfg   GatewayConfig
	mux   *gwruntime.ServeMux
	large chan struct{} // a token per large body that is being served
}

// NewGateway returns the handler of /v3/. ctx bounds its registration only.
func NewGateway(ctx context.Context, cfg GatewayConfig) (http.Handler, error) {
	g := &gateway{cfg: cfg, large: make(chan struct{}, goruntime.GOMAXPROCS(0)), mux: gwruntime.NewServeMux(
		gwruntime.WithMarshalerOption(gwruntime.MIMEWildcard, marshaler()), gwruntime.WithErrorHandler(refuse),
	)}
	for _, register := range []func() error{
		func() error { return gw.RegisterKVHandlerClient(ctx, g.mux, pb.NewKVClient(cfg.Conn)) },
		func() error { return gw.RegisterLeaseHandlerClient(ctx, g.mux, pb.NewLeaseClient(cfg.Conn)) },
		func() error { return gw.RegisterClusterHandlerClient(ctx, g.mux, pb.NewClusterClient(cfg.Conn)) },
		func() error {
			return gw.RegisterMaintenanceHandlerClient(ctx, g.mux, pb.NewMaintenanceClient(cfg.Conn))
		},
		func() error { return gw.RegisterAuthHandlerClient(ctx, g.mux, pb.NewAuthClient(cfg.Conn)) },
		func() error { return lockpb.RegisterLockHandlerClient(ctx, g.mux, lockpb.NewLockClient(cfg.Conn)) },
		func() error {
			return electionpb.RegisterElectionHandlerClient(ctx, g.mux, electionpb.NewElectionClient(cfg.Conn))
		},
		g.registerStreams, // after the others: what is registered last wins
	} {
		if err := register(); err != nil {
			return nil, fmt.Errorf("register gateway: %w", err)
		}
	}
	return g, nil
}

// marshaler writes etcd's names and leaves zero fields out; unknown fields and enum names are ignored.
func marshaler() *gwruntime.JSONPb {
	return &gwruntime.JSONPb{
		MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true},
		UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true},
	}
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].Subject.CommonName != "" &&
		g.cfg.AuthEnabled() {
		http.Error(w, "CommonName of client sending a request against gateway will be ignored and not used as expected",
			http.StatusBadRequest)
		return
	}
	if websocketRequest(r) {
		g.serveWebsocket(w, r)
		return
	}
	if slices.Contains(streamPaths(), r.URL.Path) {
		g.mux.ServeHTTP(w, r)
		return
	}
	body := &boundedBody{ReadCloser: http.MaxBytesReader(w, r.Body, g.cfg.BodyBytesMax)}
	done, admitted := g.admit(r.Context(), body)
	if !admitted {
		return // the client has left
	}
	defer done()
	r.Body = body
	g.mux.ServeHTTP(w, r)
}

// admit reads a large body as a whole, then waits for its turn; a client that sends it slowly keeps no turn from
// others. done ends the turn; there is none when ctx ends first.
func (g *gateway) admit(ctx context.Context, body *boundedBody) (done func(), admitted bool) {
	start, err := io.ReadAll(io.LimitReader(body, largeBodyBytes))
	if err != nil || len(start) < largeBodyBytes {
		body.again(start, err)
		return func() {}, true
	}
	rest, err := io.ReadAll(body)
	body.again(append(start, rest...), err)
	select {
	case g.large <- struct{}{}:
		return func() { <-g.large }, true
	case <-ctx.Done():
		return nil, false
	}
}

// boundedBody remembers that the limit was met: the generated handlers pass on the text of an error only.
type boundedBody struct {
	io.ReadCloser
	met bool
}

// again makes what was read, and how it ended, the body once more.
func (b *boundedBody) again(read []byte, err error) {
	rest := b.ReadCloser
	b.ReadCloser = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), ended{err}), rest}
}

// ended is the end of a body.
type ended struct{ err error }

func (e ended) Read([]byte) (int, error) {
	if e.err == nil {
		return 0, io.EOF
	}
	return 0, e.err
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var tooLarge *http.MaxBytesError
	b.met = b.met || errors.As(err, &tooLarge)
	return n, err
}

// refuse answers a failed call. A body above the limit is refused as grpc refuses such a message.
func refuse(ctx context.Context, mux *gwruntime.ServeMux, m gwruntime.Marshaler,
	w http.ResponseWriter, r *http.Request, err error,
) {
	if b, ok := r.Body.(*boundedBody); ok && b.met {
		err = errMessageTooLarge
	}
	gwruntime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

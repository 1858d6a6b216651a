package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// gateway serves /v3/ by translating JSON to gRPC calls.
type gateway struct {
	cfg GatewayConfig
	mux *gwruntime.ServeMux
}

// NewGateway returns the handler of /v3/. ctx bounds its registration only.
func NewGateway(ctx context.Context, cfg GatewayConfig) (http.Handler, error) {
	g := &gateway{cfg: cfg, mux: gwruntime.NewServeMux(
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
	if !slices.Contains(streamPaths(), r.URL.Path) {
		r.Body = &boundedBody{ReadCloser: http.MaxBytesReader(w, r.Body, g.cfg.BodyBytesMax)}
	}
	g.mux.ServeHTTP(w, r)
}

// boundedBody remembers that the limit was met: the generated handlers pass on the text of an error only.
type boundedBody struct {
	io.ReadCloser
	met bool
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

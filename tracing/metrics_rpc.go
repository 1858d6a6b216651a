package tracing

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

type rpcVectors struct {
	started, received, sent, handled *prometheus.CounterVec
	handling                         *prometheus.HistogramVec // nil unless extensive
}

func newRPCVectors(b builder, extensive bool) rpcVectors {
	labels := []string{"grpc_type", "grpc_service", "grpc_method"}
	v := rpcVectors{
		started: b.counterVec("grpc_server_started_total",
			"Total number of RPCs started on the server.", labels...),
		received: b.counterVec("grpc_server_msg_received_total",
			"Total number of RPC stream messages received on the server.", labels...),
		sent: b.counterVec("grpc_server_msg_sent_total",
			"Total number of gRPC stream messages sent by the server.", labels...),
		handled: b.counterVec("grpc_server_handled_total",
			"Total number of RPCs completed on the server, regardless of success or failure.",
			append(labels[:3:3], "grpc_code")...),
	}
	if extensive {
		v.handling = prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "grpc_server_handling_seconds",
			Help:    "Histogram of response latency (seconds) of gRPC that had been application-level handled by the server.",
			Buckets: prometheus.DefBuckets,
		}, labels)
		b.registry.MustRegister(v.handling)
	}
	return v
}

// RPC meters one gRPC method. Making it presets all its series to 0, every status code included, so that a
// rate shows the first failure.
type RPC struct {
	Started, Received, Sent Counter
	Handling                Observer // Nop unless --metrics=extensive
	handled                 [codes.Unauthenticated + 1]Counter
}

// RPC returns the meters of a method; kind is "unary", "server_stream", "client_stream" or "bidi_stream".
// Resolve it once per method, not per call.
func (m *Metrics) RPC(kind, service, method string) *RPC {
	r := &RPC{
		Started:  m.rpc.started.WithLabelValues(kind, service, method),
		Received: m.rpc.received.WithLabelValues(kind, service, method),
		Sent:     m.rpc.sent.WithLabelValues(kind, service, method),
		Handling: Nop,
	}
	if m.rpc.handling != nil {
		r.Handling = m.rpc.handling.WithLabelValues(kind, service, method)
	}
	for c := range r.handled {
		r.handled[c] = m.rpc.handled.WithLabelValues(kind, service, method, codes.Code(c).String())
	}
	return r
}

// Handled counts a finished call. A code that gRPC does not define counts as Unknown.
func (r *RPC) Handled(c codes.Code) {
	if int(c) >= len(r.handled) {
		c = codes.Unknown
	}
	r.handled[c].Add(1)
}

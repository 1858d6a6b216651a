package rpc

import (
	"google.golang.org/grpc"

	"sluice/tracing"
)

// method is what is known of one RPC before it is called.
type method struct {
	name    string // "/service/method"
	meters  *tracing.RPC
	learner learnerRule
}

// learnerRule says what a learner does with an RPC.
type learnerRule uint8

const (
	learnerRefuses learnerRule = iota
	learnerServes
	learnerServesSerializable // only a serializable request
)

// learnerRules lists the RPCs that a learner does not refuse.
//
// Rule: contract/client-api.md sections 2.1 and 2.6.
func learnerRules() map[string]learnerRule {
	return map[string]learnerRule{
		"/etcdserverpb.Maintenance/Status":   learnerServes,
		"/etcdserverpb.Maintenance/Snapshot": learnerServes,
		"/etcdserverpb.KV/Range":             learnerServesSerializable,
	}
}

// describe notes the methods of a service and presets their metrics.
func (s *Server) describe(d *grpc.ServiceDesc) {
	add := func(kind, name string) {
		full := "/" + d.ServiceName + "/" + name
		if s.methods[full] != nil {
			return // another grpc server has the same services
		}
		s.methods[full] = &method{
			name: full, meters: s.cfg.Metrics.RPC(kind, d.ServiceName, name), learner: learnerRules()[full],
		}
	}
	for _, m := range d.Methods {
		add("unary", m.MethodName)
	}
	for _, m := range d.Streams {
		kind := "server_stream"
		if m.ClientStreams {
			kind = "bidi_stream"
		}
		add(kind, m.StreamName)
	}
}

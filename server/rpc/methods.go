package rpc

import (
	"sync"

	"google.golang.org/grpc"

	"sluice/server/rpc/electionpb"
	"sluice/server/rpc/lockpb"
	"sluice/tracing"
)

// method is what is known of one RPC before it is called.
type method struct {
	name    string // "/service/method"
	learner learnerRule
	meters  *tracing.RPC
	late    func() *tracing.RPC // makes meters at the first call; nil if they are preset
	once    sync.Once
}

// lateServices lists the services whose metrics appear when they are first used.
//
// Rule: contract/operations.md section 4.5.
func lateServices() map[string]bool {
	return map[string]bool{lockpb.Lock_ServiceDesc.ServiceName: true, electionpb.Election_ServiceDesc.ServiceName: true}
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

// describe notes the methods of a service and presets their metrics, late ones excepted.
func (s *Server) describe(d *grpc.ServiceDesc) {
	for _, m := range d.Methods {
		s.method("unary", d.ServiceName, m.MethodName)
	}
	for _, m := range d.Streams {
		kind := "server_stream"
		if m.ClientStreams {
			kind = "bidi_stream"
		}
		s.method(kind, d.ServiceName, m.StreamName)
	}
}

// method returns what is known of an RPC; the first call makes it. It is called before anything is served.
func (s *Server) method(kind, service, name string) *method {
	full := "/" + service + "/" + name
	m := s.methods[full]
	if m == nil {
		m = &method{name: full, learner: learnerRules()[full]}
		meters := func() *tracing.RPC { return s.cfg.Metrics.RPC(kind, service, name) }
		if lateServices()[service] {
			m.late = meters
		} else {
			m.meters = meters()
		}
		s.methods[full] = m
	}
	return m
}

// called returns what is known of an RPC that is being called.
func (s *Server) called(full string) *method {
	m := s.methods[full]
	if m.late != nil {
		m.once.Do(func() { m.meters = m.late() })
	}
	return m
}

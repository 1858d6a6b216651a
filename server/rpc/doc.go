// Package rpc is the client edge of a member: the gRPC services, their codec, and the listeners that share
// a port between gRPC and HTTP.
//
// Owns:       client connections and streams; the read budget; the grpc_server_* counters.
// Receives:   requests of clients; results and encoded answers from the member.
// Emits:      proposals, read barriers, watch and lease calls to the member.
// Invariants: every request passes one pipeline of checks, in the order of client-api.md 2.1. A request's
//
//	bytes are valid until its handler returns, and freed exactly once. A view is held only while
//	bytes are copied out of it, never while the network is waited for.
//
// When full:  proposals wait or are refused by the member; reads wait in the read budget, first come first
//
//	served, and those waiting give up their place when their client does.
//
// Restart:    holds nothing durable.
//
// Hot methods (KV, Watch, LeaseKeepAlive) have method handlers of their own, which decode straight into the
// types of stages/wire; all others go through the generated registration on the same server.
//
// Rule: design.md section 3 "Bytes" and "Transport", section 4 "Read budget"; contract/client-api.md.
package rpc

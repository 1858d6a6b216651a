// Package web is the HTTP side of a member: health, version, metrics, debugging and the JSON gateway.
//
// Owns:       nothing but its routes.
// Receives:   HTTP requests from the listeners of server/rpc and of the metrics URLs.
// Emits:      barriers and reads to the member; gRPC calls of the gateway over an in-memory listener.
// Invariants: probes need no credentials and wait for the request timeout at most. Every answer of a gateway
//
//	stream is flushed by itself, and no body, however broken, leaves a client without an answer.
//
// When full:  a request waits like any client's: the gateway has no queue of its own.
// Restart:    holds nothing.
//
// Rule: contract/operations.md 3; contract/client-api.md 13.
package web

// Package lean is a gRPC client that costs little, so that a load generator on the server's own machine
// leaves the machine to the server. It speaks HTTP/2 over one socket per Conn, with or without TLS.
//
// A Conn belongs to one goroutine, which alternates between adding frames, writing all of them at once
// (Flush) and reading what has come (Poll): no locks, no goroutine per call, no allocation per call. Header
// blocks are encoded once per method, message bodies are the caller's. Every answer's grpc-status is looked
// at; a call that ends otherwise than OK is reported as a StatusError.
//
// It is a load generator's client, not a general one: no compression, no retries, no header blocks longer
// than a frame, and receive windows so large that a server never waits for one.
package lean

// Package faults holds tests of a whole member with its gRPC services, in this process and on a real disk,
// against real clients that misbehave: they stop reading half-way through an answer while the database grows
// or is rewritten beneath it, or hammer a server whose freed buffers are poisoned.
//
// What one member does on a disk that stalls or fails is tested in runtime; what a process does, in server
// and bench/conformance.
package faults

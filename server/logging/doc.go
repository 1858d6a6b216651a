// Package logging makes the member's logger: zap, in etcd's JSON or console form, to the outputs of
// --log-outputs.
//
// Owns:       one queue and one goroutine per output.
// Receives:   encoded lines from any goroutine.
// Emits:      the same lines, in order, to stderr, stdout, a file or the journal.
// Invariants: a line is written whole or not at all. Logging never waits for an output: a terminal that
//
//	nobody reads or a full disk must not stall a stage.
//
// When full:  the line is dropped and counted; once the output takes lines again, one line says how many.
// Restart:    holds nothing durable; Close writes what waits, for a bounded time.
//
// Rule: contract/operations.md 6.1 and 1.7.
package logging

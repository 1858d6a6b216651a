// Package compactor forgets history by itself: what is older than a time, or more than a number of revisions.
//
// Owns:       the revisions of the last period, and the last revision that was compacted.
// Receives:   the time, the store's revision, whether this member leads.
// Emits:      compactions, proposed like a client's.
// Invariants: never compacts a revision that the retention still covers. Only the leader compacts, every
//
//	member records, so a new leader goes on without a pause.
//
// When full:  a compaction that fails is tried again at the next tick.
// Restart:    holds nothing durable: the clock of a period starts again.
//
// Rule: contract/operations.md 8.2.
package compactor

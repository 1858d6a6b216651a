// Package persist makes what raft has decided survive the process.
//
// Owns:       the log's segments (wal) and the snapshot files (snap), and every fsync of them.
// Receives:   Append and Checkpoint from replicate.
// Emits:      Ack to replicate: the number of Appends done, and their responses.
// Invariants: a response leaves only when everything that came before it and needs to be durable is. Records
//
//	keep the order of their messages. Every Append is acknowledged, in order. All that waits is written
//	at once and synced at most once: when it has entries, a changed term or vote, or a snapshot. A hard
//	state whose only news is the commit index is buffered, and reaches the disk with whatever comes next,
//	always before a later snapshot record. The log never says a lower commit index than it has said
//	before. The first failed write or sync ends the stage; nothing is tried again.
//
// When full:  replicate keeps what it has no credit for, in one pending batch of its own.
// Restart:    wal.ValidSnapshots and wal.Open give back what was acknowledged; see runtime's boot.
package persist

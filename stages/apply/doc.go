// Package apply executes committed entries, one after the other, on the replicated state.
//
// Owns:       the whole replicated state: keys and values (mvcc), leases and their keys, users and roles,
//
//	members, alarms, versions, and the index of the last applied entry; the unsealed buffer of
//	the backend. Two workers, the compactor and the flusher, only read views and wait for the disk.
//
// Receives:   Batch and Install from replicate, in one FIFO mailbox, the log. What its own workers have done
//
//	in a second one, work, whose senders may wait: what replicate sends must never find the place
//	taken. The backend's wish to be sealed (its batch interval is over, or a snapshot, a hash, a
//	defragmentation waits) or to have its old views replaced.
//
// Emits:      per batch and in this order: the published view; events to watch; lease changes and Leading to
//
//	expire; results and the published index to propose; the acknowledgement, with one verdict per
//	conf change, to replicate. Sealed buffers to the backend's writer.
//
// Invariants: entries are applied exactly once and without a gap: what is not above the consistent index has
//
//	had its outcome, in the transaction that stored the index, and is skipped. Every entry moves
//	the index, also one that reads or is refused. The same entries give the same bytes in every
//	bucket on every member, save meta and the local parts that the contract names. A commit of the
//	backend never holds an entry that is not durable in the local log: with asynchronous storage
//	writes raft hands out only entries whose append was acknowledged. A view never changes.
//
// When full:  watch and expire make it wait, and so does a backend with two unflushed buffers; then the log
//
//	fills and replicate keeps what it may not send. Results and acknowledgements never wait.
//
// Restart:    New rebuilds everything from the backend: members, leases, keys (which hang themselves on their
//
//	leases), auth, alarms. Run first sends expire all leases and watch the revision. A physical
//	compaction that was cut short is resumed. Login tokens are lost.
//
// Rule: design.md sections 2 to 5; contract/disk-and-peer.md sections 4 to 9.
package apply

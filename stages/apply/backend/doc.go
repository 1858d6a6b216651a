// Package backend keeps the applied state in one bbolt file of etcd's schema
// (contract/disk-and-peer.md section 4).
//
// Owns:       the file, its lock, its write transaction and its read transactions; the buffers of changes
//
//	that are not in it yet.
//
// Receives:   changes and seals from apply; requests for Flush, Hash, Snapshot, Defragment from anybody;
//
//	Install from apply.
//
// Emits:      tokens in Wanted, to apply; immutable Snapshots.
// Invariants: changes reach the file only together with the index and term of the seal behind them, in one
//
//	transaction. A Snapshot shows exactly what was written before its Acquire, through commits, remaps,
//	defragmentations and installs. The file's name always denotes a whole database; nobody else can lock it.
//	Read transactions are opened by the writer alone, between two commits.
//
// When full:  two sealed buffers may wait for the writer. SealWanted then says no, so that apply goes on with
//
//	the current one; at BufferBytesMax, Seal waits. The journal of a defragmentation holds seals back too.
//
// Restart:    the file is as of its last commit; ConsistentIndex says where the log must be taken up.
//
// # The sides
//
// Apply's goroutine calls Writer, Acquire, SealWanted, Seal, Install and ConsistentIndex. It looks at SealWanted
// after each batch, and when Wanted yields while it is idle; then it seals at the index that it has applied and
// publishes a view with a fresh Acquire. Both matter: a seal answers whoever demanded one (Hash, Snapshot,
// Defragment), and a fresh view ends the read transaction of the older one, which a growing file waits for.
// Where it gets ErrStale it publishes, and calls again. For an orderly stop it seals, flushes, releases its view
// and calls Close; for a disk snapshot it seals, and watches Durable or calls Flush.
//
// Run is the writer. A commit that fails, by an error or by a panic of bbolt, ends it with that error: nothing
// more is written, Seal and Flush return it, and the member must stop. Snapshots can still be read.
//
// Any goroutine reads a Snapshot that it holds.
//
// # Choices
//
// The file is not mapped with MAP_POPULATE as in etcd: that charges the whole file to the process's resident
// memory and reads it before the start goes on, while here the newest values live in memory elsewhere and the
// mapping is hardly read after the start. The start asks the kernel to read the file ahead instead, which
// fills the page cache without mapping anything.
//
// A new file is built under a temporary name and linked into place, so an empty file is never ours and is
// refused: taking it for a new database would hide that the old one was lost.
//
// Freed pages that wait for older readers are not counted as in use.
package backend

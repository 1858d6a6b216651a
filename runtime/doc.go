// Package runtime is one member: it opens the data directory, builds the stages, connects their mailboxes,
// starts them from the far end, watches over them, and stops them in the order of the data.
//
// member.go is the whole wiring on one page; edges.go is the same as a table, which a test reads to prove
// that the edges that may wait form no cycle. A stage that ends with an error or a panic stops the member,
// because its state may be half changed and the disk holds the truth.
//
// Rule: design.md sections 1 to 3; contract/disk-and-peer.md sections 5 and 7.
package runtime

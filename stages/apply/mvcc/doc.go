// Package mvcc is the multi-version key-value store: the key index, the newest values and the history of
// changes, as apply writes them and as readers see them.
//
// Owns:       the key index; the newest values in memory; the records of bucket key and the compaction
//
//	revisions of bucket meta; the main revision and the compaction revision; which compactions
//	are still to be carried out.
//
// Receives:   calls of apply's goroutine on the Store, in log order. Readers call the Views.
// Emits:      records to the backend's Writer; encoded events (TakeEvents); immutable Views (Publish);
//
//	lease attachments through Leases.
//
// Invariants: the same calls give the same records, revisions, bodies and events on every member, byte for
//
//	byte: nothing here reads a clock, a random number, a setting or a map's order. A published page,
//	slab prefix or view never changes. A page is copied at most once between two Publish calls.
//
// When full:  nothing waits here. Values beyond the byte budget stay in the backend and are read from there.
// Restart:    Load rebuilds everything from the backend; an unfinished compaction is due again.
//
// The index is a btree of small leaf pages. A page's summary stands beside it in the tree - live keys, their
// encoded bytes, the highest revision that changed it - so that counting and skipping costs pages, not keys.
// Per key a page holds the newest record; older records since the last compaction hang off the key as a
// slice in revision order, to which only the newest copy of the page appends.
//
// Values lie encoded in slabs: large blocks without pointers, outside the Go heap. A view holds the table of
// slabs it was published with, so the garbage collector finds out exactly when no view can reach a retired
// slab, whose memory is used again then: no reference counts, no epochs. Slabs that have become sparse are
// rewritten, a few records per Publish.
//
// Rule: design.md sections 4 and 5; contract/client-api.md 5 and 6; contract/disk-and-peer.md 4.3, 9 and 10.
package mvcc

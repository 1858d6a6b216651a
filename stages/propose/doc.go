// Package propose is the intake: it admits requests, hands them to raft in batches, and keeps who waits
// for what.
//
// Owns:       the request registry (request id -> completion cell); the client and the system lane; the
//
//	admission gates; the read rounds; the one outstanding conf change.
//
// Receives:   requests, conf changes and barriers from the RPC handlers; results and published indexes from
//
//	apply; read indexes, refusals, the leader's standing and the backlog from replicate; Tick.
//
// Emits:      batches of entries, conf changes (alone) and read rounds to replicate.
//
// Invariants: a request id is used once per process and handed to raft at most once. A cell is completed by
//
//	the id it waits for only, so that a late result never answers a newer request. A barrier returns nil
//	only after a round that began after it, and after a view of at least that round's index is published.
//
// When full:  a full lane makes the handler wait, up to the request's deadline. The lanes are not drained
//
//	while no leader is known, nor while more than UncommittedBytes are appended but not applied (the system
//	lane has an eighth on top). Refused at once: above --max-request-bytes, and when apply is more than
//	GapMax entries behind the commit index.
//
// Restart:    holds nothing durable. Ids begin at a time stamp, so that an id of before is never reused.
//
// Waiting costs no map, timer, goroutine or channel per request: cells are preallocated and reused,
// deadlines are looked at on Tick. A request whose waiter is gone before it was handed to raft is not
// proposed any more.
package propose

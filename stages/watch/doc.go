// Package watch delivers the changes of the store to every watcher, in order and once.
//
// Owns:       all streams and watchers; the window of recent encoded events; the matching index; which
//
//	watchers are live, which are catching up, and where each of those stands.
//
// Receives:   event batches from apply; creates, cancels and progress requests from the streams; scan results
//
//	from its catch-up workers; a stream's word that it has room again; Tick - all in one FIFO mailbox.
//
// Emits:      encoded WatchResponses into each stream's bounded outbox; scan jobs to idle workers.
// Invariants: the stage's revision is that of the last event batch it has processed: created and progress
//
//	answers carry it, no scan reads beyond it. A live watcher's outbox holds every matching event up to that
//	revision. Every other watcher is a cursor: the next revision it needs. A watcher becomes live exactly when
//	its cursor passes the stage's revision, so nothing is missed, repeated or reordered, and a revision is
//	torn only into flagged fragments. What the stage puts into an outbox leaves it in that order.
//
// When full:  senders wait; the stage itself waits for nobody. A stream whose outbox is full turns its
//
//	watchers into cursors, which hold no events, and is caught up again once its outbox is half empty. The
//	outbox is bounded in responses, with room for at least one per watcher, and in bytes.
//	An answer to a request has its place reserved before the request is sent. A Tick is only a flag.
//
// Restart:    holds nothing durable; starts at the revision that runtime hands in.
//
// Decisions beyond the contract: a progress request that finds a watcher catching up is kept, one per stream,
// and answered once all have caught up, instead of being dropped as etcd does; it is still met with silence
// when the stream has no watcher, or one that waits for a future revision or was cancelled for compaction.
// Catch-up reads the window when it reaches back far enough, else published views, one fresh view per chunk.
//
// Rule: design.md section 5; contract/client-api.md section 7.
package watch

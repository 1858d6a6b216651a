// Package replicate is the raft loop: it orders what is proposed and says when it is committed.
//
// Owns:       the raft.RawNode; the in-memory raft log; leadership; the progress of the peers; the credits
//
//	towards persist and apply, and what waits for one.
//
// Receives:   acknowledgements with conf-change verdicts from persist and apply; proposals, read rounds and
//
//	leadership transfers from propose; raft messages and connection events from the peers; Tick.
//
// Emits:      Append and Checkpoint to persist; Batch and Install to apply; messages to peers; read indexes,
//
//	refusals, the standing of the leader, the backlog in bytes and conf-change results to propose.
//
// Invariants: it never waits for another stage. Storage messages leave in raft's order, none is lost, and a
//
//	response is stepped or sent only after the write it belongs to was acknowledged. ApplyConfChange is
//	called for a batch's changes before that batch's response is stepped, and their results leave after.
//	Install leaves before the response that tells raft of the snapshot. A leader answers no read before
//	it has committed an entry of its own term, also when it is alone (see core.read).
//
// When full:  proposals, read rounds and peer messages wait in their mailboxes. Without a credit the next
//
//	Append joins, in order and with all its responses, the one that waits here, and Batch likewise; what
//	bounds both is propose, which stops handing over above its limit of bytes appended but not applied. A
//	follower drops MsgApp while more than AppendBytesMax bytes wait for its disk; raft sends them again.
//
// Restart:    the log, hard state and conf state come from persist's WAL and apply's members, see Boot.
//
// The log holds every entry at its full size from the moment that the Ready is taken. It is cut every 100
// applied entries to the newest CatchUpEntries, earlier if they are more than LogBytesMax, never above the
// applied index. raft draws election timeouts from its own random source; nothing else here is random.
package replicate

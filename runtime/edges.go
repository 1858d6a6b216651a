package runtime

import "sluice/mailbox"

// Edge is one way from a stage to a mailbox of another.
type Edge struct {
	From, To string // stages; "rpc" is every RPC handler, "clock" the ticker
	What     string
	Full     mailbox.Full
	// Reserved says that room is held before what it answers was sent: such an edge never waits, and flows
	// back without closing a circle of waiting.
	Reserved bool
}

// Edges is the wiring of a member:
//
//	rpc ──requests──▶ propose ──batches──▶ replicate ══credits══▶ persist
//	                     ▲                     │  ▲ ◀──reserved acks──┘
//	                     │ cells               │  └─────reserved acks─┐
//	                     │                     ╚═══credits══▶ apply ──┤
//	                     └────────────results──────────────────┘     ├──▶ watch ──▶ streams
//	                                                                  ├──▶ expire
//	                                                                  └──▶ backend
//
// Double lines are sends with credits: replicate keeps what it has no credit for, and never waits.
func Edges() []Edge {
	return []Edge{
		{From: "rpc", To: "propose", What: "requests, barriers", Full: mailbox.Wait},
		{From: "rpc", To: "watch", What: "create, cancel, progress", Full: mailbox.Wait},
		{From: "rpc", To: "expire", What: "renewals, questions", Full: mailbox.Wait},
		{From: "rpc", To: "backend", What: "hash, snapshot and defragmentation requests", Full: mailbox.Wait},
		{From: "propose", To: "replicate", What: "batches of entries, read rounds", Full: mailbox.Wait},
		{From: "replicate", To: "persist", What: "appends, checkpoints", Full: mailbox.Refuse, Reserved: true},
		{From: "replicate", To: "apply", What: "committed batches", Full: mailbox.Refuse, Reserved: true},
		{From: "replicate", To: "propose", What: "refusals, read indexes, standing", Full: mailbox.Latest, Reserved: true},
		{From: "persist", To: "replicate", What: "acknowledgements", Full: mailbox.Refuse, Reserved: true},
		{From: "apply", To: "replicate", What: "acknowledgements, verdicts", Full: mailbox.Refuse, Reserved: true},
		{From: "apply", To: "propose", What: "results, published index", Full: mailbox.Latest, Reserved: true},
		{From: "apply", To: "watch", What: "events", Full: mailbox.Wait},
		{From: "apply", To: "expire", What: "lease changes, leading", Full: mailbox.Wait},
		{From: "apply", To: "backend", What: "sealed buffers", Full: mailbox.Wait},
		{From: "compactor", To: "apply", What: "deletes", Full: mailbox.Wait},
		{From: "flusher", To: "apply", What: "flushes that are durable", Full: mailbox.Wait},
		{From: "apply", To: "compactor", What: "compactions, one at a time", Full: mailbox.Refuse, Reserved: true},
		{From: "apply", To: "flusher", What: "flushes to wait for", Full: mailbox.Refuse, Reserved: true},
		{From: "catch-up worker", To: "watch", What: "scanned history", Full: mailbox.Wait},
		{From: "expire", To: "revoker", What: "leases to revoke", Full: mailbox.Refuse},
		{From: "revoker", To: "propose", What: "revocations, checkpoints in the system lane", Full: mailbox.Wait},
		{From: "clock", To: "propose", What: "ticks", Full: mailbox.Latest},
		{From: "clock", To: "replicate", What: "ticks", Full: mailbox.Latest},
		{From: "clock", To: "expire", What: "ticks", Full: mailbox.Latest},
		{From: "clock", To: "watch", What: "ticks", Full: mailbox.Latest},
	}
}

// Package expire decides when leases run out.
//
// Owns:       the expiry time of every lease; whether this member leads; who waits for a renewal.
// Receives:   lease changes and Leading from apply; renewals and questions from the lease RPCs; the outcome
//
//	of read barriers from its own confirmer; Tick.
//
// Emits:      lease ids to revoke and checkpoints of remaining TTLs, to propose's system lane; TTL answers.
// Invariants: no lease is revoked before its TTL has passed since its last renewal, as this member's
//
//	monotonic clock counts it. A lease is due until Revoked comes back. Nothing is renewed or revoked while
//	replicate's last tick is stale: first a read barrier must confirm the leadership. Once a lease is due,
//	renewals of it wait for its end. A renewal is answered only when no checkpoint of the time before can
//	shorten the lease any more. A change of leader lengthens leases, and never shortens one.
//
// When full:  senders wait; the stage itself waits for nobody. What the receiver of revocations refuses stays
//
//	due, and is sent again at the next Tick; what does not come back is sent again after the request timeout.
//
// Restart:    holds nothing durable; rebuilt from the lease list that apply sends first.
//
// Decisions: when the tick is stale, renewals are kept inside the stage and one read barrier, made by the
// confirmer, serves all of them; if it fails they are answered with ErrNotPrimary. After a change of leader
// expiries are spread so that in no second more than three quarters of the revocation rate run out.
//
// Rule: design.md section 5; contract/client-api.md section 8.
package expire

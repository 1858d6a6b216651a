package expire

import (
	"errors"
	"sync/atomic"
)

var (
	// ErrNotFound: the lease does not exist, or was revoked.
	ErrNotFound = errors.New("expire: lease not found")
	// ErrNotPrimary: this member does not lead, or cannot confirm that it does.
	ErrNotPrimary = errors.New("expire: not the primary lessor")
	// ErrStopped: the stage has ended.
	ErrStopped = errors.New("expire: stopped")
)

// ChangeKind says what happened to a lease, or to this member.
type ChangeKind uint8

const (
	Reset        ChangeKind = iota // forget all leases: what follows is the whole list
	Granted                        // ID, TTL, Remaining
	Revoked                        // ID
	Checkpointed                   // ID, Remaining
	Leading                        // Leads, Term
)

// Change is one change that apply has made, in log order.
type Change struct {
	Kind      ChangeKind
	ID        int64
	TTL       int64 // seconds, as granted
	Remaining int64 // seconds at the last checkpoint; 0: the whole TTL
	Leads     bool  // this member leads in Term
	Term      uint64
}

// Checkpoint is the remaining TTL of a lease, for a leader to come. Remaining 0 takes the last one back.
type Checkpoint struct {
	ID        int64
	Remaining int64 // seconds
}

// Inbound is what the stage's mailbox carries. The methods of Stage make all of its kinds.
type Inbound interface{ inbound() }

type changesMsg struct{ changes []Change }

type renewMsg struct {
	id    int64
	reply *reply
}

type timeToLiveMsg struct {
	id    int64
	reply *reply
}

type listMsg struct{ reply *reply }

// confirmedMsg is the outcome of a read barrier that began at began.
type confirmedMsg struct {
	began int64
	ok    bool
}

func (changesMsg) inbound()    {}
func (renewMsg) inbound()      {}
func (timeToLiveMsg) inbound() {}
func (listMsg) inbound()       {}
func (confirmedMsg) inbound()  {}

// reply is where the answer to a question goes. Its channel has room for one, so answering never waits.
type reply struct {
	ch   chan answer
	gone atomic.Bool // set by a caller that no longer waits; read by the stage to forget it
}

// answer is what a question got, as far as it asked for it.
type answer struct {
	granted, remaining int64 // seconds
	leases             []remaining
	err                error
}

// remaining is a lease and when it runs out.
type remaining struct{ id, expiry int64 }

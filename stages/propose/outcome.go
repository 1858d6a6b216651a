package propose

import (
	"context"
	"time"
)

// outlook is what the text of a timeout depends on. It is immutable: Run publishes a new one when the
// standing changes.
type outlook struct {
	standing Standing
	elected  int64 // clock when the present leader was first seen, 0 for none
	election time.Duration
	links    Links
}

// timeout says why a request that began at started has no result at now. handed: it was given to raft.
//
// Rule: contract/client-api.md 2.4.
func (o *outlook) timeout(now, started int64, handed bool) error {
	switch {
	case !handed && o.standing.Leader == 0:
		return context.DeadlineExceeded
	case o.elected != 0 && started > o.elected-2*int64(o.election) && started < o.elected:
		return ErrTimeoutLeaderFail
	case o.links == nil || o.standing.Leader == 0:
		return ErrTimeout
	}
	waited := time.Duration(now - started)
	if o.standing.Leading {
		if !o.links.QuorumFor(waited) {
			return ErrTimeoutConnectionLost
		}
	} else if !o.links.ConnectedFor(o.standing.Leader, waited) {
		return ErrTimeoutConnectionLost
	}
	return ErrTimeout
}

// ended says what a waiter is told whose own context ended with err.
func (o *outlook) ended(err error, now, started int64, handed bool) error {
	switch {
	case err == context.Canceled:
		return ErrCanceled
	case err == context.DeadlineExceeded && handed:
		return o.timeout(now, started, handed)
	}
	return err
}

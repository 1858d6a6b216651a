package propose

import "errors"

// The texts are those of rpctypes, on which clients match; server/rpc maps each to its code.
var (
	ErrStopped               = errors.New("etcdserver: server stopped")
	ErrCanceled              = errors.New("etcdserver: request canceled")
	ErrTimeout               = errors.New("etcdserver: request timed out")
	ErrTimeoutLeaderFail     = errors.New("etcdserver: request timed out, possibly due to previous leader failure")
	ErrTimeoutConnectionLost = errors.New("etcdserver: request timed out, possibly due to connection lost")
	ErrNoLeader              = errors.New("etcdserver: no leader")
	ErrLeaderChanged         = errors.New("etcdserver: leader changed")
	ErrTooManyRequests       = errors.New("etcdserver: too many requests")
	ErrRequestTooLarge       = errors.New("etcdserver: request is too large")
)

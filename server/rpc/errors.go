package rpc

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sluice/stages/apply"
	"sluice/stages/apply/alarms"
	"sluice/stages/apply/auth"
	"sluice/stages/apply/lease"
	"sluice/stages/apply/members"
	"sluice/stages/apply/mvcc"
	"sluice/stages/expire"
	"sluice/stages/propose"
	"sluice/stages/watch"
)

// Errors that have no constant in rpctypes, or travel with another code than theirs.
//
// Rule: contract/client-api.md section 3.1.
var (
	errTooManyRequests  = status.Error(codes.Unknown, "etcdserver: too many requests")
	errNotEnoughStarted = status.Error(codes.Unknown,
		"etcdserver: re-configuration failed due to not enough started members")
	errNoPasswordUser   = status.Error(codes.Unknown, auth.ErrNoPasswordUser.Error())
	errNotPrimary       = status.Error(codes.Unknown, "not a primary lessor")
	errTransferTimeout  = status.Error(codes.Unknown, "etcdserver: request timed out, leader transfer took too long")
	errUnknownDowngrade = status.Error(codes.Unknown, "etcdserver: unknown method")
	errAppliedTimeout   = rpctypes.ErrGRPCTimeoutWaitAppliedIndex
	errAnswerTooLarge   = status.Error(codes.ResourceExhausted, "grpc: trying to send message larger than max")
	errUnknownAlarm     = status.Error(codes.InvalidArgument, "etcdserver: unknown alarm action")
)

// errorRow is one sentinel of a stage and the error that clients get.
type errorRow struct{ sentinel, client error }

// errorTable maps what the stages return to what clients see. Nothing else translates errors.
func errorTable() []errorRow {
	return []errorRow{
		{propose.ErrStopped, rpctypes.ErrGRPCStopped},
		{propose.ErrCanceled, rpctypes.ErrGRPCCanceled},
		{propose.ErrTimeout, rpctypes.ErrGRPCTimeout},
		{propose.ErrTimeoutLeaderFail, rpctypes.ErrGRPCTimeoutDueToLeaderFail},
		{propose.ErrTimeoutConnectionLost, rpctypes.ErrGRPCTimeoutDueToConnectionLost},
		{propose.ErrNoLeader, rpctypes.ErrGRPCNoLeader},
		{propose.ErrLeaderChanged, rpctypes.ErrGRPCLeaderChanged},
		{propose.ErrTooManyRequests, errTooManyRequests},
		{propose.ErrRequestTooLarge, rpctypes.ErrGRPCRequestTooLarge},

		{apply.ErrNoSpace, rpctypes.ErrGRPCNoSpace},
		{apply.ErrCorrupt, rpctypes.ErrGRPCCorrupt},

		{mvcc.ErrCompacted, rpctypes.ErrGRPCCompacted},
		{mvcc.ErrFutureRev, rpctypes.ErrGRPCFutureRev},
		{mvcc.ErrKeyNotFound, rpctypes.ErrGRPCKeyNotFound},
		{mvcc.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound},
		{mvcc.ErrAnswerTooLarge, errAnswerTooLarge},

		{lease.ErrNotFound, rpctypes.ErrGRPCLeaseNotFound},
		{lease.ErrExists, rpctypes.ErrGRPCLeaseExist},
		{lease.ErrTTLTooLarge, rpctypes.ErrGRPCLeaseTTLTooLarge},

		{expire.ErrNotFound, rpctypes.ErrGRPCLeaseNotFound},
		{expire.ErrNotPrimary, errNotPrimary},
		{expire.ErrStopped, rpctypes.ErrGRPCStopped},
		{watch.ErrStopped, rpctypes.ErrGRPCStopped},

		{alarms.ErrUnknownAction, errUnknownAlarm},

		{members.ErrIDRemoved, rpctypes.ErrGRPCMemberNotFound},
		{members.ErrIDExists, rpctypes.ErrGRPCMemberExist},
		{members.ErrIDNotFound, rpctypes.ErrGRPCMemberNotFound},
		{members.ErrPeerURLExists, rpctypes.ErrGRPCPeerURLExist},
		{members.ErrNotLearner, rpctypes.ErrGRPCMemberNotLearner},
		{members.ErrTooManyLearners, rpctypes.ErrGRPCTooManyLearners},

		{auth.ErrUserEmpty, rpctypes.ErrGRPCUserEmpty},
		{auth.ErrUserAlreadyExists, rpctypes.ErrGRPCUserAlreadyExist},
		{auth.ErrUserNotFound, rpctypes.ErrGRPCUserNotFound},
		{auth.ErrRoleEmpty, rpctypes.ErrGRPCRoleEmpty},
		{auth.ErrRoleAlreadyExists, rpctypes.ErrGRPCRoleAlreadyExist},
		{auth.ErrRoleNotFound, rpctypes.ErrGRPCRoleNotFound},
		{auth.ErrRoleNotGranted, rpctypes.ErrGRPCRoleNotGranted},
		{auth.ErrPermissionNotGiven, rpctypes.ErrGRPCPermissionNotGiven},
		{auth.ErrPermissionNotGranted, rpctypes.ErrGRPCPermissionNotGranted},
		{auth.ErrPermissionDenied, rpctypes.ErrGRPCPermissionDenied},
		{auth.ErrOldRevision, rpctypes.ErrGRPCAuthOldRevision},
		{auth.ErrInvalidManagement, rpctypes.ErrGRPCInvalidAuthMgmt},
		{auth.ErrRootUserNotExist, rpctypes.ErrGRPCRootUserNotExist},
		{auth.ErrRootRoleNotExist, rpctypes.ErrGRPCRootRoleNotExist},
		{auth.ErrNameTooLong, rpctypes.ErrGRPCRequestTooLarge},
		{auth.ErrNotEnabled, rpctypes.ErrGRPCAuthNotEnabled},
		{auth.ErrFailed, rpctypes.ErrGRPCAuthFailed},
		{auth.ErrInvalidToken, rpctypes.ErrGRPCInvalidAuthToken},
		{auth.ErrNoPasswordUser, errNoPasswordUser},
	}
}

// status translates what a handler returns. What is a status already, passes; a context's end keeps its plain
// text; what is unknown travels as Unknown with its own text.
func (s *Server) status(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	for _, row := range s.errors {
		if errors.Is(err, row.sentinel) {
			return row.client
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.FromContextError(context.Canceled).Err()
	case errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	return status.Error(codes.Unknown, err.Error())
}

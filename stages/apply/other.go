package apply

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/auth"
	"sluice/stages/apply/members"
)

// other executes the requests that are not hot. The answer is nil for requests that have none, and on error.
func (c *core) other(r *pb.InternalRaftRequest, who auth.Identity, o *outcome) (Kind, proto.Message, error) {
	switch {
	case r.LeaseGrant != nil:
		return of(KindLeaseGrant)(answer(c.leaseGrant(r.LeaseGrant, o)))
	case r.LeaseRevoke != nil:
		return of(KindLeaseRevoke)(answer(c.leaseRevoke(r.LeaseRevoke, who, o)))
	case r.LeaseCheckpoint != nil:
		return of(KindLeaseCheckpoint)(answer(c.leaseCheckpoint(r.LeaseCheckpoint, o)))
	case r.Alarm != nil:
		return of(KindAlarm)(answer(c.alarm(r.Alarm, o)))
	case r.ClusterVersionSet != nil:
		lowered := c.members.SetClusterVersion(r.ClusterVersionSet.Ver, c.server)
		o.checkpoint = o.checkpoint || lowered
		o.migrated = append(o.migrated, c.storage.raise(c.members.Table().ClusterVersion(), c.term)...)
		return KindClusterVersionSet, nil, nil
	case r.ClusterMemberAttrSet != nil:
		a := r.ClusterMemberAttrSet
		c.members.Publish(a.Member_ID, a.MemberAttributes.GetName(), a.MemberAttributes.GetClientUrls())
		return KindClusterMemberAttrSet, nil, nil
	case r.DowngradeInfoSet != nil:
		d := r.DowngradeInfoSet
		c.members.SetDowngrade(members.Downgrade{TargetVersion: d.Ver, Enabled: d.Enabled})
		return KindDowngradeInfoSet, nil, nil
	case r.DowngradeVersionTest != nil:
		c.storage.tested(r.DowngradeVersionTest.Ver, c.index)
		return KindDowngradeVersionTest, nil, nil
	case r.Range != nil:
		return KindRange, nil, c.foreignRange(r.Range, who)
	case r.Authenticate != nil:
		return of(KindAuthenticate)(answer(c.auth.Authenticate(r.Authenticate, c.index)))
	case r.AuthStatus != nil:
		return KindAuthStatus, c.auth.Status(), nil
	case r.AuthUserGet != nil:
		if err := c.auth.Table().CheckUserGet(who, r.AuthUserGet.Name); err != nil {
			return KindAuthUserGet, nil, err
		}
		return of(KindAuthUserGet)(answer(c.auth.UserGet(r.AuthUserGet)))
	case r.AuthRoleGet != nil:
		if err := c.auth.Table().CheckRoleGet(who, r.AuthRoleGet.Role); err != nil {
			return KindAuthRoleGet, nil, err
		}
		return of(KindAuthRoleGet)(answer(c.auth.RoleGet(r.AuthRoleGet)))
	}
	kind := authKind(r)
	if kind == KindNone {
		panic(fmt.Sprintf("apply: entry %d of term %d: not implemented apply: no known request", c.index, c.term))
	}
	if err := c.auth.Table().CheckAdmin(who); err != nil {
		return kind, nil, err // the right comes before the request's own validation
	}
	return of(kind)(c.authAdmin(kind, r))
}

// authKind names the requests that only root may make; KindNone for all others.
func authKind(r *pb.InternalRaftRequest) Kind {
	switch {
	case r.AuthEnable != nil:
		return KindAuthEnable
	case r.AuthDisable != nil:
		return KindAuthDisable
	case r.AuthUserAdd != nil:
		return KindAuthUserAdd
	case r.AuthUserDelete != nil:
		return KindAuthUserDelete
	case r.AuthUserChangePassword != nil:
		return KindAuthUserChangePassword
	case r.AuthUserGrantRole != nil:
		return KindAuthUserGrantRole
	case r.AuthUserRevokeRole != nil:
		return KindAuthUserRevokeRole
	case r.AuthUserList != nil:
		return KindAuthUserList
	case r.AuthRoleList != nil:
		return KindAuthRoleList
	case r.AuthRoleAdd != nil:
		return KindAuthRoleAdd
	case r.AuthRoleDelete != nil:
		return KindAuthRoleDelete
	case r.AuthRoleGrantPermission != nil:
		return KindAuthRoleGrantPermission
	case r.AuthRoleRevokePermission != nil:
		return KindAuthRoleRevokePermission
	}
	return KindNone
}

func (c *core) authAdmin(kind Kind, r *pb.InternalRaftRequest) (proto.Message, error) {
	switch kind {
	case KindAuthEnable:
		return answer(c.auth.Enable())
	case KindAuthDisable:
		return c.auth.Disable(), nil
	case KindAuthUserAdd:
		return answer(c.auth.UserAdd(r.AuthUserAdd))
	case KindAuthUserDelete:
		return answer(c.auth.UserDelete(r.AuthUserDelete))
	case KindAuthUserChangePassword:
		return answer(c.auth.UserChangePassword(r.AuthUserChangePassword))
	case KindAuthUserGrantRole:
		return answer(c.auth.UserGrantRole(r.AuthUserGrantRole))
	case KindAuthUserRevokeRole:
		return answer(c.auth.UserRevokeRole(r.AuthUserRevokeRole))
	case KindAuthUserList:
		return c.auth.UserList(), nil
	case KindAuthRoleList:
		return c.auth.RoleList(), nil
	case KindAuthRoleAdd:
		return answer(c.auth.RoleAdd(r.AuthRoleAdd))
	case KindAuthRoleDelete:
		return answer(c.auth.RoleDelete(r.AuthRoleDelete))
	case KindAuthRoleGrantPermission:
		return answer(c.auth.RoleGrantPermission(r.AuthRoleGrantPermission))
	case KindAuthRoleRevokePermission:
		return answer(c.auth.RoleRevokePermission(r.AuthRoleRevokePermission))
	}
	panic(fmt.Sprintf("apply: %s is no admin request", kind))
}

func (c *core) leaseGrant(r *pb.LeaseGrantRequest, o *outcome) (*pb.LeaseGrantResponse, error) {
	if err := c.writable(true); err != nil {
		return nil, err
	}
	over := c.overQuota(grantCost)
	ttl, err := c.leases.Grant(r.ID, r.TTL)
	if err == nil {
		o.leases = append(o.leases, LeaseChange{Kind: LeaseGranted, ID: r.ID, TTL: ttl})
	}
	return &pb.LeaseGrantResponse{ID: r.ID, TTL: ttl}, c.afterQuota(over, err, o)
}

// leaseRevoke takes the lease away and deletes its keys in byte order, all in one revision and in the buffer
// that holds the deletion of the lease record.
func (c *core) leaseRevoke(r *pb.LeaseRevokeRequest, who auth.Identity, o *outcome) (*pb.LeaseRevokeResponse, error) {
	if err := c.writable(false); err != nil {
		return nil, err
	}
	if err := MayLease(c.auth.Table(), c.leases, r.ID, who); err != nil {
		return nil, err
	}
	keys, err := c.leases.Revoke(r.ID)
	if err != nil {
		return nil, err
	}
	if len(keys) > 0 {
		c.store.DeleteKeys(keys)
	}
	o.leases = append(o.leases, LeaseChange{Kind: LeaseRevoked, ID: r.ID})
	return &pb.LeaseRevokeResponse{}, nil
}

// leaseCheckpoint notes remaining TTLs. They are stored once the whole cluster knows them; an unknown lease ends
// the request, what stood before it has been done.
func (c *core) leaseCheckpoint(r *pb.LeaseCheckpointRequest, o *outcome) (*pb.LeaseCheckpointResponse, error) {
	persist := members.AtLeast(c.members.Table().ClusterVersion(), 3, 6)
	for _, cp := range r.Checkpoints {
		if err := c.leases.Checkpoint(cp.ID, cp.Remaining_TTL, persist); err != nil {
			return nil, err
		}
		o.leases = append(o.leases, LeaseChange{Kind: LeaseCheckpointed, ID: cp.ID, Remaining: cp.Remaining_TTL})
	}
	return &pb.LeaseCheckpointResponse{}, nil
}

func (c *core) alarm(r *pb.AlarmRequest, o *outcome) (*pb.AlarmResponse, error) {
	resp, changed, err := c.alarms.Apply(r)
	if changed != nil {
		o.alarms = append(o.alarms, alarmChange{*changed, r.Action == pb.AlarmRequest_ACTIVATE})
	}
	return resp, err
}

// foreignRange is a read in the log. No release of today writes one; nobody waits for its answer here, so only
// the checks run.
func (c *core) foreignRange(r *pb.RangeRequest, who auth.Identity) error {
	if err := c.writable(false); err != nil {
		return err
	}
	return c.auth.Table().CheckRange(who, r.Key, r.RangeEnd)
}

// answer makes a typed response, nil on error, into an untyped one.
func answer[M proto.Message](m M, err error) (proto.Message, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// of puts the kind before an answer.
func of(k Kind) func(proto.Message, error) (Kind, proto.Message, error) {
	return func(m proto.Message, err error) (Kind, proto.Message, error) { return k, m, err }
}

package apply

// Kind is what an entry asked for, as metrics and logs name it.
type Kind uint8

const (
	KindNone Kind = iota // an empty entry, or one that was applied before
	KindConfChange
	KindPut
	KindDeleteRange
	KindTxn
	KindCompaction
	KindRange
	KindLeaseGrant
	KindLeaseRevoke
	KindLeaseCheckpoint
	KindAlarm
	KindAuthenticate
	KindAuthEnable
	KindAuthDisable
	KindAuthStatus
	KindAuthUserAdd
	KindAuthUserDelete
	KindAuthUserGet
	KindAuthUserChangePassword
	KindAuthUserGrantRole
	KindAuthUserRevokeRole
	KindAuthUserList
	KindAuthRoleList
	KindAuthRoleAdd
	KindAuthRoleDelete
	KindAuthRoleGet
	KindAuthRoleGrantPermission
	KindAuthRoleRevokePermission
	KindClusterVersionSet
	KindClusterMemberAttrSet
	KindDowngradeInfoSet
	KindDowngradeVersionTest
	kinds = iota
)

var kindNames = [kinds]string{
	"None", "ConfChange", "Put", "DeleteRange", "Txn", "Compaction", "Range",
	"LeaseGrant", "LeaseRevoke", "LeaseCheckpoint", "Alarm",
	"Authenticate", "AuthEnable", "AuthDisable", "AuthStatus",
	"AuthUserAdd", "AuthUserDelete", "AuthUserGet", "AuthUserChangePassword",
	"AuthUserGrantRole", "AuthUserRevokeRole", "AuthUserList", "AuthRoleList",
	"AuthRoleAdd", "AuthRoleDelete", "AuthRoleGet", "AuthRoleGrantPermission", "AuthRoleRevokePermission",
	"ClusterVersionSet", "ClusterMemberAttrSet", "DowngradeInfoSet", "DowngradeVersionTest",
}

// String is the value of the metrics' label op.
func (k Kind) String() string { return kindNames[k] }

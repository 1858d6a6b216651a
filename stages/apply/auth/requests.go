package auth

import (
	"bytes"
	"slices"
	"sort"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/stages/apply/backend"
)

// Enable turns authentication on. The revision stays: nobody had an identity to outdate.
//
// ErrRootUserNotExist, ErrRootRoleNotExist. Enabled already: no effect.
func (s *Store) Enable() (*pb.AuthEnableResponse, error) {
	if s.table.enabled {
		return &pb.AuthEnableResponse{}, nil
	}
	u, ok := s.table.user(rootUser)
	if !ok {
		return nil, ErrRootUserNotExist
	}
	if !u.isRoot() {
		return nil, ErrRootRoleNotExist
	}
	t := s.next()
	s.setEnabled(t, true)
	s.table = t
	return &pb.AuthEnableResponse{}, nil
}

// Disable turns authentication off and makes all tokens invalid. Disabled already: no effect.
func (s *Store) Disable() *pb.AuthDisableResponse {
	if s.table.enabled {
		t := s.next()
		s.setEnabled(t, false)
		s.commit(t)
		s.tokens.Clear()
	}
	return &pb.AuthDisableResponse{}
}

// Status reports whether authentication is on, and the revision.
func (s *Store) Status() *pb.AuthStatusResponse {
	return &pb.AuthStatusResponse{Enabled: s.table.enabled, AuthRevision: s.table.revision}
}

// Authenticate issues the token of a login whose password was checked before it was proposed, in the entry at
// index.
//
// ErrNotEnabled; ErrFailed for a user that has gone meanwhile.
func (s *Store) Authenticate(r *pb.InternalAuthenticateRequest, index uint64) (*pb.AuthenticateResponse, error) {
	if !s.table.enabled {
		return nil, ErrNotEnabled
	}
	if _, ok := s.table.user(r.Name); !ok {
		return nil, ErrFailed
	}
	token, err := s.tokens.Issue(r.Name, s.table.revision, r.SimpleToken, index)
	if err != nil {
		return nil, err
	}
	return &pb.AuthenticateResponse{Token: token}, nil
}

// CheckName refuses a name that cannot be stored, with ErrNameTooLong: names are keys of the backend. Whoever
// proposes asks first, so that no such entry is written; an entry that another release wrote is refused when it
// is applied.
func CheckName(name string) error {
	if len(name) > backend.KeyBytesMax {
		return ErrNameTooLong
	}
	return nil
}

// UserAdd adds a user. ErrUserEmpty, ErrNameTooLong, ErrUserAlreadyExists, ErrNoPasswordUser.
func (s *Store) UserAdd(r *pb.AuthUserAddRequest) (*pb.AuthUserAddResponse, error) {
	if r.Name == "" {
		return nil, ErrUserEmpty
	}
	if err := CheckName(r.Name); err != nil {
		return nil, err
	}
	if s.table.HasUser(r.Name) {
		return nil, ErrUserAlreadyExists
	}
	u := &user{name: r.Name, noPassword: r.Options.GetNoPassword()}
	if !u.noPassword {
		var err error
		if u.password, err = decodeHash(r.HashedPassword); err != nil {
			return nil, err
		}
	}
	t := s.next()
	s.putUser(t, u)
	s.commit(t)
	return &pb.AuthUserAddResponse{}, nil
}

// UserDelete deletes a user and makes its tokens invalid. ErrInvalidManagement, ErrUserNotFound.
func (s *Store) UserDelete(r *pb.AuthUserDeleteRequest) (*pb.AuthUserDeleteResponse, error) {
	if s.table.enabled && r.Name == rootUser {
		return nil, ErrInvalidManagement
	}
	u, ok := s.table.user(r.Name)
	if !ok {
		return nil, ErrUserNotFound
	}
	t := s.next()
	t.users.Delete(u)
	s.w.Delete(backend.AuthUsers, []byte(r.Name))
	s.commit(t)
	s.tokens.Forget(r.Name)
	return &pb.AuthUserDeleteResponse{}, nil
}

// UserChangePassword replaces the hash and makes the user's tokens invalid. A user without password keeps none.
//
// ErrUserNotFound, ErrNoPasswordUser.
func (s *Store) UserChangePassword(r *pb.AuthUserChangePasswordRequest) (*pb.AuthUserChangePasswordResponse, error) {
	u, ok := s.table.user(r.Name)
	if !ok {
		return nil, ErrUserNotFound
	}
	n := *u
	n.password = nil
	if !u.noPassword {
		var err error
		if n.password, err = decodeHash(r.HashedPassword); err != nil {
			return nil, err
		}
	}
	t := s.next()
	s.putUser(t, &n)
	s.commit(t)
	s.tokens.Forget(r.Name)
	return &pb.AuthUserChangePasswordResponse{}, nil
}

// UserGrantRole gives a role to a user. The role root need not exist. A role held already: no effect.
//
// ErrUserNotFound, ErrRoleNotFound.
func (s *Store) UserGrantRole(r *pb.AuthUserGrantRoleRequest) (*pb.AuthUserGrantRoleResponse, error) {
	u, ok := s.table.user(r.User)
	if !ok {
		return nil, ErrUserNotFound
	}
	if _, ok := s.table.role(r.Role); !ok && r.Role != rootRole {
		return nil, ErrRoleNotFound
	}
	if slices.Contains(u.roles, r.Role) {
		return &pb.AuthUserGrantRoleResponse{}, nil
	}
	n := *u
	n.roles = append(slices.Clone(u.roles), r.Role)
	slices.Sort(n.roles)
	t := s.next()
	s.putUser(t, &n)
	s.commit(t)
	return &pb.AuthUserGrantRoleResponse{}, nil
}

// UserRevokeRole takes a role from a user. ErrInvalidManagement, ErrUserNotFound, ErrRoleNotGranted.
func (s *Store) UserRevokeRole(r *pb.AuthUserRevokeRoleRequest) (*pb.AuthUserRevokeRoleResponse, error) {
	if s.table.enabled && r.Name == rootUser && r.Role == rootRole {
		return nil, ErrInvalidManagement
	}
	u, ok := s.table.user(r.Name)
	if !ok {
		return nil, ErrUserNotFound
	}
	if !slices.Contains(u.roles, r.Role) {
		return nil, ErrRoleNotGranted
	}
	n := *u
	n.roles = without(u.roles, r.Role)
	t := s.next()
	s.putUser(t, &n)
	s.commit(t)
	return &pb.AuthUserRevokeRoleResponse{}, nil
}

// UserGet lists the roles of a user. ErrUserNotFound.
func (s *Store) UserGet(r *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	roles, err := s.table.UserRoles(r.Name)
	if err != nil {
		return nil, err
	}
	return &pb.AuthUserGetResponse{Roles: roles}, nil
}

// UserList lists all users.
func (s *Store) UserList() *pb.AuthUserListResponse {
	return &pb.AuthUserListResponse{Users: s.table.Users()}
}

// RoleAdd adds a role without permissions. ErrRoleEmpty, ErrNameTooLong, ErrRoleAlreadyExists.
func (s *Store) RoleAdd(r *pb.AuthRoleAddRequest) (*pb.AuthRoleAddResponse, error) {
	if r.Name == "" {
		return nil, ErrRoleEmpty
	}
	if err := CheckName(r.Name); err != nil {
		return nil, err
	}
	if _, ok := s.table.role(r.Name); ok {
		return nil, ErrRoleAlreadyExists
	}
	t := s.next()
	s.putRole(t, r.Name, nil)
	s.commit(t)
	return &pb.AuthRoleAddResponse{}, nil
}

// RoleDelete deletes a role and takes it from all users. ErrInvalidManagement, ErrRoleNotFound.
func (s *Store) RoleDelete(r *pb.AuthRoleDeleteRequest) (*pb.AuthRoleDeleteResponse, error) {
	if s.table.enabled && r.Role == rootRole {
		return nil, ErrInvalidManagement
	}
	gone, ok := s.table.role(r.Role)
	if !ok {
		return nil, ErrRoleNotFound
	}
	t := s.next()
	t.roles.Delete(gone)
	s.w.Delete(backend.AuthRoles, []byte(r.Role))
	s.table.users.Ascend(func(u *user) bool { // the table of before: t.users changes below
		if slices.Contains(u.roles, r.Role) {
			n := *u
			n.roles = without(u.roles, r.Role)
			s.putUser(t, &n)
		}
		return true
	})
	s.commit(t)
	return &pb.AuthRoleDeleteResponse{}, nil
}

// RoleGet lists the permissions of a role. ErrRoleNotFound.
func (s *Store) RoleGet(r *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	perms, err := s.table.RolePermissions(r.Role)
	if err != nil {
		return nil, err
	}
	return &pb.AuthRoleGetResponse{Perm: perms}, nil
}

// RoleList lists all roles.
func (s *Store) RoleList() *pb.AuthRoleListResponse {
	return &pb.AuthRoleListResponse{Roles: s.table.Roles()}
}

// byKey orders permissions by key alone. sort.Sort is not stable, and permissions of equal keys are stored in
// the order it leaves them: a stable order would make another database than etcd's.
type byKey []*authpb.Permission

func (p byKey) Len() int           { return len(p) }
func (p byKey) Less(i, j int) bool { return bytes.Compare(p[i].Key, p[j].Key) < 0 }
func (p byKey) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }

// RoleGrantPermission adds a permission, or changes the type of the one with the same interval. That one is
// looked for only where the first permission of that key stands; behind another one it is not found, and a
// second is added, as in etcd.
//
// ErrPermissionNotGiven, ErrInvalidManagement for an empty or inverted interval, ErrRoleNotFound.
func (s *Store) RoleGrantPermission(
	r *pb.AuthRoleGrantPermissionRequest,
) (*pb.AuthRoleGrantPermissionResponse, error) {
	if r.Perm == nil {
		return nil, ErrPermissionNotGiven
	}
	if len(r.Perm.Key) == 0 || intervalOf(r.Perm.Key, r.Perm.RangeEnd).empty() {
		return nil, ErrInvalidManagement
	}
	old, ok := s.table.role(r.Name)
	if !ok {
		return nil, ErrRoleNotFound
	}
	perms := clonePermissions(old.perms)
	at := sort.Search(len(perms), func(i int) bool { return bytes.Compare(perms[i].Key, r.Perm.Key) >= 0 })
	if at < len(perms) && samePlace(perms[at], r.Perm.Key, r.Perm.RangeEnd) {
		perms[at].PermType = r.Perm.PermType
	} else {
		perms = append(perms, &authpb.Permission{
			PermType: r.Perm.PermType, Key: bytes.Clone(r.Perm.Key), RangeEnd: bytes.Clone(r.Perm.RangeEnd),
		})
		sort.Sort(byKey(perms))
	}
	t := s.next()
	s.putRole(t, r.Name, perms)
	s.commit(t)
	return &pb.AuthRoleGrantPermissionResponse{}, nil
}

// RoleRevokePermission takes away all permissions with exactly this interval. ErrRoleNotFound,
// ErrPermissionNotGranted.
func (s *Store) RoleRevokePermission(
	r *pb.AuthRoleRevokePermissionRequest,
) (*pb.AuthRoleRevokePermissionResponse, error) {
	old, ok := s.table.role(r.Role)
	if !ok {
		return nil, ErrRoleNotFound
	}
	perms := slices.DeleteFunc(clonePermissions(old.perms), func(p *authpb.Permission) bool {
		return samePlace(p, r.Key, r.RangeEnd)
	})
	if len(perms) == len(old.perms) {
		return nil, ErrPermissionNotGranted
	}
	t := s.next()
	s.putRole(t, r.Role, perms)
	s.commit(t)
	return &pb.AuthRoleRevokePermissionResponse{}, nil
}

func samePlace(p *authpb.Permission, key, rangeEnd []byte) bool {
	return bytes.Equal(p.Key, key) && bytes.Equal(p.RangeEnd, rangeEnd)
}

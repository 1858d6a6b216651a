package auth

import (
	"slices"

	"github.com/google/btree"
	"go.etcd.io/etcd/api/v3/authpb"
)

const (
	rootUser = "root"
	rootRole = "root"
)

// user is immutable: a change makes a new one.
type user struct {
	name       string
	password   []byte // bcrypt text, empty for a user that cannot log in
	roles      []string
	noPassword bool
}

// role is immutable: a change makes a new one.
type role struct {
	name        string
	perms       []*authpb.Permission // by key, as stored
	read, write []interval           // merged
}

// newRole derives the merged intervals of perms, which it keeps.
func newRole(name string, perms []*authpb.Permission) *role {
	r := &role{name: name, perms: perms}
	var read, write []interval
	for _, p := range perms {
		i := intervalOf(p.Key, p.RangeEnd)
		if grantsRead(p) {
			read = append(read, i)
		}
		if grantsWrite(p) {
			write = append(write, i)
		}
	}
	r.read, r.write = merge(read), merge(write)
	return r
}

func grantsRead(p *authpb.Permission) bool {
	return p.PermType == authpb.Permission_READ || p.PermType == authpb.Permission_READWRITE
}

func grantsWrite(p *authpb.Permission) bool {
	return p.PermType == authpb.Permission_WRITE || p.PermType == authpb.Permission_READWRITE
}

// Identity is who makes a request: a user and the auth revision under which it became known. The zero Identity
// is nobody.
type Identity struct {
	User     string
	Revision uint64
}

// Table is one immutable state of the users, roles and permissions. Any goroutine may read it.
type Table struct {
	enabled  bool
	revision uint64
	users    *btree.BTreeG[*user]
	roles    *btree.BTreeG[*role]
}

// Enabled says whether authentication is on.
func (t *Table) Enabled() bool { return t.enabled }

// Revision counts the changes that can outdate an identity.
func (t *Table) Revision() uint64 { return t.revision }

// Root is the identity of the member's own proposals, such as the revocation of an expired lease; nobody while
// authentication is off.
func (t *Table) Root() Identity {
	if !t.enabled {
		return Identity{}
	}
	return Identity{rootUser, t.revision}
}

// Known is the identity of a caller known by other means than a token: the common name of its certificate.
func (t *Table) Known(name string) Identity { return Identity{name, t.revision} }

func (t *Table) user(name string) (*user, bool) { return t.users.Get(&user{name: name}) }
func (t *Table) role(name string) (*role, bool) { return t.roles.Get(&role{name: name}) }

// HasUser says whether there is a user of that name.
func (t *Table) HasUser(name string) bool {
	_, ok := t.user(name)
	return ok
}

// Users returns the names of all users, ascending.
func (t *Table) Users() []string {
	names := make([]string, 0, t.users.Len())
	t.users.Ascend(func(u *user) bool { names = append(names, u.name); return true })
	return names
}

// Roles returns the names of all roles, ascending.
func (t *Table) Roles() []string {
	names := make([]string, 0, t.roles.Len())
	t.roles.Ascend(func(r *role) bool { names = append(names, r.name); return true })
	return names
}

// UserRoles returns the roles of a user, ascending. ErrUserNotFound.
func (t *Table) UserRoles(name string) ([]string, error) {
	u, ok := t.user(name)
	if !ok {
		return nil, ErrUserNotFound
	}
	return slices.Clone(u.roles), nil
}

// RolePermissions returns the permissions of a role by key. The role root has one that it does not store: all.
// ErrRoleNotFound.
func (t *Table) RolePermissions(name string) ([]*authpb.Permission, error) {
	r, ok := t.role(name)
	if !ok {
		return nil, ErrRoleNotFound
	}
	if name == rootRole {
		return []*authpb.Permission{{PermType: authpb.Permission_READWRITE, Key: []byte{}, RangeEnd: []byte{0}}}, nil
	}
	return clonePermissions(r.perms), nil
}

// CheckRange says whether who may read [key, end), spelled as in a RangeRequest.
func (t *Table) CheckRange(who Identity, key, end []byte) error {
	return t.check(who, key, end, func(r *role) []interval { return r.read })
}

// CheckPut says whether who may write key.
func (t *Table) CheckPut(who Identity, key []byte) error { return t.CheckDelete(who, key, nil) }

// CheckDelete says whether who may write [key, end), spelled as in a DeleteRangeRequest.
func (t *Table) CheckDelete(who Identity, key, end []byte) error {
	return t.check(who, key, end, func(r *role) []interval { return r.write })
}

func (t *Table) check(who Identity, key, end []byte, of func(*role) []interval) error {
	if !t.enabled {
		return nil
	}
	if who.Revision == 0 {
		return ErrUserEmpty
	}
	if who.Revision < t.revision {
		return ErrOldRevision
	}
	u, ok := t.user(who.User)
	if !ok {
		return ErrPermissionDenied
	}
	if u.isRoot() {
		return nil
	}
	want := intervalOf(key, end)
	if want.empty() {
		// No key lies in it, and it still needs a decision, for a transaction holds other operations beside it:
		// that of the key at its beginning. Etcd's is the same in most cases; in some it depends on the shape
		// of a search tree (tried).
		want = intervalOf(key, nil)
	}
	sets := make([][]interval, 0, 8)
	for _, name := range u.roles {
		if r, ok := t.role(name); ok {
			sets = append(sets, of(r))
		}
	}
	if !covered(sets, want) {
		return ErrPermissionDenied
	}
	return nil
}

// CheckAdmin says whether who may do what only root may. The revision of the identity does not matter.
func (t *Table) CheckAdmin(who Identity) error {
	if !t.enabled {
		return nil
	}
	if who.User == "" {
		return ErrUserEmpty
	}
	u, ok := t.user(who.User)
	if !ok {
		return ErrUserNotFound
	}
	if !u.isRoot() {
		return ErrPermissionDenied
	}
	return nil
}

// CheckKnown says whether who is anybody, known to the user list or not.
func (t *Table) CheckKnown(who Identity) error {
	if t.enabled && who.Revision == 0 {
		return ErrUserEmpty
	}
	return nil
}

// CheckUserGet says whether who may see the user name: root may, and the user itself; nobody may ask for the
// empty name, which no user has.
func (t *Table) CheckUserGet(who Identity, name string) error {
	err := t.CheckAdmin(who)
	if err != nil && who.User == name {
		return nil
	}
	return err
}

// CheckRoleGet says whether who may see the role name: root may, and whoever holds it.
func (t *Table) CheckRoleGet(who Identity, name string) error {
	err := t.CheckAdmin(who)
	if err == nil {
		return nil
	}
	if u, ok := t.user(who.User); ok && slices.Contains(u.roles, name) {
		return nil
	}
	return err
}

func (u *user) isRoot() bool { return slices.Contains(u.roles, rootRole) }

func clonePermissions(in []*authpb.Permission) []*authpb.Permission {
	out := make([]*authpb.Permission, len(in))
	for i, p := range in {
		out[i] = &authpb.Permission{PermType: p.PermType, Key: p.Key, RangeEnd: p.RangeEnd}
	}
	return out
}

package auth

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/btree"
	"go.etcd.io/etcd/api/v3/authpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/backend"
)

var (
	keyEnabled  = []byte("authEnabled")
	keyRevision = []byte("authRevision")
)

const degree = 16 // of the trees of users and roles

// Store is the live state. Apply's goroutine alone uses it; what others see is its Table.
//
// Every change replaces the Table by a copy-on-write clone, so that the Table of before stays what it was.
type Store struct {
	table  *Table
	w      backend.Writer
	tokens Tokens
}

// Load reads the auth buckets from r. Changes go to w. A store that has never been written gets its first
// revision here, not by an entry.
func Load(r backend.Reader, w backend.Writer, tokens Tokens) (*Store, error) {
	t := &Table{
		users: btree.NewG(degree, func(a, b *user) bool { return a.name < b.name }),
		roles: btree.NewG(degree, func(a, b *role) bool { return a.name < b.name }),
	}
	s := &Store{table: t, w: w, tokens: tokens}
	if v := r.Get(backend.Auth, keyEnabled); len(v) == 1 && v[0] == 1 {
		t.enabled = true
	}
	switch v := r.Get(backend.Auth, keyRevision); len(v) {
	case 8:
		t.revision = binary.BigEndian.Uint64(v)
	case 0:
		s.setRevision(t, 1)
	default:
		return nil, fmt.Errorf("read bucket auth, key authRevision: %d bytes, want 8", len(v))
	}
	var err error
	r.Scan(backend.AuthUsers, nil, nil, func(k, v []byte) bool {
		var u authpb.User
		if err = proto.Unmarshal(v, &u); err != nil {
			err = fmt.Errorf("read bucket authUsers, key %q: %w", k, err)
			return false
		}
		t.users.ReplaceOrInsert(&user{
			name: string(u.Name), password: u.Password, roles: u.Roles, noPassword: u.Options.GetNoPassword(),
		})
		return true
	})
	if err != nil {
		return nil, err
	}
	r.Scan(backend.AuthRoles, nil, nil, func(k, v []byte) bool {
		var p authpb.Role
		if err = proto.Unmarshal(v, &p); err != nil {
			err = fmt.Errorf("read bucket authRoles, key %q: %w", k, err)
			return false
		}
		t.roles.ReplaceOrInsert(newRole(string(p.Name), p.KeyPermission))
		return true
	})
	return s, err
}

// Table is the state of now.
func (s *Store) Table() *Table { return s.table }

// next returns a copy of the table to change; commit makes it the table.
func (s *Store) next() *Table {
	t := *s.table
	t.users, t.roles = s.table.users.Clone(), s.table.roles.Clone()
	return &t
}

// commit makes t the table, one revision on.
func (s *Store) commit(t *Table) {
	s.setRevision(t, t.revision+1)
	s.table = t
}

func (s *Store) setRevision(t *Table, rev uint64) {
	t.revision = rev
	s.w.Put(backend.Auth, keyRevision, binary.BigEndian.AppendUint64(nil, rev))
}

func (s *Store) setEnabled(t *Table, on bool) {
	t.enabled = on
	b := byte(0)
	if on {
		b = 1
	}
	s.w.Put(backend.Auth, keyEnabled, []byte{b})
}

func (s *Store) putUser(t *Table, u *user) {
	t.users.ReplaceOrInsert(u)
	s.w.Put(backend.AuthUsers, []byte(u.name), encode(&authpb.User{
		Name: []byte(u.name), Password: u.password, Roles: u.roles,
		Options: &authpb.UserAddOptions{NoPassword: u.noPassword}, // present even when empty
	}))
}

func (s *Store) putRole(t *Table, name string, perms []*authpb.Permission) {
	t.roles.ReplaceOrInsert(newRole(name, perms))
	s.w.Put(backend.AuthRoles, []byte(name), encode(&authpb.Role{Name: []byte(name), KeyPermission: perms}))
}

func encode(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("auth: encode %T: %v", m, err)) // strings in it came out of a valid message
	}
	return b
}

// without returns list without the string s.
func without(list []string, s string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(x string) bool { return x == s })
}

package auth

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/stages/apply/backend"
	"sluice/stages/apply/buckets"
)

// clock is a time that only tests move.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func load(t testing.TB, m *buckets.Memory) *Store {
	t.Helper()
	s, err := Load(m, m, NewSimpleTokens(time.Minute, (&clock{}).Now))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must[M any](t testing.TB) func(M, error) {
	return func(_ M, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// enabled returns a store with authentication on, the user root, and the user u with the role r.
func enabled(t testing.TB, m *buckets.Memory) *Store {
	t.Helper()
	s := load(t, m)
	must[*pb.AuthUserAddResponse](t)(s.UserAdd(&pb.AuthUserAddRequest{Name: "root", HashedPassword: "eA=="}))
	must[*pb.AuthUserGrantRoleResponse](t)(s.UserGrantRole(&pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}))
	must[*pb.AuthUserAddResponse](t)(s.UserAdd(&pb.AuthUserAddRequest{Name: "u", HashedPassword: "eA=="}))
	must[*pb.AuthRoleAddResponse](t)(s.RoleAdd(&pb.AuthRoleAddRequest{Name: "r"}))
	must[*pb.AuthUserGrantRoleResponse](t)(s.UserGrantRole(&pb.AuthUserGrantRoleRequest{User: "u", Role: "r"}))
	must[*pb.AuthEnableResponse](t)(s.Enable())
	return s
}

func grant(t testing.TB, s *Store, role string, typ authpb.Permission_Type, key, end string) {
	t.Helper()
	must[*pb.AuthRoleGrantPermissionResponse](t)(s.RoleGrantPermission(&pb.AuthRoleGrantPermissionRequest{
		Name: role, Perm: &authpb.Permission{PermType: typ, Key: []byte(key), RangeEnd: []byte(end)},
	}))
}

// TestKeyMatrix is the table of contract/client-api.md section 9.3.
func TestKeyMatrix(t *testing.T) {
	s := enabled(t, buckets.New())
	must[*pb.AuthRoleAddResponse](t)(s.RoleAdd(&pb.AuthRoleAddRequest{Name: "r2"}))
	must[*pb.AuthUserGrantRoleResponse](t)(s.UserGrantRole(&pb.AuthUserGrantRoleRequest{User: "u", Role: "r2"}))
	grant(t, s, "r", authpb.Permission_READ, "b", "d")
	grant(t, s, "r2", authpb.Permission_READWRITE, "d", "f")
	grant(t, s, "r2", authpb.Permission_READ, "f", "")
	grant(t, s, "r", authpb.Permission_WRITE, "w", "")
	grant(t, s, "r", authpb.Permission_READ, "x", "\x00")
	grant(t, s, "r2", 7, "m", "")
	table := s.Table()
	u := Identity{"u", table.Revision()}
	for _, c := range []struct {
		who         Identity
		key, end    string
		read, write error
	}{
		{u, "b", "", nil, ErrPermissionDenied},
		{u, "a", "", ErrPermissionDenied, ErrPermissionDenied},
		{u, "b", "d", nil, ErrPermissionDenied},
		{u, "b", "f", nil, ErrPermissionDenied},     // adjacent intervals of two roles join
		{u, "b", "f\x00", nil, ErrPermissionDenied}, // and a single key at their end
		{u, "b", "f\x01", ErrPermissionDenied, ErrPermissionDenied},
		{u, "a", "c", ErrPermissionDenied, ErrPermissionDenied},
		{u, "d", "f", nil, nil},
		{u, "c", "e", nil, ErrPermissionDenied},
		{u, "w", "", ErrPermissionDenied, nil},
		{u, "w\x00", "", ErrPermissionDenied, ErrPermissionDenied},
		{u, "m", "", ErrPermissionDenied, ErrPermissionDenied},
		{u, "x", "\x00", nil, ErrPermissionDenied},
		{u, "zz", "\x00", nil, ErrPermissionDenied},
		{u, "b", "\x00", ErrPermissionDenied, ErrPermissionDenied}, // needs open-ended coverage
		{u, "x", "y", nil, ErrPermissionDenied},
		{Identity{}, "b", "", ErrUserEmpty, ErrUserEmpty},
		{Identity{"u", table.Revision() - 1}, "b", "", ErrOldRevision, ErrOldRevision},
		{Identity{"u", table.Revision() + 1}, "b", "", nil, ErrPermissionDenied},
		{Identity{"nobody", table.Revision()}, "b", "", ErrPermissionDenied, ErrPermissionDenied},
		{Identity{"root", table.Revision()}, "a", "\x00", nil, nil},
		{Identity{"root", table.Revision() - 1}, "a", "", ErrOldRevision, ErrOldRevision},
		{Identity{"root", 0}, "a", "", ErrUserEmpty, ErrUserEmpty},
	} {
		key, end := []byte(c.key), []byte(c.end)
		if err := table.CheckRange(c.who, key, end); !errors.Is(err, c.read) {
			t.Errorf("%v reads [%q, %q): %v, want %v", c.who, key, end, err, c.read)
		}
		if err := table.CheckDelete(c.who, key, end); !errors.Is(err, c.write) {
			t.Errorf("%v writes [%q, %q): %v, want %v", c.who, key, end, err, c.write)
		}
		if c.end == "" {
			if err := table.CheckPut(c.who, key); !errors.Is(err, c.write) {
				t.Errorf("%v puts %q: %v, want %v", c.who, key, err, c.write)
			}
		}
	}
	s.Disable()
	if err := s.Table().CheckPut(Identity{}, []byte("a")); err != nil {
		t.Errorf("disabled: %v", err)
	}
	if err := table.CheckPut(Identity{}, []byte("a")); err == nil {
		t.Error("the table of before changed")
	}
}

// TestIntervalsAgainstModel compares with the plain rule: every key of a small alphabet that lies in the interval
// must lie in a granted one.
func TestIntervalsAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	letter := func() string { return string(rune('a' + rnd.IntN(6))) }
	end := func() string {
		switch rnd.IntN(4) {
		case 0:
			return ""
		case 1:
			return "\x00"
		}
		return letter() + []string{"", "\x00"}[rnd.IntN(2)]
	}
	// Every point where an interval of these letters can begin or end, and one beyond all.
	var points [][]byte
	for r := 'a'; r <= 'g'; r++ {
		points = append(points, []byte(string(r)), []byte(string(r)+"\x00"), []byte(string(r)+"\x00\x00"))
	}
	points = append(points, []byte("\xff\xff"))
	in := func(i interval, p []byte) bool {
		return bytes.Compare(i.begin, p) <= 0 && (i.end == nil || bytes.Compare(p, i.end) < 0)
	}
	allowed := 0
	for range 600 {
		m := buckets.New()
		s := enabled(t, m)
		must[*pb.AuthRoleAddResponse](t)(s.RoleAdd(&pb.AuthRoleAddRequest{Name: "r2"}))
		must[*pb.AuthUserGrantRoleResponse](t)(s.UserGrantRole(&pb.AuthUserGrantRoleRequest{User: "u", Role: "r2"}))
		var granted []interval
		for range 1 + rnd.IntN(6) {
			k, e, typ := letter(), end(), authpb.Permission_Type(rnd.IntN(3))
			_, err := s.RoleGrantPermission(&pb.AuthRoleGrantPermissionRequest{
				Name: []string{"r", "r2"}[rnd.IntN(2)],
				Perm: &authpb.Permission{PermType: typ, Key: []byte(k), RangeEnd: []byte(e)},
			})
			if err == nil {
				granted = granted[:0]
			}
		}
		for _, r := range []string{"r", "r2"} {
			perms, err := s.Table().RolePermissions(r)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range perms {
				if p.PermType != authpb.Permission_WRITE {
					granted = append(granted, intervalOf(p.Key, p.RangeEnd))
				}
			}
		}
		key, e := []byte(letter()), []byte(end())
		want := intervalOf(key, e)
		if want.empty() {
			continue // see TestEmptyInterval
		}
		covered := true
		for _, p := range points {
			held := false
			for _, g := range granted {
				held = held || in(g, p)
			}
			covered = covered && (held || !in(want, p))
		}
		who := Identity{"u", s.Table().Revision()}
		if got := s.Table().CheckRange(who, key, e) == nil; got != covered {
			t.Fatalf("[%q, %q) of %q: allowed %t, want %t", key, e, granted, got, covered)
		}
		again := load(t, m)
		if got := again.Table().CheckRange(who, key, e) == nil; got != covered {
			t.Fatalf("loaded again: allowed %t, want %t", got, covered)
		}
		if covered {
			allowed++
		}
	}
	if allowed < 20 {
		t.Errorf("only %d cases were allowed", allowed)
	}
}

// TestEmptyInterval: an interval in which no key can lie is decided by the key at its beginning.
func TestEmptyInterval(t *testing.T) {
	s := enabled(t, buckets.New())
	grant(t, s, "r", authpb.Permission_READWRITE, "b", "f")
	grant(t, s, "r", authpb.Permission_READ, "g", "")
	who := Identity{"u", s.Table().Revision()}
	for _, c := range []struct {
		key, end string
		want     error
	}{
		{"e", "c", nil}, {"e", "a", nil}, {"b", "b", nil}, {"b", "a", nil}, {"g", "a", nil},
		{"f", "c", ErrPermissionDenied}, {"a", "a", ErrPermissionDenied}, {"g\x00", "a", ErrPermissionDenied},
	} {
		if err := s.Table().CheckRange(who, []byte(c.key), []byte(c.end)); !errors.Is(err, c.want) {
			t.Errorf("[%s, %q): %v, want %v", c.key, c.end, err, c.want)
		}
	}
}

// TestDuplicatePermission: a grant whose equal stands behind another of the same key adds a second, and a revoke
// takes both.
func TestDuplicatePermission(t *testing.T) {
	s := enabled(t, buckets.New())
	grant(t, s, "r", authpb.Permission_READ, "a", "b")
	grant(t, s, "r", authpb.Permission_READ, "a", "c")
	grant(t, s, "r", authpb.Permission_WRITE, "a", "b")
	grant(t, s, "r", authpb.Permission_WRITE, "a", "c")
	show := func() string {
		perms, err := s.Table().RolePermissions("r")
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, p := range perms {
			out += fmt.Sprintf("%s[%s,%s) ", p.PermType, p.Key, p.RangeEnd)
		}
		return out
	}
	if got := show(); got != "WRITE[a,b) READ[a,c) WRITE[a,c) " {
		t.Errorf("permissions %s", got)
	}
	must[*pb.AuthRoleRevokePermissionResponse](t)(s.RoleRevokePermission(
		&pb.AuthRoleRevokePermissionRequest{Role: "r", Key: []byte("a"), RangeEnd: []byte("c")}))
	if got := show(); got != "WRITE[a,b) " {
		t.Errorf("after the revoke: %s", got)
	}
}

// TestAdmin: the holders of the role root, whatever their name and revision.
func TestAdmin(t *testing.T) {
	s := enabled(t, buckets.New())
	for _, c := range []struct {
		who  Identity
		want error
	}{
		{Identity{}, ErrUserEmpty}, {Identity{"", 5}, ErrUserEmpty}, {Identity{"nobody", 5}, ErrUserNotFound},
		{Identity{"u", 5}, ErrPermissionDenied}, {Identity{"root", 1}, nil}, {Identity{"root", 0}, nil},
	} {
		if err := s.Table().CheckAdmin(c.who); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.who, err, c.want)
		}
	}
	must[*pb.AuthUserGrantRoleResponse](t)(s.UserGrantRole(&pb.AuthUserGrantRoleRequest{User: "u", Role: "root"}))
	if err := s.Table().CheckAdmin(Identity{"u", 1}); err != nil {
		t.Errorf("u holds root: %v", err)
	}
	if err := s.Table().CheckKnown(Identity{}); !errors.Is(err, ErrUserEmpty) {
		t.Errorf("nobody is known: %v", err)
	}
	if err := s.Table().CheckKnown(Identity{"ghost", 1}); err != nil {
		t.Errorf("an unknown certificate name is somebody: %v", err)
	}
	if id := s.Table().Root(); id != (Identity{"root", s.Table().Revision()}) {
		t.Errorf("root is %v", id)
	}
}

// TestPasswords: what a login needs, in order.
func TestPasswords(t *testing.T) {
	s := load(t, buckets.New())
	hash, err := HashPassword("secret", 4)
	if err != nil {
		t.Fatal(err)
	}
	empty, err := HashPassword("", 99) // out of range: the default cost
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Table().CheckPassword("root", "secret"); !errors.Is(err, ErrNotEnabled) {
		t.Errorf("disabled: %v", err)
	}
	s = enabled(t, buckets.New())
	must[*pb.AuthUserChangePasswordResponse](t)(
		s.UserChangePassword(&pb.AuthUserChangePasswordRequest{Name: "u", HashedPassword: hash}))
	must[*pb.AuthUserAddResponse](t)(s.UserAdd(&pb.AuthUserAddRequest{Name: "e", HashedPassword: empty}))
	must[*pb.AuthUserAddResponse](t)(s.UserAdd(&pb.AuthUserAddRequest{Name: "none"}))
	must[*pb.AuthUserAddResponse](t)(
		s.UserAdd(&pb.AuthUserAddRequest{Name: "n", Options: &authpb.UserAddOptions{NoPassword: true}}))
	for _, c := range []struct {
		name, password string
		want           error
	}{
		{"u", "secret", nil}, {"u", "Secret", ErrFailed}, {"u", "", ErrFailed}, {"ghost", "x", ErrFailed},
		{"", "", ErrFailed}, {"e", "", nil}, {"none", "", ErrFailed}, {"n", "", ErrNoPasswordUser},
	} {
		rev, err := s.Table().CheckPassword(c.name, c.password)
		if !errors.Is(err, c.want) || (err == nil && rev != s.Table().Revision()) {
			t.Errorf("%s/%s: %d, %v, want %v", c.name, c.password, rev, err, c.want)
		}
	}
}

// TestTokens: their form, their sliding life, and what makes them invalid.
func TestTokens(t *testing.T) {
	c := &clock{now: time.Unix(1000, 0)}
	tokens := NewSimpleTokens(time.Minute, c.Now)
	m := buckets.New()
	enabled(t, m)
	s, err := Load(m, m, tokens)
	if err != nil {
		t.Fatal(err)
	}
	login := func(name string, index uint64) string {
		r, err := s.Authenticate(&pb.InternalAuthenticateRequest{Name: name, SimpleToken: "abcdefghijklmnop"}, index)
		if err != nil {
			t.Fatal(err)
		}
		return r.Token
	}
	valid := func(token string) bool {
		id, ok := tokens.Resolve(s.Table(), token)
		if ok && (id.User == "" || id.Revision != s.Table().Revision()) {
			t.Errorf("token %s: %+v", token, id)
		}
		return ok
	}
	u, root := login("u", 7), login("root", 8)
	if u != "abcdefghijklmnop.7" {
		t.Errorf("token %s", u)
	}
	if i, ok := TokenIndex(u); i != 7 || !ok {
		t.Errorf("index %d, %t", i, ok)
	}
	for _, bad := range []string{"", "x", "x.y", "x.-1", "x.1.2"} {
		if _, ok := TokenIndex(bad); ok {
			t.Errorf("%q has an index", bad)
		}
	}
	c.now = c.now.Add(time.Minute)
	if !valid(u) { // at the TTL it still lives, and is renewed
		t.Error("the token is gone at its TTL")
	}
	c.now = c.now.Add(time.Second)
	if valid(root) {
		t.Error("a token outlived its TTL")
	}
	c.now = c.now.Add(58 * time.Second)
	if !valid(u) {
		t.Error("a token that was used did not live on")
	}
	grant(t, s, "r", authpb.Permission_READ, "a", "")
	if !valid(u) {
		t.Error("a change of permissions ended a token")
	}
	must[*pb.AuthUserChangePasswordResponse](t)(
		s.UserChangePassword(&pb.AuthUserChangePasswordRequest{Name: "u", HashedPassword: "eA=="}))
	if valid(u) {
		t.Error("a token outlived the password")
	}
	u, root = login("u", 9), login("root", 10)
	must[*pb.AuthUserDeleteResponse](t)(s.UserDelete(&pb.AuthUserDeleteRequest{Name: "u"}))
	if valid(u) || !valid(root) {
		t.Error("deleting u must end u's tokens alone")
	}
	s.Disable()
	if valid(root) {
		t.Error("a token outlived authentication")
	}
}

// TestTokensAreBounded: expired tokens go when new ones come.
func TestTokensAreBounded(t *testing.T) {
	c := &clock{now: time.Unix(1000, 0)}
	tokens := NewSimpleTokens(time.Minute, c.Now)
	for i := range uint64(100_000) {
		c.now = c.now.Add(time.Second)
		if _, err := tokens.Issue("u", 1, "abcdefghijklmnop", i); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for i := range tokens.shards {
		n += len(tokens.shards[i].tokens)
	}
	if n > 1000 {
		t.Errorf("%d tokens are kept", n)
	}
}

// TestLoadRefusesGarbage: what cannot be read is named.
func TestLoadRefusesGarbage(t *testing.T) {
	for _, c := range []struct {
		b          backend.Bucket
		key, value string
	}{
		{backend.Auth, "authRevision", "123"}, {backend.AuthUsers, "u", "\xff"}, {backend.AuthRoles, "r", "\xff"},
	} {
		m := buckets.New()
		m.Put(c.b, []byte(c.key), []byte(c.value))
		if _, err := Load(m, m, nil); err == nil || !bytes.Contains([]byte(err.Error()), []byte(c.key)) {
			t.Errorf("%s %s: %v", c.b, c.key, err)
		}
	}
}

// Names are keys of the backend, which panics above its limit: the longest name is stored, one byte more is
// refused and changes nothing, also where the entry did not come through this release's own check.
func TestNameLimit(t *testing.T) {
	s := load(t, buckets.New())
	for _, size := range []int{backend.KeyBytesMax, backend.KeyBytesMax + 1, 1 << 20} {
		name, before := strings.Repeat("n", size), s.Table().Revision()
		_, userErr := s.UserAdd(&pb.AuthUserAddRequest{Name: name, HashedPassword: "eA=="})
		_, roleErr := s.RoleAdd(&pb.AuthRoleAddRequest{Name: name})
		want, changes := ErrNameTooLong, uint64(0)
		if size <= backend.KeyBytesMax {
			want, changes = nil, 2
		}
		if !errors.Is(userErr, want) || !errors.Is(roleErr, want) || !errors.Is(CheckName(name), want) {
			t.Errorf("name of %d bytes: user %v, role %v, want %v", size, userErr, roleErr, want)
		}
		if got := s.Table().Revision() - before; got != changes || s.Table().HasUser(name) != (want == nil) {
			t.Errorf("name of %d bytes: %d changes, want %d", size, got, changes)
		}
	}
}

// Nobody is the user of the empty name, as in etcd: who asks for it hears that there is no such user.
func TestUserGetOfNobody(t *testing.T) {
	table := enabled(t, buckets.New()).Table()
	for _, c := range []struct {
		who  Identity
		name string
		want error
	}{
		{Identity{}, "", nil}, {Identity{}, "u", ErrUserEmpty}, {table.Known("u"), "u", nil},
		{table.Known("u"), "", ErrPermissionDenied}, {table.Known("u"), "root", ErrPermissionDenied},
	} {
		if err := table.CheckUserGet(c.who, c.name); !errors.Is(err, c.want) {
			t.Errorf("%q asks for %q: %v, want %v", c.who.User, c.name, err, c.want)
		}
	}
}

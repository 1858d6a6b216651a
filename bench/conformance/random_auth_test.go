package conformance

import (
	"context"
	"math/rand/v2"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// authScript makes users and roles of several kinds, and turns authentication on.
func authScript() []proto.Message {
	perm := func(typ authpb.Permission_Type, key, end string) *authpb.Permission {
		return &authpb.Permission{PermType: typ, Key: []byte(key), RangeEnd: []byte(end)}
	}
	script := []proto.Message{
		&pb.AuthUserAddRequest{Name: "root", Password: "root"}, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"},
	}
	for role, p := range map[string]*authpb.Permission{
		"a": perm(authpb.READ, "a", "c"), "b": perm(authpb.WRITE, "b", ""), "c": perm(authpb.READWRITE, "a", "\x00"),
	} {
		script = append(script, &pb.AuthRoleAddRequest{Name: role}, &pb.AuthUserAddRequest{Name: role, Password: role},
			&pb.AuthRoleGrantPermissionRequest{Name: role, Perm: p}, &pb.AuthUserGrantRoleRequest{User: role, Role: role})
	}
	return append(script, &pb.AuthEnableRequest{})
}

// authMethods name the RPCs of the requests in an authScript.
func authMethods(m proto.Message) string {
	switch m.(type) {
	case *pb.AuthUserAddRequest:
		return "/etcdserverpb.Auth/UserAdd"
	case *pb.AuthUserGrantRoleRequest:
		return "/etcdserverpb.Auth/UserGrantRole"
	case *pb.AuthRoleAddRequest:
		return "/etcdserverpb.Auth/RoleAdd"
	case *pb.AuthRoleGrantPermissionRequest:
		return "/etcdserverpb.Auth/RoleGrantPermission"
	}
	return "/etcdserverpb.Auth/AuthEnable"
}

// login returns the token of user, whose password is its name, empty if there is none.
func (s *party) login(ctx context.Context, t *testing.T, user string) string {
	o := s.call(ctx, "/etcdserverpb.Auth/Authenticate", encoded(t, &pb.AuthenticateRequest{Name: user, Password: user}))
	if o.code != codes.OK {
		return ""
	}
	return o.messages[0].(*pb.AuthenticateResponse).Token
}

// Requests of every kind by users with different rights get the same answer from both.
func TestRandomRights(t *testing.T) {
	p := pairUp(t, "--bcrypt-cost=4")
	for _, m := range authScript() {
		ref, got := both(p, func(s *party) outcome { return s.call(t.Context(), authMethods(m), encoded(t, m)) })
		if ref.code != codes.OK || !ref.equal(got) {
			t.Fatalf("%v:\nreference: %v\nsluice:    %v", m, ref, got)
		}
	}
	g := &filler{rand.New(rand.NewPCG(seed(t), 4))}
	users := []string{"root", "root", "a", "b", "c", "nobody", ""}
	for i := range *opsFlag / 2 {
		method := randomMethods()[g.IntN(len(randomMethods()))]
		m := g.message(methodOf(method).Input(), 3)
		tame(method, m)
		if keepsOut(method, m) {
			continue
		}
		user, odd := users[g.IntN(len(users))], g.IntN(30)
		ref, got := both(p, func(s *party) outcome {
			ctx := t.Context()
			switch token := s.login(ctx, t, user); {
			case odd == 0:
				ctx = as(ctx, "token", "made-up")
			case odd == 1:
				ctx = as(ctx, "authorization", "Bearer "+token)
			case token != "":
				ctx = as(ctx, "token", token)
			}
			o := s.call(ctx, method, encoded(t, m))
			untidy(method, m, &o)
			return o
		})
		if !ref.equal(got) {
			t.Fatalf("%d: %s as %q (%d) %s\nreference: %v\nsluice:    %v", i, method, user, odd, text(m), ref, got)
		}
	}
}

// keepsOut says whether a request would end the test's use of its users, or the rights of all.
func keepsOut(method string, m proto.Message) bool {
	switch r := m.(type) {
	case *pb.AuthDisableRequest:
		return true
	case *pb.AuthUserChangePasswordRequest:
		return r.Name == "root"
	case *pb.AlarmRequest:
		return r.Action == pb.AlarmRequest_ACTIVATE
	}
	return false
}

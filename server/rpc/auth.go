package rpc

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/auth"
	"sluice/stages/propose"
	"sluice/stages/wire"
)

// authServer has the Auth RPCs. All of them go through consensus, queries included; rights are looked at when
// the entry is applied. What this side adds is that a password never travels: it is hashed, or checked, here.
type authServer struct {
	pb.UnimplementedAuthServer
	*Server
}

// headed is a response whose header this side fills in.
type headed interface {
	proto.Message
	GetHeader() *pb.ResponseHeader
}

// authCall proposes r and returns its response with a header.
func authCall[R headed](
	s *authServer, ctx context.Context, r *pb.InternalRaftRequest, set func(R, *pb.ResponseHeader),
) (R, error) {
	var none R
	res, err := s.propose(ctx, &wire.Request{Other: r}, propose.System)
	if err != nil {
		return none, err
	}
	out := res.Message.(R)
	set(out, s.messageHeader(res.Revision))
	return out, nil
}

// AuthEnable turns authentication on.
func (s *authServer) AuthEnable(ctx context.Context, r *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthEnable: r},
		func(o *pb.AuthEnableResponse, h *pb.ResponseHeader) { o.Header = h })
}

// AuthDisable turns authentication off.
func (s *authServer) AuthDisable(ctx context.Context, r *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthDisable: r},
		func(o *pb.AuthDisableResponse, h *pb.ResponseHeader) { o.Header = h })
}

// AuthStatus reports whether authentication is on.
func (s *authServer) AuthStatus(ctx context.Context, r *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthStatus: r},
		func(o *pb.AuthStatusResponse, h *pb.ResponseHeader) { o.Header = h })
}

// Authenticate checks a password and proposes the login. When users have changed between the check and its
// application, the password may have too: it is checked again.
//
// Rule: contract/client-api.md section 9.5.
func (s *authServer) Authenticate(ctx context.Context, r *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	if err := s.m.Barrier(ctx); err != nil {
		return nil, err
	}
	for {
		revision, err := s.checkPassword(ctx, r.Name, r.Password)
		if err != nil {
			return nil, err
		}
		// The caller's own token, if it has one, does not matter to a login.
		res, err := s.m.Propose(ctx, &wire.Request{Other: &pb.InternalRaftRequest{
			Authenticate: &pb.InternalAuthenticateRequest{Name: r.Name, SimpleToken: s.tokenPrefix()},
		}}, propose.System)
		if err == nil {
			err = res.Err
		}
		if err != nil {
			return nil, err
		}
		if s.authTable().Revision() == revision {
			out := res.Message.(*pb.AuthenticateResponse)
			out.Header = s.messageHeader(res.Revision)
			return out, nil
		}
	}
}

// checkPassword runs bcrypt, a few at a time.
func (s *Server) checkPassword(ctx context.Context, name, password string) (revision uint64, err error) {
	err = s.bcrypt(ctx, func() error {
		revision, err = s.authTable().CheckPassword(name, password)
		return err
	})
	return revision, err
}

// bcrypt runs fn, which takes long, when it is its turn.
func (s *Server) bcrypt(ctx context.Context, fn func() error) error {
	select {
	case s.hashing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.hashing }()
	return fn()
}

const (
	tokenPrefixBytes = 16
	tokenAlphabet    = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// tokenPrefix is the random part of a simple token: letters, each as likely as any other.
func (s *Server) tokenPrefix() string {
	out := make([]byte, 0, tokenPrefixBytes)
	for len(out) < tokenPrefixBytes {
		var b [tokenPrefixBytes]byte
		s.cfg.Random(b[:])
		for _, c := range b {
			if c &= 63; int(c) < len(tokenAlphabet) && len(out) < tokenPrefixBytes {
				out = append(out, tokenAlphabet[c])
			}
		}
	}
	return string(out)
}

// UserAdd adds a user. Its password is hashed here and cleared, and a hash that the client sent is overwritten.
func (s *authServer) UserAdd(ctx context.Context, r *pb.AuthUserAddRequest) (*pb.AuthUserAddResponse, error) {
	if err := auth.CheckName(r.Name); err != nil {
		return nil, err
	}
	r.HashedPassword = ""
	if !r.GetOptions().GetNoPassword() {
		hashed, err := s.hash(ctx, r.Password)
		if err != nil {
			return nil, err
		}
		r.HashedPassword = hashed
	}
	r.Password = ""
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthUserAdd: r},
		func(o *pb.AuthUserAddResponse, h *pb.ResponseHeader) { o.Header = h })
}

// hash returns what travels instead of a password.
func (s *Server) hash(ctx context.Context, password string) (hashed string, err error) {
	err = s.bcrypt(ctx, func() error {
		hashed, err = auth.HashPassword(password, s.cfg.BcryptCost)
		if errors.Is(err, bcrypt.ErrPasswordTooLong) {
			return bcrypt.ErrPasswordTooLong // clients see its very text
		}
		return err
	})
	return hashed, err
}

// UserGet lists the roles of a user.
func (s *authServer) UserGet(ctx context.Context, r *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthUserGet: r},
		func(o *pb.AuthUserGetResponse, h *pb.ResponseHeader) { o.Header = h })
}

// UserList lists all users.
func (s *authServer) UserList(ctx context.Context, r *pb.AuthUserListRequest) (*pb.AuthUserListResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthUserList: r},
		func(o *pb.AuthUserListResponse, h *pb.ResponseHeader) { o.Header = h })
}

// UserDelete deletes a user.
func (s *authServer) UserDelete(ctx context.Context, r *pb.AuthUserDeleteRequest) (*pb.AuthUserDeleteResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthUserDelete: r},
		func(o *pb.AuthUserDeleteResponse, h *pb.ResponseHeader) { o.Header = h })
}

// UserChangePassword replaces a password. Without one, the hash that the client sent is stored as it is.
func (s *authServer) UserChangePassword(
	ctx context.Context, r *pb.AuthUserChangePasswordRequest,
) (*pb.AuthUserChangePasswordResponse, error) {
	if r.Password != "" {
		hashed, err := s.hash(ctx, r.Password)
		if err != nil {
			return nil, err
		}
		r.Password, r.HashedPassword = "", hashed
	}
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthUserChangePassword: r},
		func(o *pb.AuthUserChangePasswordResponse, h *pb.ResponseHeader) { o.Header = h })
}

// UserGrantRole gives a role to a user.
func (s *authServer) UserGrantRole(
	ctx context.Context, r *pb.AuthUserGrantRoleRequest,
) (*pb.AuthUserGrantRoleResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthUserGrantRole: r},
		func(o *pb.AuthUserGrantRoleResponse, h *pb.ResponseHeader) { o.Header = h })
}

// UserRevokeRole takes a role from a user.
func (s *authServer) UserRevokeRole(
	ctx context.Context, r *pb.AuthUserRevokeRoleRequest,
) (*pb.AuthUserRevokeRoleResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthUserRevokeRole: r},
		func(o *pb.AuthUserRevokeRoleResponse, h *pb.ResponseHeader) { o.Header = h })
}

// RoleAdd adds a role.
func (s *authServer) RoleAdd(ctx context.Context, r *pb.AuthRoleAddRequest) (*pb.AuthRoleAddResponse, error) {
	if err := auth.CheckName(r.Name); err != nil {
		return nil, err
	}
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthRoleAdd: r},
		func(o *pb.AuthRoleAddResponse, h *pb.ResponseHeader) { o.Header = h })
}

// RoleGet lists the permissions of a role.
func (s *authServer) RoleGet(ctx context.Context, r *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthRoleGet: r},
		func(o *pb.AuthRoleGetResponse, h *pb.ResponseHeader) { o.Header = h })
}

// RoleList lists all roles.
func (s *authServer) RoleList(ctx context.Context, r *pb.AuthRoleListRequest) (*pb.AuthRoleListResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthRoleList: r},
		func(o *pb.AuthRoleListResponse, h *pb.ResponseHeader) { o.Header = h })
}

// RoleDelete deletes a role.
func (s *authServer) RoleDelete(ctx context.Context, r *pb.AuthRoleDeleteRequest) (*pb.AuthRoleDeleteResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthRoleDelete: r},
		func(o *pb.AuthRoleDeleteResponse, h *pb.ResponseHeader) { o.Header = h })
}

// RoleGrantPermission adds a permission to a role.
func (s *authServer) RoleGrantPermission(
	ctx context.Context, r *pb.AuthRoleGrantPermissionRequest,
) (*pb.AuthRoleGrantPermissionResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthRoleGrantPermission: r},
		func(o *pb.AuthRoleGrantPermissionResponse, h *pb.ResponseHeader) { o.Header = h })
}

// RoleRevokePermission takes a permission from a role.
func (s *authServer) RoleRevokePermission(
	ctx context.Context, r *pb.AuthRoleRevokePermissionRequest,
) (*pb.AuthRoleRevokePermissionResponse, error) {
	return authCall(s, ctx, &pb.InternalRaftRequest{AuthRoleRevokePermission: r},
		func(o *pb.AuthRoleRevokePermissionResponse, h *pb.ResponseHeader) { o.Header = h })
}

package rpc

import (
	"context"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"

	"sluice/stages/apply"
	"sluice/stages/apply/auth"
	"sluice/stages/wire"
)

// gatewayKey marks a call that the gateway makes for an HTTP client. Such a call has no identity but its token.
const gatewayKey = "grpcgateway-accept"

// identity says who makes a call; nobody while authentication is off. A simple token is looked up when this
// member has applied the login that issued it, for which the call waits: so no view may be held.
//
// Rule: contract/client-api.md sections 9.6 and 9.7.
func (s *Server) identity(ctx context.Context) (auth.Identity, error) {
	table := s.authTable()
	if !table.Enabled() {
		return auth.Identity{}, nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	token, ok := first(md, rpctypes.TokenFieldNameGRPC)
	if !ok {
		token, ok = first(md, rpctypes.TokenFieldNameSwagger)
	}
	if ok {
		return s.resolve(ctx, table, strings.TrimPrefix(token, "Bearer "))
	}
	if name, ok := s.commonName(ctx, md); ok {
		return table.Known(name), nil
	}
	return auth.Identity{}, nil
}

func first(md metadata.MD, key string) (string, bool) {
	if v := md[key]; len(v) > 0 {
		return v[0], true
	}
	return "", false
}

func (s *Server) resolve(ctx context.Context, table *auth.Table, token string) (auth.Identity, error) {
	if who, ok := s.m.Tokens().Resolve(table, token); ok {
		return who, nil
	}
	index, ok := auth.TokenIndex(token)
	if !ok || index <= s.m.AppliedIndex() {
		return auth.Identity{}, auth.ErrInvalidToken
	}
	if err := s.m.Applied(ctx, index); err != nil {
		return auth.Identity{}, auth.ErrInvalidToken
	}
	if who, ok := s.m.Tokens().Resolve(s.authTable(), token); ok {
		return who, nil
	}
	return auth.Identity{}, auth.ErrInvalidToken
}

// commonName is the common name of the client's verified certificate, when that is how clients are known.
func (s *Server) commonName(ctx context.Context, md metadata.MD) (string, bool) {
	if !s.cfg.ClientCertAuth || len(md[gatewayKey]) > 0 {
		return "", false
	}
	c := connOf(ctx)
	if c == nil || c.tls == nil {
		return "", false
	}
	for _, chain := range c.tls.VerifiedChains {
		if len(chain) > 0 {
			return chain[0].Subject.CommonName, true
		}
	}
	return "", false
}

// admin refuses whoever may not do what only root may.
func (s *Server) admin(ctx context.Context) error {
	who, err := s.identity(ctx)
	if err != nil {
		return err
	}
	return s.authTable().CheckAdmin(who)
}

// known refuses whoever is nobody.
func (s *Server) known(ctx context.Context) error {
	who, err := s.identity(ctx)
	if err != nil {
		return err
	}
	return s.authTable().CheckKnown(who)
}

// readView resolves the caller and acquires a view to check its rights on, and to read from.
func (s *Server) readView(ctx context.Context) (*apply.View, auth.Identity, error) {
	v := s.m.View()
	if !v.Auth.Enabled() {
		return v, auth.Identity{}, nil
	}
	v.Release()
	who, err := s.identity(ctx)
	if err != nil {
		return nil, who, err
	}
	return s.m.View(), who, nil
}

// unchanged fails when the rights that a read was checked with may have changed since.
func (s *Server) unchanged(who auth.Identity) error {
	if who.Revision == 0 {
		return nil
	}
	if t := s.authTable(); t.Enabled() && t.Revision() != who.Revision {
		return auth.ErrOldRevision
	}
	return nil
}

// checkReadTxn checks the rights of a read-only txn on all of its intervals, of both branches.
func checkReadTxn(t *auth.Table, who auth.Identity, r *wire.TxnRequest) error {
	if !t.Enabled() {
		return nil
	}
	for i := range r.Compare {
		if err := t.CheckRange(who, r.Compare[i].Key, r.Compare[i].RangeEnd); err != nil {
			return err
		}
	}
	for _, branch := range [...][]wire.RequestOp{r.Success, r.Failure} {
		for i := range branch {
			if err := t.CheckRange(who, branch[i].Range.Key, branch[i].Range.RangeEnd); err != nil {
				return err
			}
		}
	}
	return nil
}

package rpc

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/server/rpc/lockpb"
	"sluice/stages/wire"
)

var errSessionExpired = errors.New("mutex: session is expired")

// lockServer has the Lock service.
//
// Rule: contract/client-api.md section 12.
type lockServer struct {
	lockpb.UnimplementedLockServer
	*Server
}

// Lock returns when the caller's lease has the lock of a name.
func (s *lockServer) Lock(ctx context.Context, r *lockpb.LockRequest) (*lockpb.LockResponse, error) {
	p, err := s.enqueue(ctx, r.Name, r.Lease, nil)
	if err != nil {
		return nil, s.composed(ctx, err)
	}
	header, err := s.turn(ctx, p)
	if err != nil {
		s.leave(ctx, p)
		return nil, s.composed(ctx, err)
	}
	return &lockpb.LockResponse{Header: header, Key: p.key}, nil
}

// turn waits for a place's turn, and returns the header of the call that has found it.
func (s *lockServer) turn(ctx context.Context, p *place) (*pb.ResponseHeader, error) {
	if p.first {
		return p.header, nil
	}
	if err := s.await(ctx, p); err != nil {
		return nil, err
	}
	header, own, err := s.held(ctx, p)
	if err == nil && own == nil {
		err = errSessionExpired
	}
	return header, err
}

// Unlock deletes a key, whatever it is.
func (s *lockServer) Unlock(ctx context.Context, r *lockpb.UnlockRequest) (*lockpb.UnlockResponse, error) {
	deleted, err := s.ownDelete(ctx, &wire.DeleteRangeRequest{Key: r.Key})
	if err != nil {
		return nil, s.composed(ctx, err)
	}
	return &lockpb.UnlockResponse{Header: deleted.Header}, nil
}

package rpc

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"sluice/stages/apply"
	"sluice/stages/propose"
	"sluice/stages/wire"
)

// hotServices describes KV and Watch, whose methods are all hot.
func (s *Server) hotServices() []grpc.ServiceDesc {
	unary := func(name string, kind callKind, serve func(context.Context, *call) (*reply, error)) grpc.MethodDesc {
		m := s.method("unary", pb.KV_ServiceDesc.ServiceName, name)
		return grpc.MethodDesc{MethodName: name, Handler: s.hotUnary(m, kind, serve)}
	}
	stream := func(serve func(grpc.ServerStream) error) grpc.StreamHandler {
		return func(_ any, ss grpc.ServerStream) error { return serve(ss) }
	}
	return []grpc.ServiceDesc{
		{
			ServiceName: pb.KV_ServiceDesc.ServiceName,
			HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{
				unary("Range", callRange, s.serveRange),
				unary("Put", callPut, s.servePut),
				unary("DeleteRange", callDelete, s.serveDelete),
				unary("Txn", callTxn, s.serveTxn),
				unary("Compact", callCompact, s.serveCompact),
			},
			Streams: []grpc.StreamDesc{
				{StreamName: "RangeStream", Handler: stream(s.serveRangeStream), ServerStreams: true},
			},
			Metadata: pb.KV_ServiceDesc.Metadata,
		},
		{
			ServiceName: pb.Watch_ServiceDesc.ServiceName,
			HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{
				{StreamName: "Watch", Handler: stream(s.serveWatch), ServerStreams: true, ClientStreams: true},
			},
			Metadata: pb.Watch_ServiceDesc.Metadata,
		},
	}
}

func (s *Server) servePut(ctx context.Context, c *call) (*reply, error) {
	c.proposal.Put = &c.put
	if err := s.quota(ctx, apply.Cost(&c.proposal)); err != nil {
		return nil, err
	}
	if err := checkPut(&c.put); err != nil {
		return nil, err
	}
	return s.write(ctx, &c.proposal)
}

func (s *Server) serveDelete(ctx context.Context, c *call) (*reply, error) {
	if err := checkDelete(&c.del); err != nil {
		return nil, err
	}
	c.proposal.DeleteRange = &c.del
	return s.write(ctx, &c.proposal)
}

func (s *Server) serveTxn(ctx context.Context, c *call) (*reply, error) {
	c.proposal.Txn = &c.txn
	if cost := apply.Cost(&c.proposal); cost > 0 {
		if err := s.quota(ctx, cost); err != nil {
			return nil, err
		}
	}
	if err := checkTxn(&c.txn, s.cfg.TxnOpsMax); err != nil {
		return nil, err
	}
	if only, serializable := readOnly(&c.txn); only {
		return s.readTxn(ctx, &c.txn, serializable)
	}
	readPresent(&c.txn)
	return s.write(ctx, &c.proposal)
}

func (s *Server) serveCompact(ctx context.Context, c *call) (*reply, error) {
	if err := s.admin(ctx); err != nil {
		return nil, err
	}
	c.proposal.Compaction = &c.compact
	res, err := s.propose(ctx, &c.proposal, propose.Client)
	if err != nil {
		return nil, err
	}
	if c.compact.Physical && res.Physical != nil {
		select {
		case <-res.Physical:
		case <-s.m.Done():
			return nil, propose.ErrStopped
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.encoded(&res), nil
}

// write proposes a change and encodes its answer.
func (s *Server) write(ctx context.Context, r *wire.Request) (*reply, error) {
	res, err := s.propose(ctx, r, propose.Client)
	if err != nil {
		return nil, err
	}
	return s.encoded(&res), nil
}

// encoded is the answer to an applied hot request: a header and the body that apply encoded.
func (s *Server) encoded(res *wire.Result) *reply {
	a := newAnswer(s.cfg.Buffers, 0)
	a.header(s.header(res.Revision))
	a.body(res.Body)
	return a.done()
}

// propose fills in who asks, and waits for the result. It returns the refusal of an applied request as error.
func (s *Server) propose(ctx context.Context, r *wire.Request, lane propose.Lane) (res wire.Result, err error) {
	start := s.cfg.Now()
	defer func() { s.meters.writes[kindOf(r)].observe(s.cfg.Now().Sub(start), err) }()
	who, err := s.identity(ctx)
	if err != nil {
		return wire.Result{}, err
	}
	r.Username, r.AuthRevision = who.User, who.Revision
	res, err = s.m.Propose(ctx, r, lane)
	switch {
	case errors.Is(err, context.Canceled):
		return res, rpctypes.ErrGRPCCanceled // a deadline keeps its plain text
	case err != nil:
		return res, err
	}
	return res, res.Err
}

// quota refuses a write of this cost when it would not fit below the quota, and raises the alarm. It looks at
// the size of the last commit, so that the quota can be overshot by what is not yet committed.
//
// Rule: contract/client-api.md section 6.4; it precedes validation.
func (s *Server) quota(ctx context.Context, cost int64) error {
	total, _, quota := s.m.DBSize()
	if quota <= 0 || total+cost < quota {
		return nil
	}
	if err := s.raiseNoSpace(ctx, total, quota); err != nil {
		return err
	}
	return rpctypes.ErrGRPCNoSpace
}

// raiseNoSpace activates this member's NOSPACE alarm, with root's rights, unless it is up.
func (s *Server) raiseNoSpace(ctx context.Context, total, quota int64) error {
	v := s.m.View()
	alarms, root := v.Alarms, v.Auth.Root()
	v.Release()
	id := s.m.MemberID()
	for _, a := range alarms {
		if a.MemberID == id && a.Alarm == pb.AlarmType_NOSPACE {
			return nil
		}
	}
	s.logger.Warn("message exceeded backend quota; raising alarm", sizeFields(total, quota)...)
	res, err := s.m.Propose(ctx, &wire.Request{
		Username: root.User, AuthRevision: root.Revision,
		Other: &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{
			Action: pb.AlarmRequest_ACTIVATE, MemberID: id, Alarm: pb.AlarmType_NOSPACE,
		}},
	}, propose.System)
	if err != nil {
		return err
	}
	return res.Err
}

package rpc

import (
	"bytes"
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"sluice/server/rpc/electionpb"
	"sluice/stages/watch"
	"sluice/stages/wire"
)

var (
	errNotLeader     = errors.New("election: not leader")
	errNoLeader      = errors.New("election: no leader")
	errMissingLeader = errors.New(`"leader" field must be provided`)
)

// electionServer has the Election service.
//
// Rule: contract/client-api.md section 12.
type electionServer struct {
	electionpb.UnimplementedElectionServer
	*Server
}

// Campaign returns when the caller's lease leads the election of a name.
func (s *electionServer) Campaign(
	ctx context.Context, r *electionpb.CampaignRequest,
) (*electionpb.CampaignResponse, error) {
	p, err := s.enqueue(ctx, r.Name, r.Lease, r.Value)
	if err != nil {
		return nil, s.composed(ctx, err)
	}
	if err := s.lead(ctx, p, r.Value); err != nil {
		s.leave(ctx, p)
		return nil, s.composed(ctx, err)
	}
	return &electionpb.CampaignResponse{
		Header: p.header,
		Leader: &electionpb.LeaderKey{Name: r.Name, Key: p.key, Rev: p.revision, Lease: p.lease},
	}, nil
}

// lead gives a place its value, if it was found with another one, and waits for its turn. The reference does
// not look whether the place is still there by then, and tells candidates that they lead whose key has been
// deleted: here they are told that they do not.
func (s *electionServer) lead(ctx context.Context, p *place, value []byte) error {
	if !p.made && !bytes.Equal(p.value, value) {
		if _, err := s.proclaim(ctx, p.key, p.revision, p.lease, value); err != nil {
			return err
		}
	}
	if p.first {
		return nil
	}
	if err := s.await(ctx, p); err != nil {
		return err
	}
	_, own, err := s.held(ctx, p)
	if err == nil && own == nil {
		err = errNotLeader
	}
	return err
}

// Proclaim changes the value of a leader. A candidate that waits may change its own as well.
func (s *electionServer) Proclaim(
	ctx context.Context, r *electionpb.ProclaimRequest,
) (*electionpb.ProclaimResponse, error) {
	if r.Leader == nil {
		return nil, s.composed(ctx, errMissingLeader)
	}
	lease, err := s.session(ctx, r.Leader.Lease)
	if err != nil {
		return nil, s.composed(ctx, err)
	}
	header, err := s.proclaim(ctx, r.Leader.Key, r.Leader.Rev, lease, r.Value)
	if err != nil {
		return nil, s.composed(ctx, err)
	}
	return &electionpb.ProclaimResponse{Header: header}, nil
}

func (s *electionServer) proclaim(
	ctx context.Context, key []byte, revision, lease int64, value []byte,
) (*pb.ResponseHeader, error) {
	r, err := s.ownTxn(ctx, &wire.TxnRequest{
		Compare: unchangedSince(key, revision),
		Success: []wire.RequestOp{{Put: &wire.PutRequest{Key: key, Value: value, Lease: lease}}},
	})
	if err == nil && !r.Succeeded {
		err = errNotLeader
	}
	return r.Header, err
}

// Leader returns the leader of an election.
func (s *electionServer) Leader(
	ctx context.Context, r *electionpb.LeaderRequest,
) (*electionpb.LeaderResponse, error) {
	got, err := s.ownRange(ctx, oldest(queuePrefix(r.Name)))
	if err == nil && len(got.Kvs) == 0 {
		err = errNoLeader
	}
	if err != nil {
		return nil, s.composed(ctx, err)
	}
	return &electionpb.LeaderResponse{Header: got.Header, Kv: got.Kvs[0]}, nil
}

// Observe sends the leader, each of its changes, and the leaders after it. When a read or a watch under it
// fails the stream ends without an error, as the reference's does: clients open it again.
func (s *electionServer) Observe(
	r *electionpb.LeaderRequest, ss grpc.ServerStreamingServer[electionpb.LeaderResponse],
) error {
	o := &observation{s: s, prefix: queuePrefix(r.Name), stream: ss}
	ctx := ss.Context()
	for {
		header, kv, err := o.leader(ctx)
		if err == nil {
			err = o.follow(ctx, header, kv)
		}
		switch {
		case o.unsent != nil:
			return o.unsent
		case ctx.Err() != nil:
			return s.composed(ctx, ctx.Err())
		case err != nil:
			return nil
		}
	}
}

// observation is one Observe stream.
type observation struct {
	s      *electionServer
	prefix []byte
	stream grpc.ServerStreamingServer[electionpb.LeaderResponse]
	unsent error // of the message that could not be sent
}

// leader returns the leader, and waits for one to come if there is none.
func (o *observation) leader(ctx context.Context) (*pb.ResponseHeader, *mvccpb.KeyValue, error) {
	r, err := o.s.ownRange(ctx, oldest(o.prefix))
	if err != nil {
		return nil, nil, err
	}
	if len(r.Kvs) > 0 {
		return r.Header, r.Kvs[0], nil
	}
	w, err := o.s.ownWatch(ctx, watch.CreateRequest{
		Key: o.prefix, End: prefixEnd(o.prefix), Start: r.Header.Revision + 1, NoDelete: true,
	})
	if err != nil {
		return nil, nil, err
	}
	defer w.Close()
	header, events, err := w.next(ctx)
	if err != nil {
		return nil, nil, err
	}
	// The response may hold later events too: the header is to be that of this one, from where follow goes on.
	header.Revision = events[0].Kv.ModRevision
	return header, events[0].Kv, nil
}

// follow sends a leader and its changes until it is the leader no more.
func (o *observation) follow(ctx context.Context, header *pb.ResponseHeader, kv *mvccpb.KeyValue) error {
	if err := o.send(header, kv); err != nil {
		return err
	}
	w, err := o.s.ownWatch(ctx, watch.CreateRequest{Key: kv.Key, Start: header.Revision + 1})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		header, events, err := w.next(ctx)
		if err != nil {
			return err
		}
		for _, ev := range events {
			if ev.Type == mvccpb.Event_DELETE {
				return nil
			}
			if err := o.send(header, ev.Kv); err != nil {
				return err
			}
		}
	}
}

func (o *observation) send(header *pb.ResponseHeader, kv *mvccpb.KeyValue) error {
	o.unsent = o.stream.Send(&electionpb.LeaderResponse{Header: header, Kv: kv})
	return o.unsent
}

// Resign deletes a leader's key, or a candidate's. One that is gone already is no error.
func (s *electionServer) Resign(
	ctx context.Context, r *electionpb.ResignRequest,
) (*electionpb.ResignResponse, error) {
	if r.Leader == nil {
		return nil, s.composed(ctx, errMissingLeader)
	}
	// Like all calls of the service this makes a session, though it has no use for a new lease.
	if _, err := s.session(ctx, r.Leader.Lease); err != nil {
		return nil, s.composed(ctx, err)
	}
	done, err := s.ownTxn(ctx, &wire.TxnRequest{
		Compare: unchangedSince(r.Leader.Key, r.Leader.Rev),
		Success: []wire.RequestOp{{Delete: &wire.DeleteRangeRequest{Key: r.Leader.Key}}},
	})
	if err != nil {
		return nil, s.composed(ctx, err)
	}
	return &electionpb.ResignResponse{Header: done.Header}, nil
}

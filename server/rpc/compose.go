package rpc

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"sluice/mailbox"
	"sluice/stages/propose"
	"sluice/stages/watch"
	"sluice/stages/wire"
)

// What Lock and Election are made of: the member's own calls, made with the identity in the context and through
// the same checks as a client's. They count as no RPCs of their own.

func (s *Server) ownTxn(ctx context.Context, r *wire.TxnRequest) (*pb.TxnResponse, error) {
	answer, err := s.serveTxn(ctx, &call{kind: callTxn, txn: *r})
	return decoded(answer, err, new(pb.TxnResponse))
}

func (s *Server) ownRange(ctx context.Context, r *wire.RangeRequest) (*pb.RangeResponse, error) {
	answer, err := s.serveRange(ctx, &call{kind: callRange, rng: *r})
	return decoded(answer, err, new(pb.RangeResponse))
}

func (s *Server) ownDelete(ctx context.Context, r *wire.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	answer, err := s.serveDelete(ctx, &call{kind: callDelete, del: *r})
	return decoded(answer, err, new(pb.DeleteRangeResponse))
}

// decoded reads an answer that goes to no client, and gives its buffers back.
func decoded[M proto.Message](r *reply, err error, into M) (M, error) {
	if err != nil {
		return into, err
	}
	defer r.free()
	return into, proto.Unmarshal(r.bufs.Materialize(), into)
}

// errWatchEnded is the end of a watch that a compaction has overtaken.
var errWatchEnded = errors.New("rpc: the watch was cancelled")

// ownWatch is a watch by the member itself. It takes no goroutine but its caller's. Close it.
type ownWatch struct {
	*watch.Stream
	s *Server
}

func (s *Server) ownWatch(ctx context.Context, r watch.CreateRequest) (*ownWatch, error) {
	if err := s.mayWatch(ctx, &r); err != nil {
		return nil, err
	}
	w := &ownWatch{s.m.OpenWatch(watch.StreamConfig{}), s}
	if err := w.Create(ctx, r); err != nil {
		w.Close()
		return nil, stoppedWatch(err)
	}
	return w, nil
}

// next waits for the next events. The header is that of the response that they came in.
func (w *ownWatch) next(ctx context.Context) (*pb.ResponseHeader, []*mvccpb.Event, error) {
	for {
		m, err := w.Next(ctx)
		if err != nil {
			return nil, nil, stoppedWatch(err)
		}
		r := new(pb.WatchResponse)
		if err := proto.Unmarshal(m.AppendTo(nil, w.s.header(m.Revision)), r); err != nil {
			return nil, nil, err
		}
		if r.Canceled {
			return nil, nil, errWatchEnded
		}
		if len(r.Events) > 0 {
			return r.Header, r.Events, nil
		}
	}
}

// stoppedWatch gives the end of the stage the name that clients know.
func stoppedWatch(err error) error {
	if errors.Is(err, mailbox.ErrClosed) {
		return propose.ErrStopped
	}
	return err
}

// composed is the error of a composed call: the text of what went wrong underneath, always under the code
// Unknown. Only the end of a context keeps its code: the caller's, or that of the wait for a leader.
//
// Rule: contract/client-api.md section 12.
func (s *Server) composed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ended := ctx.Err(); ended != nil {
		return status.FromContextError(ended).Err()
	}
	err = s.status(err)
	if status.Convert(err).Message() == context.DeadlineExceeded.Error() {
		return err
	}
	return status.Error(codes.Unknown, status.Convert(err).Message())
}

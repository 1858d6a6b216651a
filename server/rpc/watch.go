package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"sluice/mailbox"
	"sluice/stages/apply/auth"
	"sluice/stages/propose"
	"sluice/stages/watch"
	"sluice/tracing"
)

// sharedEventBytes is the size from which an event's bytes are sent from where they are, shared by all who
// watch them, instead of being copied into the answer's chunk.
const sharedEventBytes = 1 << 10

// serveWatch is one Watch stream. grpc's own goroutine sends; one more receives. The end of the client's
// requests does not end the stream: events go on until its context ends.
func (s *Server) serveWatch(ss grpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(ss.Context())
	st := s.m.OpenWatch(watch.StreamConfig{})
	received := make(chan struct{})
	go func() {
		defer close(received)
		if err := s.receiveWatch(ctx, ss, st); err != nil {
			cancel(err)
		}
	}()
	err := s.sendWatch(ctx, ss, st)
	cancel(err)
	// The receiver may wait for a message until this handler has returned: it is not waited for. It uses st
	// only to enqueue, which a closed stream ignores.
	st.Close()
	return s.watchStatus(ss.Context(), ctx, err)
}

// watchStatus is how a watch stream ends.
//
// Rule: contract/client-api.md section 7.1.
func (s *Server) watchStatus(outer, inner context.Context, err error) error {
	cause := context.Cause(inner)
	switch {
	case context.Cause(outer) == rpctypes.ErrGRPCNoLeader:
		return rpctypes.ErrGRPCNoLeader
	case outer.Err() != nil:
		return rpctypes.ErrGRPCWatchCanceled
	case errors.Is(err, watch.ErrStopped), errors.Is(err, mailbox.ErrClosed), errors.Is(cause, mailbox.ErrClosed):
		return propose.ErrStopped
	case cause != nil && !errors.Is(cause, context.Canceled):
		return cause
	}
	return err
}

// receiveWatch carries requests to the stage until the client has no more. An error ends the stream.
func (s *Server) receiveWatch(ctx context.Context, ss grpc.ServerStream, st *watch.Stream) error {
	c := &call{kind: callWatch}
	defer c.reset()
	for {
		if err := ss.RecvMsg(c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			if code := status.Code(err); code != codes.Canceled && code != codes.DeadlineExceeded {
				s.streamFailed("receive", "watch")
			}
			return err
		}
		if err := s.requestWatch(ctx, st, &c.watch); err != nil {
			return err
		}
	}
}

func (s *Server) requestWatch(ctx context.Context, st *watch.Stream, r *watchRequest) error {
	switch r.kind {
	case watchCreate:
		req := r.create
		// The stage keeps them, and the request's bytes are freed with the next message.
		req.Key, req.End = bytes.Clone(req.Key), bytes.Clone(req.End)
		if req.Start >= 0 {
			reason, err := s.refusesWatch(ctx, &req)
			if err != nil {
				return err
			}
			req.Refuse = reason
		}
		return st.Create(ctx, req)
	case watchCancel:
		return st.Cancel(ctx, r.cancel)
	case watchProgress:
		return st.Progress(ctx)
	}
	return nil
}

// refusesWatch returns the cancel reason of a create that the caller may not make, empty if it may. Rights are
// looked at here only: a watcher that exists keeps going.
//
// Rule: contract/client-api.md sections 7.2 and 7.5.
func (s *Server) refusesWatch(ctx context.Context, req *watch.CreateRequest) (reason string, err error) {
	err = s.mayWatch(ctx, req)
	if err == nil {
		return "", nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	switch {
	case errors.Is(err, auth.ErrUserEmpty), errors.Is(err, auth.ErrInvalidToken), errors.Is(err, auth.ErrOldRevision):
		return s.status(err).Error(), nil
	}
	return rpctypes.ErrGRPCPermissionDenied.Error(), nil
}

// mayWatch checks the caller's right to read what it wants to watch.
func (s *Server) mayWatch(ctx context.Context, req *watch.CreateRequest) error {
	who, err := s.identity(ctx)
	if err != nil {
		return err
	}
	key := req.Key
	if len(key) == 0 {
		key = []byte{0}
	}
	return s.authTable().CheckRange(who, key, req.End)
}

// sendWatch sends what the stage has for the stream.
func (s *Server) sendWatch(ctx context.Context, ss grpc.ServerStream, st *watch.Stream) error {
	for {
		m, err := st.Next(ctx)
		if err != nil {
			return err
		}
		start, events := s.cfg.Now(), len(m.Events)
		meter := s.sendMeter(m)
		if err := ss.SendMsg(s.watchReply(m)); err != nil {
			s.streamFailed("send", "watch")
			return err
		}
		took := s.cfg.Now().Sub(start).Seconds()
		meter.Observe(took)
		if events > 0 {
			s.cfg.Metrics.WatchSendLoopPerEvent.Observe(took / float64(events))
		}
	}
}

// sendMeter is the histogram of the time that sending m takes: by events, answers to requests, and progress.
func (s *Server) sendMeter(m *watch.Message) tracing.Observer {
	if len(m.Events) > 0 {
		return s.cfg.Metrics.WatchSendLoop
	}
	control := false
	_ = fields(m.Head, func(num protowire.Number, v uint64, _ []byte) error {
		control = control || (num == 3 || num == 4) && v != 0 // created, canceled
		return nil
	})
	if control {
		return s.cfg.Metrics.WatchSendLoopControl
	}
	return s.cfg.Metrics.WatchSendLoopProgress
}

// watchReply puts a response together. Small events are copied into one chunk, large ones are shared.
func (s *Server) watchReply(m *watch.Message) *reply {
	a := newAnswer(s.cfg.Buffers, m.Bytes+headerBytesMax)
	a.header(s.header(m.Revision))
	a.Append(m.Head)
	for _, ev := range m.Events {
		if len(ev) < sharedEventBytes {
			a.Append(ev)
			continue
		}
		a.seal()
		a.bufs = append(a.bufs, mem.SliceBuffer(ev))
		a.size += len(ev)
	}
	return a.done()
}

func (s *Server) streamFailed(direction, api string) {
	s.cfg.Metrics.StreamFailures.WithLabelValues(direction, api).Inc()
}

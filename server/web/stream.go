package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	gwruntime "github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// idleHeader is when a stream that has nothing to say yet shows that it is open, by its header. Until then
// an error can still choose the status.
const idleHeader = time.Second

const (
	pathWatch     = "/v3/watch"
	pathKeepAlive = "/v3/lease/keepalive"
)

func streamPaths() []string { return []string{pathWatch, pathKeepAlive} }

// streamEnd says what ends a stream of answers.
type streamEnd uint8

const (
	endsWithClient   streamEnd = iota // only the end of the call
	endsWithRequests                  // the end of the requests, once each has its answer
)

// registerStreams serves the two calls that stream both ways. The generated handlers wait for the server's
// first answer whatever the body holds, so that a body that is empty or no JSON gets no answer at all.
func (g *gateway) registerStreams() error {
	watch := streamCall(g, "/etcdserverpb.Watch/Watch", pathWatch, endsWithClient,
		pb.NewWatchClient(g.cfg.Conn).Watch)
	keepAlive := streamCall(g, "/etcdserverpb.Lease/LeaseKeepAlive", pathKeepAlive, endsWithRequests,
		pb.NewLeaseClient(g.cfg.Conn).LeaseKeepAlive)
	return errors.Join(
		g.mux.HandlePath(http.MethodPost, pathWatch, watch),
		g.mux.HandlePath(http.MethodPost, pathKeepAlive, keepAlive),
	)
}

// streamCall makes the handler of one bidirectional call: the body is any number of JSON requests, the
// answer one line of JSON for each message. What stands before the place where a body is broken was asked for:
// where it has an end, its answers come first, then the error.
func streamCall[Req, Resp any](g *gateway, method, path string, end streamEnd,
	open func(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[Req, Resp], error),
) gwruntime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		sent := make(chan struct{})
		out := &lines{
			w: w, rc: http.NewResponseController(w), http1: r.ProtoMajor == 1, bodyRead: sent, broken: make(chan error, 1),
		}
		// Requests may come while answers go; over HTTP/2 that needs no asking.
		if err := out.rc.EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			out.fail(err)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		ctx, err := gwruntime.AnnotateContext(ctx, g.mux, r, method, gwruntime.WithHTTPPathPattern(path))
		if err != nil {
			out.fail(err)
			return
		}
		requests := newMessages(r.Body, g.cfg.BodyBytesMax)
		first := new(Req)
		if err := requests.next(first); errors.Is(err, io.EOF) {
			out.fail(status.Error(codes.InvalidArgument, "request body is empty"))
			return
		} else if err != nil {
			out.fail(err)
			return
		}
		stream, err := open(ctx)
		if err != nil {
			out.fail(err)
			return
		}
		go func() {
			defer close(sent)
			err := sendAll(stream, requests, first)
			if err != nil && end == endsWithClient {
				cancel(err)
				return
			}
			if err != nil {
				out.broken <- err
			}
			_ = stream.CloseSend() // never fails
		}()
		out.forward(ctx, receive(ctx, stream))
		cancel(nil)
		out.awaitSender(r.Body)
	}
}

// errMessageTooLarge ends a body with a message that would be refused anyway.
var errMessageTooLarge = status.Error(codes.ResourceExhausted, "grpc: received message larger than max")

// messages reads the JSON messages of a body, of which none may be longer than bytesMax and what the decoder had
// read ahead.
type messages struct {
	body           io.Reader
	decoder        *json.Decoder // of this
	left, bytesMax int64         // that may be read until the next message
}

func newMessages(body io.Reader, bytesMax int64) *messages {
	m := &messages{body: body, bytesMax: bytesMax}
	m.decoder = json.NewDecoder(m)
	return m
}

// Read is the decoder's.
func (m *messages) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, errMessageTooLarge
	}
	n, err := m.body.Read(p[:min(int64(len(p)), m.left)])
	m.left -= int64(n)
	return n, err
}

// next reads one message; io.EOF at the end of the body.
func (m *messages) next(into any) error {
	m.left = m.bytesMax
	var text json.RawMessage
	err := m.decoder.Decode(&text)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, errMessageTooLarge):
		return err
	case err == nil:
		err = marshaler().Unmarshal(text, into)
	}
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "decode request: %v", err)
	}
	return nil
}

// sendAll sends first and all that follows in the body. A broken body is an error; an error of the call is
// told by its receiving side.
func sendAll[Req, Resp any](stream grpc.BidiStreamingClient[Req, Resp], body *messages, first *Req) error {
	for m := first; ; {
		if err := stream.Send(m); err != nil {
			return nil
		}
		m = new(Req)
		if err := body.next(m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// answer is a message of a stream, or how it ended: io.EOF is the orderly end.
type answer struct {
	header  map[string][]string
	message proto.Message
	err     error
}

// receive returns the answers of stream in a channel, the end last. Its goroutine ends with ctx.
func receive[Req, Resp any](ctx context.Context, stream grpc.BidiStreamingClient[Req, Resp]) <-chan answer {
	answers := make(chan answer)
	go func() {
		defer close(answers)
		for {
			m, err := stream.Recv()
			a := answer{err: err}
			if err == nil {
				a.message = any(m).(proto.Message)
			}
			if header, headerErr := stream.Header(); headerErr == nil {
				a.header = header
			}
			select {
			case answers <- a:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return answers
}

// lines writes the answer of a stream: {"result":...} and at the end perhaps {"error":...}.
type lines struct {
	w        http.ResponseWriter
	rc       *http.ResponseController
	http1    bool
	bodyRead <-chan struct{} // closed when nobody reads the body any more
	broken   chan error      // has how the body was broken, before the requests end
	started  bool
	bodyOpen bool // when the answer started
}

// awaitSender returns when nobody reads the body any more. The sender may be waiting for the rest of a body
// that never comes; a deadline wakes it. Over HTTP/1.1 that spoils the connection, see start; where the body
// had ended it must not be set, for it would hit the connection's next request.
func (l *lines) awaitSender(body io.Closer) {
	if l.bodyOpen {
		if err := l.rc.SetReadDeadline(time.Unix(1, 0)); err != nil {
			body.Close()
		}
	}
	<-l.bodyRead
}

// forward writes answers until their end.
func (l *lines) forward(ctx context.Context, answers <-chan answer) {
	idle := time.NewTimer(idleHeader)
	defer idle.Stop()
	for {
		select {
		case <-idle.C:
			l.start(http.StatusOK, nil)
			if err := l.rc.Flush(); err != nil {
				return
			}
		case <-ctx.Done():
			l.fail(context.Cause(ctx))
			return
		case a, ok := <-answers:
			switch {
			case !ok:
				l.fail(context.Cause(ctx))
				return
			case errors.Is(a.err, io.EOF):
				select {
				case err := <-l.broken:
					l.fail(err)
				default:
					l.start(http.StatusOK, a.header)
				}
				return
			case a.err != nil:
				if cause := context.Cause(ctx); cause != nil {
					a.err = cause // a broken body, not the cancellation that it led to
				}
				l.fail(a.err)
				return
			}
			l.start(http.StatusOK, a.header)
			if err := l.result(a.message); err != nil {
				return // the client has left
			}
		}
	}
}

func (l *lines) start(code int, header map[string][]string) {
	if l.started {
		return
	}
	l.started = true
	select {
	case <-l.bodyRead:
	default:
		if l.bodyOpen = true; l.http1 {
			l.w.Header().Set("Connection", "close")
		}
	}
	for _, v := range header["content-type"] {
		l.w.Header().Add("Grpc-Metadata-Content-Type", v)
	}
	l.w.Header().Set("Content-Type", "application/json")
	l.w.WriteHeader(code)
}

func (l *lines) result(m proto.Message) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	var line bytes.Buffer
	line.WriteString(`{"result":`)
	if err := json.Compact(&line, text); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	line.WriteString("}\n")
	if _, err := l.w.Write(line.Bytes()); err != nil {
		return err
	}
	return l.rc.Flush()
}

// fail ends the stream with err: with its status if nothing was sent, else as the last line.
func (l *lines) fail(err error) {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	text, err := json.Marshal(map[string]any{"error": struct {
		Code    codes.Code `json:"code"`
		Message string     `json:"message"`
	}{s.Code(), s.Message()}})
	if err != nil {
		panic(err) // a number and a string always encode
	}
	l.start(gwruntime.HTTPStatusFromCode(s.Code()), nil)
	_, _ = l.w.Write(append(text, '\n')) // a client that has left needs no answer
}

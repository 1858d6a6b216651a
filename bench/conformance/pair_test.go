package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/bench/process"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// pair is the reference and Sluice side by side, both fresh, asked the same.
type pair struct {
	ref, got *party
}

// party is one of the two servers of a pair.
type party struct {
	*process.Daemon
	conn *grpc.ClientConn
}

// pairUp starts both with the same flags.
func pairUp(t *testing.T, flags ...string) *pair {
	t.Helper()
	p := &pair{&party{Daemon: etcd(t, flags...)}, &party{Daemon: sluice(t, flags...)}}
	var wg sync.WaitGroup
	var errs [2]error
	for i, s := range []*party{p.ref, p.got} {
		t.Cleanup(s.Kill)
		wg.Go(func() { errs[i] = s.Start(t.Context()) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*party{p.ref, p.got} {
		s.conn = connect(t, s.Daemon).ActiveConnection()
	}
	return p
}

// both runs ask on both servers at once.
func both[T any](p *pair, ask func(s *party) T) (ref, got T) {
	var wg sync.WaitGroup
	wg.Go(func() { ref = ask(p.ref) })
	wg.Go(func() { got = ask(p.got) })
	wg.Wait()
	return ref, got
}

// bytesCodec sends and receives message bytes as they are, malformed ones too.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (bytesCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (bytesCodec) Name() string                       { return "proto" }

// outcome is how one RPC ended, in a form that both servers must agree on.
type outcome struct {
	code     codes.Code
	message  string
	messages []proto.Message
}

func (o outcome) String() string {
	text := fmt.Sprintf("%v %q", o.code, o.message)
	for _, m := range o.messages {
		text += "\n  " + fmt.Sprintf("%.600s", short(m))
	}
	return text
}

func (o outcome) equal(p outcome) bool {
	if o.code != p.code || o.message != p.message || len(o.messages) != len(p.messages) {
		return false
	}
	for i := range o.messages {
		if !proto.Equal(o.messages[i], p.messages[i]) {
			return false
		}
	}
	return true
}

// call makes one RPC with the requests as they are and takes all its answers. The requests of a stream are
// followed by a half-close.
func (s *party) call(ctx context.Context, method string, requests ...[]byte) (o outcome) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method,
		grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30))
	if err != nil {
		return ended(err)
	}
	for _, r := range requests {
		if err := stream.SendMsg(r); err != nil {
			break // Recv knows why
		}
	}
	if err := stream.CloseSend(); err != nil {
		return ended(err)
	}
	var answers []proto.Message
	for {
		var data []byte
		if err := stream.RecvMsg(&data); err != nil {
			o = ended(err)
			o.messages = answers
			return o
		}
		m := output(method)
		if err := proto.Unmarshal(data, m); err != nil {
			return outcome{code: codes.DataLoss, message: err.Error()}
		}
		unname(m.ProtoReflect())
		answers = append(answers, m)
	}
}

func ended(err error) outcome {
	if errors.Is(err, io.EOF) {
		return outcome{}
	}
	st := status.Convert(err)
	return outcome{code: st.Code(), message: st.Message()}
}

// methodOf finds an RPC such as "/etcdserverpb.KV/Range" in the registry.
func methodOf(method string) protoreflect.MethodDescriptor {
	var service, name string
	for i := len(method) - 1; i > 0; i-- {
		if method[i] == '/' {
			service, name = method[1:i], method[i+1:]
			break
		}
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		panic(fmt.Sprintf("method %s: %v", method, err))
	}
	return d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(name))
}

func messageOf(d protoreflect.MessageDescriptor) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err)
	}
	return t.New().Interface()
}

func output(method string) proto.Message { return messageOf(methodOf(method).Output()) }

// unname replaces what may differ between the two, wherever it is in m: cluster and member ids and the term
// become 1, so that a missing one still shows.
func unname(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				unname(v.List().Get(i).Message())
			}
		case !f.IsMap() && f.Message() != nil:
			unname(v.Message())
		}
		return true
	})
	switch x := m.Interface().(type) {
	case *pb.ResponseHeader:
		x.ClusterId, x.MemberId, x.RaftTerm = min(x.ClusterId, 1), min(x.MemberId, 1), min(x.RaftTerm, 1)
	case *pb.Member:
		x.ID, x.PeerURLs, x.ClientURLs = min(x.ID, 1), nil, nil
	case *pb.StatusResponse:
		x.Leader, x.RaftIndex, x.RaftAppliedIndex = min(x.Leader, 1), min(x.RaftIndex, 1), min(x.RaftAppliedIndex, 1)
		x.RaftTerm, x.DbSize, x.DbSizeInUse = min(x.RaftTerm, 1), min(x.DbSize, 1), min(x.DbSizeInUse, 1)
		for i, e := range x.Errors {
			x.Errors[i] = strings.Join(strings.Fields(e), " ") // the spaces of a text form vary by build
		}
		slices.Sort(x.Errors)
	case *pb.AlarmResponse:
		slices.SortFunc(x.Alarms, func(a, b *pb.AlarmMember) int {
			return cmp.Or(cmp.Compare(a.Alarm, b.Alarm), cmp.Compare(a.MemberID, b.MemberID))
		})
	case *pb.HashResponse:
		x.Hash = 1 // of the whole file, which holds other indexes
	}
}

// as returns ctx with metadata of the given pairs.
func as(ctx context.Context, pairs ...string) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(pairs...))
}

// encoded is m as it travels.
func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func text(m proto.Message) string { return prototext.MarshalOptions{}.Format(m) }

package conformance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// filler fills messages of any type with values at the edges of what their fields can hold.
type filler struct {
	*rand.Rand
}

func (g *filler) chance(percent int) bool { return g.IntN(100) < percent }

func (g *filler) message(d protoreflect.MessageDescriptor, depth int) proto.Message {
	m := messageOf(d)
	g.fill(m.ProtoReflect(), depth)
	return m
}

func (g *filler) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if g.chance(35) {
			continue
		}
		switch {
		case f.IsList():
			if f.Message() != nil && depth == 0 {
				continue
			}
			list := m.Mutable(f).List()
			for range g.IntN(4) {
				if f.Message() != nil {
					g.fill(list.AppendMutable().Message(), depth-1)
					continue
				}
				list.Append(g.value(f))
			}
		case f.Message() != nil:
			if depth > 0 {
				g.fill(m.Mutable(f).Message(), depth-1)
			}
		default:
			m.Set(f, g.value(f))
		}
	}
}

func (g *filler) value(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(g.chance(50))
	case protoreflect.EnumKind:
		numbers := []protoreflect.EnumNumber{0, 0, 1, 1, 2, 3, 4, 5, 99, -1, math.MaxInt32, math.MinInt32}
		return protoreflect.ValueOfEnum(numbers[g.IntN(len(numbers))])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(g.text()))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.ToValidUTF8(g.text(), "?"))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(g.integer())
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(g.integer()))
	}
	panic(fmt.Sprintf("no value for %v", f.FullName()))
}

func (g *filler) integer() int64 {
	pool := []int64{0, 0, 1, 1, 2, 3, 4, 5, 8, 20, -1, -2, 9000000000, 9000000001, math.MaxInt32, math.MaxInt64,
		math.MinInt64}
	return pool[g.IntN(len(pool))]
}

func (g *filler) text() string {
	pool := []string{"", "\x00", "a", "a", "b", "c", "ab", "b\x00", "z", "\xff", "\xff\xff", "a/b", "0.0.0", "3.6",
		"3.7.0", "http://127.0.0.1:1"}
	return pool[g.IntN(len(pool))]
}

// randomMethods are the unary RPCs, and those that stream their answer only, that one member can be asked at
// random. Membership and authentication are left alone: one wrong yes and the rest of the test says nothing.
func randomMethods() []string {
	return []string{
		"/etcdserverpb.KV/Range", "/etcdserverpb.KV/RangeStream", "/etcdserverpb.KV/Put", "/etcdserverpb.KV/DeleteRange",
		"/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Compact",
		"/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke", "/etcdserverpb.Lease/LeaseTimeToLive",
		"/etcdserverpb.Lease/LeaseLeases", "/etcdserverpb.Lease/LeaseKeepAlive",
		"/etcdserverpb.Cluster/MemberList", "/etcdserverpb.Cluster/MemberPromote", "/etcdserverpb.Cluster/MemberRemove",
		"/etcdserverpb.Maintenance/Alarm", "/etcdserverpb.Maintenance/Status", "/etcdserverpb.Maintenance/Hash",
		"/etcdserverpb.Maintenance/HashKV", "/etcdserverpb.Maintenance/MoveLeader", "/etcdserverpb.Maintenance/Downgrade",
		"/etcdserverpb.Auth/AuthEnable", "/etcdserverpb.Auth/AuthDisable", "/etcdserverpb.Auth/AuthStatus",
		"/etcdserverpb.Auth/Authenticate", "/etcdserverpb.Auth/UserAdd", "/etcdserverpb.Auth/UserGet",
		"/etcdserverpb.Auth/UserList", "/etcdserverpb.Auth/UserDelete", "/etcdserverpb.Auth/UserChangePassword",
		"/etcdserverpb.Auth/UserGrantRole", "/etcdserverpb.Auth/UserRevokeRole", "/etcdserverpb.Auth/RoleAdd",
		"/etcdserverpb.Auth/RoleGet", "/etcdserverpb.Auth/RoleList", "/etcdserverpb.Auth/RoleDelete",
		"/etcdserverpb.Auth/RoleGrantPermission", "/etcdserverpb.Auth/RoleRevokePermission",
	}
}

// Requests of every kind, with fields at the edges of what they can hold, get the same answer from both.
func TestRandomMessages(t *testing.T) {
	p := pairUp(t, "--bcrypt-cost=4")
	g := &filler{rand.New(rand.NewPCG(seed(t), 2))}
	methods := randomMethods()
	var raised []*pb.AlarmRequest
	for i := range *opsFlag {
		method := methods[g.IntN(len(methods))]
		m := g.message(methodOf(method).Input(), 4)
		tame(method, m)
		if a, ok := m.(*pb.AlarmRequest); ok && a.Action == pb.AlarmRequest_ACTIVATE {
			raised = append(raised, a)
		} else if len(raised) > 0 && g.chance(10) { // else little more than refusals would be seen
			method, m = "/etcdserverpb.Maintenance/Alarm", &pb.AlarmRequest{
				Action: pb.AlarmRequest_DEACTIVATE, MemberID: raised[0].MemberID, Alarm: raised[0].Alarm,
			}
			raised = raised[1:]
		}
		ref, got := both(p, func(s *party) outcome {
			o := s.call(t.Context(), method, encoded(t, m))
			untidy(method, m, &o)
			return o
		})
		if !ref.equal(got) {
			t.Fatalf("%d: %s %s\nreference: %v\nsluice:    %v", i, method, text(m), ref, got)
		}
	}
}

// tame takes out of a random request what is known to differ, or would end the test.
func tame(method string, m proto.Message) {
	switch r := m.(type) {
	case *pb.DowngradeRequest:
		if r.Action == pb.DowngradeRequest_ENABLE {
			r.Action = pb.DowngradeRequest_VALIDATE
		}
	case *pb.AlarmRequest:
		r.Action = max(0, min(r.Action, pb.AlarmRequest_DEACTIVATE)) // another one ends the reference
	case *pb.LeaseGrantRequest:
		if r.ID == 0 {
			r.ID = 7 // else each makes up its own
		}
		r.TTL = max(r.TTL, 3600) // none may run out: when it is gone is each server's affair
	case *pb.CompactionRequest:
		r.Physical = true // until a compaction has ended, what HashKV says at its revision is a matter of time
		if r.Revision == 0 {
			r.Revision = 1 // the reference answers HashKV(0) from its cache ever after
		}
	case *pb.RangeRequest:
		r.SortTarget = tamedTarget(method, r)
	case *pb.AuthUserAddRequest:
		r.HashedPassword = ""
	case *pb.TxnRequest:
		closeDeletes(r, true)
		tameTxn(r)
	}
}

// tamedTarget: a target without an order makes the reference's streams wrong, and is refused by Sluice's.
func tamedTarget(method string, r *pb.RangeRequest) pb.RangeRequest_SortTarget {
	known := r.SortTarget >= 0 && r.SortTarget <= pb.RangeRequest_VALUE
	if strings.HasSuffix(method, "/RangeStream") && known && r.SortOrder == pb.RangeRequest_NONE {
		return pb.RangeRequest_KEY
	}
	return r.SortTarget
}

func tameTxn(r *pb.TxnRequest) {
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		nested := 0
		for _, op := range ops {
			if x := op.GetRequestRange(); x != nil && x.Revision < 0 {
				x.Revision = 0 // BC-05
			}
			if x := op.GetRequestTxn(); x != nil {
				tameTxn(x)
				if nested++; nested > 1 {
					op.Request = nil // BC-10
				}
			}
		}
	}
}

// untidy takes out of an outcome what may differ.
func untidy(method string, req proto.Message, o *outcome) {
	if strings.HasSuffix(method, "/RangeStream") && o.code == codes.OK {
		whole := &pb.RangeStreamResponse{}
		for _, m := range o.messages {
			proto.Merge(whole, m)
		}
		o.messages = []proto.Message{whole}
	}
	for _, m := range o.messages {
		switch r := m.(type) {
		case *pb.AuthenticateResponse:
			r.Token = ""
		default:
			normalize(req, m)
		}
	}
}

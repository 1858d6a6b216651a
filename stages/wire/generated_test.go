package wire

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// The same messages as the generated code has them.

func (kv *KeyValue) generated() *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: kv.Key, Value: kv.Value, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
		Version: kv.Version, Lease: kv.Lease,
	}
}

func (r *RangeRequest) generated() *pb.RangeRequest {
	return &pb.RangeRequest{
		Key: r.Key, RangeEnd: r.RangeEnd, Limit: r.Limit, Revision: r.Revision,
		SortOrder:    pb.RangeRequest_SortOrder(r.SortOrder),
		SortTarget:   pb.RangeRequest_SortTarget(r.SortTarget),
		Serializable: r.Serializable, KeysOnly: r.KeysOnly, CountOnly: r.CountOnly,
		MinModRevision: r.MinModRevision, MaxModRevision: r.MaxModRevision,
		MinCreateRevision: r.MinCreateRevision, MaxCreateRevision: r.MaxCreateRevision,
	}
}

func (r *PutRequest) generated() *pb.PutRequest {
	return &pb.PutRequest{
		Key: r.Key, Value: r.Value, Lease: r.Lease, PrevKv: r.PrevKV,
		IgnoreValue: r.IgnoreValue, IgnoreLease: r.IgnoreLease,
	}
}

func (r *DeleteRangeRequest) generated() *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: r.Key, RangeEnd: r.RangeEnd, PrevKv: r.PrevKV}
}

func (r *CompactionRequest) generated() *pb.CompactionRequest {
	return &pb.CompactionRequest{Revision: r.Revision, Physical: r.Physical}
}

func (c *Compare) generated() *pb.Compare {
	g := &pb.Compare{
		Result: pb.Compare_CompareResult(c.Result), Target: pb.Compare_CompareTarget(c.Target),
		Key: c.Key, RangeEnd: c.RangeEnd,
	}
	switch c.Operand {
	case OperandVersion:
		g.TargetUnion = &pb.Compare_Version{Version: c.Int}
	case OperandCreate:
		g.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: c.Int}
	case OperandMod:
		g.TargetUnion = &pb.Compare_ModRevision{ModRevision: c.Int}
	case OperandValue:
		g.TargetUnion = &pb.Compare_Value{Value: c.Value}
	case OperandLease:
		g.TargetUnion = &pb.Compare_Lease{Lease: c.Int}
	}
	return g
}

func (op *RequestOp) generated() *pb.RequestOp {
	switch {
	case op.Range != nil:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: op.Range.generated()}}
	case op.Put != nil:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: op.Put.generated()}}
	case op.Delete != nil:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: op.Delete.generated()}}
	case op.Txn != nil:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: op.Txn.generated()}}
	}
	return &pb.RequestOp{}
}

func (r *TxnRequest) generated() *pb.TxnRequest {
	g := &pb.TxnRequest{}
	for i := range r.Compare {
		g.Compare = append(g.Compare, r.Compare[i].generated())
	}
	for i := range r.Success {
		g.Success = append(g.Success, r.Success[i].generated())
	}
	for i := range r.Failure {
		g.Failure = append(g.Failure, r.Failure[i].generated())
	}
	return g
}

func (r *Request) generated() *pb.InternalRaftRequest {
	g := &pb.InternalRaftRequest{}
	if r.Other != nil {
		g = proto.CloneOf(r.Other)
	}
	g.Header = &pb.RequestHeader{ID: r.ID, Username: r.Username, AuthRevision: r.AuthRevision}
	if r.Put != nil {
		g.Put = r.Put.generated()
	}
	if r.DeleteRange != nil {
		g.DeleteRange = r.DeleteRange.generated()
	}
	if r.Txn != nil {
		g.Txn = r.Txn.generated()
	}
	if r.Compaction != nil {
		g.Compaction = r.Compaction.generated()
	}
	return g
}

func (h Header) generated() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: h.ClusterID, MemberId: h.MemberID, Revision: h.Revision, RaftTerm: h.RaftTerm}
}

func generatedEvent(ev *Event, withPrev bool) (*mvccpb.Event, error) {
	g := &mvccpb.Event{Type: mvccpb.Event_EventType(ev.Type), Kv: &mvccpb.KeyValue{}}
	if err := proto.Unmarshal(ev.KV, g.Kv); err != nil {
		return nil, err
	}
	if withPrev && ev.Prev != nil {
		g.PrevKv = &mvccpb.KeyValue{}
		return g, proto.Unmarshal(ev.Prev, g.PrevKv)
	}
	return g, nil
}

// sameEntry says whether two entries are equal to every reader. Which scalars are present is not.
func sameEntry(a, b *raftpb.Entry) bool {
	return a.GetType() == b.GetType() && a.GetTerm() == b.GetTerm() && a.GetIndex() == b.GetIndex() &&
		string(a.Data) == string(b.Data) && (a.Data == nil) == (b.Data == nil)
}

// dropUnknown takes the unknown fields out of m and all messages in it: our types do not keep them.
func dropUnknown(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				dropUnknown(v.List().Get(i).Message())
			}
		default:
			dropUnknown(v.Message())
		}
		return true
	})
}

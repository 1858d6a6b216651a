package wire

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Field numbers of InternalRaftRequest that this package encodes by hand.
const (
	fieldHeader      = 100
	fieldPut         = 4
	fieldDeleteRange = 5
	fieldTxn         = 6
	fieldCompaction  = 7
	fieldTrace       = 15000
)

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendBytes(b, v)
}

func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

func appendInt(b []byte, num protowire.Number, v int64) []byte {
	return appendVarint(b, num, uint64(v))
}

func appendBool(b []byte, num protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return appendVarint(b, num, 1)
}

func sizeBytes(num protowire.Number, n int) int {
	if n == 0 {
		return 0
	}
	return protowire.SizeTag(num) + protowire.SizeBytes(n)
}

func sizeVarint(num protowire.Number, v uint64) int {
	if v == 0 {
		return 0
	}
	return protowire.SizeTag(num) + protowire.SizeVarint(v)
}

func sizeInt(num protowire.Number, v int64) int { return sizeVarint(num, uint64(v)) }

func sizeBool(num protowire.Number, v bool) int {
	if !v {
		return 0
	}
	return protowire.SizeTag(num) + 1
}

// appendSub appends the tag and length of an embedded message of n bytes; it is written even when empty.
func appendSub(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

func sizeSub(num protowire.Number, n int) int { return protowire.SizeTag(num) + protowire.SizeBytes(n) }

// Size returns the encoded length of kv.
func (kv *KeyValue) Size() int {
	return sizeBytes(1, len(kv.Key)) + sizeInt(2, kv.CreateRevision) + sizeInt(3, kv.ModRevision) +
		sizeInt(4, kv.Version) + sizeBytes(5, len(kv.Value)) + sizeInt(6, kv.Lease)
}

// Append appends kv as mvccpb.KeyValue.
func (kv *KeyValue) Append(b []byte) []byte {
	b = appendBytes(b, 1, kv.Key)
	b = appendInt(b, 2, kv.CreateRevision)
	b = appendInt(b, 3, kv.ModRevision)
	b = appendInt(b, 4, kv.Version)
	b = appendBytes(b, 5, kv.Value)
	return appendInt(b, 6, kv.Lease)
}

// Size returns the encoded length of r.
func (r *RangeRequest) Size() int {
	return sizeBytes(1, len(r.Key)) + sizeBytes(2, len(r.RangeEnd)) + sizeInt(3, r.Limit) + sizeInt(4, r.Revision) +
		sizeInt(5, int64(r.SortOrder)) + sizeInt(6, int64(r.SortTarget)) + sizeBool(7, r.Serializable) +
		sizeBool(8, r.KeysOnly) + sizeBool(9, r.CountOnly) + sizeInt(10, r.MinModRevision) +
		sizeInt(11, r.MaxModRevision) + sizeInt(12, r.MinCreateRevision) + sizeInt(13, r.MaxCreateRevision)
}

// Append appends r as etcdserverpb.RangeRequest.
func (r *RangeRequest) Append(b []byte) []byte {
	b = appendBytes(b, 1, r.Key)
	b = appendBytes(b, 2, r.RangeEnd)
	b = appendInt(b, 3, r.Limit)
	b = appendInt(b, 4, r.Revision)
	b = appendInt(b, 5, int64(r.SortOrder))
	b = appendInt(b, 6, int64(r.SortTarget))
	b = appendBool(b, 7, r.Serializable)
	b = appendBool(b, 8, r.KeysOnly)
	b = appendBool(b, 9, r.CountOnly)
	b = appendInt(b, 10, r.MinModRevision)
	b = appendInt(b, 11, r.MaxModRevision)
	b = appendInt(b, 12, r.MinCreateRevision)
	return appendInt(b, 13, r.MaxCreateRevision)
}

// Size returns the encoded length of r.
func (r *PutRequest) Size() int {
	return sizeBytes(1, len(r.Key)) + sizeBytes(2, len(r.Value)) + sizeInt(3, r.Lease) + sizeBool(4, r.PrevKV) +
		sizeBool(5, r.IgnoreValue) + sizeBool(6, r.IgnoreLease)
}

// Append appends r as etcdserverpb.PutRequest.
func (r *PutRequest) Append(b []byte) []byte {
	b = appendBytes(b, 1, r.Key)
	b = appendBytes(b, 2, r.Value)
	b = appendInt(b, 3, r.Lease)
	b = appendBool(b, 4, r.PrevKV)
	b = appendBool(b, 5, r.IgnoreValue)
	return appendBool(b, 6, r.IgnoreLease)
}

// Size returns the encoded length of r.
func (r *DeleteRangeRequest) Size() int {
	return sizeBytes(1, len(r.Key)) + sizeBytes(2, len(r.RangeEnd)) + sizeBool(3, r.PrevKV)
}

// Append appends r as etcdserverpb.DeleteRangeRequest.
func (r *DeleteRangeRequest) Append(b []byte) []byte {
	b = appendBytes(b, 1, r.Key)
	b = appendBytes(b, 2, r.RangeEnd)
	return appendBool(b, 3, r.PrevKV)
}

// operandField is the field number of the present oneof member, 0 for none.
func (c *Compare) operandField() protowire.Number {
	switch c.Operand {
	case OperandVersion:
		return 4
	case OperandCreate:
		return 5
	case OperandMod:
		return 6
	case OperandValue:
		return 7
	case OperandLease:
		return 8
	}
	return 0
}

// Size returns the encoded length of c.
func (c *Compare) Size() int {
	n := sizeInt(1, int64(c.Result)) + sizeInt(2, int64(c.Target)) +
		sizeBytes(3, len(c.Key)) + sizeBytes(64, len(c.RangeEnd))
	switch f := c.operandField(); f {
	case 0:
	case 7:
		n += sizeSub(7, len(c.Value))
	default:
		n += protowire.SizeTag(f) + protowire.SizeVarint(uint64(c.Int))
	}
	return n
}

// Append appends c as etcdserverpb.Compare. A present oneof member is written even when zero, and behind
// the other fields: where the generated code puts it.
func (c *Compare) Append(b []byte) []byte {
	b = appendInt(b, 1, int64(c.Result))
	b = appendInt(b, 2, int64(c.Target))
	b = appendBytes(b, 3, c.Key)
	b = appendBytes(b, 64, c.RangeEnd)
	switch f := c.operandField(); f {
	case 0:
	case 7:
		b = appendSub(b, 7, len(c.Value))
		b = append(b, c.Value...)
	default:
		b = protowire.AppendTag(b, f, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(c.Int))
	}
	return b
}

// Size returns the encoded length of op.
func (op *RequestOp) Size() int {
	switch {
	case op.Range != nil:
		return sizeSub(1, op.Range.Size())
	case op.Put != nil:
		return sizeSub(2, op.Put.Size())
	case op.Delete != nil:
		return sizeSub(3, op.Delete.Size())
	case op.Txn != nil:
		return sizeSub(4, op.Txn.Size())
	}
	return 0
}

// Append appends op as etcdserverpb.RequestOp.
func (op *RequestOp) Append(b []byte) []byte {
	switch {
	case op.Range != nil:
		return op.Range.Append(appendSub(b, 1, op.Range.Size()))
	case op.Put != nil:
		return op.Put.Append(appendSub(b, 2, op.Put.Size()))
	case op.Delete != nil:
		return op.Delete.Append(appendSub(b, 3, op.Delete.Size()))
	case op.Txn != nil:
		return op.Txn.Append(appendSub(b, 4, op.Txn.Size()))
	}
	return b
}

// Size returns the encoded length of r.
func (r *TxnRequest) Size() int {
	n := 0
	for i := range r.Compare {
		n += sizeSub(1, r.Compare[i].Size())
	}
	for i := range r.Success {
		n += sizeSub(2, r.Success[i].Size())
	}
	for i := range r.Failure {
		n += sizeSub(3, r.Failure[i].Size())
	}
	return n
}

// Append appends r as etcdserverpb.TxnRequest.
func (r *TxnRequest) Append(b []byte) []byte {
	for i := range r.Compare {
		b = r.Compare[i].Append(appendSub(b, 1, r.Compare[i].Size()))
	}
	for i := range r.Success {
		b = r.Success[i].Append(appendSub(b, 2, r.Success[i].Size()))
	}
	for i := range r.Failure {
		b = r.Failure[i].Append(appendSub(b, 3, r.Failure[i].Size()))
	}
	return b
}

func (r *Request) headerSize() int {
	return sizeVarint(1, r.ID) + sizeBytes(2, len(r.Username)) + sizeVarint(3, r.AuthRevision)
}

// Size returns the encoded length of r without its trace context: what --max-request-bytes limits.
func (r *Request) Size() int {
	n := sizeSub(fieldHeader, r.headerSize())
	switch {
	case r.Put != nil:
		n += sizeSub(fieldPut, r.Put.Size())
	case r.DeleteRange != nil:
		n += sizeSub(fieldDeleteRange, r.DeleteRange.Size())
	case r.Txn != nil:
		n += sizeSub(fieldTxn, r.Txn.Size())
	case r.Compaction != nil:
		n += sizeSub(fieldCompaction, sizeInt(1, r.Compaction.Revision)+sizeBool(2, r.Compaction.Physical))
	case r.Other != nil:
		n += proto.Size(r.Other)
	}
	return n
}

// Append appends r as etcdserverpb.InternalRaftRequest. Other must carry no header.
func (r *Request) Append(b []byte) []byte {
	switch {
	case r.Put != nil:
		b = r.Put.Append(appendSub(b, fieldPut, r.Put.Size()))
	case r.DeleteRange != nil:
		b = r.DeleteRange.Append(appendSub(b, fieldDeleteRange, r.DeleteRange.Size()))
	case r.Txn != nil:
		b = r.Txn.Append(appendSub(b, fieldTxn, r.Txn.Size()))
	case r.Compaction != nil:
		c := r.Compaction
		b = appendSub(b, fieldCompaction, sizeInt(1, c.Revision)+sizeBool(2, c.Physical))
		b = appendBool(appendInt(b, 1, c.Revision), 2, c.Physical)
	case r.Other != nil && !afterHeader(r.Other):
		b = appendGenerated(b, r.Other)
	}
	b = appendSub(b, fieldHeader, r.headerSize())
	b = appendVarint(b, 1, r.ID)
	if r.Username != "" {
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendString(b, r.Username)
	}
	b = appendVarint(b, 3, r.AuthRevision)
	if r.Other != nil && afterHeader(r.Other) {
		b = appendGenerated(b, r.Other)
	}
	return appendBytes(b, fieldTrace, r.Trace)
}

// afterHeader says whether r's request has a field number above the header's: messages are written in
// ascending field order.
func afterHeader(r *pb.InternalRaftRequest) bool {
	return r.Range == nil && r.LeaseGrant == nil && r.LeaseRevoke == nil && r.Alarm == nil && r.LeaseCheckpoint == nil
}

func appendGenerated(b []byte, m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, m)
	if err != nil {
		panic("wire: encode request: " + err.Error()) // invalid UTF-8 is refused before proposing
	}
	return b
}

// Size returns the encoded length of h.
func (h Header) Size() int {
	return sizeVarint(1, h.ClusterID) + sizeVarint(2, h.MemberID) + sizeInt(3, h.Revision) + sizeVarint(4, h.RaftTerm)
}

// Append appends h as etcdserverpb.ResponseHeader.
func (h Header) Append(b []byte) []byte {
	b = appendVarint(b, 1, h.ClusterID)
	b = appendVarint(b, 2, h.MemberID)
	b = appendInt(b, 3, h.Revision)
	return appendVarint(b, 4, h.RaftTerm)
}

// FieldSize is the length of what AppendField appends.
func (h Header) FieldSize() int { return sizeSub(1, h.Size()) }

// AppendField appends h as field 1, the place of the header in every response.
func (h Header) AppendField(b []byte) []byte { return h.Append(appendSub(b, 1, h.Size())) }

// AppendBytesField appends one length-delimited field, also when v is empty.
func AppendBytesField(b []byte, num protowire.Number, v []byte) []byte {
	return append(appendSub(b, num, len(v)), v...)
}

// AppendBytesHead appends the tag and length of a length-delimited field whose n bytes the caller adds.
func AppendBytesHead(b []byte, num protowire.Number, n int) []byte { return appendSub(b, num, n) }

// SizeBytesField is the encoded length of a length-delimited field of n bytes.
func SizeBytesField(num protowire.Number, n int) int { return sizeSub(num, n) }

// AppendIntField appends a varint field, nothing when v is zero.
func AppendIntField(b []byte, num protowire.Number, v int64) []byte { return appendInt(b, num, v) }

// AppendBoolField appends a bool field, nothing when v is false.
func AppendBoolField(b []byte, num protowire.Number, v bool) []byte { return appendBool(b, num, v) }

// EventSize returns the encoded length of ev as mvccpb.Event, with its previous value if withPrev.
func EventSize(ev *Event, withPrev bool) int {
	n := sizeInt(1, int64(ev.Type)) + sizeSub(2, len(ev.KV))
	if withPrev && ev.Prev != nil {
		n += sizeSub(3, len(ev.Prev))
	}
	return n
}

// AppendEvent appends ev as mvccpb.Event.
func AppendEvent(b []byte, ev *Event, withPrev bool) []byte {
	b = appendInt(b, 1, int64(ev.Type))
	b = AppendBytesField(b, 2, ev.KV)
	if withPrev && ev.Prev != nil {
		b = AppendBytesField(b, 3, ev.Prev)
	}
	return b
}

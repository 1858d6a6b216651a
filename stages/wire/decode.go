package wire

import (
	"errors"
	"math"
	"unicode/utf8"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// ErrMalformed is returned by every decoder for bytes that are not the message.
var ErrMalformed = errors.New("wire: malformed message")

// field is one decoded field: num 0 ends the message.
type field struct {
	num protowire.Number
	typ protowire.Type
	u   uint64 // varint
	b   []byte // bytes, aliasing the input
}

// next splits the first field off b.
func next(b []byte) (f field, rest []byte, err error) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 || num > protowire.MaxValidNumber { // protowire takes larger ones for message sets
		return f, nil, ErrMalformed
	}
	b = b[n:]
	f.num, f.typ = num, typ
	switch typ {
	case protowire.VarintType:
		f.u, n = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		f.b, n = protowire.ConsumeBytes(b)
		f.b = f.b[:len(f.b):len(f.b)]
	default:
		n = protowire.ConsumeFieldValue(num, typ, b)
	}
	if n < 0 {
		return f, nil, ErrMalformed
	}
	return f, b[n:], nil
}

// Decode reads mvccpb.KeyValue into kv, which aliases b.
func (kv *KeyValue) Decode(b []byte) error {
	*kv = KeyValue{}
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.num == 1 && f.typ == protowire.BytesType:
			kv.Key = f.b
		case f.num == 2 && f.typ == protowire.VarintType:
			kv.CreateRevision = int64(f.u)
		case f.num == 3 && f.typ == protowire.VarintType:
			kv.ModRevision = int64(f.u)
		case f.num == 4 && f.typ == protowire.VarintType:
			kv.Version = int64(f.u)
		case f.num == 5 && f.typ == protowire.BytesType:
			kv.Value = f.b
		case f.num == 6 && f.typ == protowire.VarintType:
			kv.Lease = int64(f.u)
		}
	}
	return nil
}

// Decode reads etcdserverpb.RangeRequest into r, which aliases b.
func (r *RangeRequest) Decode(b []byte) error { *r = RangeRequest{}; return r.merge(b) }

func (r *RangeRequest) merge(b []byte) error {
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ == protowire.BytesType {
			switch f.num {
			case 1:
				r.Key = f.b
			case 2:
				r.RangeEnd = f.b
			}
			continue
		}
		if f.typ != protowire.VarintType {
			continue
		}
		switch f.num {
		case 3:
			r.Limit = int64(f.u)
		case 4:
			r.Revision = int64(f.u)
		case 5:
			r.SortOrder = int32(f.u)
		case 6:
			r.SortTarget = int32(f.u)
		case 7:
			r.Serializable = f.u != 0
		case 8:
			r.KeysOnly = f.u != 0
		case 9:
			r.CountOnly = f.u != 0
		case 10:
			r.MinModRevision = int64(f.u)
		case 11:
			r.MaxModRevision = int64(f.u)
		case 12:
			r.MinCreateRevision = int64(f.u)
		case 13:
			r.MaxCreateRevision = int64(f.u)
		}
	}
	return nil
}

// Decode reads etcdserverpb.PutRequest into r, which aliases b.
func (r *PutRequest) Decode(b []byte) error { *r = PutRequest{}; return r.merge(b) }

func (r *PutRequest) merge(b []byte) error {
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.num == 1 && f.typ == protowire.BytesType:
			r.Key = f.b
		case f.num == 2 && f.typ == protowire.BytesType:
			r.Value = f.b
		case f.num == 3 && f.typ == protowire.VarintType:
			r.Lease = int64(f.u)
		case f.num == 4 && f.typ == protowire.VarintType:
			r.PrevKV = f.u != 0
		case f.num == 5 && f.typ == protowire.VarintType:
			r.IgnoreValue = f.u != 0
		case f.num == 6 && f.typ == protowire.VarintType:
			r.IgnoreLease = f.u != 0
		}
	}
	return nil
}

// Decode reads etcdserverpb.DeleteRangeRequest into r, which aliases b.
func (r *DeleteRangeRequest) Decode(b []byte) error { *r = DeleteRangeRequest{}; return r.merge(b) }

func (r *DeleteRangeRequest) merge(b []byte) error {
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.num == 1 && f.typ == protowire.BytesType:
			r.Key = f.b
		case f.num == 2 && f.typ == protowire.BytesType:
			r.RangeEnd = f.b
		case f.num == 3 && f.typ == protowire.VarintType:
			r.PrevKV = f.u != 0
		}
	}
	return nil
}

// Decode reads etcdserverpb.CompactionRequest into r.
func (r *CompactionRequest) Decode(b []byte) error { *r = CompactionRequest{}; return r.merge(b) }

func (r *CompactionRequest) merge(b []byte) error {
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.num == 1 && f.typ == protowire.VarintType:
			r.Revision = int64(f.u)
		case f.num == 2 && f.typ == protowire.VarintType:
			r.Physical = f.u != 0
		}
	}
	return nil
}

func (c *Compare) decode(b []byte) error {
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.typ == protowire.VarintType:
			switch f.num {
			case 1:
				c.Result = int32(f.u)
			case 2:
				c.Target = int32(f.u)
			case 4, 5, 6, 8:
				c.Operand, c.Int, c.Value = operandOf(f.num), int64(f.u), nil
			}
		case f.typ == protowire.BytesType:
			switch f.num {
			case 3:
				c.Key = f.b
			case 7:
				c.Operand, c.Int, c.Value = OperandValue, 0, f.b
			case 64:
				c.RangeEnd = f.b
			}
		}
	}
	return nil
}

func operandOf(num protowire.Number) CompareOperand {
	switch num {
	case 4:
		return OperandVersion
	case 5:
		return OperandCreate
	case 6:
		return OperandMod
	default:
		return OperandLease
	}
}

// maxTxnDepth bounds nesting, as protobuf's own decoder does, so that hostile input cannot exhaust the stack.
const maxTxnDepth = 5000

func (op *RequestOp) decode(b []byte, depth, opsMax int) error {
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		// A repeated member is merged, another member replaces it: protobuf's oneof rule.
		switch f.num {
		case 1:
			if op.Range == nil {
				*op = RequestOp{Range: new(RangeRequest)}
			}
			err = op.Range.merge(f.b)
		case 2:
			if op.Put == nil {
				*op = RequestOp{Put: new(PutRequest)}
			}
			err = op.Put.merge(f.b)
		case 3:
			if op.Delete == nil {
				*op = RequestOp{Delete: new(DeleteRangeRequest)}
			}
			err = op.Delete.merge(f.b)
		case 4:
			if op.Txn == nil {
				*op = RequestOp{Txn: new(TxnRequest)}
			}
			err = op.Txn.merge(f.b, depth+1, opsMax)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Decode reads etcdserverpb.TxnRequest into r, which aliases b.
func (r *TxnRequest) Decode(b []byte) error { return r.DecodeBounded(b, math.MaxInt) }

// DecodeBounded is Decode for a request that comes from a client and may hold opsMax operations or compares at
// most, a nested one what its enclosing level leaves over. Of a longer list it keeps one element too many, and
// forgets the others as it reads them: two bytes of a request would else hold a hundred of memory.
func (r *TxnRequest) DecodeBounded(b []byte, opsMax int) error {
	*r = TxnRequest{}
	return r.merge(b, 0, opsMax)
}

func (r *TxnRequest) merge(b []byte, depth, opsMax int) error {
	if depth > maxTxnDepth {
		return ErrMalformed
	}
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.num {
		case 1:
			if len(r.Compare) > opsMax {
				err = new(Compare).decode(f.b)
				break
			}
			r.Compare = append(r.Compare, Compare{})
			err = r.Compare[len(r.Compare)-1].decode(f.b)
		case 2:
			r.Success, err = appendOp(r.Success, f.b, depth, opsMax)
		case 3:
			r.Failure, err = appendOp(r.Failure, f.b, depth, opsMax)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func appendOp(ops []RequestOp, b []byte, depth, opsMax int) ([]RequestOp, error) {
	if len(ops) > opsMax {
		return ops, new(RequestOp).decode(b, depth, -1)
	}
	ops = append(ops, RequestOp{})
	return ops, ops[len(ops)-1].decode(b, depth, opsMax-len(ops))
}

// Decode reads etcdserverpb.InternalRaftRequest into r, which aliases b. A request of another kind than
// the hot ones is decoded by the generated code into Other (nil when the entry holds no request).
//
// A put is decoded into the PutRequest that r has, if it has one: whoever decodes entry after entry into one
// r must be done with the last one's.
func (r *Request) Decode(b []byte) error {
	put := r.Put
	*r = Request{}
	other, legacyID := false, uint64(0)
	for in := b; len(in) > 0; {
		f, rest, err := next(in)
		if err != nil {
			return err
		}
		in = rest
		switch {
		case f.typ == protowire.BytesType && f.num == fieldHeader:
			err = r.decodeHeader(f.b)
		case f.typ == protowire.BytesType && f.num == fieldPut:
			switch {
			case r.Put != nil: // a second part of the same message
			case put != nil:
				*put = PutRequest{}
				r.Put = put
			default:
				r.Put = new(PutRequest)
			}
			err = r.Put.merge(f.b)
		case f.typ == protowire.BytesType && f.num == fieldDeleteRange:
			if r.DeleteRange == nil {
				r.DeleteRange = new(DeleteRangeRequest)
			}
			err = r.DeleteRange.merge(f.b)
		case f.typ == protowire.BytesType && f.num == fieldTxn:
			if r.Txn == nil {
				r.Txn = new(TxnRequest)
			}
			err = r.Txn.merge(f.b, 0, math.MaxInt)
		case f.typ == protowire.BytesType && f.num == fieldCompaction:
			if r.Compaction == nil {
				r.Compaction = new(CompactionRequest)
			}
			err = r.Compaction.merge(f.b)
		case f.typ == protowire.BytesType && f.num == fieldTrace:
			r.Trace = f.b
		case f.typ == protowire.VarintType && f.num == 1:
			legacyID = f.u
		default:
			other = true
		}
		if err != nil {
			return err
		}
	}
	if r.ID == 0 {
		r.ID = legacyID
	}
	if other && r.Put == nil && r.DeleteRange == nil && r.Txn == nil && r.Compaction == nil {
		r.Other = new(pb.InternalRaftRequest)
		if err := proto.Unmarshal(b, r.Other); err != nil {
			return ErrMalformed
		}
	}
	return nil
}

func (r *Request) decodeHeader(b []byte) error {
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.num == 1 && f.typ == protowire.VarintType:
			r.ID = f.u
		case f.num == 2 && f.typ == protowire.BytesType:
			if !utf8.Valid(f.b) {
				return ErrMalformed // the one string among the bytes
			}
			r.Username = string(f.b)
		case f.num == 3 && f.typ == protowire.VarintType:
			r.AuthRevision = f.u
		}
	}
	return nil
}

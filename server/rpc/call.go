package rpc

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"sluice/stages/watch"
	"sluice/stages/wire"
)

// callKind says which of a call's requests is in use.
type callKind uint8

const (
	callRange callKind = iota
	callPut
	callDelete
	callTxn
	callCompact
	callKeepAlive
	callWatch
)

// call is the pooled state of one hot request. The request aliases buf until free, so nothing that outlives
// the handler may keep a part of it: proposals are encoded before Propose waits, watch keys are copied.
type call struct {
	kind   callKind
	buf    mem.Buffer // holds the request's bytes; nil without any
	bytes  int        // length of the message
	opsMax int        // --max-txn-ops

	rng     wire.RangeRequest
	put     wire.PutRequest
	del     wire.DeleteRangeRequest
	txn     wire.TxnRequest
	compact wire.CompactionRequest
	lease   int64 // of a keepalive
	watch   watchRequest

	proposal wire.Request // what Propose gets; its request points into this call
}

// watchRequest is etcdserverpb.WatchRequest: the member of its oneof that was sent, or none.
type watchRequest struct {
	kind   watchKind
	create watch.CreateRequest // key and end alias the call's buffer
	cancel int64
}

type watchKind uint8

const (
	watchNothing watchKind = iota
	watchCreate
	watchCancel
	watchProgress
)

// receive decodes a message. One that came in a single buffer is aliased, with a reference of its own; one in
// several is copied together.
func (c *call) receive(data mem.BufferSlice, pool mem.BufferPool) error {
	c.free() // of the message before, on a stream
	c.bytes = data.Len()
	c.buf = data.MaterializeToBuffer(pool)
	b := c.buf.ReadOnlyData()
	switch c.kind {
	case callRange:
		return c.rng.Decode(b)
	case callPut:
		return c.put.Decode(b)
	case callDelete:
		return c.del.Decode(b)
	case callTxn:
		return c.txn.DecodeBounded(b, c.opsMax)
	case callCompact:
		return c.compact.Decode(b)
	case callKeepAlive:
		return c.decodeKeepAlive(b)
	default:
		return c.watch.decode(b)
	}
}

// free gives the request's bytes back.
func (c *call) free() {
	if c.buf != nil {
		c.buf.Free()
		c.buf = nil
	}
}

// reset makes c ready for the pool: no pointer into freed bytes may survive.
func (c *call) reset() {
	c.free()
	*c = call{}
}

// decodeKeepAlive reads etcdserverpb.LeaseKeepAliveRequest.
func (c *call) decodeKeepAlive(b []byte) error {
	c.lease = 0
	return fields(b, func(num protowire.Number, v uint64, sub []byte) error {
		if num == 1 && sub == nil { // of another type it is an unknown field
			c.lease = int64(v)
		}
		return nil
	})
}

// decode reads etcdserverpb.WatchRequest. As in protobuf's oneof, the last member counts.
func (r *watchRequest) decode(b []byte) error {
	*r = watchRequest{}
	return fields(b, func(num protowire.Number, _ uint64, sub []byte) error {
		if sub == nil {
			return nil
		}
		switch num {
		case 1:
			if r.kind != watchCreate {
				*r = watchRequest{kind: watchCreate}
			}
			return r.decodeCreate(sub)
		case 2:
			if r.kind != watchCancel {
				*r = watchRequest{kind: watchCancel}
			}
			return fields(sub, func(num protowire.Number, v uint64, sub []byte) error {
				if num == 1 && sub == nil {
					r.cancel = int64(v)
				}
				return nil
			})
		case 3:
			*r = watchRequest{kind: watchProgress}
			return fields(sub, func(protowire.Number, uint64, []byte) error { return nil })
		}
		return nil
	})
}

// decodeCreate reads etcdserverpb.WatchCreateRequest.
func (r *watchRequest) decodeCreate(b []byte) error {
	w := &r.create
	return fields(b, func(num protowire.Number, v uint64, sub []byte) error {
		switch {
		case num == 1 && sub != nil:
			w.Key = sub
		case num == 2 && sub != nil:
			w.End = sub
		case num == 5 && sub != nil: // packed filters
			for len(sub) > 0 {
				f, n := protowire.ConsumeVarint(sub)
				if n < 0 {
					return wire.ErrMalformed
				}
				r.filter(f)
				sub = sub[n:]
			}
		case sub != nil:
		case num == 3:
			w.Start = int64(v)
		case num == 4:
			w.ProgressNotify = v != 0
		case num == 5:
			r.filter(v)
		case num == 6:
			w.PrevKV = v != 0
		case num == 7:
			w.ID = int64(v)
		case num == 8:
			w.Fragment = v != 0
		}
		return nil
	})
}

// filter adds a filter; unknown ones are ignored.
func (r *watchRequest) filter(v uint64) {
	switch int32(v) {
	case 0:
		r.create.NoPut = true
	case 1:
		r.create.NoDelete = true
	}
}

// fields calls fn for every varint (v) and length-delimited (sub, never nil) field of a message.
func fields(b []byte, fn func(num protowire.Number, v uint64, sub []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return wire.ErrMalformed
		}
		b = b[n:]
		var v uint64
		var sub []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			sub, n = protowire.ConsumeBytes(b)
			if sub == nil {
				sub = []byte{}
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return wire.ErrMalformed
		}
		b = b[n:]
		if typ == protowire.VarintType || typ == protowire.BytesType {
			if err := fn(num, v, sub); err != nil {
				return err
			}
		}
	}
	return nil
}

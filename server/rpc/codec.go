package rpc

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"sluice/tracing"
)

// codec is the servers' CodecV2. A hot request is decoded into the call that carries it and aliases the
// receive buffer; a hot answer is bytes already; all else goes through the generated messages.
type codec struct {
	pool           mem.BufferPool
	received, sent tracing.Counter // message bytes: etcd_network_client_grpc_{received,sent}_bytes_total
}

// Name is the content subtype.
func (*codec) Name() string { return "proto" }

// Unmarshal reads data into v. grpc frees data when it returns; a call keeps a reference of its own.
func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	c.received.Add(float64(data.Len()))
	switch m := v.(type) {
	case *call:
		return m.receive(data, c.pool)
	case proto.Message:
		buf := data.MaterializeToBuffer(c.pool)
		defer buf.Free()
		return proto.Unmarshal(buf.ReadOnlyData(), m)
	}
	panic(fmt.Sprintf("rpc: decode into %T", v))
}

// Marshal returns v's bytes. grpc frees them once they are written, or dropped with their stream.
func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *reply:
		if m.size > answerBytesMax { // it is not whole
			m.free()
			return nil, errAnswerTooLarge
		}
		c.sent.Add(float64(m.size))
		return m.take(), nil
	case proto.Message:
		size := proto.Size(m)
		c.sent.Add(float64(size))
		buf := c.pool.Get(size)
		b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend((*buf)[:0], m)
		if err != nil {
			c.pool.Put(buf)
			return nil, err
		}
		*buf = b
		return mem.BufferSlice{mem.NewBuffer(buf, c.pool)}, nil
	}
	panic(fmt.Sprintf("rpc: encode %T", v))
}

package rpc

import (
	"math"

	"google.golang.org/grpc/mem"

	"sluice/stages/wire"
)

// chunkBytesMax bounds one pooled chunk of an answer: large enough that its bookkeeping does not show, small
// enough that a slow client gives memory back while it reads.
const chunkBytesMax = 64 << 10

// answerBytesMax is the largest message that grpc sends.
const answerBytesMax = math.MaxInt32

// reply is an encoded answer: pooled buffers that grpc frees once they are on the wire. It is not pooled
// itself, because grpc's writer keeps the slice after the handler has returned.
type reply struct {
	bufs mem.BufferSlice
	size int
	arr  [2]mem.Buffer // the first places of bufs, so that a small answer is one allocation
}

// take hands the buffers over to grpc.
func (r *reply) take() mem.BufferSlice {
	bufs := r.bufs
	r.bufs = nil
	return bufs
}

// free drops an answer that will not be sent.
func (r *reply) free() { r.take().Free() }

// answer builds a reply. It is the mvcc.Sink of a read. Finish it with done or drop.
type answer struct {
	reply
	pool  mem.BufferPool
	grant *grant   // share of the read budget; nil for a small answer
	chunk *[]byte  // open chunk; nil before the first byte
	hint  int      // bytes that are expected in all; only sizes the chunks
	extra int      // bytes that the share does not cover
	max   int      // answerBytesMax, but in tests
	spare [32]byte // what is reserved beyond max
}

// newAnswer starts an answer of about hint bytes in buffers of pool.
func newAnswer(pool mem.BufferPool, hint int) *answer {
	a := &answer{pool: pool, hint: hint, max: answerBytesMax}
	a.bufs = a.arr[:0]
	return a
}

// counted makes the answer one that holds a share of the read budget. Nothing may be in it yet.
func (a *answer) counted(g *grant) { a.grant, a.pool = g, g }

// tooLarge says whether the answer is more than can be sent. What goes beyond is counted, and dropped: nobody
// will see it.
func (a *answer) tooLarge() bool { return a.size > a.max }

// Append copies p to the end of the answer.
func (a *answer) Append(p []byte) {
	if a.size+len(p) > a.max {
		a.size += len(p)
		return
	}
	for len(p) > 0 {
		if a.room() == 0 {
			a.grow(len(p))
		}
		n := min(a.room(), len(p))
		*a.chunk = append(*a.chunk, p[:n]...)
		a.size += n
		p = p[n:]
	}
}

// Reserve returns the next n bytes of the answer, in one piece, for the caller to fill.
func (a *answer) Reserve(n int) []byte {
	if a.size+n > a.max {
		a.size += n
		return a.spare[:n]
	}
	if a.chunk == nil || a.room() < n {
		a.grow(n)
	}
	at := len(*a.chunk)
	*a.chunk = (*a.chunk)[:at+n]
	a.size += n
	return (*a.chunk)[at : at+n : at+n]
}

func (a *answer) room() int {
	if a.chunk == nil {
		return 0
	}
	return cap(*a.chunk) - len(*a.chunk)
}

// grow closes the open chunk and opens one with room for at least min(n, chunkBytesMax) bytes. An answer whose
// size is not known beforehand gets chunks as large as it already is.
func (a *answer) grow(n int) {
	a.seal()
	want := min(max(n, a.hint-a.size, a.size, bufferBytesMin), chunkBytesMax)
	a.chunk = a.pool.Get(want)
	*a.chunk = (*a.chunk)[:0]
}

func (a *answer) seal() {
	if a.chunk == nil {
		return
	}
	a.bufs = append(a.bufs, mem.NewBuffer(a.chunk, a.pool))
	a.chunk = nil
}

// header appends the response header, field 1 of every response.
func (a *answer) header(h wire.Header) { h.AppendField(a.Reserve(h.FieldSize())[:0]) }

// body appends bytes that are encoded already. Large ones are not copied: b belongs to the answer now.
func (a *answer) body(b []byte) {
	if len(b) <= bufferBytesMin {
		a.Append(b)
		return
	}
	a.seal()
	a.size += len(b)
	if a.grant != nil {
		whole := b // so that only a large body's slice is moved to the heap
		a.bufs = append(a.bufs, mem.NewBuffer(&whole, loose{a.grant}))
		return
	}
	a.bufs = append(a.bufs, mem.SliceBuffer(b))
}

// prefix puts bytes in front of the finished body. They are few, and not counted in the read budget.
func (a *answer) prefix(b []byte) {
	a.seal()
	a.bufs = append(mem.BufferSlice{mem.SliceBuffer(b)}, a.bufs...)
	a.size += len(b)
	a.extra += len(b)
}

// done closes the answer.
func (a *answer) done() *reply {
	a.seal()
	if a.grant != nil {
		a.grant.seal(a.size - a.extra)
	}
	return &a.reply
}

// drop gives all chunks and the share back.
func (a *answer) drop() {
	a.seal()
	a.free()
	if a.grant != nil {
		a.grant.abandon()
	}
}

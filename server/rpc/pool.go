package rpc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Sizes of the pooled buffers. The smallest is above 1 KiB because grpc never gives smaller ones back.
const (
	bufferBytesMin = 4 << 10
	bufferClasses  = 5 // 4, 16, 64, 256 KiB and 1 MiB
	bufferShift    = 2 // a class is four times the one below
)

// pool is the buffer pool of received frames and of answers. grpc's own clears every buffer that it hands
// out; here they are dirty, since every user writes before it reads.
type pool struct {
	classes [bufferClasses]sync.Pool // of *[]byte with exactly the class's capacity
}

var _ mem.BufferPool = (*pool)(nil)

// classOf returns the smallest class of at least n bytes, bufferClasses when there is none.
func classOf(n int) int {
	if n <= bufferBytesMin {
		return 0
	}
	over := bits.Len(uint(n-1)) - bits.Len(uint(bufferBytesMin-1))
	return min((over+bufferShift-1)/bufferShift, bufferClasses)
}

func classBytes(class int) int { return bufferBytesMin << (bufferShift * class) }

// Get returns a buffer of length n with unspecified content.
func (p *pool) Get(n int) *[]byte {
	class := classOf(n)
	if class == bufferClasses {
		b := make([]byte, n)
		return &b
	}
	b, ok := p.classes[class].Get().(*[]byte)
	if !ok {
		fresh := make([]byte, n, classBytes(class))
		return &fresh
	}
	*b = (*b)[:n]
	return b
}

// Put takes a buffer back. One of foreign capacity is left to the garbage collector.
func (p *pool) Put(b *[]byte) {
	class := classOf(cap(*b))
	if class < bufferClasses && cap(*b) == classBytes(class) {
		p.classes[class].Put(b)
	}
}

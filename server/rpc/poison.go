package rpc

import (
	"fmt"
	"sync"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// poisonByte is what a freed buffer is overwritten with.
const poisonByte = 0xdb

// PoisonPool is a buffer pool for tests: a buffer that was given back is overwritten and never handed out
// again, so that whoever still reads it reads garbage (and the race detector sees the write), and giving
// back what is not out panics. Put it into Config.Buffers and run the whole suite.
type PoisonPool struct {
	mu  sync.Mutex             // guards out: grpc frees from many goroutines
	out map[unsafe.Pointer]int // buffers handed out and not back yet, with their size
}

var _ mem.BufferPool = (*PoisonPool)(nil)

// NewPoisonPool returns an empty pool.
func NewPoisonPool() *PoisonPool { return &PoisonPool{out: make(map[unsafe.Pointer]int)} }

// Get returns a buffer of length n that no one used before. Its capacity is above the size up to which
// grpc never gives a buffer back, so that small messages are poisoned too.
func (p *PoisonPool) Get(n int) *[]byte {
	b := make([]byte, n, max(n, bufferBytesMin))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out[unsafe.Pointer(unsafe.SliceData(b))] = n
	return &b
}

// Put overwrites the buffer.
func (p *PoisonPool) Put(b *[]byte) {
	start := unsafe.Pointer(unsafe.SliceData(*b))
	p.mu.Lock()
	_, ok := p.out[start]
	delete(p.out, start)
	p.mu.Unlock()
	if !ok {
		panic(fmt.Sprintf("rpc: buffer of %d bytes freed twice, or not from this pool", cap(*b)))
	}
	whole := (*b)[:cap(*b)]
	whole[0] = poisonByte
	for n := 1; n < len(whole); n *= 2 {
		copy(whole[n:], whole[:n])
	}
}

// Out is the number of buffers that were not given back.
func (p *PoisonPool) Out() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.out)
}

package mvcc

import (
	"runtime"
	"sync"
	"syscall"
)

// block is the memory of one slab. Views reach it through their table, and that alone keeps it: its memory
// is used again, or given back, only after the garbage collector has found that nobody can reach it. The
// Store, which reads blocks that it has just retired, lets go of them at Publish.
type block struct{ mem []byte }

const (
	// blockMappedMin is from where on blocks lie outside the Go heap, whose growth between two collections
	// is proportional to what it holds: a gigabyte of values in it would cost a second one.
	blockMappedMin = 64 << 10
	blockSpareMax  = 4 // collected blocks that are kept for use
)

// blocks makes blocks, those of the usual size from the memory of collected ones. It lives until the last
// of its blocks has been collected.
type blocks struct {
	size  int // of the blocks outside the heap
	spare *spare
}

// spare is memory of collected blocks.
type spare struct {
	mu  sync.Mutex // guards mem: collected blocks put in, the Store takes out
	mem [][]byte
}

func newBlocks(size int) *blocks {
	bs := &blocks{size: size, spare: new(spare)}
	runtime.AddCleanup(bs, (*spare).unmap, bs.spare)
	return bs
}

// new returns a block of n bytes, whose content is undefined.
func (bs *blocks) new(n int) *block {
	if n != bs.size || n < blockMappedMin {
		return &block{make([]byte, n)}
	}
	mem := bs.spare.take()
	if mem == nil {
		var err error
		mem, err = syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			return &block{make([]byte, n)} // a limit of mappings is no reason to stop
		}
	}
	b := &block{mem}
	runtime.AddCleanup(b, bs.collected, mem)
	return b
}

// collected takes the memory of a block that nobody can reach.
func (bs *blocks) collected(mem []byte) {
	if !bs.spare.put(mem) {
		unmap(mem)
	}
}

// put keeps mem unless there is enough.
func (s *spare) put(mem []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mem) == blockSpareMax {
		return false
	}
	s.mem = append(s.mem, mem)
	return true
}

// take returns memory to use again, nil if there is none.
func (s *spare) take() (mem []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.mem); n > 0 {
		mem = s.mem[n-1]
		s.mem = s.mem[:n-1]
	}
	return mem
}

// unmap gives back all that is kept: the store and its blocks are gone.
func (s *spare) unmap() {
	for mem := s.take(); mem != nil; mem = s.take() {
		unmap(mem)
	}
}

func unmap(mem []byte) {
	if err := syscall.Munmap(mem); err != nil {
		panic("mvcc: unmap a block of values: " + err.Error())
	}
}

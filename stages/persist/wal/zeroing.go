package wal

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

const (
	// zeroChunkBytes is written and synced at once: what a sync of the log may find dirty beside its own.
	zeroChunkBytes = 256 << 10
	// zeroLeadBytes is how far ahead of the tail zeros begin, so that log and zeroing do not meet.
	zeroLeadBytes = 1 << 20
	pageBytes     = 4096
)

// zeroing writes zeros over the reserved part of a segment, from off to end. The log may write below off
// whenever it likes, without a lock; to write beyond it must claim first. So the frontier only moves up, and
// each byte above it is touched by the zeroing alone, each byte below by the log alone.
type zeroing struct {
	file  File   // its own handle, so that a failed fdatasync is still reported to the log's handle too
	zeros []byte // zeroChunkBytes of them

	off atomic.Int64 // the frontier, a multiple of pageBytes; moved under mu

	mu  sync.Mutex // held by the zeroing while it writes and syncs a chunk, by the log while it claims
	end int64      // guarded by mu; 0 once retired
}

// newZeroing prepares to zero the file at path from tail to size. No lock is taken on the new handle.
func newZeroing(disk FS, path string, tail, size int64) (*zeroing, error) {
	f, err := disk.Open(path, os.O_RDWR, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open segment for zeroing: %w", err)
	}
	z := &zeroing{file: f, zeros: make([]byte, zeroChunkBytes), end: size}
	z.off.Store(frontier(tail))
	return z, nil
}

// frontier is where zeroing may begin when the log has written up to tail.
func frontier(tail int64) int64 {
	if tail == 0 {
		return 0
	}
	return (tail + zeroLeadBytes) / pageBytes * pageBytes
}

// claim is called by the log before it writes up to end.
func (z *zeroing) claim(end int64) {
	if z == nil || end <= z.off.Load() {
		return
	}
	z.mu.Lock()
	z.off.Store(max(z.off.Load(), frontier(end)))
	z.mu.Unlock()
}

// step zeroes one chunk and makes it durable. It reports whether there is more to do.
func (z *zeroing) step() (more bool, err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	off := z.off.Load()
	if off >= z.end {
		return false, nil
	}
	n := min(z.end-off, zeroChunkBytes)
	if _, err := z.file.WriteAt(z.zeros[:n], off); err != nil {
		return false, fmt.Errorf("zero segment at %d: %w", off, err)
	}
	if err := z.file.Sync(); err != nil {
		return false, fmt.Errorf("zero segment at %d: %w", off, err)
	}
	z.off.Store(off + n)
	return z.off.Load() < z.end, nil
}

// retire ends the zeroing, after the chunk in flight. Retiring twice or nil is harmless.
func (z *zeroing) retire() {
	if z == nil {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.file != nil {
		z.file.Close()
		z.file = nil
	}
	z.end = 0
}

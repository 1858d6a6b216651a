package wal

// BufferCap returns how much memory the buffer keeps.
func (w *WAL) BufferCap() int { return cap(w.enc.buf) }

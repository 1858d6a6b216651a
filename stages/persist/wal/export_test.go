package wal

// BufferCap returns how much memory the buffer keeps.
func (w *WAL) BufferCap() int { return cap(w.enc.buf) }

// PrepareAll does what Prepare would do until it waits, without its pauses.
func (w *WAL) PrepareAll() error {
	for {
		if more, err := w.prepare(); err != nil || !more {
			return err
		}
	}
}

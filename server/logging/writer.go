package logging

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

// Limits of one output.
const (
	queueBytesMax = 4 << 20 // lines that wait for the output
	flushMax      = 2 * time.Second
)

var errFlush = errors.New("logging: output does not take lines")

// writer hands lines to an output that may block, without ever blocking itself. It has two buffers: lines
// are appended to one while the other is being written.
type writer struct {
	out     io.Writer             // fixed at New; used by run only
	dropped func(n uint64) []byte // fixed at New; the line that tells of n dropped lines
	ended   chan struct{}         // closed when run has returned

	mu      sync.Mutex // guards all below: loggers and run
	pending []byte
	lost    uint64 // dropped since the last report
	drops   uint64 // dropped ever
	writing bool
	closed  bool
	wake    *sync.Cond    // something for run
	idle    chan struct{} // non-nil while somebody waits; closed when nothing is pending or being written
}

func newWriter(out io.Writer, dropped func(n uint64) []byte) *writer {
	w := &writer{out: out, dropped: dropped, ended: make(chan struct{})}
	w.wake = sync.NewCond(&w.mu)
	go w.run()
	return w
}

// Write queues one line. It never fails: what finds no room, or comes after Close, is dropped and counted.
func (w *writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.pending)+len(line) > queueBytesMax {
		w.lost++
		w.drops++
		return len(line), nil
	}
	w.pending = append(w.pending, line...)
	w.wake.Signal()
	return len(line), nil
}

// Sync waits until all that was queued is written, for flushMax at most.
func (w *writer) Sync() error {
	w.mu.Lock()
	if len(w.pending) == 0 && !w.writing {
		w.mu.Unlock()
		return nil
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	timer := time.NewTimer(flushMax)
	defer timer.Stop()
	select {
	case <-idle:
		return nil
	case <-timer.C:
		return errFlush
	}
}

// Close writes what waits and ends the goroutine. An output that stays blocked keeps it.
func (w *writer) Close() error {
	err := w.Sync()
	w.mu.Lock()
	w.closed = true
	w.wake.Signal()
	w.mu.Unlock()
	if err == nil {
		<-w.ended
	}
	return err
}

func (w *writer) droppedTotal() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.drops
}

// run is the output's goroutine. An error of the output has nowhere to go: the lines count as dropped.
func (w *writer) run() {
	defer close(w.ended)
	var spare []byte
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.pending) == 0 && !w.closed {
			w.wake.Wait()
		}
		if len(w.pending) == 0 {
			return
		}
		batch, lost := w.pending, w.lost
		w.pending, w.lost, w.writing = spare[:0], 0, true
		w.mu.Unlock()
		_, err := w.out.Write(batch)
		if err == nil && lost > 0 {
			_, err = w.out.Write(w.dropped(lost))
		}
		w.mu.Lock()
		if err != nil {
			lines := uint64(bytes.Count(batch, []byte("\n")))
			w.lost += lost + lines
			w.drops += lines
		}
		spare, w.writing = batch, false
		if len(w.pending) == 0 && w.idle != nil {
			close(w.idle)
			w.idle = nil
		}
	}
}

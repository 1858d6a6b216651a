package wal

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
)

// ErrClosed is returned by Prepare after Close, and by every write after it.
var ErrClosed = errors.New("wal: closed")

// zeroPause between two chunks keeps zeroing at about 50 MB/s: a segment is ready in a second and a half,
// and the log's own syncs hardly notice.
const zeroPause = 5 * time.Millisecond

// spare is the next segment, under its temporary name.
type spare struct {
	path string
	file File
	zero *zeroing
}

// preparation is what the log and Prepare share.
type preparation struct {
	wake chan struct{} // capacity 1: something to do
	done chan struct{} // closed by Close

	mu     sync.Mutex // guards the rest; written by the log (cut, Close) and by Prepare
	active *zeroing   // of the segment being written; nil when it is not preallocated
	next   *spare
	made   int  // temporary files so far: their names alternate between 0.tmp and 1.tmp
	refuse bool // making or zeroing the spare failed; not tried again before the next cut
	closed bool
}

// Prepare keeps the next segment ready, and the active one zeroed ahead of its tail, until ctx ends or Close
// (ErrClosed). One goroutine runs it. The log works without it, only slower at each cut. Any other error is
// a failed write or sync of the segment in use, and as final as the log's own.
func (w *WAL) Prepare(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.prep.done:
			return ErrClosed
		case <-w.prep.wake:
		case <-timer.C:
		}
		more, err := w.prepare()
		if err != nil {
			return err
		}
		if more {
			timer.Reset(zeroPause)
		}
	}
}

// prepare does one step: the active segment first, since it is in use, then the spare.
func (w *WAL) prepare() (more bool, err error) {
	p := &w.prep
	p.mu.Lock()
	active, next := p.active, p.next
	if next == nil && !p.refuse && !p.closed {
		if next, err = w.makeSpare(); err != nil {
			p.refuse = true
			w.log.Warn("next WAL segment is not prepared", zap.Error(err))
		}
		p.next = next
	}
	p.mu.Unlock()

	if active != nil {
		if more, err := active.step(); err != nil || more {
			return more, err
		}
	}
	if next == nil || next.zero == nil {
		return false, nil
	}
	more, err = next.zero.step()
	if err == nil {
		return more, nil
	}
	return false, w.dropSpare(next, err)
}

// makeSpare makes the next temporary file. The caller holds prep.mu.
func (w *WAL) makeSpare() (*spare, error) {
	path := filepath.Join(w.dir, fmt.Sprintf("%d%s", w.prep.made%2, suffixTemp))
	w.prep.made++
	file, err := newSegment(w.disk, path, w.segmentBytes, w.log)
	if err != nil {
		return nil, err
	}
	zero, err := w.zeroingOf(file, path, 0)
	if err != nil {
		file.Close()
		w.disk.Remove(path)
		return nil, err
	}
	return &spare{path: path, file: file, zero: zero}, nil
}

// zeroingOf returns the zeroing of a segment, nil when its space could not be reserved, or when syncs, which
// it makes cheaper, are off.
func (w *WAL) zeroingOf(file File, path string, tail int64) (*zeroing, error) {
	if w.noFsync {
		return nil, nil
	}
	size, err := file.Size()
	if err != nil || size < w.segmentBytes {
		return nil, err
	}
	return newZeroing(w.disk, path, tail, size)
}

// dropSpare gives a spare up that could not be zeroed: nothing of the log is in it yet. If the log has taken
// it meanwhile the error is the log's.
func (w *WAL) dropSpare(s *spare, cause error) error {
	p := &w.prep
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != s {
		if p.closed {
			return ErrClosed
		}
		return cause
	}
	p.next, p.refuse = nil, true
	s.discard(w.disk)
	w.log.Warn("next WAL segment is not prepared", zap.Error(cause))
	return nil
}

func (s *spare) discard(disk FS) {
	s.zero.retire()
	s.file.Close()
	disk.Remove(s.path)
}

// take returns the spare, made on the spot when Prepare has none, and makes it the active one.
func (w *WAL) take() (*spare, error) {
	p := &w.prep
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active.retire()
	p.active = nil
	s := p.next
	if s == nil {
		var err error
		if s, err = w.makeSpare(); err != nil {
			return nil, err
		}
	}
	p.next, p.active, p.refuse = nil, s.zero, false
	return s, nil
}

// stop ends Prepare and removes the spare.
func (p *preparation) stop(disk FS) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	close(p.done)
	p.active.retire()
	if p.next != nil {
		p.next.discard(disk)
		p.next = nil
	}
}

func (p *preparation) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

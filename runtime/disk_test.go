package runtime

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"sluice/stages/persist/wal"
)

// faultyDisk is the real disk with a hook that is asked before each operation: it may wait, fail or panic.
type faultyDisk struct {
	wal.Disk
	before atomic.Pointer[func(op, path string) error]
}

func (d *faultyDisk) hook(fn func(op, path string) error) { d.before.Store(&fn) }

func (d *faultyDisk) heal() { d.before.Store(nil) }

func (d *faultyDisk) ask(op, path string) error {
	if fn := d.before.Load(); fn != nil {
		return (*fn)(op, path)
	}
	return nil
}

func (d *faultyDisk) Open(name string, flag int, perm os.FileMode) (wal.File, error) {
	if err := d.ask("open", name); err != nil {
		return nil, err
	}
	f, err := d.Disk.Open(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return faultyFile{f, d, name}, nil
}

func (d *faultyDisk) Rename(from, to string) error {
	if err := d.ask("rename", from); err != nil {
		return err
	}
	return d.Disk.Rename(from, to)
}

type faultyFile struct {
	wal.File
	disk *faultyDisk
	path string
}

func (f faultyFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.disk.ask("write", f.path)
	if half, ok := err.(torn); ok {
		end := max((off+int64(len(p))/2)/sectorBytes*sectorBytes, off)
		n, _ := f.File.WriteAt(p[:end-off], off)
		return n, half
	}
	if err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f faultyFile) Sync() error {
	if err := f.disk.ask("sync", f.path); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f faultyFile) Allocate(size int64) error {
	if err := f.disk.ask("allocate", f.path); err != nil {
		return err
	}
	return f.File.Allocate(size)
}

// sectorBytes is what a disk writes whole or not at all.
const sectorBytes = 512

// torn lets about half of a write happen before it fails.
type torn struct{ err error }

func (t torn) Error() string { return "half written: " + t.err.Error() }
func (t torn) Unwrap() error { return t.err }

// stall makes every sync of d wait. reached is closed when the first one waits; release, which the test's end
// calls too, lets all go on.
func (d *faultyDisk) stall(t *testing.T) (reached <-chan struct{}, release func()) {
	var first, last sync.Once
	at, gone := make(chan struct{}), make(chan struct{})
	d.hook(func(op, _ string) error {
		if op == "sync" {
			first.Do(func() { close(at) })
			<-gone
		}
		return nil
	})
	release = func() {
		last.Do(func() {
			d.heal()
			close(gone)
		})
	}
	t.Cleanup(release)
	return at, release
}

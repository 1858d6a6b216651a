package wal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

// Disk is the real disk.
type Disk struct{}

type diskFile struct{ *os.File }

// Open opens name as os.OpenFile does.
func (Disk) Open(name string, flag int, perm os.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

// Rename replaces to, which may be a file or an empty directory.
func (Disk) Rename(from, to string) error { return os.Rename(from, to) }

// Remove removes a file or an empty directory.
func (Disk) Remove(name string) error { return os.Remove(name) }

// RemoveAll removes name and what is below it; it is no error if there is nothing.
func (Disk) RemoveAll(name string) error { return os.RemoveAll(name) }

// MkdirAll makes the directory and those above it.
func (Disk) MkdirAll(name string, perm os.FileMode) error { return os.MkdirAll(name, perm) }

// List returns the names in dir, sorted.
func (Disk) List(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	sort.Strings(names)
	return names, nil
}

// SyncDir fsyncs the directory.
func (Disk) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func (f diskFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// Allocate uses fallocate, which reserves the blocks, and only extends the file where that is unknown.
func (f diskFile) Allocate(size int64) error {
	for {
		err := f.control(func(fd int) error { return unix.Fallocate(fd, 0, 0, size) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS):
			return f.extend(size)
		}
		return &os.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
}

func (f diskFile) extend(size int64) error {
	now, err := f.Size()
	if err != nil || now >= size {
		return err
	}
	return f.Truncate(size)
}

func (f diskFile) Sync() error {
	for {
		err := f.control(unix.Fdatasync)
		if err == nil {
			return nil
		}
		// An interrupted fdatasync has reported no write-back error, so asking again is not a retry of one.
		if !errors.Is(err, unix.EINTR) {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}

// Lock takes an open-file-description lock, as etcd does: it excludes an etcd on the same directory, which
// flock would not. Where the kernel has none, flock is what etcd falls back to as well.
func (f diskFile) Lock() error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := f.control(func(fd int) error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock) })
	if errors.Is(err, unix.EINVAL) {
		err = f.control(func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("lock %s: %w", f.Name(), ErrLocked)
	}
	if err != nil {
		return &os.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return nil
}

// control runs fn on the descriptor. Fd() would do as well, but put the file in blocking mode.
func (f diskFile) control(fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}

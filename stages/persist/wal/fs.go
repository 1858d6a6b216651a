package wal

import (
	"errors"
	"io"
	"os"
)

// ErrLocked is returned by File.Lock when somebody else holds the lock.
var ErrLocked = errors.New("wal: file is locked by another process")

// FS is the disk as the log and the snapshot files see it: the line where the real disk, the faulty one of
// the tests and the simulated one of the cluster simulation meet. Names are paths; flags are those of os.
type FS interface {
	Open(name string, flag int, perm os.FileMode) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	RemoveAll(name string) error
	MkdirAll(name string, perm os.FileMode) error
	// List returns the names in dir, sorted; fs.ErrNotExist when there is no such directory.
	List(dir string) ([]string, error)
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
}

// File is an open file. Only one goroutine writes a byte range at a time; Sync may run beside writes.
type File interface {
	io.ReaderAt
	io.WriterAt
	Size() (int64, error)
	Truncate(size int64) error
	// Allocate reserves space up to size and extends the file to it with zeros. It never shrinks.
	Allocate(size int64) error
	// Sync makes the data and the size durable (fdatasync). After an error nothing that was written since
	// the last successful Sync may be believed, even if a later Sync succeeds.
	Sync() error
	// Lock takes an exclusive lock on the whole file that ends with Close; ErrLocked if held elsewhere,
	// be it by this process through another File.
	Lock() error
	Close() error
}

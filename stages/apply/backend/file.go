package backend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	fileMode        = 0o600
	flockPatience   = 10 * time.Second // of a start before it says what it waits for
	mappingBytesMin = 10 << 30
	tempPattern     = "db.tmp.*"
)

// file is one bbolt file: the database, or the copy that will replace it. It stays open, and locked, until
// the backend has left it and its last read transaction has ended.
type file struct {
	db      *bolt.DB
	path    string // where it was opened; the name may have changed since
	mapped  int64  // owned by the writer: at least this much is mapped
	log     *zap.Logger
	failed  atomic.Bool   // set by the writer: a panic left bbolt's locks held, so do not close
	holds   atomic.Int64  // one by its owner, one by each read transaction
	open    atomic.Int64  // read transactions
	drained chan struct{} // capacity 1: open may be 0 now
}

// openFile opens or creates the bbolt file at path, waiting for its lock as long as it takes. A file that
// is not a whole database is refused and left as it is.
func openFile(cfg *Config, path string) (*file, error) {
	for {
		f, err := openLocked(cfg, path, 0)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := createFile(cfg, path); err != nil {
				return nil, fmt.Errorf("create database %s: %w", path, err)
			}
		case errors.Is(err, errReplaced):
			// Its owner defragmented it while we waited for the lock: the name is another file now.
		case err != nil:
			return nil, fmt.Errorf("open database %s: %w", path, err)
		default:
			return f, nil
		}
	}
}

var (
	errReplaced = errors.New("file was replaced while waiting for its lock")
	errEmpty    = errors.New("file is empty: restore it, or remove it if the log reaches back to its first entry")
)

// createFile makes an empty database in one step: one that exists is whole, whenever the process dies, and
// of two starts at once only one makes it, since link does not replace.
func createFile(cfg *Config, path string) error {
	temp, err := tempFile(path)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	db, err := bolt.Open(temp, fileMode, cfg.boltOptions(0, nil))
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	err = os.Link(temp, path)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return nil // another start was faster, and may have tidied our temporary file: open what it made
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// tempFile makes an empty file beside path.
func tempFile(path string) (name string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), tempPattern)
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// openLocked opens the existing file at path. like is the size of the file it will replace, 0 if none.
//
// The lock is taken in bbolt's OpenFile hook, in the kernel's own queue and not by polling, and everything
// that can be checked without bbolt is checked under it, before bbolt maps the file: a mapped page that a
// truncated file does not have would kill the process.
func openLocked(cfg *Config, path string, like int64) (f *file, err error) {
	var held *os.File
	hook := func(name string, _ int, mode os.FileMode) (*os.File, error) {
		h, err := os.OpenFile(name, os.O_RDWR, mode)
		if err != nil {
			return nil, err
		}
		if err := lockAndCheck(h, cfg.Logger); err != nil {
			return nil, errors.Join(err, h.Close())
		}
		held = h
		return h, nil
	}
	defer func() {
		if p := recover(); p != nil { // bbolt's answer to a broken page
			f, err = nil, errors.Join(fmt.Errorf("bbolt: %v", p), held.Close())
		}
	}()
	var size int64
	if info, err := os.Stat(path); err == nil {
		size = info.Size() // it may grow while we wait for the lock: then we map less than we would like
	}
	options := cfg.boltOptions(max(size, like), hook)
	db, err := bolt.Open(path, fileMode, options)
	if err != nil {
		return nil, err
	}
	f = &file{db: db, path: path, log: cfg.Logger, drained: make(chan struct{}, 1)}
	f.mapped = mappingBytes(max(size, int64(options.InitialMmapSize)))
	f.holds.Store(1)
	return f, nil
}

// lockAndCheck takes the lock of the file. It passes a whole database, and an empty file only if it is a
// temporary one, ours to fill.
func lockAndCheck(h *os.File, log *zap.Logger) error {
	start := time.Now()
	slow := time.AfterFunc(flockPatience, func() {
		log.Info("db file is flocked by another process, or taking too long",
			zap.String("path", h.Name()), zap.Duration("took", time.Since(start)))
	})
	defer slow.Stop()
	for {
		err := syscall.Flock(int(h.Fd()), syscall.LOCK_EX)
		if err == nil {
			break
		}
		if err != syscall.EINTR {
			return fmt.Errorf("lock: %w", err)
		}
	}
	mine, err := h.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(h.Name())
	if err != nil || !os.SameFile(mine, named) {
		return errReplaced
	}
	if mine.Size() == 0 {
		if temp, _ := filepath.Match(tempPattern, filepath.Base(h.Name())); temp {
			return nil
		}
		return errEmpty
	}
	if err := checkLength(h, mine.Size()); err != nil {
		return err
	}
	// The start will read every page, and bbolt advises random access on its mapping: ask the kernel to
	// read ahead. It may decline.
	_ = unix.Fadvise(int(h.Fd()), 0, mine.Size(), unix.FADV_WILLNEED)
	return nil
}

// checkLength refuses a file that is shorter than the pages its newest valid meta page speaks of. Whether
// the meta pages are valid at all is left to bbolt.
func checkLength(h *os.File, length int64) error {
	pageSize := int64(os.Getpagesize())
	var newest, pages uint64
	for i := range int64(2) {
		var p [80]byte
		if _, err := h.ReadAt(p[:], i*pageSize); err != nil {
			continue // shorter than two pages: bbolt says so
		}
		m, ok := parseMeta(p[16:])
		if i == 0 && ok && int64(m.pageSize) != pageSize {
			pageSize = int64(m.pageSize)
		}
		if ok && (pages == 0 || m.txid > newest) {
			newest, pages = m.txid, m.pages
		}
	}
	if need := int64(pages) * pageSize; need > length {
		return fmt.Errorf("file is truncated: %d bytes of %d pages (%d bytes)", length, pages, need)
	}
	return nil
}

type boltMeta struct {
	pageSize    uint32
	pages, txid uint64
}

// parseMeta reads a meta page behind its page header: magic, version, page size, flags, root (16 bytes),
// freelist, pages, txid, and an FNV-64a sum of all that.
func parseMeta(p []byte) (boltMeta, bool) {
	le := binary.LittleEndian
	sum := uint64(14695981039346656037)
	for _, c := range p[:56] {
		sum = (sum ^ uint64(c)) * 1099511628211
	}
	m := boltMeta{pageSize: le.Uint32(p[8:]), pages: le.Uint64(p[40:]), txid: le.Uint64(p[48:])}
	return m, le.Uint32(p) == 0xED0CDAED && le.Uint32(p[4:]) == 2 && le.Uint64(p[56:]) == sum
}

// boltOptions returns the options of contract 4.5 for a file of size bytes.
func (cfg *Config) boltOptions(size int64, open func(string, int, os.FileMode) (*os.File, error)) *bolt.Options {
	o := &bolt.Options{
		NoFreelistSync:  true,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: int(cfg.mappingBytes(size)),
		NoSync:          cfg.UnsafeNoFsync,
		NoGrowSync:      cfg.UnsafeNoFsync,
		OpenFile:        open,
		Mlock:           cfg.Mlock,
	}
	if cfg.FreelistType == "array" {
		o.FreelistType = bolt.FreelistArrayType
	}
	return o
}

// mappingBytes is how much to map for a file of size bytes, so that it can grow for long without a remap.
func (cfg *Config) mappingBytes(size int64) int64 {
	if cfg.MappingBytes > 0 {
		return cfg.MappingBytes
	}
	quota := max(cfg.QuotaBytes, 0)
	return max(mappingBytesMin, quota+quota/10, 2*size)
}

// mappingBytes is bbolt's rule for the size of a mapping that must hold n bytes: the next power of two from
// 32 KiB to 1 GiB, then whole GiB.
func mappingBytes(n int64) int64 {
	for size := int64(32 << 10); size <= 1<<30; size <<= 1 {
		if n <= size {
			return size
		}
	}
	return (n + 1<<30 - 1) >> 30 << 30
}

// begin opens a read transaction. Only the writer (or Open) calls it, between flushes: it would wait for a
// remap, and make the remap wait.
func (f *file) begin(index, term uint64) (*txn, error) {
	tx, err := f.db.Begin(false)
	if err != nil {
		return nil, fmt.Errorf("begin a read transaction: %w", err)
	}
	t := &txn{file: f, tx: tx, index: index, term: term}
	for i := range t.buckets {
		if t.buckets[i] = tx.Bucket([]byte(bucketNames[i])); t.buckets[i] == nil {
			return nil, errors.Join(fmt.Errorf("bucket %q is missing", bucketNames[i]), tx.Rollback())
		}
	}
	f.holds.Add(1)
	f.open.Add(1)
	return t, nil
}

// ended takes back a read transaction.
func (f *file) ended() {
	if f.open.Add(-1) == 0 {
		select {
		case f.drained <- struct{}{}:
		default:
		}
	}
	f.leave()
}

// leave gives one hold back; the last one closes the file.
func (f *file) leave() {
	if f.holds.Add(-1) != 0 || f.failed.Load() {
		return
	}
	if err := f.db.Close(); err != nil {
		f.log.Warn("close of a database file", zap.String("path", f.path), zap.Error(err))
	}
}

// pages returns the file's size as of the last commit, and the part of it that is not free. Pages that
// wait for older readers count as free: nothing but those readers needs them.
func (f *file) pages(tx *bolt.Tx) (total, inUse int64) {
	stats := f.db.Stats()
	total = tx.Size()
	return total, total - int64(stats.FreePageN+stats.PendingPageN)*int64(f.db.Info().PageSize)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeTemps deletes what interrupted defragmentations left beside path. Its lock must be held: the owner
// of a temporary file holds it.
func removeTemps(path string) error {
	names, err := filepath.Glob(filepath.Join(filepath.Dir(path), tempPattern))
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove leftover: %w", err)
		}
	}
	return nil
}

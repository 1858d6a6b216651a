package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"go.uber.org/zap"
)

const (
	// SegmentBytes is the size at which a segment is cut, and to which it is preallocated. It is not 64 MiB.
	SegmentBytes = 64_000_000

	dirMode  = 0o700
	fileMode = 0o600

	suffixSegment = ".wal"
	suffixTemp    = ".tmp"
	suffixBroken  = ".broken"
)

// segment is one file of the log.
type segment struct {
	seq, index uint64 // of its name: the row, and the first entry index expected in it
	path       string
	file       File // nil while only listed
}

// segmentName returns the file name: sequence number, then index.
func segmentName(seq, index uint64) string {
	return fmt.Sprintf("%016x-%016x%s", seq, index, suffixSegment)
}

// parseSegment takes a name apart; false when it is not exactly what segmentName makes.
func parseSegment(name string) (seq, index uint64, ok bool) {
	if _, err := fmt.Sscanf(name, "%016x-%016x.wal", &seq, &index); err != nil {
		return 0, 0, false
	}
	return seq, index, segmentName(seq, index) == name
}

var (
	// ErrNotFound: the directory holds no segment.
	ErrNotFound = errors.New("wal: file not found")
	// ErrMetadataConflict: two segments say that they belong to different members.
	ErrMetadataConflict = errors.New("wal: conflicting metadata found")
	// ErrSnapshotMismatch: the log's snapshot record has the wanted index and another term.
	ErrSnapshotMismatch = errors.New("wal: snapshot mismatch")
	// ErrSnapshotNotFound: reading without writing, no snapshot record has the wanted index.
	ErrSnapshotNotFound = errors.New("wal: snapshot not found")
)

// Exists reports whether dir holds a log: any file named like a segment. A missing directory holds none.
func Exists(disk FS, dir string) bool {
	names, err := disk.List(dir)
	if err != nil {
		return false
	}
	for _, name := range names {
		if strings.HasSuffix(name, suffixSegment) {
			return true
		}
	}
	return false
}

// listSegments returns the segments of dir in order. Other names are skipped, with a warning unless they
// are temporary files.
func listSegments(disk FS, dir string, log *zap.Logger) ([]segment, error) {
	names, err := disk.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list log directory %s: %w", dir, err)
	}
	var segs []segment
	for _, name := range names {
		seq, index, ok := parseSegment(name)
		if !ok {
			if !strings.HasSuffix(name, suffixTemp) {
				log.Warn("ignored file in WAL directory", zap.String("path", filepath.Join(dir, name)))
			}
			continue
		}
		segs = append(segs, segment{seq: seq, index: index, path: filepath.Join(dir, name)})
	}
	if len(segs) == 0 {
		return nil, ErrNotFound
	}
	return segs, nil
}

// fromIndex drops the segments that hold nothing behind a snapshot at index.
func fromIndex(segs []segment, index uint64) ([]segment, error) {
	for i := len(segs) - 1; i >= 0; i-- {
		if segs[i].index <= index {
			return segs[i:], nil
		}
	}
	return nil, fmt.Errorf("wal: file not found which matches the snapshot index '%d'", index)
}

// checkSequence refuses a log with a hole in it.
func checkSequence(segs []segment) error {
	for i, s := range segs {
		if s.seq != segs[0].seq+uint64(i) {
			return fmt.Errorf("wal: file sequence numbers (starting from %d) do not increase continuously: "+
				"%s stands where %d is due", segs[0].seq, s.path, segs[0].seq+uint64(i))
		}
	}
	return nil
}

// openSegments opens every segment, for writing and with a lock or only for reading.
func openSegments(disk FS, segs []segment, write bool) (err error) {
	defer func() {
		if err != nil {
			closeSegments(segs)
		}
	}()
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	for i := range segs {
		s := &segs[i]
		if s.file, err = disk.Open(s.path, flag, fileMode); err != nil {
			return fmt.Errorf("open segment: %w", err)
		}
		if !write {
			continue
		}
		if err = s.file.Lock(); err != nil {
			return fmt.Errorf("open segment: %w", err)
		}
	}
	return nil
}

// closeSegments closes what is open; nothing can be lost by that, so errors do not matter.
func closeSegments(segs []segment) {
	for i := range segs {
		if segs[i].file != nil {
			segs[i].file.Close()
			segs[i].file = nil
		}
	}
}

// newSegment makes an empty, locked file of size zeros at path. A disk too full to reserve the space is no
// reason to stop yet: the file is then grown by appending, as far as it goes.
func newSegment(disk FS, path string, size int64, log *zap.Logger) (_ File, err error) {
	// A leftover of that name may hold the head of a segment that never got its name: it must not shine
	// through behind a shorter new one, hence the truncation.
	f, err := disk.Open(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return nil, fmt.Errorf("make segment: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			disk.Remove(path)
		}
	}()
	if err = f.Lock(); err != nil {
		return nil, fmt.Errorf("make segment: %w", err)
	}
	if err = reserve(f, path, size, log); err != nil {
		return nil, fmt.Errorf("make segment: %w", err)
	}
	return f, nil
}

// reserve allocates up to size, or gives back what it got of a full disk.
func reserve(f File, path string, size int64, log *zap.Logger) error {
	before, err := f.Size()
	if err != nil {
		return err
	}
	err = f.Allocate(size)
	if !isFull(err) {
		return err
	}
	log.Warn("no space to preallocate a WAL segment; free some, writes will fail soon",
		zap.String("path", path), zap.Int64("bytes", size), zap.Error(err))
	return f.Truncate(before)
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

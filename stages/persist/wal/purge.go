package wal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
)

// Purge removes released segments, the oldest first, until keep segments are left; 0 keeps all. Any goroutine
// may call it.
func (w *WAL) Purge(keep uint) error {
	_, err := Purge(w.disk, w.dir, suffixSegment, keep, true, w.log)
	return err
}

// Purge removes the oldest files of dir whose name ends in suffix until keep are left, and returns their
// paths. keep 0 keeps all. With locked, a file is only removed when nobody holds its lock, and the first one
// that is held ends the pass: everything from there on is in use. Names order by age in all our directories.
//
// Rule: contract/disk-and-peer.md 1.4.
func Purge(disk FS, dir, suffix string, keep uint, locked bool, log *zap.Logger) ([]string, error) {
	if keep == 0 {
		return nil, nil
	}
	names, err := disk.List(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, name := range names {
		if strings.HasSuffix(name, suffix) {
			files = append(files, filepath.Join(dir, name))
		}
	}
	var removed []string
	for ; uint(len(files)) > keep; files = files[1:] {
		err := purgeOne(disk, files[0], locked)
		if errors.Is(err, ErrLocked) {
			return removed, nil
		}
		if err != nil {
			return removed, err
		}
		log.Info("purged", zap.String("path", files[0]))
		removed = append(removed, files[0])
	}
	return removed, nil
}

// purgeOne removes a file. The lock is held until it is gone, so that nobody opens the log from it meanwhile.
func purgeOne(disk FS, path string, locked bool) error {
	if locked {
		f, err := disk.Open(path, os.O_RDWR, fileMode)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Lock(); err != nil {
			return err
		}
	}
	err := disk.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

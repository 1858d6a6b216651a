package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Create makes a log in c.Dir, whose parent need not exist; it must not hold a log yet. It is built beside
// and moved into place, so that a crash leaves a whole log or none.
func Create(c Config, m Metadata) (*WAL, error) {
	c = c.filled()
	if Exists(c.Disk, c.Dir) {
		return nil, fmt.Errorf("create log %s: %w", c.Dir, os.ErrExist)
	}
	temp := c.Dir + suffixTemp
	if err := c.Disk.RemoveAll(temp); err != nil {
		return nil, fmt.Errorf("create log: %w", err)
	}
	if err := c.Disk.MkdirAll(temp, dirMode); err != nil {
		return nil, fmt.Errorf("create log: %w", err)
	}
	w, err := build(c, temp, m)
	if err != nil {
		c.Disk.RemoveAll(temp) // it would be removed before the next attempt anyway
		return nil, fmt.Errorf("create log %s: %w", c.Dir, err)
	}
	if err := w.settle(temp); err != nil {
		w.Abandon()
		return nil, fmt.Errorf("create log %s: %w", c.Dir, err)
	}
	return w, nil
}

// build writes the first segment into the directory temp.
func build(c Config, temp string, m Metadata) (*WAL, error) {
	first := segment{path: filepath.Join(temp, segmentName(0, 0))}
	var err error
	if first.file, err = newSegment(c.Disk, first.path, c.SegmentBytes, c.Log); err != nil {
		return nil, err
	}
	w := newWAL(c, m.Append(nil), []segment{first})
	w.enc.checksum()
	w.enc.record(recordMetadata, w.metadata)
	w.AppendSnapshot(Snapshot{})
	if _, err = w.flush(true); err == nil {
		err = w.syncDir(temp)
	}
	if err != nil {
		w.Abandon()
		return nil, err
	}
	return w, nil
}

// settle moves the finished directory to its place.
func (w *WAL) settle(temp string) error {
	if err := w.clearTarget(); err != nil {
		return err
	}
	if err := w.disk.Rename(temp, w.dir); err != nil {
		w.disk.RemoveAll(temp)
		return err
	}
	w.segs[0].path = filepath.Join(w.dir, segmentName(0, 0))
	err := w.syncDir(filepath.Dir(w.dir))
	if err == nil {
		w.prep.active, err = w.zeroingOf(w.segs[0].file, w.segs[0].path, w.tail)
	}
	if err == nil {
		return nil
	}
	// The log has its name, and nobody can say whether it will keep it: put it aside, since a member that
	// found it would take itself for initialised.
	broken := w.dir + suffixBroken + "." + time.Now().UTC().Format("20060102.150405.000000")
	if rerr := w.disk.Rename(w.dir, broken); rerr != nil {
		return errors.Join(err, rerr)
	}
	w.log.Warn("put a half-made WAL directory aside", zap.String("path", broken), zap.Error(err))
	return err
}

// clearTarget removes leftovers of a log that was removed by hand, since a directory can only take the place
// of an empty one. Anything else stays, and makes the rename fail.
func (w *WAL) clearTarget() error {
	names, err := w.disk.List(w.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, suffixTemp) || strings.HasSuffix(name, suffixBroken) {
			if err := w.disk.Remove(filepath.Join(w.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

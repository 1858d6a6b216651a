package wal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
)

// Repair says what Open cut off the last segment.
type Repair struct {
	Path   string // the segment
	Broken string // a full copy of it, from before
	Offset int64  // where it was cut
	Size   int64  // its size before
	Cause  error  // why reading ended there
}

// Open opens the log in c.Dir for writing and returns what it says behind the snapshot at, whose ConfState
// does not matter. A torn end is repaired once, and Contents says so, for the caller to log. Errors are damage
// or a lock held by somebody else, and name the file; nothing was changed then, except for a repair.
//
// Rule: contract/disk-and-peer.md 2.7 and 2.8.
func Open(c Config, at Snapshot) (*WAL, Contents, error) {
	c = c.filled()
	segs, err := selectSegments(c.Disk, c.Dir, at.Index, true, c.Log)
	if err != nil {
		return nil, Contents{}, fmt.Errorf("open log %s: %w", c.Dir, err)
	}
	contents, d, err := readRepaired(c, segs, at)
	if err != nil {
		closeSegments(segs)
		return nil, Contents{}, fmt.Errorf("open log %s: %w", c.Dir, err)
	}
	w := newWAL(c, contents.metadata, segs)
	w.enc.crc, w.tail = d.crc, d.off
	w.state, w.last = contents.HardState, contents.last
	if contents.Wiped, err = w.resume(); err != nil {
		w.Abandon()
		return nil, Contents{}, fmt.Errorf("open log %s: %w", c.Dir, err)
	}
	return w, contents, nil
}

// readRepaired reads the log; when its end is torn it cuts that off and reads again.
func readRepaired(c Config, segs []segment, at Snapshot) (Contents, *decoder, error) {
	contents, d, err := readAll(segs, at)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		return contents, d, err
	}
	fix, err := repair(c, &segs[len(segs)-1], d.off, err)
	if err != nil {
		return contents, d, fmt.Errorf("repair: %w", err)
	}
	contents, d, err = readAll(segs, at)
	contents.Repaired = fix
	return contents, d, err
}

// repair copies the segment and truncates it to size off.
func repair(c Config, s *segment, off int64, cause error) (*Repair, error) {
	size, err := s.file.Size()
	if err != nil {
		return nil, err
	}
	fix := &Repair{Path: s.path, Broken: s.path + suffixBroken, Offset: off, Size: size, Cause: cause}
	if err := copyFile(c, s.file, fix.Broken, size); err != nil {
		return nil, err
	}
	if err := s.file.Truncate(off); err != nil {
		return nil, err
	}
	if c.UnsafeNoFsync {
		return fix, nil
	}
	return fix, s.file.Sync()
}

// copyFile copies the first size bytes of from to a new file. Blocks of zeros become holes, so that the copy
// of a mostly empty segment fits on a nearly full disk.
func copyFile(c Config, from File, path string, size int64) error {
	to, err := c.Disk.Open(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	defer to.Close()
	block := make([]byte, min(readBytes, size))
	for off := int64(0); off < size; off += int64(len(block)) {
		b := block[:min(int64(len(block)), size-off)]
		if n, err := from.ReadAt(b, off); n < len(b) {
			return fmt.Errorf("copy segment at %d: %w", off, err)
		}
		for at := 0; at < len(b); at += pageBytes {
			page := b[at:min(at+pageBytes, len(b))]
			if allZero(page) {
				continue
			}
			if _, err := to.WriteAt(page, off+int64(at)); err != nil {
				return fmt.Errorf("copy segment at %d: %w", off, err)
			}
		}
	}
	if err := to.Truncate(size); err != nil {
		return err
	}
	if c.UnsafeNoFsync {
		return nil
	}
	return to.Sync()
}

// resume makes the tail fit to be appended to: nothing but zeros behind it, space reserved, a head if the
// segment has none. It returns how many bytes it had to wipe.
func (w *WAL) resume() (wiped int64, err error) {
	if err := w.removeTemps(); err != nil {
		return 0, err
	}
	seg := &w.segs[len(w.segs)-1]
	if wiped, err = w.wipe(seg); err != nil {
		return 0, fmt.Errorf("zero the end of segment %s: %w", seg.path, err)
	}
	if wiped > 0 {
		w.log.Warn("wiped bytes behind the end of the WAL", zap.String("path", seg.path),
			zap.Int64("offset", w.tail), zap.Int64("bytes", wiped))
	}
	if w.tail == 0 {
		// A crash between making a file and writing it, or repair of a torn head, left a segment without
		// its head. Without one the log could not be read from here once the older ones are purged.
		if err := w.writeHead(); err != nil {
			return wiped, err
		}
	}
	if err := w.confirm(seg); err != nil {
		return wiped, fmt.Errorf("make the end of segment %s durable: %w", seg.path, err)
	}
	for _, dir := range []string{w.dir, filepath.Dir(w.dir)} { // the names may be new, too
		if err := w.syncDir(dir); err != nil {
			return wiped, err
		}
	}
	w.prep.active, err = w.zeroingOf(seg.file, seg.path, w.tail)
	return wiped, err
}

// confirm makes sure that what was read of the tail is on the disk: raft is about to vouch for it. It may be in
// the page cache only, written by a process that was killed before its sync - or whose sync failed, and then
// its pages count as clean, and no sync would write them. So the end is written once more as it is, as far
// back as one batch can have been. (Can Applications Recover from fsync Failures?, ATC'20.)
func (w *WAL) confirm(seg *segment) error {
	if w.noFsync {
		return nil
	}
	from := max(w.tail-2*FlushBytesMax, 0) / pageBytes * pageBytes
	block := make([]byte, min(readBytes, w.tail-from))
	for off := from; off < w.tail; off += int64(len(block)) {
		b := block[:min(int64(len(block)), w.tail-off)]
		if n, err := seg.file.ReadAt(b, off); n < len(b) {
			return err
		}
		if _, err := seg.file.WriteAt(b, off); err != nil {
			return err
		}
	}
	return seg.file.Sync()
}

// wipe zeroes what stands behind the tail. Bytes behind a zero length word are no records now, but would be
// again once records appended in front of them reach up to them. It only writes when there are any, because
// the usual end is zero already, and has blocks that are worth keeping.
func (w *WAL) wipe(seg *segment) (int64, error) {
	size, err := seg.file.Size()
	if err != nil {
		return 0, err
	}
	end, err := lastNonZero(seg.file, w.tail, size)
	if err != nil {
		return 0, err
	}
	if end == w.tail && size >= w.segmentBytes {
		return 0, nil
	}
	if err := seg.file.Truncate(w.tail); err != nil {
		return 0, err
	}
	if err := reserve(seg.file, seg.path, w.segmentBytes, w.log); err != nil {
		return 0, err
	}
	return end - w.tail, nil // resume syncs
}

// lastNonZero returns the offset behind the last non-zero byte of [from, size), from when there is none.
func lastNonZero(f File, from, size int64) (int64, error) {
	block := make([]byte, min(readBytes, max(size-from, 0)))
	for end := size; end > from; {
		b := block[:min(int64(len(block)), end-from)]
		off := end - int64(len(b))
		if n, err := f.ReadAt(b, off); n < len(b) {
			return 0, err
		}
		if !allZero(b) {
			for b[len(b)-1] == 0 {
				b = b[:len(b)-1]
			}
			return off + int64(len(b)), nil
		}
		end = off
	}
	return from, nil
}

// removeTemps removes spares that a crash has left; the locks on the log say that nobody else uses them.
func (w *WAL) removeTemps() error {
	names, err := w.disk.List(w.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, suffixTemp) {
			continue
		}
		if err := w.disk.Remove(filepath.Join(w.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"sluice/stages/wire"
)

// Contents is what a log says behind a snapshot.
type Contents struct {
	Metadata  Metadata
	HardState HardState
	Entries   []*raftpb.Entry // first index is the snapshot's + 1, without gaps; may reach beyond Commit
	Repaired  *Repair         // what Open had to cut off; nil when the log ended cleanly
	Wiped     int64           // bytes behind the clean end up to the last non-zero one, which Open has zeroed

	metadata []byte // as written
	last     uint64 // index of the last entry or snapshot in file order: names the next segment
	matched  bool   // a snapshot record has the wanted index
}

// Read reads the log in dir behind at without locking or changing it. A torn end is an error that wraps
// io.ErrUnexpectedEOF, a log without a record of the snapshot ErrSnapshotNotFound.
func Read(disk FS, dir string, at Snapshot, log *zap.Logger) (Contents, error) {
	log = orNop(log)
	segs, err := selectSegments(disk, dir, at.Index, false, log)
	if err != nil {
		return Contents{}, err
	}
	defer closeSegments(segs)
	c, _, err := readAll(segs, at)
	if err != nil {
		return Contents{}, err
	}
	if !c.matched {
		return Contents{}, fmt.Errorf("read log %s from index %d: %w", dir, at.Index, ErrSnapshotNotFound)
	}
	return c, nil
}

// selectSegments lists, checks and opens the segments that a reader from index needs.
func selectSegments(disk FS, dir string, index uint64, write bool, log *zap.Logger) ([]segment, error) {
	segs, err := listSegments(disk, dir, log)
	if err != nil {
		return nil, err
	}
	if segs, err = fromIndex(segs, index); err != nil {
		return nil, err
	}
	if err = checkSequence(segs); err != nil {
		return nil, err
	}
	return segs, openSegments(disk, segs, write)
}

// readAll reads segs to their end. The decoder stands where the log ends, or where it is torn or damaged.
func readAll(segs []segment, at Snapshot) (Contents, *decoder, error) {
	var c Contents
	d, err := newDecoder(segs)
	if err != nil {
		return c, d, err
	}
	for {
		r, err := d.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return c, d, err
		}
		if err := c.add(d, r, at); err != nil {
			return c, d, fmt.Errorf("segment %s at %d: %w", d.path(), d.frame, err)
		}
	}
	if c.metadata == nil {
		return c, d, fmt.Errorf("wal: no metadata in %s", segs[0].path)
	}
	c.Metadata, err = DecodeMetadata(c.metadata)
	return c, d, err
}

// add takes one record.
func (c *Contents) add(d *decoder, r record, at Snapshot) error {
	switch r.typ {
	case recordCRC: // verified by the decoder
	case recordMetadata:
		if c.metadata != nil && !bytes.Equal(c.metadata, r.data) {
			return ErrMetadataConflict
		}
		c.metadata = append([]byte{}, r.data...)
	case recordEntry:
		return c.entry(d, r.data, at)
	case recordState:
		s, err := decodeHardState(r.data)
		if err != nil {
			return err
		}
		c.HardState = s
	case recordSnapshot:
		s, err := decodeSnapshot(r.data)
		if err != nil {
			return err
		}
		c.last = max(c.last, s.Index)
		if s.Index == at.Index {
			if s.Term != at.Term {
				return fmt.Errorf("%w: index %d has term %d, wanted %d", ErrSnapshotMismatch, s.Index, s.Term, at.Term)
			}
			c.matched = true
		}
	default:
		return fmt.Errorf("wal: unexpected block type %d", r.typ)
	}
	return nil
}

// entry puts an entry in its place. One with an index that is there already replaces it and drops all that
// follows: a new leader has overwritten the tail. The term says nothing about that.
func (c *Contents) entry(d *decoder, data []byte, at Snapshot) error {
	e, err := wire.DecodeEntry(data)
	if err != nil {
		return fmt.Errorf("decode entry: %w", err)
	}
	index := e.GetIndex()
	c.last = index
	if index <= at.Index {
		return nil
	}
	place := index - at.Index - 1
	if place > uint64(len(c.Entries)) {
		return fmt.Errorf("wal: slice bounds out of range, snapshot index %d, %d entries behind it, then entry %d",
			at.Index, len(c.Entries), index)
	}
	clear(c.Entries[place:])
	c.Entries = append(c.Entries[:place], e)
	d.keep()
	return nil
}

// vanishRetries is how often ValidSnapshots begins again because a purge took a segment between listing
// and opening.
const vanishRetries = 3

// ValidSnapshots returns the snapshot records that the log in dir vouches for, in file order: those at or
// below the commit index of its last hard state. A torn end is tolerated: what stood there was not durable.
// The last of them is what a member boots from. It changes nothing.
func ValidSnapshots(disk FS, dir string, log *zap.Logger) ([]Snapshot, error) {
	var snaps []Snapshot
	var err error
	for range vanishRetries {
		snaps, err = validSnapshots(disk, dir, orNop(log))
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return snaps, err
}

func validSnapshots(disk FS, dir string, log *zap.Logger) ([]Snapshot, error) {
	segs, err := listSegments(disk, dir, log)
	if err != nil {
		return nil, err
	}
	if err := checkSequence(segs); err != nil {
		return nil, err
	}
	if err := openSegments(disk, segs, false); err != nil {
		return nil, err
	}
	defer closeSegments(segs)
	snaps, state, err := snapshotRecords(segs)
	if err != nil {
		return nil, fmt.Errorf("read snapshot records of %s: %w", dir, err)
	}
	valid := snaps[:0]
	for _, s := range snaps {
		if s.Index <= state.Commit {
			valid = append(valid, s)
		}
	}
	return valid, nil
}

// snapshotRecords returns all snapshot records and the last hard state.
func snapshotRecords(segs []segment) (snaps []Snapshot, state HardState, err error) {
	d, err := newDecoder(segs)
	if err != nil {
		return nil, state, err
	}
	for {
		r, err := d.next()
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return snaps, state, nil
		}
		if err != nil {
			return nil, state, err
		}
		switch r.typ {
		case recordSnapshot:
			s, err := decodeSnapshot(r.data)
			if err != nil {
				return nil, state, err
			}
			snaps = append(snaps, s)
		case recordState:
			if state, err = decodeHardState(r.data); err != nil {
				return nil, state, err
			}
		}
	}
}

func orNop(log *zap.Logger) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return log
}

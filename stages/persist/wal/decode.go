package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// readBytes is how much of a segment is read at once. Entries alias the block that they were read in, so it
// is also what the last entry kept of a block keeps from the garbage collector.
const readBytes = 1 << 20

// decoder reads the records of a row of segments.
type decoder struct {
	segs []segment
	at   int    // index in segs of the segment being read
	crc  uint32 // over all data so far; 0 until the first crc record is adopted

	size  int64 // of the segment being read
	off   int64 // where the next frame begins
	frame int64 // where the frame returned last began

	block   []byte // what has been read and not been dropped
	blockAt int64  // its offset in the segment
	kept    bool   // something aliases block: it may not be overwritten
}

// newDecoder reads segs, which are open and at least one.
func newDecoder(segs []segment) (*decoder, error) {
	d := &decoder{segs: segs}
	return d, d.enter(0)
}

func (d *decoder) enter(at int) error {
	size, err := d.segs[at].file.Size()
	if err != nil {
		return fmt.Errorf("read segment %s: %w", d.segs[at].path, err)
	}
	d.at, d.size, d.off = at, size, 0
	if d.kept {
		d.block, d.kept = nil, false
	}
	d.block, d.blockAt = d.block[:0], 0
	return nil
}

func (d *decoder) path() string { return d.segs[d.at].path }
func (d *decoder) last() bool   { return d.at == len(d.segs)-1 }

// keep says that the data of the record returned last stays in use.
func (d *decoder) keep() { d.kept = true }

// next returns the next record; its data is valid until the next call, or for good after keep. io.EOF is
// the clean end, where off is the end of the log within the last segment. A tornError in the last segment
// may be cut off at off. All else is damage.
func (d *decoder) next() (record, error) {
	for {
		r, err := d.read()
		if err != io.EOF {
			return r, err
		}
		if d.last() {
			return r, io.EOF
		}
		if err := d.enter(d.at + 1); err != nil {
			return r, err
		}
	}
}

// read returns the next record of the segment, io.EOF when there is none behind off.
func (d *decoder) read() (record, error) {
	if d.off >= d.size {
		return record{}, io.EOF
	}
	if d.size-d.off < frameBytes {
		return record{}, d.torn("frame of less than 8 bytes")
	}
	head, err := d.bytes(d.off, frameBytes)
	if err != nil {
		return record{}, err
	}
	word := binary.LittleEndian.Uint64(head)
	if word == 0 { // the preallocated part begins
		return record{}, io.EOF
	}
	n, pad := splitLength(word)
	if n > d.size-d.off-frameBytes-pad {
		return record{}, d.torn(fmt.Sprintf("[wal] max entry size limit exceeded: record of %d bytes", n))
	}
	body, err := d.bytes(d.off+frameBytes, int(n+pad))
	if err != nil {
		return record{}, err
	}
	r, err := decodeRecord(body[:n])
	if err == nil {
		err = d.verify(r)
	} else {
		err = fmt.Errorf("%w in file '%s' at position: %d", err, d.path(), d.off)
	}
	if err != nil {
		if d.last() && zeroSector(body, d.off+frameBytes) {
			return record{}, d.torn("half-written record")
		}
		return record{}, err
	}
	d.frame = d.off
	d.off += frameBytes + n + pad
	return r, nil
}

// verify follows the running checksum.
func (d *decoder) verify(r record) error {
	if r.typ == recordCRC {
		if d.crc != 0 && r.crc != d.crc {
			return &CRCError{Expected: r.crc, Computed: d.crc, File: d.path(), Position: d.off}
		}
		d.crc = r.crc
		return nil
	}
	sum := crc32.Update(d.crc, castagnoli, r.data)
	if sum != r.crc {
		return &CRCError{Expected: r.crc, Computed: sum, File: d.path(), Position: d.off}
	}
	d.crc = sum
	return nil
}

// torn is an unexpected end: repairable in the last segment, damage in any other.
func (d *decoder) torn(reason string) error {
	if d.last() {
		return &tornError{reason: reason, file: d.path(), at: d.off}
	}
	return fmt.Errorf("wal: %s in file '%s' at position: %d, and there is a later segment", reason, d.path(), d.off)
}

// bytes returns the n bytes at off, which lie within the segment.
func (d *decoder) bytes(off int64, n int) ([]byte, error) {
	if end := d.blockAt + int64(len(d.block)); off < d.blockAt || off+int64(n) > end {
		if err := d.load(off, n); err != nil {
			return nil, err
		}
	}
	from := off - d.blockAt
	return d.block[from : from+int64(n) : from+int64(n)], nil
}

// load reads a block that begins at off and holds at least n bytes.
func (d *decoder) load(off int64, n int) error {
	want := int(min(int64(max(n, readBytes)), d.size-off))
	if d.kept || cap(d.block) < want {
		d.block, d.kept = make([]byte, want), false
	}
	d.block, d.blockAt = d.block[:want], off
	got, err := d.segs[d.at].file.ReadAt(d.block, off)
	if got == want {
		return nil
	}
	d.block = d.block[:got]
	if errors.Is(err, io.EOF) { // the file shrank, or its size lied
		return d.torn("short read")
	}
	return fmt.Errorf("read segment %s at %d: %w", d.path(), off, err)
}

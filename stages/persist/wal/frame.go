package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// recordType says what a record's data is.
type recordType int64

const (
	recordMetadata recordType = 1
	recordEntry    recordType = 2
	recordState    recordType = 3
	recordCRC      recordType = 4
	recordSnapshot recordType = 5
)

const (
	frameBytes  = 8   // the length word; every frame is a multiple of it, so the word never crosses a sector
	sectorBytes = 512 // what a disk writes whole or not at all
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Tags of walpb.Record, and the largest record header: type, crc, and the tag and length of data.
const (
	tagType        = 1<<3 | byte(protowire.VarintType)
	tagCRC         = 2<<3 | byte(protowire.VarintType)
	tagData        = 3<<3 | byte(protowire.BytesType)
	headerBytesMax = 2 + 1 + 5 + 1 + 10
)

// padBytes returns how many zero bytes follow a record of n bytes.
func padBytes(n int) int { return (frameBytes - n%frameBytes) % frameBytes }

// lengthWord is the frame's first eight bytes as a number: a record of n bytes; the top byte tells the pad.
func lengthWord(n int) uint64 {
	word := uint64(n)
	if pad := padBytes(n); pad != 0 {
		word |= uint64(0x80|pad) << 56
	}
	return word
}

// splitLength takes a length word apart. pad is 0 unless the top bit is set.
func splitLength(word uint64) (record int64, pad int64) {
	record = int64(word &^ (uint64(0xff) << 56))
	if int64(word) < 0 {
		pad = int64(word>>56) & 7
	}
	return record, pad
}

// encoder frames records and carries the running checksum, which covers the data of every record since the
// log was created.
type encoder struct {
	crc uint32
	buf []byte // frames encoded and not yet written
}

// begin makes room for a frame whose data will have n bytes, and returns buf with everything in front of
// that data, for the caller to append exactly n bytes and call end. The header's length depends on the
// checksum, whose varint nearly always has five bytes: end shifts the data in the other cases, which is
// cheaper than a second pass.
func (e *encoder) begin(n int) []byte {
	need := len(e.buf) + frameBytes + headerBytesMax + n + frameBytes
	if need > cap(e.buf) {
		grown := make([]byte, len(e.buf), max(need, 2*cap(e.buf)))
		copy(grown, e.buf)
		e.buf = grown
	}
	return e.buf[:len(e.buf)+frameBytes+headerLength(n, crcBytesMax)]
}

// crcBytesMax is the length of most checksums as a varint.
const crcBytesMax = 5

// headerLength is the length of a record's header in front of n bytes of data.
func headerLength(n, crcBytes int) int { return 2 + 1 + crcBytes + 1 + protowire.SizeVarint(uint64(n)) }

// end completes the frame that begin started. b is begin's answer with the n data bytes appended in place.
func (e *encoder) end(typ recordType, n int, b []byte) {
	start := len(e.buf)
	dataAt := start + frameBytes + headerLength(n, crcBytesMax)
	if len(b) != dataAt+n {
		panic(fmt.Sprintf("wal: record of type %d has %d data bytes, announced %d", typ, len(b)-dataAt, n))
	}
	e.crc = crc32.Update(e.crc, castagnoli, b[dataAt:])
	crcBytes := protowire.SizeVarint(uint64(e.crc))
	if crcBytes < crcBytesMax {
		to := start + frameBytes + headerLength(n, crcBytes)
		copy(b[to:], b[dataAt:])
		b = b[:to+n]
	}
	head := append(b[:start+frameBytes], tagType, byte(typ), tagCRC)
	head = protowire.AppendVarint(head, uint64(e.crc))
	head = append(head, tagData)
	protowire.AppendVarint(head, uint64(n))
	e.close(start, b)
}

// close writes the length word in front of the record at b[start+8:] and the pad behind it.
func (e *encoder) close(start int, b []byte) {
	n := len(b) - start - frameBytes
	binary.LittleEndian.PutUint64(b[start:], lengthWord(n))
	var zeros [frameBytes]byte
	e.buf = append(b, zeros[:padBytes(n)]...)
}

// checksum appends a crc record, the first of each segment, which hands the running value over.
func (e *encoder) checksum() {
	b := append(e.begin(0)[:len(e.buf)+frameBytes], tagType, byte(recordCRC), tagCRC)
	e.close(len(e.buf), protowire.AppendVarint(b, uint64(e.crc)))
}

// record appends a record with data.
func (e *encoder) record(typ recordType, data []byte) {
	e.end(typ, len(data), append(e.begin(len(data)), data...))
}

// record is a decoded walpb.Record. data aliases what was read.
type record struct {
	typ  recordType
	crc  uint32
	data []byte
}

var errRecord = errors.New("wal: malformed record")

// decodeRecord reads walpb.Record; unknown fields are skipped.
func decodeRecord(b []byte) (record, error) {
	var r record
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return r, errRecord
		}
		b = b[n:]
		switch {
		case (num == 1 || num == 2) && typ == protowire.VarintType:
			v, m := protowire.ConsumeVarint(b)
			if m < 0 {
				return r, errRecord
			}
			if num == 1 {
				r.typ = recordType(v)
			} else {
				r.crc = uint32(v)
			}
			n = m
		case num == 3 && typ == protowire.BytesType:
			v, m := protowire.ConsumeBytes(b)
			if m < 0 {
				return r, errRecord
			}
			r.data, n = v, m
		default:
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return r, errRecord
			}
		}
		b = b[n:]
	}
	return r, nil
}

// CRCError is a record whose checksum does not fit and that is no torn write: the log is damaged.
type CRCError struct {
	Expected, Computed uint32 // in the record; of the data read
	File               string
	Position           int64 // where the frame begins
}

func (e *CRCError) Error() string {
	return fmt.Sprintf("walpb: crc mismatch: expected: %x computed: %x: in file '%s' at position: %d",
		e.Expected, e.Computed, e.File, e.Position)
}

// Is makes every CRCError match ErrCRCMismatch.
func (e *CRCError) Is(target error) bool { return target == ErrCRCMismatch }

// ErrCRCMismatch is matched by every CRCError.
var ErrCRCMismatch = errors.New("walpb: crc mismatch")

// tornError is a frame that a crash may have left half written: an unexpected end that Open may repair.
type tornError struct {
	reason string
	file   string
	at     int64
}

func (e *tornError) Error() string {
	return fmt.Sprintf("wal: %s in file '%s' at position: %d: %v", e.reason, e.file, e.at, io.ErrUnexpectedEOF)
}

func (e *tornError) Unwrap() error { return io.ErrUnexpectedEOF }

// zeroSector reports whether some sector's share of b is entirely zero, when b stands at offset off of its
// file. The log is written onto zeros, so that such a sector is one that a crash kept from the disk.
func zeroSector(b []byte, off int64) bool {
	for len(b) > 0 {
		n := min(len(b), int(sectorBytes-off%sectorBytes))
		if allZero(b[:n]) {
			return true
		}
		b, off = b[n:], off+int64(n)
	}
	return false
}

// allZero reports whether b holds only zeros, eight bytes at a time.
func allZero(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

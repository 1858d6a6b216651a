package mvcc

import (
	"encoding/binary"
	"fmt"
)

// tombstone is the bit of a sub revision that marks a deletion. A transaction cannot hold 2^31 changes.
const tombstone = 1 << 31

const (
	revisionBytes  = 17 // u64be main, '_', u64be sub
	tombstoneBytes = 18 // the same and 't'
)

// revision names one record: the main revision of the transaction and the place of the change in it, whose
// tombstone bit is set for a deletion.
type revision struct {
	main int64
	sub  uint32
}

// number is the sub revision without its tombstone bit.
func (r revision) number() uint32 { return r.sub &^ tombstone }

func (r revision) deleted() bool { return r.sub&tombstone != 0 }

// compare orders by main, then by place. The tombstone bit does not count: no two changes share a place.
func (r revision) compare(o revision) int {
	switch {
	case r.main < o.main:
		return -1
	case r.main > o.main:
		return 1
	case r.number() < o.number():
		return -1
	case r.number() > o.number():
		return 1
	}
	return 0
}

// append appends r as a key of bucket key.
func (r revision) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(r.main))
	b = append(b, '_')
	b = binary.BigEndian.AppendUint64(b, uint64(r.number()))
	if r.deleted() {
		b = append(b, 't')
	}
	return b
}

// parseRevision reads a key of bucket key that Load has read before.
func parseRevision(b []byte) revision {
	r, err := readRevision(b)
	if err != nil {
		panic("mvcc: " + err.Error())
	}
	return r
}

// readRevision reads a key of bucket key, or a value of bucket meta that holds a revision.
func readRevision(b []byte) (r revision, err error) {
	if len(b) != revisionBytes && (len(b) != tombstoneBytes || b[revisionBytes] != 't') || b[8] != '_' {
		return r, fmt.Errorf("%x is no revision", b)
	}
	r.main = int64(binary.BigEndian.Uint64(b))
	sub := binary.BigEndian.Uint64(b[9:])
	if sub >= tombstone || r.main < 0 {
		return r, fmt.Errorf("revision %x is out of range", b)
	}
	r.sub = uint32(sub)
	if len(b) == tombstoneBytes {
		r.sub |= tombstone
	}
	return r, nil
}

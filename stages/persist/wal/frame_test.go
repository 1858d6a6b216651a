package wal

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/wire"
)

// memFile is a segment in memory, to read from.
type memFile struct {
	File
	data []byte
}

func (f *memFile) Size() (int64, error) { return int64(len(f.data)), nil }

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(f.data).ReadAt(p, off)
}

func memSegments(contents ...[]byte) []segment {
	var segs []segment
	for i, b := range contents {
		segs = append(segs, segment{seq: uint64(i), path: segmentName(uint64(i), 0), file: &memFile{data: b}})
	}
	return segs
}

// Contract 2.2: the pad fills the frame to a multiple of 8, and the top byte is 0x80|pad or 0.
func TestLengthWord(t *testing.T) {
	for n, want := range map[int]uint64{
		4: 0x84<<56 | 4, 7: 0x81<<56 | 7, 8: 8, 9: 0x87<<56 | 9, 31: 0x81<<56 | 31, 64_000_000: 64_000_000,
	} {
		word := lengthWord(n)
		if word != want {
			t.Errorf("length word of %d is %x, want %x", n, word, want)
		}
		if rec, pad := splitLength(word); rec != int64(n) || pad != int64(padBytes(n)) {
			t.Errorf("split of %x is %d, %d", word, rec, pad)
		}
	}
}

// Contract 15.5: the first record of the segment behind a log whose running checksum was 00cef705.
func TestChecksumRecord(t *testing.T) {
	e := encoder{crc: 0x00cef705}
	e.checksum()
	if got, want := hex.EncodeToString(e.buf), "070000000000008108041085eebb0600"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if e.crc != 0x00cef705 {
		t.Fatalf("a crc record changed the running value to %x", e.crc)
	}
}

// A checksum below 2^28 has a shorter varint than the header was laid out for; the record must be the same
// as if that had been known. All lengths of the varint occur when enough values are tried.
func TestRecordsOfAllChecksumLengths(t *testing.T) {
	seen := map[int]int{}
	e := encoder{}
	var want [][]byte
	for i := range 200_000 {
		data := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, i%5)
		if i == 7 {
			data = bytes.Repeat([]byte{7}, 3000) // a two-byte length
		}
		e.record(recordEntry, data)
		seen[bits7(e.crc)]++
		want = append(want, data)
	}
	if seen[4] == 0 || seen[3] == 0 || seen[5] == 0 {
		t.Fatalf("checksum lengths seen: %v, want 3, 4 and 5", seen)
	}
	d, err := newDecoder(memSegments(e.buf))
	if err != nil {
		t.Fatal(err)
	}
	for i, data := range want {
		r, err := d.next()
		if err != nil || !bytes.Equal(r.data, data) || r.typ != recordEntry {
			t.Fatalf("record %d: %+v, %v, want data %x", i, r, err, data)
		}
	}
	if _, err := d.next(); err != io.EOF {
		t.Fatalf("behind the last record: %v, want EOF", err)
	}
}

func bits7(v uint32) int {
	n := 1
	for v >>= 7; v > 0; v >>= 7 {
		n++
	}
	return n
}

// Announcing a size and writing another would corrupt the log: it is a bug, and must not reach the disk.
func TestWrongSizePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	e := encoder{}
	e.end(recordEntry, 5, append(e.begin(5), 1, 2, 3))
}

// Contract 2.7: sectors count by file offset, and a sector's share of the record is what must be zero.
func TestZeroSector(t *testing.T) {
	filled := func(n int) []byte { return bytes.Repeat([]byte{1}, n) }
	zeros := func(n int) []byte { return make([]byte, n) }
	for name, c := range map[string]struct {
		off  int64
		body []byte
		want bool
	}{
		"no zeros":                       {8, filled(2000), false},
		"a zero sector in the middle":    {8, append(append(filled(504), zeros(512)...), filled(100)...), true},
		"512 zeros across two sectors":   {8, append(append(filled(600), zeros(512)...), filled(400)...), false},
		"a short zero share at the end":  {8, append(filled(504), zeros(8)...), true},
		"a short zero share at the head": {1000, append(zeros(24), filled(600)...), true},
		"zeros within one sector":        {8, append(append(filled(8), zeros(300)...), filled(8)...), false},
	} {
		if got := zeroSector(c.body, c.off); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// FuzzDecoder reads arbitrary bytes as the only segment: no panic, the end is inside the file, and what was
// accepted is accepted again when the rest is cut off - which is what a repair does.
func FuzzDecoder(f *testing.F) {
	e := encoder{}
	e.checksum()
	e.record(recordMetadata, Metadata{1, 2}.Append(nil))
	e.record(recordSnapshot, Snapshot{}.append(nil))
	e.record(recordEntry, wire.AppendEntry(nil, wire.NewEntry(raftpb.EntryNormal, 1, 1, []byte("data"))))
	e.record(recordState, HardState{1, 1, 1}.append(nil))
	good := e.buf
	f.Add(good)
	f.Add(append(bytes.Clone(good), make([]byte, 600)...))
	f.Add(good[:len(good)-3])
	flipped := bytes.Clone(good)
	flipped[len(good)-5] ^= 4
	f.Add(flipped)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{9, 0, 0, 0, 0, 0, 0, 0x87, 8, 2, 16, 0, 26, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		segs := memSegments(b)
		c, d, err := readAll(segs, Snapshot{})
		if d.off < 0 || d.off > int64(len(b)) {
			t.Fatalf("the end is at %d of %d", d.off, len(b))
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return
		}
		again, _, err := readAll(memSegments(b[:d.off]), Snapshot{})
		if (err != nil && c.metadata != nil) || len(again.Entries) != len(c.Entries) || again.HardState != c.HardState {
			t.Fatalf("cut at %d of %d: %v, %d entries then %d, state %v then %v", d.off, len(b), err,
				len(c.Entries), len(again.Entries), c.HardState, again.HardState)
		}
	})
}

// FuzzFlip changes one byte of a good log of several records: everything before the changed frame is still
// read, and nothing that was not written ever is.
func FuzzFlip(f *testing.F) {
	e := encoder{}
	e.checksum()
	e.record(recordMetadata, Metadata{1, 2}.Append(nil))
	var ends []int
	for i := range uint64(20) {
		data := bytes.Repeat([]byte{byte(i + 1)}, int(i*37))
		e.record(recordEntry, wire.AppendEntry(nil, wire.NewEntry(raftpb.EntryNormal, 1, i+1, data)))
		ends = append(ends, len(e.buf))
	}
	good := append(e.buf, make([]byte, 1024)...)
	f.Add(uint16(70), byte(1))
	f.Add(uint16(ends[5]), byte(0x80))
	f.Fuzz(func(t *testing.T, at uint16, flip byte) {
		if int(at) >= ends[len(ends)-1] || flip == 0 {
			return
		}
		b := bytes.Clone(good)
		b[at] ^= flip
		c, _, _ := readAll(memSegments(b), Snapshot{})
		whole := 0
		for whole < len(ends) && ends[whole] <= int(at) {
			whole++
		}
		if len(c.Entries) < whole {
			t.Fatalf("flip at %d: %d entries, want the %d before it", at, len(c.Entries), whole)
		}
		for i, got := range c.Entries {
			if got.GetIndex() != uint64(i+1) || !bytes.Equal(got.Data, bytes.Repeat([]byte{byte(i + 1)}, i*37)) {
				t.Fatalf("flip of %x at %d: entry %d was never written", flip, at, i+1)
			}
		}
	})
}

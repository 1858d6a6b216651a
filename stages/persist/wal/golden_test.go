package wal_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/persist/wal"
	"sluice/stages/wire"
)

const goldenMember = 0x64674cd17a494f9e

var goldenMetadata = wal.Metadata{NodeID: goldenMember, ClusterID: 0xc3304fcae129e762}

// goldenHead is the head of a fresh single-member log that etcd 3.7.3 wrote (contract 15.1).
const goldenHead = `
0400000000000084 08041000 00000000
1f00000000000081 080110c184d2a104 1a15 089e9fa5d2979ad3b364 10e2cea789aef99398c301 00
0e00000000000082 080510cde0a3db0b 1a04 08001000 0000
6c00000000000084 080210b186cdb101 1a62 080110011801225a 1000 189e9fa5d2979ad3b364 224c
7b226964223a373233343833353738383937373439313837302c227065657255524c73223a5b22
687474703a2f2f3132372e302e302e313a3234303031225d2c226e616d65223a226d31227d 00000000
1000000000000000 080310dcf7e4f109 1a06 080110001801
1800000000000000 080310f6bf929006 1a0e 0802109e9fa5d2979ad3b3641801
0e00000000000082 08021089b2dcbe0d 1a04 10021802 0000
4800000000000000 080210a2b2b3890d 1a3e 100218032238
a2060a0881dcefc1f1c5a8cf4f aa5128089e9fa5d2979ad3b364121c0a026d311216687474703a2f2f3132372e302e302e313a3234303030
1800000000000000 080310d0dbaefc05 1a0e 0802109e9fa5d2979ad3b3641803
2600000000000082 080210e6dfb97c 1a1d 100218042217 a2060a0882dcefc1f1c5a8cf4f a251070a05332e372e30 0000`

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goldenRecords appends what the golden log holds behind its first three records.
func goldenRecords(t testing.TB, w *wal.WAL) {
	t.Helper()
	confChange := `{"id":7234835788977491870,"peerURLs":["http://127.0.0.1:24001"],"name":"m1"}`
	add := append(unhex(t, "1000189e9fa5d2979ad3b364224c"), confChange...)
	publish := append(unhex(t, "a2060a0881dcefc1f1c5a8cf4faa5128089e9fa5d2979ad3b364121c0a026d311216"),
		"http://127.0.0.1:24000"...)
	version := append(unhex(t, "a2060a0882dcefc1f1c5a8cf4fa251070a05"), "3.7.0"...)
	w.AppendEntry(wire.NewEntry(raftpb.EntryConfChange, 1, 1, add))
	w.AppendState(wal.HardState{Term: 1, Commit: 1})
	w.AppendState(wal.HardState{Term: 2, Vote: goldenMember, Commit: 1})
	w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, 2, 2, nil))
	w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, 2, 3, publish))
	w.AppendState(wal.HardState{Term: 2, Vote: goldenMember, Commit: 3})
	w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, 2, 4, version))
}

// Contract 15.1: the same records give the same bytes, and nothing but zeros behind them up to 64,000,000.
func TestFreshLogIsByteIdenticalToEtcd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	w, err := wal.Create(wal.Config{Dir: dir}, goldenMetadata)
	if err != nil {
		t.Fatal(err)
	}
	goldenRecords(t, w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "0000000000000000-0000000000000000.wal"))
	if err != nil {
		t.Fatal(err)
	}
	want := unhex(t, goldenHead)
	if len(want) != 440 {
		t.Fatalf("the golden head has %d bytes", len(want))
	}
	if !bytes.Equal(got[:len(want)], want) {
		t.Fatalf("got\n%x\nwant\n%x", got[:len(want)], want)
	}
	if len(got) != wal.SegmentBytes || len(bytes.Trim(got[len(want):], "\x00")) != 0 {
		t.Fatalf("the segment has %d bytes, want %d, all zero behind the records", len(got), wal.SegmentBytes)
	}
}

// Contract 15.5 and 2.4: the second segment begins with the running checksum, the metadata and the last
// hard state, and its name says sequence 1 and the last index + 1. The first is trimmed to its records.
func TestSecondSegmentHead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	w, err := wal.Create(wal.Config{Dir: dir, SegmentBytes: 440}, goldenMetadata)
	if err != nil {
		t.Fatal(err)
	}
	goldenRecords(t, w)
	timing, err := w.Flush(true)
	if err != nil || !timing.Cut {
		t.Fatalf("flush at exactly the segment's size: %+v, %v, want a cut", timing, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(filepath.Join(dir, "0000000000000000-0000000000000000.wal"))
	if err != nil {
		t.Fatal(err)
	}
	if want := unhex(t, goldenHead); !bytes.Equal(first, want) {
		t.Fatalf("the first segment has %d bytes, want the %d of its records", len(first), len(want))
	}
	second, err := os.ReadFile(filepath.Join(dir, "0000000000000001-0000000000000005.wal"))
	if err != nil {
		t.Fatal(err)
	}
	// The checksum handed over is the one of the last golden record, 0x0f96efe6.
	head := unhex(t, "0700000000000081 080410e6dfb97c 00 1f00000000000081 0801")
	if !bytes.Equal(second[:len(head)], head) {
		t.Fatalf("got %x, want %x", second[:len(head)], head)
	}
	recs := slowRead(t, second, 0)
	if len(recs) != 3 || recs[0].typ != 4 || recs[1].typ != 1 || recs[2].typ != 3 {
		t.Fatalf("the head is %v, want crc, metadata, state", recs)
	}
	if want := unhex(t, "0802109e9fa5d2979ad3b3641803"); !bytes.Equal(recs[2].data, want) {
		t.Fatalf("the head's state is %x, want %x", recs[2].data, want)
	}
}

// slowRecord and slowRead are a second, obvious reader of the format: a model for the real one.
type slowRecord struct {
	typ  int
	data []byte
	at   int // of the frame
	end  int // behind the pad
}

// slowRead reads the frames of one segment and checks every checksum, starting at crc.
func slowRead(t testing.TB, b []byte, crc uint32) []slowRecord {
	t.Helper()
	var recs []slowRecord
	for at := 0; at+8 <= len(b); {
		word := binary.LittleEndian.Uint64(b[at:])
		if word == 0 {
			break
		}
		n := int(word & (1<<56 - 1))
		pad := 0
		if top := word >> 56; top != 0 {
			pad = int(top - 0x80)
		}
		if (n+pad)%8 != 0 || pad > 7 {
			t.Fatalf("frame at %d: length %d, pad %d", at, n, pad)
		}
		body := b[at+8 : at+8+n]
		r := slowRecord{typ: int(body[1]), at: at, end: at + 8 + n + pad}
		sum, used := binary.Uvarint(body[3:])
		if rest := body[3+used:]; len(rest) > 0 {
			size, used := binary.Uvarint(rest[1:])
			r.data = rest[1+used:]
			if int(size) != len(r.data) {
				t.Fatalf("record at %d: %d data bytes, said to be %d", at, len(r.data), size)
			}
		}
		if r.typ == 4 {
			crc = uint32(sum)
		}
		crc = crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), r.data)
		if crc != uint32(sum) {
			t.Fatalf("record at %d: crc %x, computed %x", at, sum, crc)
		}
		recs, at = append(recs, r), r.end
	}
	return recs
}

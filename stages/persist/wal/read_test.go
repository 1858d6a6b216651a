package wal_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"

	"sluice/stages/persist/wal"
	"sluice/stages/persist/wal/fault"
	"sluice/stages/wire"
)

// rec is a record to be written by slowWrite, a second, obvious writer of the format.
type rec struct {
	typ  int
	data []byte
}

func varints(fields ...uint64) []byte { // number, value, number, value ...
	var b []byte
	for i := 0; i < len(fields); i += 2 {
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(fields[i]), protowire.VarintType), fields[i+1])
	}
	return b
}

func crcRec() rec                      { return rec{typ: 4} }
func metaRec(id uint64) rec            { return rec{1, varints(1, id, 2, 9)} }
func stateRec(term, commit uint64) rec { return rec{3, varints(1, term, 2, 1, 3, commit)} }
func entryRec(term, index uint64) rec {
	return rec{2, append(varints(2, term, 3, index), "\x22\x02hi"...)}
}
func oldEntryRec(index uint64) rec {
	return rec{2, append(varints(1, 0, 2, 1, 3, index), "\x22\x02hi"...)}
}
func snapRec(index, term uint64) rec {
	data := varints(1, index, 2, term)
	if index > 0 {
		data = append(data, 0x1a, 0x02, 0x08, 0x01)
	}
	return rec{5, data}
}

// slowWrite frames records, starting at checksum crc, and returns the checksum behind them.
func slowWrite(crc uint32, recs ...rec) ([]byte, uint32) {
	var out []byte
	for _, r := range recs {
		crc = crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), r.data)
		body := varints(1, uint64(r.typ), 2, uint64(crc))
		if r.data != nil {
			body = append(body, 0x1a)
			body = append(protowire.AppendVarint(body, uint64(len(r.data))), r.data...)
		}
		word := uint64(len(body))
		pad := (8 - len(body)%8) % 8
		if pad > 0 {
			word |= uint64(0x80+pad) << 56
		}
		out = binary.LittleEndian.AppendUint64(out, word)
		out = append(append(out, body...), make([]byte, pad)...)
	}
	return out, crc
}

// logOf makes a disk whose log has the given segments; each segment's name index is given with it.
type segmentOf struct {
	index uint64
	recs  []rec
}

func logOf(segs ...segmentOf) *fault.Disk {
	disk := fault.New()
	var crc uint32
	for i, s := range segs {
		var b []byte
		b, crc = slowWrite(crc, s.recs...)
		if i == len(segs)-1 {
			b = append(b, make([]byte, 4096)...)
		}
		disk.Put(segmentPath(uint64(i), s.index), b)
	}
	return disk
}

const walDir = "/member/wal"

func segmentPath(seq, index uint64) string {
	return fmt.Sprintf("%s/%016x-%016x.wal", walDir, seq, index)
}

func config(disk wal.FS) wal.Config { return wal.Config{Disk: disk, Dir: walDir, SegmentBytes: 8192} }

// show prints entries as term.index.
func show(entries []*raftpb.Entry) string {
	var words []string
	for _, e := range entries {
		words = append(words, fmt.Sprintf("%d.%d", e.GetTerm(), e.GetIndex()))
	}
	return strings.Join(words, " ")
}

// Contract 2.7, the rules of ReadAll and of choosing segments; each in write mode.
func TestOpenRules(t *testing.T) {
	head := []rec{crcRec(), metaRec(7), snapRec(0, 0)}
	with := func(recs ...rec) []rec { return append(append([]rec{}, head...), recs...) }
	for _, c := range []struct {
		name    string
		disk    *fault.Disk
		at      wal.Snapshot
		entries string
		state   wal.HardState
		err     string
	}{
		{name: "no file", disk: fault.New(), err: "wal: file not found"},
		{name: "entries and the last state",
			disk:    logOf(segmentOf{0, with(entryRec(1, 1), stateRec(1, 0), entryRec(1, 2), stateRec(1, 2))}),
			entries: "1.1 1.2", state: wal.HardState{Term: 1, Vote: 1, Commit: 2}},
		{name: "a type field as versions up to 3.6 write it",
			disk: logOf(segmentOf{0, with(oldEntryRec(1), oldEntryRec(2))}), entries: "1.1 1.2"},
		{name: "a lower index drops all behind it",
			disk:    logOf(segmentOf{0, with(entryRec(1, 1), entryRec(1, 2), entryRec(1, 3), entryRec(2, 2))}),
			entries: "1.1 2.2"},
		{name: "the term is not checked",
			disk: logOf(segmentOf{0, with(entryRec(5, 1), entryRec(4, 2))}), entries: "5.1 4.2"},
		{name: "a gap", disk: logOf(segmentOf{0, with(entryRec(1, 1), entryRec(1, 3))}),
			err: "slice bounds out of range"},
		{name: "entries up to the snapshot are skipped",
			disk: logOf(segmentOf{0, with(entryRec(1, 1), entryRec(1, 2), entryRec(1, 3), snapRec(2, 1))}),
			at:   wal.Snapshot{Index: 2, Term: 1}, entries: "1.3"},
		{name: "a snapshot record with another term",
			disk: logOf(segmentOf{0, with(entryRec(1, 1), entryRec(1, 2), snapRec(2, 1))}),
			at:   wal.Snapshot{Index: 2, Term: 3}, err: "wal: snapshot mismatch"},
		{name: "no record of the snapshot is no error for a writer",
			disk: logOf(segmentOf{0, with(entryRec(1, 1), entryRec(1, 2))}),
			at:   wal.Snapshot{Index: 1, Term: 1}, entries: "1.2"},
		{name: "an unknown type", disk: logOf(segmentOf{0, with(rec{6, []byte("x")})}), err: "unexpected block type 6"},
		{name: "two segments", disk: logOf(segmentOf{0, with(entryRec(1, 1))},
			segmentOf{2, []rec{crcRec(), metaRec(7), stateRec(1, 1), entryRec(1, 2)}}),
			entries: "1.1 1.2", state: wal.HardState{Term: 1, Vote: 1, Commit: 1}},
		{name: "reading begins at a later segment and adopts its checksum", disk: logOf(
			segmentOf{0, with(entryRec(1, 1))}, segmentOf{2, []rec{crcRec(), metaRec(7), entryRec(1, 2)}},
			segmentOf{3, []rec{crcRec(), metaRec(7), entryRec(1, 3)}}),
			at: wal.Snapshot{Index: 2, Term: 1}, entries: "1.3"},
		{name: "conflicting metadata", disk: logOf(segmentOf{0, with(entryRec(1, 1))},
			segmentOf{2, []rec{crcRec(), metaRec(8)}}), err: "wal: conflicting metadata found"},
		{name: "no metadata", disk: logOf(segmentOf{0, []rec{crcRec()}}), err: "no metadata in " + segmentPath(0, 0)},
		{name: "no segment for the snapshot", disk: logOf(segmentOf{5, with()}), at: wal.Snapshot{Index: 3},
			err: "wal: file not found which matches the snapshot index '3'"},
		{name: "a malformed state", disk: logOf(segmentOf{0, with(rec{3, []byte{0x08}})}), err: "decode hard state"},
		{name: "a malformed snapshot",
			disk: logOf(segmentOf{0, with(rec{5, []byte{0x1a, 9}})}), err: "decode snapshot record"},
		{name: "a malformed entry", disk: logOf(segmentOf{0, with(rec{2, []byte{0x22, 9}})}), err: "decode entry"},
		{name: "a missing segment",
			disk: missing(logOf(segmentOf{0, with()}, segmentOf{1, nil}, segmentOf{2, nil}), 1),
			err:  "do not increase continuously"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, got, err := wal.Open(config(c.disk), c.at)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				again, _, err2 := wal.Open(config(c.disk), c.at)
				if again != nil || errors.Is(err2, wal.ErrLocked) {
					t.Fatalf("a failed Open kept its locks: %v", err2)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer w.Abandon()
			if show(got.Entries) != c.entries || got.HardState != c.state || got.Metadata.NodeID != 7 {
				t.Fatalf("entries %s, state %v, metadata %v, want %s, %v", show(got.Entries), got.HardState, got.Metadata,
					c.entries, c.state)
			}
		})
	}
}

func missing(disk *fault.Disk, seq uint64) *fault.Disk {
	if err := disk.Remove(segmentPath(seq, seq)); err != nil {
		panic(err)
	}
	return disk
}

// Contract 2.7: read-only, a log without a record of the snapshot is an error.
func TestReadWantsTheSnapshotRecord(t *testing.T) {
	disk := logOf(segmentOf{0, []rec{crcRec(), metaRec(7), snapRec(0, 0), entryRec(1, 1), entryRec(1, 2)}})
	if _, err := wal.Read(disk, walDir, wal.Snapshot{Index: 1, Term: 1}, nil); !errors.Is(err, wal.ErrSnapshotNotFound) {
		t.Fatalf("error %v, want ErrSnapshotNotFound", err)
	}
	c, err := wal.Read(disk, walDir, wal.Snapshot{}, nil)
	if err != nil || show(c.Entries) != "1.1 1.2" {
		t.Fatalf("entries %s, %v", show(c.Entries), err)
	}
}

// Contract 2.7: the end of the log by what stands at the frame boundary. kept is how many of the entries 1,
// 2, 3 survive; torn ends are repaired with a copy, and after a repair the log opens cleanly.
func TestEndOfLog(t *testing.T) {
	recs := []rec{crcRec(), metaRec(7), snapRec(0, 0), entryRec(1, 1), entryRec(1, 2),
		{2, append(append(varints(2, 1, 3, 3), 0x22, 0xd0, 0x0f), []byte(strings.Repeat("x", 2000))...)}}
	good, _ := slowWrite(0, recs...)
	frames := slowRead(t, good, 0)
	third := frames[5].at
	zeroed := func(b []byte, from, to int) []byte { clear(b[from:to]); return b }
	plus := func(more ...byte) []byte { return append(append([]byte{}, good...), more...) }
	padded := func() []byte { return plus(make([]byte, 4096)...) }
	damaged := func(at int, to byte) []byte { b := padded(); b[at] = to; return b }
	for _, c := range []struct {
		name     string
		content  []byte
		kept     int
		repaired bool
		wiped    bool
		err      string
	}{
		{name: "end of file", content: good, kept: 3},
		{name: "a zero length word", content: padded(), kept: 3},
		{name: "a zeroed length word drops what is behind it", kept: 2, wiped: true,
			content: zeroed(padded(), third, third+8)},
		{name: "1 byte left", content: plus(1), kept: 3, repaired: true},
		{name: "7 bytes left", content: plus(1, 2, 3, 4, 5, 6, 7), kept: 3, repaired: true},
		{name: "only the length word of a record", content: good[:third+8], kept: 2, repaired: true},
		{name: "half a record", content: good[:third+1000], kept: 2, repaired: true},
		{name: "all but the last byte", content: good[:len(good)-1], kept: 2, repaired: true},
		{name: "a length beyond the file", content: plus(0, 0, 0, 0, 1, 0, 0, 0, 9), kept: 3, repaired: true},
		{name: "a zero sector in the record", kept: 2, repaired: true,
			content: zeroed(padded(), (third/512+2)*512, (third/512+3)*512)},
		{name: "a damaged byte without a zero sector", content: damaged(third+1000, 'y'),
			err: "walpb: crc mismatch: expected: "},
		{name: "a malformed record without a zero sector", content: damaged(third+8, 0xff),
			err: "malformed record"},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk := fault.New()
			disk.Put(segmentPath(0, 0), c.content)
			w, got, err := wal.Open(config(disk), wal.Snapshot{})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), segmentPath(0, 0)) {
					t.Fatalf("error %v, want %q and the file", err, c.err)
				}
				if string(disk.Content(segmentPath(0, 0))) != string(c.content) {
					t.Fatal("a damaged file was changed")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Entries) != c.kept || (got.Repaired != nil) != c.repaired || (got.Wiped > 0) != c.wiped {
				t.Fatalf("%d entries, repaired %v, wiped %d, want %d, %v, %v", len(got.Entries), got.Repaired, got.Wiped,
					c.kept, c.repaired, c.wiped)
			}
			if c.repaired && string(disk.Content(segmentPath(0, 0)+".broken")) != string(c.content) {
				t.Fatal("the copy differs from what was repaired")
			}
			next := uint64(c.kept + 1)
			w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, 2, next, []byte("new")))
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			_, got, err = wal.Open(config(disk), wal.Snapshot{})
			if err != nil || len(got.Entries) != c.kept+1 || got.Repaired != nil || got.Wiped != 0 {
				t.Fatalf("opened again: %d entries, repaired %v, wiped %d, %v", len(got.Entries), got.Repaired, got.Wiped, err)
			}
		})
	}
}

// A torn or damaged end in any segment but the last is damage: there is a later one.
func TestOnlyTheLastSegmentIsRepaired(t *testing.T) {
	first, crc := slowWrite(0, crcRec(), metaRec(7), snapRec(0, 0), entryRec(1, 1))
	second, _ := slowWrite(crc, crcRec(), metaRec(7), entryRec(1, 2))
	disk := fault.New()
	disk.Put(segmentPath(0, 0), first[:len(first)-2])
	disk.Put(segmentPath(1, 2), second)
	_, _, err := wal.Open(config(disk), wal.Snapshot{})
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), segmentPath(0, 0)) {
		t.Fatalf("error %v, want damage that names the first segment", err)
	}
	if disk.Content(segmentPath(0, 0)+".broken") != nil || disk.Content(segmentPath(1, 2)+".broken") != nil {
		t.Fatal("a repair was made")
	}
	// A whole record cut off at a frame boundary is found by the next segment's checksum.
	disk.Put(segmentPath(0, 0), first[:slowRead(t, first, 0)[3].at])
	if _, _, err := wal.Open(config(disk), wal.Snapshot{}); !errors.Is(err, wal.ErrCRCMismatch) {
		t.Fatalf("error %v, want ErrCRCMismatch", err)
	}
}

// Contract 2.7 and 5.2: records count up to the commit index of the last state; a torn end is tolerated.
func TestValidSnapshots(t *testing.T) {
	recs := []rec{crcRec(), metaRec(7), snapRec(0, 0), entryRec(1, 1), entryRec(1, 2), stateRec(1, 1), snapRec(1, 1)}
	ask := func(recs ...rec) string {
		disk := logOf(segmentOf{0, recs})
		snaps, err := wal.ValidSnapshots(disk, walDir, nil)
		if err != nil {
			t.Fatal(err)
		}
		var words []string
		for _, s := range snaps {
			words = append(words, fmt.Sprintf("%d.%d", s.Term, s.Index))
		}
		return strings.Join(words, " ")
	}
	if got := ask(recs...); got != "0.0 1.1" {
		t.Errorf("got %s", got)
	}
	if got := ask(append(recs, snapRec(2, 1))...); got != "0.0 1.1" {
		t.Errorf("a record above the last commit counts: %s", got)
	}
	if got := ask(append(recs, snapRec(2, 1), stateRec(1, 2))...); got != "0.0 1.1 1.2" {
		t.Errorf("a record that a later state covers does not count: %s", got)
	}
	good, _ := slowWrite(0, recs...)
	disk := fault.New()
	disk.Put(segmentPath(0, 0), good[:len(good)-1])
	if snaps, err := wal.ValidSnapshots(disk, walDir, nil); err != nil || len(snaps) != 1 {
		t.Errorf("torn end: %d records, %v, want the one before it", len(snaps), err)
	}
	disk.Corrupt(segmentPath(0, 0), 30, 0xee)
	if _, err := wal.ValidSnapshots(disk, walDir, nil); !errors.Is(err, wal.ErrCRCMismatch) {
		t.Errorf("damage: %v, want ErrCRCMismatch", err)
	}
}

// A purge may take the oldest segment between listing and opening: the reading begins again, 3 times at most.
func TestValidSnapshotsWhilePurging(t *testing.T) {
	for _, failures := range []int{2, 3} {
		disk := logOf(segmentOf{0, []rec{crcRec(), metaRec(7), snapRec(0, 0)}})
		n := 0
		disk.Before(func(op fault.Op) error {
			if op.Kind == fault.Open {
				if n++; n <= failures {
					return os.ErrNotExist
				}
			}
			return nil
		})
		snaps, err := wal.ValidSnapshots(disk, walDir, nil)
		if ok := err == nil && len(snaps) == 1; ok != (failures < 3) {
			t.Errorf("%d failures: %v, %v", failures, snaps, err)
		}
	}
}

// BC-63: an empty next segment, or leftovers of a crash, do not stop a member; they are completed or removed.
func TestEmptyFilesAndLeftovers(t *testing.T) {
	disk := logOf(segmentOf{0, []rec{crcRec(), metaRec(7), snapRec(0, 0), entryRec(1, 1), stateRec(1, 1)}},
		segmentOf{2, nil})
	disk.Put(segmentPath(1, 2), nil)
	disk.Put(walDir+"/0.tmp", []byte("stale head of a segment that never got its name"))
	disk.Put(walDir+"/1.tmp", nil)
	disk.Put(walDir+"/notes.txt", nil)
	w, got, err := wal.Open(config(disk), wal.Snapshot{})
	if err != nil || show(got.Entries) != "1.1" {
		t.Fatalf("entries %s, %v", show(got.Entries), err)
	}
	w.AppendEntry(wire.NewEntry(raftpb.EntryNormal, 1, 2, nil))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	names, _ := disk.List(walDir)
	if len(names) != 3 {
		t.Errorf("files %v, want two segments and the notes", names)
	}
	// The second segment has its head now, and can be read alone.
	c, err := wal.Read(disk, walDir, wal.Snapshot{Index: 2, Term: 1}, nil)
	if !errors.Is(err, wal.ErrSnapshotNotFound) {
		t.Errorf("read from the second segment: %+v, %v", c, err)
	}
	recs := slowRead(t, disk.Content(segmentPath(1, 2)), 0)
	if len(recs) != 4 || recs[1].typ != 1 || recs[2].typ != 3 || recs[3].typ != 2 {
		t.Errorf("the second segment holds %v", recs)
	}
	empty := fault.New()
	empty.Put(segmentPath(0, 0), nil)
	_, _, err = wal.Open(config(empty), wal.Snapshot{})
	if err == nil || !strings.Contains(err.Error(), segmentPath(0, 0)) {
		t.Errorf("an empty first segment: %v, want a refusal with the file's name", err)
	}
}

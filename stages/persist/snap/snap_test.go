package snap

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/persist/wal/fault"
)

const dirPath = "/member/snap"

func golden(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A file of etcd 3.7.3 is read, and written again byte for byte.
func TestFilesOfEtcd(t *testing.T) {
	for name, index := range map[string]uint64{"one-member.snap": 42, "learner-and-removed.snap": 21} {
		b := golden(t, name)
		s, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if m := s.GetMetadata(); m.GetIndex() != index || m.GetTerm() != 2 || len(m.GetConfState().GetVoters()) != 1 {
			t.Fatalf("%s: metadata %v", name, m)
		}
		if !bytes.Equal(Encode(s), b) {
			t.Fatalf("%s: encoded again, it differs", name)
		}
	}
}

// The image of the same cluster is the one etcd 3.7.3 made, byte for byte.
func TestV2ImageOfOneMember(t *testing.T) {
	s, err := Decode(golden(t, "one-member.snap"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := V2Image([]Member{{
		ID: 0xb2dc88b3914d12bc, PeerURLs: []string{"http://127.0.0.1:24501"},
		Name: "m1", ClientURLs: []string{"http://127.0.0.1:24500"},
	}}, nil, "3.7.0")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, s.GetData()) {
		t.Fatalf("got\n%s\nwant\n%s", got, s.GetData())
	}
}

// With learners, removed members and members that have not published, all but the order in which the members
// were written is as in etcd's: its order is that of a map.
func TestV2ImageOfSeveralMembers(t *testing.T) {
	s, err := Decode(golden(t, "learner-and-removed.snap"))
	if err != nil {
		t.Fatal(err)
	}
	members := []Member{
		{ID: 0xb2dc88b3914d12bc, PeerURLs: []string{"http://127.0.0.1:24501"}, Name: "m1",
			ClientURLs: []string{"http://127.0.0.1:24500"}},
		{ID: 0x9fed3678e223469e, PeerURLs: []string{"http://127.0.0.1:24521"}, Learner: true, Name: "ignored"},
	}
	got, err := V2Image(members, []uint64{0x6067030fff190e21}, "3.7.0")
	if err != nil {
		t.Fatal(err)
	}
	if a, b := orderless(t, got), orderless(t, s.GetData()); a != b {
		t.Fatalf("got\n%s\nwant\n%s", a, b)
	}
	slices.Reverse(members)
	again, err := V2Image(members, []uint64{0x6067030fff190e21}, "3.7.0")
	if err != nil || !bytes.Equal(got, again) {
		t.Fatalf("another order of members gives another image, %v", err)
	}
}

// orderless renders an image without indexes, its events sorted.
func orderless(t *testing.T, b []byte) string {
	t.Helper()
	var img map[string]any
	if err := json.Unmarshal(b, &img); err != nil {
		t.Fatal(err)
	}
	var strip func(v any)
	strip = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range []string{"CreatedIndex", "ModifiedIndex", "createdIndex", "modifiedIndex"} {
				delete(v, key)
			}
			for _, child := range v {
				strip(child)
			}
		case []any:
			for _, child := range v {
				strip(child)
			}
			slices.SortFunc(v, func(a, b any) int { return strings.Compare(text(t, a), text(t, b)) })
		}
	}
	strip(img)
	return text(t, img)
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The history keeps the newest thousand events.
func TestV2ImageHistoryIsBounded(t *testing.T) {
	removed := make([]uint64, 1500)
	for i := range removed {
		removed[i] = uint64(i + 1)
	}
	b, err := V2Image(nil, removed, "")
	if err != nil {
		t.Fatal(err)
	}
	var img image
	if err := json.Unmarshal(b, &img); err != nil {
		t.Fatal(err)
	}
	h, all := img.WatcherHub.EventHistory, img.Root.Children["0"].Children["removed_members"].Children
	if len(h.Queue.Events) != 1000 || h.Queue.Size != 1000 || h.StartIndex != 501 || h.LastIndex != 1500 ||
		h.Queue.Events[0].Node.CreatedIndex != 501 || len(all) != 1500 {
		t.Fatalf("history %d to %d of %d events", h.StartIndex, h.LastIndex, len(h.Queue.Events))
	}
}

func snapshot(term, index uint64) *raftpb.Snapshot {
	return &raftpb.Snapshot{
		Data: []byte("image"),
		Metadata: &raftpb.SnapshotMetadata{
			Term: &term, Index: &index,
			ConfState: &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}, AutoLeave: new(bool)},
		},
	}
}

func TestSaveAndNewest(t *testing.T) {
	disk := fault.New()
	d := Open(Config{Disk: disk, Path: dirPath})
	if err := disk.MkdirAll(dirPath, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Newest(); !errors.Is(err, ErrNotFound) {
		t.Fatalf("empty directory: %v, want ErrNotFound", err)
	}
	for i := uint64(1); i <= 3; i++ {
		if _, err := d.Save(snapshot(1, i*10)); err != nil {
			t.Fatal(err)
		}
	}
	disk.Put(dirPath+"/"+Name(1, 40), nil)                          // a crash before the first byte
	disk.Put(dirPath+"/"+Name(1, 50), Encode(snapshot(1, 50))[:40]) // and in the middle
	flipped := Encode(snapshot(1, 60))
	flipped[len(flipped)-1] ^= 1
	disk.Put(dirPath+"/"+Name(1, 60), flipped)
	s, err := d.Newest()
	if err != nil || !proto.Equal(s, snapshot(1, 30)) {
		t.Fatalf("newest is %v, %v, want index 30", s, err)
	}
	names, _ := disk.List(dirPath)
	broken := 0
	for _, name := range names {
		if strings.HasSuffix(name, ".snap.broken") {
			broken++
		}
	}
	if broken != 3 || len(names) != 6 {
		t.Fatalf("files %v, want three put aside", names)
	}
}

// Contract section 3: what makes a file invalid.
func TestDecodeRefuses(t *testing.T) {
	good := Encode(snapshot(1, 1))
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"empty file":     {nil, ErrEmpty},
		"no data":        {[]byte{8, 1}, ErrEmpty},
		"empty data":     {[]byte{8, 1, 0x12, 0}, ErrEmpty},
		"no crc":         {good[bytes.IndexByte(good, 0x12):], ErrEmpty},
		"crc mismatch":   {append([]byte{8, 1}, good[bytes.IndexByte(good[1:], 0x12)+1:]...), ErrCRCMismatch},
		"changed byte":   {append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^8), ErrCRCMismatch},
		"truncated":      {good[:len(good)-1], nil},
		"not a protobuf": {[]byte{0xff, 0xff}, nil},
	} {
		_, err := Decode(c.b)
		if err == nil || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(snapshot(1, 1)))
	f.Add([]byte{8, 1, 0x12, 1, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(Encode(s))
		if err != nil || again.GetMetadata().GetIndex() != s.GetMetadata().GetIndex() ||
			!bytes.Equal(again.GetData(), s.GetData()) {
			t.Fatalf("%v came back as %v, %v", s, again, err)
		}
	})
}

// A snapshot that could not be made durable leaves no file.
func TestFailedSave(t *testing.T) {
	for _, kind := range []fault.Kind{fault.Write, fault.Sync, fault.SyncDir} {
		disk := fault.New()
		d := Open(Config{Disk: disk, Path: dirPath})
		disk.Before(func(op fault.Op) error {
			if op.Kind == kind {
				return syscall.ENOSPC
			}
			return nil
		})
		if _, err := d.Save(snapshot(1, 1)); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("save: %v, want ENOSPC", err)
		}
		if names, _ := disk.List(dirPath); len(names) > 0 && kind != fault.SyncDir {
			t.Fatalf("files %v after a failed %v", names, kind)
		}
	}
}

// Contract 1.3 and 1.4.
func TestCleanUpReleaseAndPurge(t *testing.T) {
	disk := fault.New()
	d := Open(Config{Disk: disk, Path: dirPath})
	for _, name := range []string{"db", "tmp123", "tmpfoo", "db.tmp.77", Name(1, 1), Name(1, 2), Name(1, 3),
		"0000000000000002.snap.db", "0000000000000005.snap.db", "0000000000000009.snap.db", "x.snap.db"} {
		disk.Put(dirPath+"/"+name, []byte("x"))
	}
	removed, err := d.CleanUp()
	if err != nil || !slices.Equal(removed, []string{"db.tmp.77", "tmp123", "tmpfoo"}) {
		t.Fatalf("cleaned up %v, %v", removed, err)
	}
	removed, err = d.ReleaseDB(5)
	if err != nil || !slices.Equal(removed, []string{"0000000000000002.snap.db"}) {
		t.Fatalf("released %v, %v", removed, err)
	}
	if err := d.Purge(0); err != nil {
		t.Fatal(err)
	}
	if err := d.Purge(2); err != nil {
		t.Fatal(err)
	}
	names, _ := disk.List(dirPath)
	want := []string{Name(1, 2), Name(1, 3), "0000000000000009.snap.db", "db", "x.snap.db"}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Fatalf("files %v, want %v", names, want)
	}
	if d.DBPath(0x1f) != dirPath+"/000000000000001f.snap.db" {
		t.Fatalf("path %s", d.DBPath(0x1f))
	}
}

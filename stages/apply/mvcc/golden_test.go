package mvcc

import (
	"encoding/hex"
	"errors"
	"testing"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

// goldenRecords are the records of contract/disk-and-peer.md 15.3.
var goldenRecords = [][2]string{
	{"00000000000000025f0000000000000000", "0a01611002180220012a0131"},
	{"00000000000000035f0000000000000000", "0a01621003180320012a0132"},
	{"00000000000000045f0000000000000000", "0a01611002180420022a0133"},
	{"00000000000000055f000000000000000074", "0a0161"},
	{"00000000000000065f0000000000000000", "0a026c611006180620012a01783088dcefc1f1c5a8cf4f"},
	{"00000000000000075f0000000000000000", "0a026c621007180720012a01793088dcefc1f1c5a8cf4f"},
	{"00000000000000085f0000000000000000", "0a01631008180820012a0131"},
	{"00000000000000085f0000000000000001", "0a01641008180820012a0132"},
	{"00000000000000085f000000000000000274", "0a0162"},
	{"00000000000000095f0000000000000000", "0a026c631009180920012a017a3088dcefc1f1c5a8cf4f"},
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

// goldenStore makes the history of the golden records through the API.
func goldenStore(t *testing.T) (*Store, *memory, *leases, int64) {
	t.Helper()
	var kv wire.KeyValue
	if err := kv.Decode(unhex(goldenRecords[4][1])); err != nil {
		t.Fatal(err)
	}
	m, l := newMemory(), newLeases(kv.Lease)
	s, err := Load(m.snapshot(), m, Config{}, l)
	if err != nil {
		t.Fatal(err)
	}
	put := func(k, v string, lease int64) {
		if _, err := s.Put(&wire.PutRequest{Key: []byte(k), Value: []byte(v), Lease: lease}); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "1", 0)
	put("b", "2", 0)
	put("a", "3", 0)
	if _, err := s.DeleteRange(&wire.DeleteRangeRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	put("la", "x", kv.Lease)
	put("lb", "y", kv.Lease)
	if _, err := s.Txn(&wire.TxnRequest{Success: []wire.RequestOp{
		{Put: &wire.PutRequest{Key: []byte("c"), Value: []byte("1")}},
		{Put: &wire.PutRequest{Key: []byte("d"), Value: []byte("2")}},
		{Delete: &wire.DeleteRangeRequest{Key: []byte("b")}},
	}}); err != nil {
		t.Fatal(err)
	}
	put("lc", "z", kv.Lease)
	return s, m, l, kv.Lease
}

// TestGoldenRecords: the records are etcd's, byte for byte (contract/disk-and-peer.md 15.3).
func TestGoldenRecords(t *testing.T) {
	s, m, l, lease := goldenStore(t)
	n := 0
	m.Scan(backend.Key, nil, nil, func(key, value []byte) bool {
		if got, want := hex.EncodeToString(key), goldenRecords[n][0]; got != want {
			t.Errorf("record %d: key %s, want %s", n, got, want)
		}
		if got, want := hex.EncodeToString(value), goldenRecords[n][1]; got != want {
			t.Errorf("record %d: value %s, want %s", n, got, want)
		}
		n++
		return true
	})
	if n != len(goldenRecords) || s.Revision() != 9 {
		t.Fatalf("%d records, revision %d", n, s.Revision())
	}
	if got := l.of(lease); len(got) != 3 {
		t.Fatalf("lease holds %q", got)
	}
}

// TestGoldenRevoke: lease revoke deletes in byte order in one revision (contract/disk-and-peer.md 15.3).
func TestGoldenRevoke(t *testing.T) {
	s, m, l, lease := goldenStore(t)
	if res := s.DeleteKeys(l.of(lease)); !res.Changed || res.Revision != 10 {
		t.Fatalf("%+v", res)
	}
	if got := l.of(lease); len(got) != 0 {
		t.Fatalf("lease still holds %q", got)
	}
	for i, key := range []string{"la", "lb", "lc"} {
		rec := revision{10, uint32(i) | tombstone}
		got := m.Get(backend.Key, rec.append(nil))
		if want := append([]byte{0x0a, 2}, key...); string(got) != string(want) {
			t.Errorf("%s: %x", key, got)
		}
	}
	if res := s.DeleteKeys([]string{"la", "lb"}); res.Changed || res.Revision != 10 {
		t.Fatalf("deleting nothing: %+v", res)
	}
}

type hashCase struct {
	rev     int64
	hash    uint32
	compact int64
}

func checkHashes(t *testing.T, v *View, cases ...hashCase) {
	t.Helper()
	for _, c := range cases {
		hash, compact, rev, err := v.HashKV(c.rev)
		if err != nil || hash != c.hash || compact != c.compact || rev != c.rev && c.rev != 0 {
			t.Errorf("HashKV(%d) = %d, %d, %d, %v; want %d, %d", c.rev, hash, compact, rev, err, c.hash, c.compact)
		}
	}
}

// compact carries out a whole compaction in batches of batch records.
func compact(t *testing.T, s *Store, m *memory, rev int64, batch int) {
	t.Helper()
	if err := s.Compact(rev); err != nil {
		t.Fatal(err)
	}
	finish(t, s, m, batch)
}

// finish carries out the compactions that are due.
func finish(t *testing.T, s *Store, m *memory, batch int) {
	t.Helper()
	for s.Publish(m.snapshot()); ; {
		c := s.NextCompaction()
		if c == nil {
			return
		}
		for done := false; !done; {
			var deletes [][]byte
			deletes, done = c.Next(s.Publish(m.snapshot()), batch)
			s.CompactionDeletes(deletes)
		}
		s.FinishCompaction(c)
		for !s.SweepIndex(3) {
			s.Publish(m.snapshot())
		}
	}
}

// TestGoldenHash: HashKV and the compaction hashes are etcd's (contract/disk-and-peer.md 15.3).
func TestGoldenHash(t *testing.T) {
	for _, batch := range []int{1, 2, 1000} {
		s, m, _, _ := goldenStore(t)
		checkHashes(t, s.Publish(m.snapshot()),
			hashCase{9, 183324069, -1}, hashCase{0, 183324069, -1},
			hashCase{6, 2776257294, -1}, hashCase{3, 1827592406, -1})
		if err := s.Compact(5); err != nil {
			t.Fatal(err)
		}
		// An unfinished compaction gives the same hash.
		checkHashes(t, s.Publish(m.snapshot()), hashCase{9, 2255928085, 5}, hashCase{7, 2859080356, 5})
		finish(t, s, m, batch)
		checkHashes(t, s.Publish(m.snapshot()),
			hashCase{9, 2255928085, 5}, hashCase{7, 2859080356, 5}, hashCase{5, 1346927904, -1})
		if m.buckets[backend.Key].Len() != 8 {
			t.Errorf("%d records after compaction to 5, want 8", m.buckets[backend.Key].Len())
		}
		compact(t, s, m, 8, batch)
		v := s.Publish(m.snapshot())
		checkHashes(t, v, hashCase{9, 1061363680, 8}, hashCase{8, 1202895283, 5}, hashCase{5, 1346927904, -1})
		if _, _, _, err := v.HashKV(7); !errors.Is(err, ErrCompacted) {
			t.Errorf("hash below the compaction: %v", err)
		}
		if _, _, _, err := v.HashKV(10); !errors.Is(err, ErrFutureRev) {
			t.Errorf("hash of the future: %v", err)
		}
		// After a restart the cached ones are gone, and nothing else changes.
		s, err := Load(m.snapshot(), m, Config{}, newLeases())
		if err != nil {
			t.Fatal(err)
		}
		checkHashes(t, s.Publish(m.snapshot()), hashCase{9, 1061363680, 8})
		if s.NextCompaction() != nil {
			t.Error("a finished compaction is due again")
		}
	}
}

// TestGoldenHashTombstoneOnly: when nothing but a tombstone stays, the compaction's keep set is not empty
// though no key lives; values taken from etcd 3.7.3.
func TestGoldenHashTombstoneOnly(t *testing.T) {
	m := newMemory()
	s, err := Load(m.snapshot(), m, Config{}, newLeases())
	if err != nil {
		t.Fatal(err)
	}
	put := func(k, v string) { mustPut(t, s, k, v) }
	put("a", "1")
	put("a", "2")
	compact(t, s, m, 2, 10)
	s.DeleteRange(&wire.DeleteRangeRequest{Key: []byte("a")})
	checkHashes(t, s.Publish(m.snapshot()), hashCase{0, 1363947557, 2})
	compact(t, s, m, 4, 10)
	checkHashes(t, s.Publish(m.snapshot()),
		hashCase{4, 573317793, 2}, hashCase{2, 2587454935, -1}, hashCase{-1, 1084519789, 4}, hashCase{0, 1084519789, 4})
	if _, _, _, err := s.Publish(m.snapshot()).HashKV(3); !errors.Is(err, ErrCompacted) {
		t.Error(err)
	}
	put("b", "1")
	put("b", "2")
	compact(t, s, m, 5, 10)
	compact(t, s, m, 6, 10)
	checkHashes(t, s.Publish(m.snapshot()),
		hashCase{6, 2387219286, 5}, hashCase{5, 800756125, 4}, hashCase{4, 573317793, 2}, hashCase{0, 2387219286, 6})
}

// TestBumpedRestore: a restore with a bumped revision leaves a record without a value at a scheduled
// compaction (contract/disk-and-peer.md 14.2); hashes taken from etcd 3.7.3 started on such a directory.
func TestBumpedRestore(t *testing.T) {
	m := newMemory()
	for i := range int64(4) {
		a := wire.KeyValue{Key: []byte("a"), CreateRevision: 2, ModRevision: 2 + 2*i, Version: i + 1}
		b := wire.KeyValue{Key: []byte("b"), CreateRevision: 3, ModRevision: 3 + 2*i, Version: i + 1}
		a.Value = []byte{byte('1' + i)}
		b.Value = a.Value
		m.Put(backend.Key, revision{main: 2 + 2*i}.append(nil), a.Append(nil))
		m.Put(backend.Key, revision{main: 3 + 2*i}.append(nil), b.Append(nil))
	}
	m.Put(backend.Key, revision{10, tombstone}.append(nil), []byte("\x0a\x01b"))
	m.Put(backend.Key, revision{main: 110}.append(nil), []byte{})
	m.Put(backend.Meta, []byte(metaScheduled), revision{main: 110}.append(nil))
	s, err := Load(m.snapshot(), m, Config{}, newLeases())
	if err != nil {
		t.Fatal(err)
	}
	if s.Revision() != 110 || s.CompactRevision() != 110 {
		t.Fatal(s.String())
	}
	checkHashes(t, s.Publish(m.snapshot()), hashCase{0, 2623512383, 110})
	finish(t, s, m, 2)
	checkHashes(t, s.Publish(m.snapshot()), hashCase{0, 2623512383, 110}, hashCase{110, 2623512383, 110})
	if n := m.buckets[backend.Key].Len(); n != 2 {
		t.Errorf("%d records left, want a's newest and the mark", n)
	}
	if res := mustPut(t, s, "c", "1"); res.Revision != 111 {
		t.Fatalf("next put got %d", res.Revision)
	}
	v := s.Publish(m.snapshot())
	checkHashes(t, v, hashCase{0, 3677244108, 110})
	got := rangeOf(t, v, &wire.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if got.Count != 2 || len(got.Kvs) != 2 {
		t.Errorf("every key: %v", got)
	}
	n := 0
	if err := v.History(110, 111, func(ev *wire.Event) bool { n++; return true }); err != nil || n != 1 {
		t.Errorf("history from the mark: %d events, %v", n, err)
	}
}

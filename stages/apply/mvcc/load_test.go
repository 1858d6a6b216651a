package mvcc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

// TestLoadInParts: however many parts load builds, the store is the one that was written.
func TestLoadInParts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	mem, l := newMemory(), newLeases(7)
	s, err := Load(mem.snapshot(), mem, Config{}, l)
	if err != nil {
		t.Fatal(err)
	}
	for range 30_000 {
		key := []byte(fmt.Sprintf("%x", rnd.Uint32N(9000)))
		if rnd.IntN(8) == 0 {
			s.DeleteRange(&wire.DeleteRangeRequest{Key: key})
			continue
		}
		value := bytes.Repeat(key, rnd.IntN(20))
		if rnd.IntN(2000) == 0 {
			value = make([]byte, slabBytes/slabSingle+rnd.IntN(1000)) // a slab of its own
		}
		if _, err := s.Put(&wire.PutRequest{Key: key, Value: value, Lease: 7 * rnd.Int64N(2)}); err != nil {
			t.Fatal(err)
		}
	}
	all := &wire.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
	old := *all
	old.Revision = s.Revision() / 2
	v := s.Publish(mem.snapshot())
	want, wantOld := rangeOf(t, v, all), rangeOf(t, v, &old)
	recs, err := loadRecords(mem)
	if err != nil {
		t.Fatal(err)
	}
	for _, parts := range []int{1, 2, 3, 7, 100} {
		l2 := newLeases(7)
		s2 := newStore(mem.snapshot(), mem, Config{ValueCacheBytes: 64 << 20}, l2)
		s2.rev = s.rev
		if err := s2.build(recs, parts); err != nil {
			t.Fatal(err)
		}
		r := &random{T: t, s: s2}
		r.invariants()
		v := s2.Publish(mem.snapshot())
		for _, c := range []struct {
			req  *wire.RangeRequest
			want *pb.RangeResponse
		}{{all, want}, {&old, wantOld}} {
			if got := rangeOf(t, v, c.req); got.String() != c.want.String() {
				t.Fatalf("%d parts: answer to %+v differs", parts, c.req)
			}
		}
		if !slices.Equal(l2.of(7), l.of(7)) {
			t.Fatalf("%d parts: lease keys differ", parts)
		}
		// What was loaded can be changed.
		mustPut(t, s2, want.String()[:20], "x")
		s2.DeleteRange(&wire.DeleteRangeRequest{Key: []byte("3"), RangeEnd: []byte("7")})
		r.invariants()
	}
}

// TestLoadRefusesDamage: records that cannot be read end the start with their revision, not with a panic.
func TestLoadRefusesDamage(t *testing.T) {
	good := wire.KeyValue{Key: []byte("k"), CreateRevision: 2, ModRevision: 2, Version: 1, Value: []byte("v")}
	for name, c := range map[string]struct {
		bucket     backend.Bucket
		key, value []byte
		want       string
	}{
		"short key":     {backend.Key, []byte("short"), nil, "is no revision"},
		"long key":      {backend.Key, append(revision{main: 2}.append(nil), 'x'), nil, "is no revision"},
		"sub too large": {backend.Key, unhex("00000000000000025fffffffff00000000"), nil, "out of range"},
		"key cut":       {backend.Key, revision{main: 2}.append(nil), []byte{0x0a, 9, 'k'}, "record 2.0"},
		"tail cut":      {backend.Key, revision{main: 2}.append(nil), good.Append(nil)[:good.Size()-1], "record 2.0"},
		"bad tag":       {backend.Key, revision{main: 2}.append(nil), []byte{0x10, 1, 0x07}, "record 2.0"},
		"meta":          {backend.Meta, []byte(metaFinished), []byte("?"), metaFinished},
		"meta too":      {backend.Meta, []byte(metaScheduled), []byte("?"), metaScheduled},
	} {
		mem := newMemory()
		mem.Put(c.bucket, c.key, c.value)
		if _, err := Load(mem, mem, Config{}, newLeases()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Another order of fields is as good.
	mem := newMemory()
	mem.Put(backend.Key, revision{main: 2}.append(nil), []byte("\x10\x02\x18\x02\x20\x01\x0a\x01k\x2a\x01v"))
	s, err := Load(mem, mem, Config{}, newLeases())
	if err != nil {
		t.Fatal(err)
	}
	if kv, ok := s.Publish(mem).Get([]byte("k"), 0); !ok || string(recordValue(kv)) != "v" {
		t.Error("record with another field order is not found")
	}
}

// TestRevisionAtBoot: the current revision is the highest of the last record and the compaction revisions,
// so that it does not go back when the records of the last revisions were compacted away (BC-62).
func TestRevisionAtBoot(t *testing.T) {
	mem := newMemory()
	s, err := Load(mem, mem, Config{}, newLeases())
	if err != nil || s.Revision() != 1 || s.CompactRevision() != -1 {
		t.Fatal(s, err)
	}
	mustPut(t, s, "foo", "1")
	s.DeleteRange(&wire.DeleteRangeRequest{Key: []byte("foo")})
	compact(t, s, mem, 3, 100)
	mustPut(t, s, "foo", "2") // 4
	s.DeleteRange(&wire.DeleteRangeRequest{Key: []byte("foo")})
	mustPut(t, s, "bar", "2") // 6
	s.DeleteRange(&wire.DeleteRangeRequest{Key: []byte("bar")})
	compact(t, s, mem, 6, 1)
	for _, key := range []string{metaScheduled, metaFinished} {
		mem.Put(backend.Meta, []byte(key), revision{main: 9}.append(nil))
	}
	s, err = Load(mem, mem, Config{}, newLeases())
	if err != nil || s.Revision() != 9 || s.CompactRevision() != 9 {
		t.Fatal(s, err)
	}
	if res := mustPut(t, s, "foo", "3"); res.Revision != 10 {
		t.Fatalf("next put got %d", res.Revision)
	}
}

// TestResume: a compaction that a restart interrupted, at any point, is due again, ends with the same
// records, and its hash is not kept.
func TestResume(t *testing.T) {
	for steps := range 12 {
		s, mem, _, lease := goldenStore(t)
		want, wantMem, _, _ := goldenStore(t)
		compact(t, want, wantMem, 8, 100)
		if err := s.Compact(8); err != nil {
			t.Fatal(err)
		}
		v := s.Publish(mem.snapshot())
		c := s.NextCompaction()
		for range steps {
			deletes, done := c.Next(v, 1)
			s.CompactionDeletes(deletes)
			if done && steps < 11 {
				break
			}
		}
		s, err := Load(mem.snapshot(), mem, Config{}, newLeases(lease))
		if err != nil {
			t.Fatal(err)
		}
		if s.CompactRevision() != 8 || s.Revision() != 9 {
			t.Fatal(s)
		}
		v = s.Publish(mem.snapshot())
		if err := v.Range(&wire.RangeRequest{Key: []byte("a"), Revision: 7}, &buffer{}); err != ErrCompacted {
			t.Fatalf("read below a resumed compaction: %v", err)
		}
		checkHashes(t, v, hashCase{9, 1061363680, 8})
		finish(t, s, mem, 2)
		checkHashes(t, s.Publish(mem.snapshot()), hashCase{9, 1061363680, 8})
		if hash, prev, _, err := s.Publish(mem.snapshot()).HashKV(8); err != nil || prev != 8 {
			t.Fatalf("hash of a resumed compaction was kept: %d, %d, %v", hash, prev, err)
		}
		var got, wants []string
		collect := func(to *[]string) func(key, _ []byte) bool {
			return func(key, _ []byte) bool {
				*to = append(*to, string(key))
				return true
			}
		}
		mem.Scan(backend.Key, nil, nil, collect(&got))
		wantMem.Scan(backend.Key, nil, nil, collect(&wants))
		if !slices.Equal(got, wants) {
			t.Fatalf("records after resuming: %q, want %q", got, wants)
		}
	}
}

// FuzzLoad: whatever two records hold, Load takes them or says what is wrong; what it takes can be read.
func FuzzLoad(f *testing.F) {
	for i := range len(goldenRecords) - 1 {
		a, b := goldenRecords[i], goldenRecords[i+1]
		f.Add(unhex(a[0]), unhex(a[1]), unhex(b[0]), unhex(b[1]), unhex(a[0])[:revisionBytes])
	}
	f.Add(revision{main: 2}.append(nil), []byte{}, revision{3, tombstone}.append(nil), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, key1, value1, key2, value2, scheduled []byte) {
		mem := newMemory()
		mem.Put(backend.Key, key1, append([]byte{}, value1...))
		mem.Put(backend.Key, key2, append([]byte{}, value2...))
		if len(scheduled) > 0 {
			mem.Put(backend.Meta, []byte(metaScheduled), scheduled)
		}
		s, err := Load(mem, mem, Config{}, newLeases())
		if err != nil {
			return
		}
		v := s.Publish(mem)
		rangeOf(t, v, &wire.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, KeysOnly: true, SortTarget: 3})
		if _, _, _, err := v.HashKV(0); err != nil {
			t.Fatal(err)
		}
	})
}

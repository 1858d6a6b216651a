package lease

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sluice/stages/apply/backend"
	"sluice/stages/apply/buckets"
)

func load(t testing.TB, m *buckets.Memory) *Set {
	t.Helper()
	s, err := Load(m, m, 2)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func keys(k interface {
	Keys(int64, func(string) bool)
}, id int64) []string {
	var out []string
	k.Keys(id, func(key string) bool { out = append(out, key); return true })
	return out
}

// TestGrantRules: the order of the checks and the bounds of the TTL, at, below and above.
//
// Rule: contract/client-api.md section 8.1; contract/disk-and-peer.md section 9.2.
func TestGrantRules(t *testing.T) {
	s := load(t, buckets.New())
	for _, c := range []struct {
		id, ttl, want int64
		err           error
	}{
		{1, 600, 600, nil},
		{1, 600, 0, ErrExists},
		{1, TTLMax + 1, 0, ErrTTLTooLarge},
		{0, TTLMax + 1, 0, ErrTTLTooLarge},
		{0, 600, 0, ErrNotFound},
		{2, 1, 2, nil}, {3, 2, 2, nil}, {4, 3, 3, nil}, {5, 0, 2, nil}, {6, -7, 2, nil}, {7, TTLMax, TTLMax, nil},
		{-5, 300, 300, nil}, {math.MinInt64, 9, 9, nil},
	} {
		got, err := s.Grant(c.id, c.ttl)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("grant %d ttl %d: %d, %v, want %d, %v", c.id, c.ttl, got, err, c.want, c.err)
		}
	}
}

// TestStoredForm compares with the bytes of contract section 4.4, and BC-31: a negative id survives a restart.
func TestStoredForm(t *testing.T) {
	m := buckets.New()
	s := load(t, m)
	const id = 0x4f9ea22f183bee08
	for _, l := range []int64{id, -5} {
		if _, err := s.Grant(l, 600); err != nil {
			t.Fatal(err)
		}
	}
	want := "lease 4f9ea22f183bee08 = 0888dcefc1f1c5a8cf4f10d804\n" +
		"lease fffffffffffffffb = 08fbffffffffffffffff0110d804\n"
	if got := buckets.Dump(m); got != want {
		t.Errorf("bucket\n%swant\n%s", got, want)
	}
	back := load(t, m)
	if !back.Exists(-5) || !back.Exists(id) {
		t.Error("a lease is lost at restart")
	}
	if err := back.Checkpoint(-5, 42, true); err != nil {
		t.Fatal(err)
	}
	if i, _ := load(t, m).Publish().Get(-5); i.Remaining != 42 || i.TTL != 600 {
		t.Errorf("after the checkpoint: %+v", i)
	}
	if err := back.Checkpoint(-5, 0, true); err != nil {
		t.Fatal(err)
	}
	if i, _ := load(t, m).Publish().Get(-5); i.Remaining != 0 {
		t.Errorf("after the renewal: %+v", i)
	}
	if _, err := back.Revoke(-5); err != nil || m.Get(backend.Lease, bucketKey(-5)) != nil {
		t.Errorf("revoke of the negative id: %v", err)
	}
	if _, err := back.Revoke(-5); !errors.Is(err, ErrNotFound) {
		t.Errorf("revoke again: %v", err)
	}
	if err := back.Checkpoint(-5, 1, true); !errors.Is(err, ErrNotFound) {
		t.Errorf("checkpoint of the revoked: %v", err)
	}
}

// TestLoadRefusesGarbage: a record that belongs to another key, or is none, is named.
func TestLoadRefusesGarbage(t *testing.T) {
	for _, v := range [][]byte{{0x08, 0x07}, {0x08}, {0xff}} {
		m := buckets.New()
		m.Put(backend.Lease, bucketKey(8), v)
		if _, err := Load(m, m, 2); err == nil || !strings.Contains(err.Error(), "0000000000000008") {
			t.Errorf("record %x: %v", v, err)
		}
	}
}

// TestAgainstModel runs random operations on the Set and on plain maps, and keeps every published Table with the
// model's state of then: none of them may move afterwards.
func TestAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := load(t, buckets.New())
	model := map[int64]map[string]bool{}
	type kept struct {
		table *Table
		want  string
	}
	var tables []kept
	show := func() string {
		var ids []int64
		for id := range model {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		out := ""
		for _, id := range ids {
			var ks []string
			for k := range model[id] {
				ks = append(ks, k)
			}
			slices.Sort(ks)
			out += fmt.Sprint(id, ks, " ")
		}
		return out
	}
	showTable := func(tb *Table) string {
		out := ""
		tb.Each(func(i Info) bool { out += fmt.Sprint(i.ID, keys(tb, i.ID), " "); return true })
		return out
	}
	for range 3000 {
		id, key := int64(rnd.IntN(6))+1, fmt.Sprint("k", rnd.IntN(40))
		switch rnd.IntN(8) {
		case 0:
			if _, err := s.Grant(id, 10); err == nil {
				model[id] = map[string]bool{}
			}
		case 1:
			if rnd.IntN(8) > 0 {
				continue
			}
			ks, err := s.Revoke(id)
			if (err == nil) != (model[id] != nil) || !slices.IsSorted(ks) || len(ks) != len(model[id]) {
				t.Fatalf("revoke %d: %v, %v, want %v", id, ks, err, model[id])
			}
			delete(model, id)
		case 2, 3, 4:
			s.Attach(id, key)
			if model[id] != nil {
				model[id][key] = true
			}
		case 5, 6:
			s.Detach(id, key)
			delete(model[id], key)
		case 7:
			tables = append(tables, kept{s.Publish(), show()})
		}
	}
	tables = append(tables, kept{s.Publish(), show()})
	for i, k := range tables {
		if got := showTable(k.table); got != k.want {
			t.Fatalf("table %d of %d:\n%s, want\n%s", i, len(tables), got, k.want)
		}
	}
}

// TestHugeLease is BC-41: with 100 000 keys on one lease, one more key costs a publication a few pages, not a copy
// of the keys.
func TestHugeLease(t *testing.T) {
	s := load(t, buckets.New())
	if _, err := s.Grant(1, 10); err != nil {
		t.Fatal(err)
	}
	const n = 100_000
	for i := range n {
		s.Attach(1, fmt.Sprintf("key%06d", i))
	}
	s.Publish()
	next := n
	allocs := testing.AllocsPerRun(100, func() {
		s.Attach(1, fmt.Sprintf("key%06d", next))
		next++
		s.Publish()
	})
	if allocs > 40 {
		t.Errorf("%.0f allocations for one more key and a view, want at most 40", allocs)
	}
	ks, err := s.Revoke(1)
	if err != nil || len(ks) != next || !slices.IsSorted(ks) {
		t.Errorf("revoke: %d keys, %v, want %d in order", len(ks), err, next)
	}
}

// TestPublishWithoutChange: an unchanged set is published without a copy.
func TestPublishWithoutChange(t *testing.T) {
	s := load(t, buckets.New())
	if _, err := s.Grant(1, 10); err != nil {
		t.Fatal(err)
	}
	first := s.Publish()
	s.Detach(1, "never attached")
	if s.Publish() != first {
		t.Error("a new table without a change")
	}
	s.Attach(9, "orphan")
	if s.Orphans() != 1 || s.Publish() != first {
		t.Errorf("%d orphans; an orphan changes nothing", s.Orphans())
	}
}

// FuzzDecode: no record makes the start fail otherwise than by an error, and what is read is written alike.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x08, 0x07, 0x10, 0x3c})
	f.Add([]byte{0x08, 0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x18, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			return
		}
		again, err := decode(r.encode())
		if err != nil || *again != *r {
			t.Errorf("%x: %+v, written and read again %+v, %v", b, r, again, err)
		}
	})
}

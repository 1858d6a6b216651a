package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// model is the naive version: a map per bucket, copied at every Acquire.
type model [buckets]map[string]string

func newModel() model {
	var m model
	for i := range m {
		m[i] = map[string]string{}
	}
	return m
}

func (m model) clone() model {
	for i := range m {
		m[i] = maps.Clone(m[i])
	}
	return m
}

// held is a snapshot and what it must show.
type held struct {
	*Snapshot
	want model
}

// script drives a backend and a model with the same random operations.
type script struct {
	*running
	rnd   *rand.Rand
	want  model
	held  []held
	rev   int64
	index uint64
	tiny  bool // the mapping is outgrown again and again: what is held must be released for the writer
	moved chan error
}

func (s *script) value() []byte {
	size := s.rnd.IntN(64)
	if s.rnd.IntN(20) == 0 {
		size = s.rnd.IntN(9000)
	}
	return bytes.Repeat([]byte{byte('a' + s.rnd.IntN(26))}, size)
}

func (s *script) put(b Bucket, key, value []byte) {
	s.Writer().Put(b, key, value)
	s.want[b][string(key)] = string(value)
}

func (s *script) delete(b Bucket, key []byte) {
	s.Writer().Delete(b, key)
	delete(s.want[b], string(key))
}

// key of bucket key that was written, or could have been.
func (s *script) oldKey() []byte { return revKey(1+s.rnd.Int64N(s.rev+2), s.rnd.Int64N(2)) }

func (s *script) other() (Bucket, []byte) {
	b := []Bucket{Alarm, Auth, Cluster, Lease, Members}[s.rnd.IntN(5)]
	return b, fmt.Appendf(nil, "k%d", s.rnd.IntN(40))
}

func (s *script) step() {
	switch n := s.rnd.IntN(100); {
	case n < 40:
		s.rev++
		s.put(Key, revKey(s.rev, 0), s.value())
	case n < 50:
		s.delete(Key, s.oldKey())
	case n < 54:
		s.put(Key, s.oldKey(), s.value())
	case n < 66:
		b, k := s.other()
		s.put(b, k, s.value())
	case n < 72:
		b, k := s.other()
		s.delete(b, k)
	case n < 82:
		s.held = append(s.held, held{s.Acquire(), s.want.clone()})
		if len(s.held) > 8 {
			s.release(s.rnd.IntN(len(s.held)))
		}
	case n < 88:
		s.check()
	case n < 95:
		s.sealNext()
	case n < 98:
		if s.tiny {
			s.releaseAll()
		}
		s.flushNow()
	default:
		s.defragment()
	}
}

func (s *script) sealNext() {
	if len(s.slots) == sealedMax && s.tiny {
		s.releaseAll()
	}
	s.index++
	s.fresh(func() error { return s.Seal(context.Background(), Seal{Index: s.index, Term: 1}) })
}

func (s *script) flushNow() {
	s.fresh(func() error { return s.Flush(context.Background()) })
}

// fresh does what apply does about ErrStale.
func (s *script) fresh(try func() error) {
	for {
		err := try()
		if err == nil {
			return
		}
		if !errors.Is(err, ErrStale) {
			s.t.Fatal(err)
		}
		fresh := held{s.Acquire(), s.want.clone()}
		s.releaseAll()
		s.held = append(s.held, fresh)
	}
}

func (s *script) release(i int) {
	s.held[i].Release()
	s.held = slices.Delete(s.held, i, i+1)
}

func (s *script) releaseAll() {
	for len(s.held) > 0 {
		s.release(0)
	}
}

// check compares one snapshot with its model: every bucket, a range and single keys.
func (s *script) check() {
	if len(s.held) == 0 {
		return
	}
	h := s.held[s.rnd.IntN(len(s.held))]
	if s.tiny { // older ones would keep the writer from fulfilling what h may have been promised
		h.Retain()
		s.releaseAll()
		s.held = append(s.held, h)
	}
	h.check(s.t, s.rnd)
}

func (h held) check(t testing.TB, rnd *rand.Rand) {
	t.Helper()
	for b := range Bucket(buckets) {
		got := map[string]string{}
		var last []byte
		h.Scan(b, nil, nil, func(k, v []byte) bool {
			if last != nil && bytes.Compare(last, k) >= 0 {
				t.Fatalf("%s: key %q after %q", b, k, last)
			}
			last = k
			got[string(k)] = string(v)
			return true
		})
		if b == Meta {
			continue // the seals are in it
		}
		if !maps.Equal(got, h.want[b]) {
			t.Fatalf("%s: scan of %d keys differs from the model's %d", b, len(got), len(h.want[b]))
		}
		keys := slices.Sorted(maps.Keys(got))
		keys = append(keys, "k", "absent", string(revKey(1<<40, 0)))
		for range 10 {
			k := keys[rnd.IntN(len(keys))]
			value := h.Get(b, []byte(k))
			if want, ok := h.want[b][k]; ok != (value != nil) || want != string(value) {
				t.Fatalf("%s: get of %q gives %q, want %q (%t)", b, k, value, want, ok)
			}
		}
		from, to := keys[rnd.IntN(len(keys))], keys[rnd.IntN(len(keys))]
		h.checkRange(t, b, from, to, rnd.IntN(20))
	}
}

// checkRange compares the first limit+1 keys of [from, to).
func (h held) checkRange(t testing.TB, b Bucket, from, to string, limit int) {
	t.Helper()
	var got, want []string
	h.Scan(b, []byte(from), []byte(to), func(k, v []byte) bool {
		got = append(got, string(k)+"="+string(v))
		return len(got) <= limit
	})
	for _, k := range slices.Sorted(maps.Keys(h.want[b])) {
		if k >= from && k < to && len(want) <= limit {
			want = append(want, k+"="+h.want[b][k])
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%s: range [%q, %q) gives %d keys, want %d", b, from, to, len(got), len(want))
	}
}

// defragment starts one in the background, or ends the one that runs.
func (s *script) defragment() {
	if s.moved != nil {
		select {
		case err := <-s.moved:
			s.moved = nil
			if err != nil {
				s.t.Fatal(err)
			}
		default: // it may wait for a seal
			if s.SealWanted() {
				s.sealNext()
			}
		}
		return
	}
	s.moved = make(chan error, 1)
	go func() { s.moved <- s.Defragment(context.Background()) }()
}

// finish waits for a running defragmentation and makes everything durable.
func (s *script) finish() {
	s.releaseAll()
	for s.moved != nil {
		select {
		case err := <-s.moved:
			if s.moved = nil; err != nil {
				s.t.Fatal(err)
			}
		case <-s.Wanted():
			if s.SealWanted() {
				s.sealNext()
			}
			s.releaseAll()
		}
	}
	s.sealNext()
	s.releaseAll()
	s.flushNow()
	s.releaseAll()
}

func runScript(t *testing.T, seed uint64, steps int, cfg Config, tiny bool) {
	cfg.Path = dbPath(t)
	s := &script{
		running: start(t, cfg), rnd: rand.New(rand.NewPCG(seed, 0)), want: newModel(), tiny: tiny,
	}
	for range steps {
		s.step()
	}
	s.finish()
	h := held{s.Acquire(), s.want}
	h.check(t, s.rnd)
	h.Release()
	s.shutInOrder()

	again := start(t, cfg)
	if index, term := again.ConsistentIndex(); index != s.index || term != 1 {
		t.Fatalf("consistent index %d term %d on disk, want %d term 1", index, term, s.index)
	}
	h = held{again.Acquire(), s.want}
	h.check(t, s.rnd)
	h.Release()
	again.shutInOrder()
}

// A snapshot shows what was written before its Acquire, whatever is sealed, committed or defragmented
// meanwhile.
func TestSnapshotsMatchModel(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			runScript(t, seed, 1500, Config{Capacity: 1, UnsafeNoFsync: true}, false)
		})
	}
}

// The same while the file outgrows its mapping again and again.
func TestSnapshotsMatchModelThroughRemaps(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			runScript(t, seed, 1500, Config{Capacity: 1, UnsafeNoFsync: true, MappingBytes: 1}, true)
		})
	}
}

// A buffer alone: every prefix that was shown stays as it was.
func TestLayerIsImmutable(t *testing.T) {
	b := newBuffer(0)
	b.add(Key, revKey(1, 0), []byte("1"))
	b.add(Lease, []byte("l"), []byte("1"))
	first := b.layer()
	b.add(Key, revKey(2, 0), []byte("2"))
	b.add(Key, revKey(1, 0), nil)
	b.add(Lease, []byte("l"), []byte("2"))
	b.add(Key, revKey(1, 1), []byte("back")) // behind the run's end: not in order
	second := b.layer()

	type answer struct {
		value string
		found bool
	}
	for _, c := range []struct {
		l    layer
		b    Bucket
		key  []byte
		want answer
	}{
		{first, Key, revKey(1, 0), answer{"1", true}},
		{first, Key, revKey(2, 0), answer{"", false}},
		{first, Key, revKey(1, 1), answer{"", false}},
		{first, Lease, []byte("l"), answer{"1", true}},
		{second, Key, revKey(1, 0), answer{"", true}},
		{second, Key, revKey(2, 0), answer{"2", true}},
		{second, Key, revKey(1, 1), answer{"back", true}},
		{second, Lease, []byte("l"), answer{"2", true}},
	} {
		value, found := c.l.get(c.b, c.key)
		if got := (answer{string(value), found}); got != c.want {
			t.Errorf("%s %x: %v, want %v", c.b, c.key, got, c.want)
		}
	}
}

// A key written again after its deletion, in an order that no revision has, still ends as written last.
func TestRunTakesOnlyLargerKeys(t *testing.T) {
	b := newBuffer(0)
	b.add(Key, revKey(5, 0), nil)
	b.add(Key, revKey(5, 0), []byte("again"))
	b.add(Key, revKey(4, 0), []byte("lower"))
	b.add(Key, revKey(6, 0), []byte("run"))
	if len(b.run) != 1 {
		t.Fatalf("run of %d, want only revision 6", len(b.run))
	}
	var got []string
	err := b.changes(func(c change) error {
		got = append(got, string(c.value))
		return nil
	})
	if want := []string{"run", "lower", "again"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("changes %q (%v), want %q", got, err, want)
	}
	stop := errors.New("stop")
	if err := b.changes(func(change) error { return stop }); err != stop {
		t.Fatalf("changes went on after an error: %v", err)
	}
}

// Scans go through a tree in chunks, and layers shadow each other across the chunks' borders.
func TestScanAcrossChunks(t *testing.T) {
	low, high := newBuffer(0), newBuffer(0)
	key := func(i int) []byte { return fmt.Appendf(nil, "%03d", i) }
	for i := range 5 * restChunk {
		low.add(Lease, key(i), []byte("low"))
		low.add(Members, key(i), []byte("other bucket"))
	}
	for i := restChunk - 1; i < 4*restChunk; i += 2 {
		high.add(Lease, key(i), nil)
		high.add(Lease, key(i+1), []byte("high"))
	}
	sources := []source{
		newRestSource(high.layer().rest, Lease, key(5)), newRestSource(low.layer().rest, Lease, key(5)),
	}
	next := 5
	merge(sources, key(5*restChunk-1), func(k, v []byte) bool {
		want := "low"
		if next >= restChunk-1 && next <= 4*restChunk {
			if (next-restChunk)%2 != 0 {
				next++ // deleted
			}
			want = "high"
		}
		if next > 4*restChunk {
			want = "low"
		}
		if string(k) != string(key(next)) || string(v) != want {
			t.Fatalf("%q = %q, want %q = %q", k, v, key(next), want)
		}
		next++
		return true
	})
	if next != 5*restChunk-1 {
		t.Errorf("ended before %d", next)
	}
}

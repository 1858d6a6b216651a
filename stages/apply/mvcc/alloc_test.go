package mvcc

import (
	"testing"

	"sluice/stages/wire"
)

// TestAllocations: reads allocate nothing, whatever number of keys they return; a write's share of a batch
// stays small. They are results like any other: on a busy machine they move less than times.
func TestAllocations(t *testing.T) {
	s := benchStore(t, 20_000, 100)
	v := s.Publish(nowhere{})
	out := chunks{make(buffer, 0, 4<<20)}
	for name, r := range map[string]*wire.RangeRequest{
		"get":      {Key: benchKey(77)},
		"list":     {Key: []byte("/"), RangeEnd: []byte("0")},
		"page":     {Key: benchKey(100), RangeEnd: []byte("0"), Limit: 500},
		"count":    {Key: []byte("/"), RangeEnd: []byte("0"), CountOnly: true},
		"old page": {Key: benchKey(100), RangeEnd: []byte("0"), Limit: 50, Revision: v.Revision()},
	} {
		n := testing.AllocsPerRun(20, func() {
			out.reset()
			v.RangeBound(r)
			if err := v.Range(r, &out); err != nil {
				t.Fatal(err)
			}
		})
		if n > 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	keysOnly := &wire.RangeRequest{Key: []byte("/"), RangeEnd: []byte("0"), KeysOnly: true}
	if n := testing.AllocsPerRun(20, func() { out.reset(); v.Range(keysOnly, &out) }); n > 8 {
		t.Errorf("keys_only allocates %v times for 20 000 keys", n)
	}
	one := &wire.RangeRequest{Key: benchKey(77)}
	if n := testing.AllocsPerRun(20, func() { out.reset(); v.RangeOne(one, 1<<20, &out) }); n > 0 {
		t.Errorf("RangeOne allocates %v times", n)
	}
	if n := testing.AllocsPerRun(20, func() { v.Get(keysOnly.Key, 0) }); n > 0 {
		t.Errorf("Get allocates %v times", n)
	}
	put := wire.PutRequest{Value: make([]byte, 100)}
	const batch = 64
	keys := make([][]byte, 4096)
	for i := range keys {
		keys[i] = benchKey(i * 7001 % 20_000)
	}
	i := 0
	n := testing.AllocsPerRun(50, func() {
		for range batch {
			put.Key = keys[i%len(keys)]
			i++
			if _, err := s.Put(&put); err != nil {
				t.Fatal(err)
			}
		}
		s.TakeEvents()
		s.Publish(nowhere{})
	})
	if n/batch > 8 {
		t.Errorf("put allocates %v times, with its share of a publish per %d", n/batch, batch)
	}
}

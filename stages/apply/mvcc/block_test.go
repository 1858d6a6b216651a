package mvcc

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"sluice/stages/wire"
)

// TestBlocksOutsideTheHeap: slabs that no view reaches are used again, those of held views are not, while
// every value changes many times over.
func TestBlocksOutsideTheHeap(t *testing.T) {
	s, mem := emptyStore(t)
	const keys, valueBytes = 300, 20 << 10 // 6 slabs of live values
	value := func(i, round int) []byte {
		return bytes.Repeat([]byte{byte(i), byte(i >> 8), byte(round), '.'}, valueBytes/4)
	}
	put := func(round int) {
		for i := range keys {
			key := []byte(fmt.Sprint("k", i))
			if _, err := s.Put(&wire.PutRequest{Key: key, Value: value(i, round), PrevKV: true}); err != nil {
				t.Fatal(err)
			}
			if i%16 == 0 {
				s.Publish(mem.snapshot())
				s.TakeEvents()
			}
		}
	}
	check := func(v *View, round int) {
		t.Helper()
		for i := range keys {
			kv, ok := v.Get([]byte(fmt.Sprint("k", i)), 0)
			if !ok || !bytes.Equal(recordValue(kv), value(i, round)) {
				t.Fatalf("key %d of round %d is damaged", i, round)
			}
		}
		runtime.KeepAlive(v)
	}
	put(0)
	held := s.Publish(mem.snapshot())
	check(held, 0)
	used := 0
	for round := 1; round < 12; round++ {
		put(round)
		check(s.Publish(mem.snapshot()), round)
		check(held, 0)
		runtime.GC()
		runtime.GC() // cleanups run after the first
		s.slabs.memory.spare.mu.Lock()
		used = max(used, len(s.slabs.memory.spare.mem))
		s.slabs.memory.spare.mu.Unlock()
	}
	if used == 0 {
		t.Error("no retired slab was ever collected")
	}
	if limit := int64(keys*valueBytes)*slabSparse + 2*slabBytes; s.slabs.bytes > limit {
		t.Errorf("slabs take %d bytes, more than %d", s.slabs.bytes, limit)
	}
	check(held, 0)
}

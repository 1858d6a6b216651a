package mvcc

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"
	"time"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

// nowhere is a Writer that keeps nothing: benchmarks measure the store, not the memory backend.
type nowhere struct{}

func (nowhere) Put(backend.Bucket, []byte, []byte)                                {}
func (nowhere) Delete(backend.Bucket, []byte)                                     {}
func (nowhere) Get(backend.Bucket, []byte) []byte                                 { return nil }
func (nowhere) Scan(backend.Bucket, []byte, []byte, func(key, value []byte) bool) {}

// chunks is a Sink as rpc's: one buffer that is used again.
type chunks struct{ buffer }

func (c *chunks) reset() { c.buffer = c.buffer[:0] }

// loop runs op until the benchmark is over and reports the process's CPU time per op: unlike the time that
// passes, it hardly moves on a busy machine.
func loop(b *testing.B, op func(i int)) {
	b.ReportAllocs()
	i, begun := 0, time.Duration(-1)
	for b.Loop() {
		if begun < 0 {
			begun = cpuTime()
		}
		op(i)
		i++
	}
	b.ReportMetric(float64(cpuTime()-begun)/float64(i), "cpu-ns/op")
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchKey(i int) []byte {
	return fmt.Appendf(nil, "/registry/pods/namespace-%02d/pod-%06d", i%20, i)
}

func benchStore(tb testing.TB, keys, valueBytes int) *Store {
	tb.Helper()
	s, err := Load(nowhere{}, nowhere{}, Config{}, newLeases())
	if err != nil {
		tb.Fatal(err)
	}
	value := bytes.Repeat([]byte("v"), valueBytes)
	for i := range keys {
		if _, err := s.Put(&wire.PutRequest{Key: benchKey(i * 7919 % keys), Value: value}); err != nil {
			tb.Fatal(err)
		}
		if i%1000 == 0 {
			s.TakeEvents()
			s.Publish(nowhere{})
		}
	}
	return s
}

func BenchmarkGet(b *testing.B) {
	v := benchStore(b, 300_000, 256).Publish(nowhere{})
	var out chunks
	keys := make([][]byte, 1024)
	for i := range keys {
		keys[i] = benchKey(i * 7001 % 300_000)
	}
	loop(b, func(i int) {
		r := wire.RangeRequest{Key: keys[i%1024]}
		out.reset()
		if v.RangeBound(&r) == 0 || v.Range(&r, &out) != nil || len(out.buffer) < 256 {
			b.Fatal(len(out.buffer))
		}
	})
}

func BenchmarkPut(b *testing.B) {
	for _, batch := range []int{1, 64, 1000} {
		b.Run(fmt.Sprintf("publish per %d", batch), func(b *testing.B) {
			s := benchStore(b, 300_000, 256)
			keys := make([][]byte, 4096)
			for i := range keys {
				keys[i] = benchKey(i * 7001 % 300_000)
			}
			r := wire.PutRequest{Value: bytes.Repeat([]byte("w"), 256)}
			loop(b, func(i int) {
				r.Key = keys[i%len(keys)]
				i++
				if _, err := s.Put(&r); err != nil {
					b.Fatal(err)
				}
				if i%batch == 0 {
					s.TakeEvents()
					s.Publish(nowhere{})
				}
				if i%50_000 == 0 { // or the history would grow without end
					s.compactRev, s.compactions.started = s.rev, s.rev
					for !s.SweepIndex(1 << 20) {
					}
				}
			})
		})
	}
}

func benchRange(b *testing.B, s *Store, r wire.RangeRequest) {
	v := s.Publish(nowhere{})
	out := chunks{make(buffer, 0, 16<<20)}
	loop(b, func(int) {
		out.reset()
		v.RangeBound(&r)
		if err := v.Range(&r, &out); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkList10k(b *testing.B) {
	s := benchStore(b, 300_000, 1024)
	benchRange(b, s, wire.RangeRequest{Key: []byte("/"), RangeEnd: []byte("0"), Limit: 10_000})
}

func BenchmarkCountOnly100k(b *testing.B) {
	s := benchStore(b, 100_000, 256)
	benchRange(b, s, wire.RangeRequest{Key: []byte("/"), RangeEnd: []byte("0"), CountOnly: true})
}

func BenchmarkPage500Of100k(b *testing.B) {
	s := benchStore(b, 100_000, 256)
	benchRange(b, s, wire.RangeRequest{Key: benchKey(40_000), RangeEnd: []byte("0"), Limit: 500})
}

// BenchmarkPage500Of100kOld is the second page of a LIST while 1000 other keys were written.
func BenchmarkPage500Of100kOld(b *testing.B) {
	s := benchStore(b, 100_000, 256)
	rev := s.Revision()
	for i := range 1000 {
		mustPut(b, s, string(benchKey(i*7*13%100_000)), "new")
	}
	r := wire.RangeRequest{Key: benchKey(19), RangeEnd: []byte("0"), Limit: 500, Revision: rev}
	v := s.Publish(nowhere{})
	loop(b, func(int) {
		v.RangeBound(&r)
		v.count(spanOf([]byte("/"), []byte("0")), rev)
	})
}

func BenchmarkPublish64(b *testing.B) {
	s := benchStore(b, 300_000, 256)
	loop(b, func(i int) {
		for n := range 64 {
			mustPut(b, s, string(benchKey((i*64+n)*7001%300_000)), "new value")
		}
		s.TakeEvents()
		s.Publish(nowhere{})
	})
}

func BenchmarkTxnCompareAndPut(b *testing.B) {
	s := benchStore(b, 300_000, 256)
	value := bytes.Repeat([]byte("w"), 256)
	loop(b, func(i int) {
		key := benchKey(i * 7001 % 300_000)
		r := wire.TxnRequest{
			Compare: []wire.Compare{{Key: key, Target: 2, Result: 2, Operand: wire.OperandMod, Int: 1 << 40}},
			Success: []wire.RequestOp{{Put: &wire.PutRequest{Key: key, Value: value}}},
			Failure: []wire.RequestOp{{Range: &wire.RangeRequest{Key: key}}},
		}
		if _, err := s.Txn(&r); err != nil {
			b.Fatal(err)
		}
		if i%64 == 63 {
			s.TakeEvents()
			s.Publish(nowhere{})
		}
	})
}

func BenchmarkLoad300k(b *testing.B) {
	mem := newMemory()
	s, err := Load(mem, mem, Config{}, newLeases())
	if err != nil {
		b.Fatal(err)
	}
	value := bytes.Repeat([]byte("v"), 256)
	for i := range 300_000 {
		if _, err := s.Put(&wire.PutRequest{Key: benchKey(i * 7919 % 300_000), Value: value}); err != nil {
			b.Fatal(err)
		}
		if i%1000 == 0 {
			s.TakeEvents()
			s.Publish(mem)
		}
	}
	loop(b, func(int) {
		if _, err := Load(mem, mem, Config{}, newLeases()); err != nil {
			b.Fatal(err)
		}
	})
}

package tracing

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Observer takes one measurement: seconds, bytes or a count, as the metric's name says.
type Observer interface{ Observe(float64) }

// Counter only grows.
type Counter interface{ Add(float64) }

// Gauge is a level.
type Gauge interface{ Set(float64) }

// Nop is an Observer, Counter and Gauge that discards, for tests and parts without a registry.
var Nop nop

type nop struct{}

func (nop) Observe(float64) {}
func (nop) Add(float64)     {}
func (nop) Set(float64)     {}

// Stamp is one batch's passage through a stage. Times are nanoseconds of Clock.
type Stamp struct {
	Term        uint64 // of the last entry, 0 for batches without entries
	First, Last uint64 // log indexes worked on, inclusive; 0 for batches without entries
	In, Out     int64  // taken from the mailbox; handed on
	Depth       int32  // messages found waiting, the batch included
	Count       int32  // requests or entries in the batch
	Bytes       int64
}

var base = time.Now()

// Clock returns monotonic nanoseconds since the process started: the time of every Stamp.
func Clock() int64 { return int64(time.Since(base)) }

const (
	ringStamps = 4096
	// Buckets is the number of duration buckets of a Stage: bucket i counts batches below 1us<<i.
	Buckets = 31
)

// Stage meters one stage: histograms of service time and batch size, and a ring of the last stamps. One
// goroutine records; any number read.
type Stage struct {
	name    string
	batches atomic.Uint64
	items   atomic.Uint64
	bytes   atomic.Uint64
	busy    atomic.Int64 // nanoseconds of service
	service [Buckets]atomic.Uint64
	sizes   [Buckets]atomic.Uint64 // bucket i counts batches of fewer than 1<<i items

	mu   sync.Mutex // guards ring: written by the stage, read by breakdowns
	ring [ringStamps]Stamp
	next uint64
}

// NewStage returns the meter of the stage called name ("propose", "persist" ...).
func NewStage(name string) *Stage { return &Stage{name: name} }

// Name returns the stage's name.
func (s *Stage) Name() string { return s.name }

// Record adds one batch. A nil Stage discards it.
func (s *Stage) Record(st Stamp) {
	if s == nil {
		return
	}
	took := st.Out - st.In
	s.batches.Add(1)
	s.items.Add(uint64(st.Count))
	s.bytes.Add(uint64(st.Bytes))
	s.busy.Add(took)
	s.service[min(bits.Len64(uint64(max(took, 0))/1000), Buckets-1)].Add(1)
	s.sizes[min(bits.Len64(uint64(st.Count)), Buckets-1)].Add(1)
	s.mu.Lock()
	s.ring[s.next%ringStamps] = st
	s.next++
	s.mu.Unlock()
}

// Find returns the newest stamp whose batch held the entry at index.
func (s *Stage) Find(index uint64) (Stamp, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := uint64(0); i < min(s.next, ringStamps); i++ {
		st := s.ring[(s.next-1-i)%ringStamps]
		if st.First != 0 && st.First <= index && index <= st.Last {
			return st, true
		}
	}
	return Stamp{}, false
}

// Reading is a copy of a Stage's histograms. Counters only grow.
type Reading struct {
	Name                  string
	Batches, Items, Bytes uint64
	Busy                  time.Duration
	Service, Sizes        [Buckets]uint64
}

// Read copies the histograms.
func (s *Stage) Read() Reading {
	r := Reading{
		Name: s.name, Batches: s.batches.Load(), Items: s.items.Load(), Bytes: s.bytes.Load(),
		Busy: time.Duration(s.busy.Load()),
	}
	for i := range Buckets {
		r.Service[i], r.Sizes[i] = s.service[i].Load(), s.sizes[i].Load()
	}
	return r
}

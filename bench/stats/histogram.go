// Package stats has the arithmetic of measurements: latency histograms, medians, and ratios of paired runs
// with the interval that the bootstrap gives them.
package stats

import "math/bits"

// Histogram counts durations in nanoseconds in buckets that grow by powers of two, each cut into 64 equal
// parts: a quantile is at most 1.6 % above the true one. The zero value is ready. It is not safe for
// concurrent use: each worker has its own, and they are added up in the end.
type Histogram struct {
	buckets [64 * parts]uint32
	count   uint64
	max     int64
}

const (
	partBits = 6
	parts    = 1 << partBits
)

// bucketOf is exact below 64 ns; above, the upper seven bits of v choose the bucket.
func bucketOf(v int64) int {
	if v < parts {
		return int(max(v, 0))
	}
	shift := bits.Len64(uint64(v)) - partBits - 1
	return (shift+1)*parts + int(v>>shift) - parts
}

// highest is the largest value that bucket i counts.
func highest(i int) int64 {
	if i < parts {
		return int64(i)
	}
	shift := i/parts - 1
	return (int64(i%parts+parts)+1)<<shift - 1
}

// Record counts one duration; a negative one counts as 0.
func (h *Histogram) Record(nanos int64) {
	h.buckets[bucketOf(nanos)]++
	h.count++
	h.max = max(h.max, nanos)
}

// Add counts all that o has counted.
func (h *Histogram) Add(o *Histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.count += o.count
	h.max = max(h.max, o.max)
}

// Count is how many durations were recorded.
func (h *Histogram) Count() int { return int(h.count) }

// Quantile returns the value in nanoseconds that a share q of all durations does not exceed; 0 without any.
func (h *Histogram) Quantile(q float64) int64 {
	if h.count == 0 {
		return 0
	}
	rank := uint64(q * float64(h.count)) // the first duration has rank 0
	rank = min(rank, h.count-1)
	seen := uint64(0)
	for i, n := range h.buckets {
		seen += uint64(n)
		if seen > rank {
			return min(highest(i), h.max)
		}
	}
	return h.max
}

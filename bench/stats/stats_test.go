package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Buckets follow each other without a gap, and none is wider than 1/64 of its values.
func TestBucketsCoverAllValues(t *testing.T) {
	last := bucketOf(math.MaxInt64)
	if last >= 64*parts {
		t.Fatalf("the longest duration is outside, in bucket %d", last)
	}
	for i := range last {
		top := highest(i)
		if got := bucketOf(top); got != i {
			t.Fatalf("the highest value of bucket %d, %d, is counted in bucket %d", i, top, got)
		}
		if got := bucketOf(top + 1); got != i+1 {
			t.Fatalf("the value after bucket %d, %d, is counted in bucket %d", i, top+1, got)
		}
		if width := top - bottom(i); width > top/parts {
			t.Fatalf("bucket %d from %d is %d wide", i, top, width)
		}
	}
	if got := bucketOf(-5); got != 0 {
		t.Errorf("a negative duration is counted in bucket %d", got)
	}
}

func bottom(i int) int64 {
	if i == 0 {
		return 0
	}
	return highest(i-1) + 1
}

// Quantiles agree with those of the sorted values, within a bucket's width.
func TestQuantilesMatchSortedValues(t *testing.T) {
	g := rand.New(rand.NewPCG(1, 2))
	var workers [3]Histogram
	var all []int64
	for i := range 30000 {
		v := int64(math.Exp(g.Float64() * 20))
		workers[i%3].Record(v)
		all = append(all, v)
	}
	var h Histogram
	for i := range workers {
		h.Add(&workers[i])
	}
	slices.Sort(all)
	if h.Count() != len(all) {
		t.Fatalf("%d counted of %d", h.Count(), len(all))
	}
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[min(int(q*float64(len(all))), len(all)-1)]
		got := h.Quantile(q)
		if got < want || float64(got) > float64(want)*1.016+1 {
			t.Errorf("quantile %v is %d, sorted values say %d", q, got, want)
		}
	}
	if got := new(Histogram).Quantile(0.5); got != 0 {
		t.Errorf("the median of nothing is %d", got)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 5}, 5}, {[]float64{1, 8, 3, 4}, 3.5}} {
		before := slices.Clone(c.v)
		if got := Median(c.v); got != c.want {
			t.Errorf("median of %v is %v", c.v, got)
		}
		if !slices.Equal(c.v, before) {
			t.Errorf("%v was reordered", before)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("nothing has a median")
	}
}

// What slows both runs of a pair leaves their ratio alone.
func TestPairedRatioCancelsSharedNoise(t *testing.T) {
	noise := []float64{1, 7, 2, 30, 1.5, 4, 3}
	var over, under []float64
	for _, n := range noise {
		over, under = append(over, 6*n), append(under, 2*n)
	}
	if got := PairedRatio(over, under); got != (Ratio{3, 3, 3}) {
		t.Errorf("ratio %v", got)
	}
	if got := PairedRatio([]float64{0, 4}, []float64{0, 2}); got != (Ratio{2, 2, 2}) {
		t.Errorf("a pair of zeros counted: %v", got)
	}
	if got := PairedRatio(nil, nil); !math.IsNaN(got.Median) || !math.IsNaN(got.Low) || !math.IsNaN(got.High) {
		t.Errorf("no pairs, ratio %v", got)
	}
}

// The interval holds the true median about 19 times in 20, and is the same for the same input.
func TestBootstrapCoversTheMedian(t *testing.T) {
	g := rand.New(rand.NewPCG(3, 4))
	covered := 0
	for range 100 {
		v := make([]float64, 9)
		for i := range v {
			v[i] = 10 + g.NormFloat64()
		}
		low, high := Bootstrap(v)
		if low > Median(v) || high < Median(v) {
			t.Fatalf("the interval [%v, %v] is beside the median %v", low, high, Median(v))
		}
		if again, _ := Bootstrap(v); again != low {
			t.Fatal("the interval changed without its input")
		}
		if low <= 10 && 10 <= high {
			covered++
		}
	}
	if covered < 85 || covered == 100 {
		t.Errorf("%d of 100 intervals hold the true median", covered)
	}
}

package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Ratio is the median of the ratios of paired runs. Low and High bound the interval that holds the true
// median with a probability of 95 %.
type Ratio struct {
	Median, Low, High float64
}

// resamples of the bootstrap: the ends of its interval then move by less than the noise of a run.
const resamples = 2000

// Median returns the middle of v, NaN for none.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	return middle(slices.Sorted(slices.Values(v)))
}

func middle(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[n/2]
}

// PairedRatio divides over by under, run by run, and returns the median with its interval. Pairs in which
// both are 0 say nothing and are left out. The same input gives the same interval.
//
// The two runs of a pair follow each other, so what slows the machine for a while slows both, and their
// ratio hardly moves: a ratio of two medians would keep that noise.
func PairedRatio(over, under []float64) Ratio {
	var ratios []float64
	for i := range min(len(over), len(under)) {
		if over[i] != 0 || under[i] != 0 {
			ratios = append(ratios, over[i]/under[i])
		}
	}
	low, high := Bootstrap(ratios)
	return Ratio{Median(ratios), low, high}
}

// Bootstrap returns the bounds of the middle 95 % of the medians of samples drawn from v, with replacement,
// each as large as v; NaN for no values.
func Bootstrap(v []float64) (low, high float64) {
	if len(v) == 0 {
		return math.NaN(), math.NaN()
	}
	g := rand.New(rand.NewPCG(1, uint64(len(v))))
	medians := make([]float64, resamples)
	sample := make([]float64, len(v))
	for i := range medians {
		for j := range sample {
			sample[j] = v[g.IntN(len(v))]
		}
		slices.Sort(sample)
		medians[i] = middle(sample)
	}
	slices.Sort(medians)
	return medians[resamples*25/1000], medians[resamples*975/1000-1]
}

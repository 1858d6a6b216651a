package auth

import (
	"bytes"
	"slices"
)

// interval is [begin, end) in byte order; an end of nil has no upper bound.
type interval struct{ begin, end []byte }

// intervalOf reads a key and a range end as requests and permissions spell them: an empty end selects the key
// alone, a single zero byte everything from the key on.
func intervalOf(key, rangeEnd []byte) interval {
	switch {
	case len(rangeEnd) == 0:
		return interval{key, append(bytes.Clone(key), 0)}
	case len(rangeEnd) == 1 && rangeEnd[0] == 0:
		return interval{key, nil}
	}
	return interval{key, rangeEnd}
}

// endBelow says whether an end lies below another end, or a key, b; nil is no bound.
func endBelow(end, b []byte) bool { return end != nil && (b == nil || bytes.Compare(end, b) < 0) }

// empty says that no key lies in the interval: its end is not above its begin.
func (i interval) empty() bool { return i.end != nil && bytes.Compare(i.end, i.begin) <= 0 }

// merge returns the union of in as the fewest disjoint intervals in ascending order. Adjacent ones join.
func merge(in []interval) []interval {
	in = slices.DeleteFunc(slices.Clone(in), interval.empty)
	slices.SortFunc(in, func(a, b interval) int { return bytes.Compare(a.begin, b.begin) })
	var out []interval
	for _, i := range in {
		if n := len(out); n > 0 && !endBelow(out[n-1].end, i.begin) {
			if endBelow(out[n-1].end, i.end) {
				out[n-1].end = i.end
			}
			continue
		}
		out = append(out, i)
	}
	return out
}

// holding returns the interval of merged that contains key.
func holding(merged []interval, key []byte) (interval, bool) {
	at, exact := slices.BinarySearchFunc(merged, key, func(i interval, key []byte) int {
		return bytes.Compare(i.begin, key)
	})
	if !exact {
		at--
	}
	if at < 0 {
		return interval{}, false
	}
	i := merged[at]
	return i, i.end == nil || bytes.Compare(i.end, key) > 0
}

// covered says whether the union of all sets covers want without a gap. It advances a point from want's begin:
// at each step one of the sets must hold the point, and its interval's end is the next one, so no union has to
// be built for each user.
func covered(sets [][]interval, want interval) bool {
	for point := want.begin; ; {
		var far interval
		found := false
		for _, s := range sets {
			i, ok := holding(s, point)
			if ok && (!found || endBelow(far.end, i.end)) {
				far, found = i, true
			}
		}
		if !found {
			return false
		}
		if !endBelow(far.end, want.end) {
			return true
		}
		point = far.end
	}
}

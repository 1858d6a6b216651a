package runtime

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Series appear when they are first used, under their own labels, and finding them again costs no memory.
func TestApplyDurations(t *testing.T) {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "d", Help: "d"}, []string{"version", "op", "success"})
	registry := prometheus.NewRegistry()
	registry.MustRegister(vec)
	observe := applyDurations(vec)
	series := func() map[string]uint64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]uint64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := ""
				for _, l := range m.GetLabel() {
					name += l.GetValue() + " "
				}
				counts[name] = m.GetHistogram().GetSampleCount()
			}
		}
		return counts
	}
	if got := series(); len(got) != 0 {
		t.Errorf("series before the first request: %v", got)
	}
	observe("Put", true, 1)
	observe("Put", false, 1)
	observe("Txn", true, 1)
	if n := testing.AllocsPerRun(99, func() { observe("Put", true, 1) }); n > 0 {
		t.Errorf("an observation allocates %v times", n)
	}
	got := series() // labels are in the order of their names: op, success, version
	if len(got) != 3 || got["Put true v3 "] != 101 || got["Put false v3 "] != 1 || got["Txn true v3 "] != 1 {
		t.Errorf("series %v", got)
	}
}

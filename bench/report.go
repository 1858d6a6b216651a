package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
)

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func medianOf(rs []result) result {
	of := func(f func(result) float64) float64 {
		var v []float64
		for _, r := range rs {
			v = append(v, f(r))
		}
		return median(v)
	}
	return result{
		rate: of(func(r result) float64 { return r.rate }), p50: of(func(r result) float64 { return r.p50 }),
		p99: of(func(r result) float64 { return r.p99 }), p999: of(func(r result) float64 { return r.p999 }),
		cpuMicros: of(func(r result) float64 { return r.cpuMicros }), fsyncs: of(func(r result) float64 { return r.fsyncs }),
		allocs: of(func(r result) float64 { return r.allocs }), rssMiB: of(func(r result) float64 { return r.rssMiB }),
	}
}

func printResults(names []string, rs []result) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tops/s\tp50 us\tp99 us\tp99.9 us\tserver CPU us/op\tallocs/op\tfsyncs/op\tRSS MiB\t")
	for i, r := range rs {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.0f\t%.3f\t%.0f\t\n",
			names[i], r.rate, r.p50, r.p99, r.p999, r.cpuMicros, r.allocs, r.fsyncs, r.rssMiB)
	}
	w.Flush()
}

// printStages shows where the requests of a run spent their time: how long messages waited in each mailbox,
// and how long each stage worked on a batch.
func printStages(diff readings) {
	mean := func(family, label string) float64 {
		return diff[family+"_sum"+label] / diff[family+"_count"+label]
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\nstage\tbatches\titems/batch\tservice us/batch\tbusy s\t")
	for _, stage := range []string{"propose", "replicate", "persist", "apply", "backend", "watch", "expire"} {
		label := fmt.Sprintf("{stage=%q}", stage)
		n := diff["sluice_stage_service_seconds_count"+label]
		if n == 0 {
			continue
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%.1f\t%.3f\t\n", stage, n, mean("sluice_stage_batch_size", label),
			1e6*mean("sluice_stage_service_seconds", label), diff["sluice_stage_service_seconds_sum"+label])
	}
	fmt.Fprintln(w, "\nmailbox\tmessages\tmessages/receive\twait us\tblocked sends\trejected\t")
	for name := range mailboxNames(diff) {
		label := fmt.Sprintf("{mailbox=%q}", name)
		n := diff["sluice_mailbox_received_total"+label]
		if n == 0 {
			continue
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%.1f\t%.0f\t%.0f\t\n", name, n, n/diff["sluice_mailbox_batches_total"+label],
			1e6*mean("sluice_mailbox_wait_seconds", label), diff["sluice_mailbox_blocked_sends_total"+label],
			diff["sluice_mailbox_rejected_total"+label])
	}
	w.Flush()
}

// mailboxNames yields the mailboxes that a scrape shows, sorted.
func mailboxNames(diff readings) func(func(string) bool) {
	var names []string
	for sample := range diff {
		var name string
		if _, err := fmt.Sscanf(sample, "sluice_mailbox_received_total{mailbox=%q}", &name); err == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Values(names)
}

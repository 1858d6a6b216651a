package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"

	"sluice/bench/workload"
)

// printResult shows the run that the stages were read in.
func printResult(r result) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "ops/s\tp50 us\tp99 us\tp99.9 us\tserver CPU us/op\tallocs/op\tfsyncs/op\tRSS MiB\t")
	fmt.Fprintf(w, "%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.0f\t%.3f\t%.0f\t\n",
		r.rate, r.p50, r.p99, r.p999, r.cpuMicros, r.allocs, r.fsyncs, r.rssMiB)
	w.Flush()
}

// printStages shows where the requests of a run spent their time: how long messages waited in each mailbox,
// and how long each stage worked on a batch.
func printStages(diff workload.Readings) {
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
func mailboxNames(diff workload.Readings) func(func(string) bool) {
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

package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"sluice/bench/stats"
	"sluice/bench/workload"
)

// printCell shows the medians of both members, their ratios and the gates.
func printCell(out io.Writer, c CellResult) {
	fmt.Fprintf(out, "\n  %s (per %s; %d runs)\n", c.Cell, c.Op, len(c.Sluice))
	if c.Error != "" {
		fmt.Fprintf(out, "    failed: %s\n", c.Error)
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	var shown []workload.Metric
	for _, m := range workload.Metrics() {
		if _, ok := values(c.Sluice, m); ok {
			shown = append(shown, m)
		}
	}
	row := func(name string, of func(m workload.Metric) string) {
		fmt.Fprintf(w, "    %s\t", name)
		for _, m := range shown {
			fmt.Fprintf(w, "%s\t", of(m))
		}
		fmt.Fprintln(w)
	}
	median := func(runs []workload.Sample) func(workload.Metric) string {
		return func(m workload.Metric) string {
			v, _ := values(runs, m)
			return number(stats.Median(v))
		}
	}
	row("", func(m workload.Metric) string { return string(m) })
	row("sluice", median(c.Sluice))
	if len(c.Etcd) > 0 {
		row("etcd", median(c.Etcd))
		ratio := func(of func(stats.Ratio) float64) func(workload.Metric) string {
			return func(m workload.Metric) string {
				if r, ok := c.ratio(m); ok {
					return number(of(r))
				}
				return "-"
			}
		}
		row("ratio", ratio(func(r stats.Ratio) float64 { return r.Median }))
		row("from", ratio(func(r stats.Ratio) float64 { return r.Low }))
		row("to", ratio(func(r stats.Ratio) float64 { return r.High }))
	}
	w.Flush()
	for _, g := range c.Gates {
		r, verdict := c.judge(g)
		if verdict == unmeasured {
			continue
		}
		fmt.Fprintf(out, "    gate: %s of %s %s [%s, %s], %s %s: %s\n", subject(g), g.Metric,
			number(r.Median), number(r.Low), number(r.High), bound(g), number(g.Limit), verdict)
	}
}

func subject(g workload.Gate) string {
	switch {
	case g.Absolute:
		return "our own value"
	case g.Metric.Inverse():
		return "ratio etcd/sluice"
	default:
		return "ratio sluice/etcd"
	}
}

func bound(g workload.Gate) string {
	if g.Metric.More() && !g.Absolute {
		return "at least"
	}
	return "at most"
}

// number writes v with about three digits.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case v == 0:
		return "0"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.4f", v)
	}
}

// printAgainst shows, for each cell that both results have, how our own values and the ratios have moved.
func printAgainst(out io.Writer, before, now Results) {
	fmt.Fprintf(out, "\nAgainst %s\n\n", before.Began.Format("2006-01-02 15:04"))
	if before.Quick != now.Quick || before.Settings != now.Settings {
		fmt.Fprintln(out, "  The settings differ: read with care. Cells of other sizes are left out.")
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  cell\tmetric\tbefore\tnow\tchange\tratio before\tratio now")
	for _, c := range now.Cells {
		old, ok := before.find(c)
		if !ok {
			continue
		}
		name := c.Family + " " + c.Cell
		for _, m := range compared(c) {
			a, ok := values(old.Sluice, m)
			b, also := values(c.Sluice, m)
			if !ok || !also {
				continue
			}
			was, is := stats.Median(a), stats.Median(b)
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%+.1f %%\t%s\t%s\n", name, m, number(was), number(is),
				100*(is-was)/was, ratioText(old, m), ratioText(c, m))
			name = strings.Repeat(" ", len(c.Family))
		}
	}
	w.Flush()
}

// compared are the metrics of a cell that tell most: cost, speed, and what gates are about.
func compared(c CellResult) []workload.Metric {
	want := map[workload.Metric]bool{
		workload.CPU: true, workload.Allocs: true, workload.Rate: true, workload.P99: true, workload.Wall: true,
		workload.Peak: true,
	}
	for _, g := range c.Gates {
		want[g.Metric] = true
	}
	var all []workload.Metric
	for _, m := range workload.Metrics() {
		if want[m] {
			all = append(all, m)
		}
	}
	return all
}

func ratioText(c CellResult, m workload.Metric) string {
	r, ok := c.ratio(m)
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%s [%s, %s]", number(r.Median), number(r.Low), number(r.High))
}

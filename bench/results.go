package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"sluice/bench/stats"
	"sluice/bench/workload"
)

// resultsFormat is the version of the saved form.
const resultsFormat = 1

// Results are everything that a comparison has measured, as it is saved.
type Results struct {
	Format      int
	Began       time.Time
	Quick       bool
	Pairs       int
	Settings    workload.Settings
	CPUs        int
	Go          string
	SluiceFlags []string `json:",omitempty"`
	SluiceEnv   []string `json:",omitempty"`
	EtcdFlags   []string `json:",omitempty"`
	EtcdEnv     []string `json:",omitempty"`
	Cells       []CellResult
}

// CellResult are the runs of one cell; the n-th of both members are a pair.
type CellResult struct {
	Family, Title, Cell, Op string
	Gates                   []workload.Gate
	Sluice, Etcd            []workload.Sample
	Error                   string `json:",omitempty"` // why runs are missing
}

// errFormat is returned for a file that another version has saved.
var errFormat = errors.New("unknown format")

func load(path string) (*Results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read earlier results: %w", err)
	}
	var r Results
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read earlier results: %s: %w", path, err)
	}
	if r.Format != resultsFormat {
		return nil, fmt.Errorf("read earlier results: %s: %w %d, want %d", path, errFormat, r.Format, resultsFormat)
	}
	return &r, nil
}

// store saves r; an empty path is nowhere.
func (r *Results) store(path string) error {
	if path == "" {
		return nil
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("save results: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("save results: %w", err)
	}
	return nil
}

// values are one metric of all runs, and whether every run has it.
func values(runs []workload.Sample, m workload.Metric) ([]float64, bool) {
	var v []float64
	for _, run := range runs {
		x, ok := run[m]
		if !ok {
			return nil, false
		}
		v = append(v, x)
	}
	return v, len(v) > 0
}

// ratio compares the members by a metric; false if it was not measured on both, or has no meaning.
func (c CellResult) ratio(m workload.Metric) (stats.Ratio, bool) {
	ours, ok := values(c.Sluice, m)
	theirs, also := values(c.Etcd, m)
	if !ok || !also {
		return stats.Ratio{}, false
	}
	r := stats.PairedRatio(ours, theirs)
	if m.Inverse() {
		r = stats.PairedRatio(theirs, ours)
	}
	return r, !math.IsNaN(r.Median) && !math.IsInf(r.Median, 0)
}

// Verdicts on a gate. A claim counts only if its interval lies on the right side as a whole.
const (
	met        = "met"
	unsure     = "unsure"
	missed     = "missed"
	unmeasured = "not measured"
)

// judge returns what a gate is about, and whether it holds.
func (c CellResult) judge(g workload.Gate) (stats.Ratio, string) {
	var r stats.Ratio
	more := g.Metric.More()
	if g.Absolute {
		ours, ok := values(c.Sluice, g.Metric)
		if !ok {
			return r, unmeasured
		}
		r.Median, more = stats.Median(ours), false
		r.Low, r.High = stats.Bootstrap(ours)
	} else {
		var ok bool
		if r, ok = c.ratio(g.Metric); !ok {
			return r, unmeasured
		}
	}
	sure, likely := r.High <= g.Limit, r.Median <= g.Limit
	if more {
		sure, likely = r.Low >= g.Limit, r.Median >= g.Limit
	}
	switch {
	case sure:
		return r, met
	case likely:
		return r, unsure
	default:
		return r, missed
	}
}

// outcome counts verdicts, and reports cells that failed.
func (r *Results) outcome(w io.Writer) error {
	count := map[string]int{}
	var failed []error
	for _, c := range r.Cells {
		if c.Error != "" {
			failed = append(failed, fmt.Errorf("%s %s: %s", c.Family, c.Cell, c.Error))
		}
		for _, g := range c.Gates {
			_, verdict := c.judge(g)
			count[verdict]++
		}
	}
	fmt.Fprintf(w, "\n%d cells. Gates: %d met, %d unsure, %d missed, %d not measured.\n",
		len(r.Cells), count[met], count[unsure], count[missed], count[unmeasured])
	return errors.Join(failed...)
}

// find returns the cell of the same name.
func (r *Results) find(c CellResult) (CellResult, bool) {
	i := slices.IndexFunc(r.Cells, func(o CellResult) bool { return o.Family == c.Family && o.Cell == c.Cell })
	if i < 0 {
		return CellResult{}, false
	}
	return r.Cells[i], true
}

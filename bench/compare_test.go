package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/bench/workload"

	"go.uber.org/goleak"

	"sluice/bench/process"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { process.CleanUp(); os.Exit(code) }))
}

// The quick form runs against Sluice alone: each cell makes the calls that it was asked for, and says so in
// the tables and in the saved results.
func TestCompareAlone(t *testing.T) {
	const ops = 300
	file := filepath.Join(t.TempDir(), "results.json")
	o, err := parseCompare([]string{
		"-quick", "-alone", "-pairs", "1", "-divide", "100", "-ops", "300", "-duration", "1m", "-only", "w1,W4,W5,W9",
		"-json", file, "-dir", t.TempDir(), "-mailbox-apply", "7",
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o.out, o.notes = &out, io.Discard
	if err := runCompare(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	saved, err := load(file)
	if err != nil {
		t.Fatal(err)
	}
	families := map[string]int{}
	for _, c := range saved.Cells {
		families[c.Family]++
		if c.Error != "" || len(c.Sluice) != 1 || len(c.Etcd) != 0 {
			t.Errorf("%s: %d runs of Sluice, %d of etcd, error %q", c.Cell, len(c.Sluice), len(c.Etcd), c.Error)
			continue
		}
		s := c.Sluice[0]
		want := float64(ops)
		switch {
		case strings.HasPrefix(c.Cell, "10 watchers of a key each"):
			want = 500
		case strings.HasPrefix(c.Cell, "10 watchers of all keys"):
			want = 5000
		case strings.Contains(c.Cell, "100x1000"):
			want = 300
		}
		if s[workload.Ops] != want {
			t.Errorf("%s: %v operations, want %v", c.Cell, s[workload.Ops], want)
		}
		if s[workload.CPU] <= 0 || s[workload.Resident] <= 0 || s[workload.Reads] <= 0 || s[workload.Switches] <= 0 {
			t.Errorf("%s: not everything was measured: %v", c.Cell, s)
		}
		if c.Family == "W1" && s[workload.Fsyncs] != 1 {
			t.Errorf("%s: %v fsyncs for a put that is alone", c.Cell, s[workload.Fsyncs])
		}
		if !strings.Contains(out.String(), c.Cell) {
			t.Errorf("%s is in no table", c.Cell)
		}
	}
	if families["W1"] != 2 || families["W4"] != 2 || families["W5"] < 6 || families["W9"] != 2 {
		t.Errorf("cells of each family: %v", families)
	}
	if len(saved.SluiceFlags) != 1 || saved.SluiceFlags[0] != "--mailbox-apply=7" {
		t.Errorf("the daemon's flags were %q", saved.SluiceFlags)
	}
}

func samples(m workload.Metric, v ...float64) []workload.Sample {
	var all []workload.Sample
	for _, x := range v {
		all = append(all, workload.Sample{m: x})
	}
	return all
}

// A gate is met only if the whole interval is on its right side.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name   string
		gate   workload.Gate
		sluice []float64
		etcd   []float64
		want   string
	}{
		{
			"cost is etcd's over ours", workload.Gate{Metric: workload.CPU, Limit: 3},
			[]float64{10, 11, 10}, []float64{40, 40, 42}, met,
		},
		{
			"at the limit", workload.Gate{Metric: workload.CPU, Limit: 4},
			[]float64{10, 10}, []float64{40, 40}, met,
		},
		{
			"below the limit", workload.Gate{Metric: workload.CPU, Limit: 5},
			[]float64{10, 10}, []float64{40, 40}, missed,
		},
		{
			"one pair of three disagrees", workload.Gate{Metric: workload.CPU, Limit: 3},
			[]float64{10, 10, 10}, []float64{40, 40, 20}, unsure,
		},
		{
			"latency is ours over etcd's", workload.Gate{Metric: workload.P99, Limit: 0.5},
			[]float64{1, 1}, []float64{4, 5}, met,
		},
		{
			"slower than allowed", workload.Gate{Metric: workload.P99, Limit: 0.5},
			[]float64{4, 4}, []float64{4, 5}, missed,
		},
		{
			"rate is ours over etcd's", workload.Gate{Metric: workload.Rate, Limit: 2},
			[]float64{9, 9}, []float64{4, 4}, met,
		},
		{
			"absolute", workload.Gate{Metric: workload.Allocs, Limit: 40, Absolute: true},
			[]float64{39, 40}, nil, met,
		},
		{
			"above the absolute", workload.Gate{Metric: workload.Allocs, Limit: 40, Absolute: true},
			[]float64{41, 41}, []float64{900, 900}, missed,
		},
		{
			"etcd did not run", workload.Gate{Metric: workload.CPU, Limit: 3},
			[]float64{10}, nil, unmeasured,
		},
	} {
		r := CellResult{Sluice: samples(c.gate.Metric, c.sluice...), Etcd: samples(c.gate.Metric, c.etcd...)}
		if _, got := r.judge(c.gate); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Two saved results are compared cell by cell; what only one of them has is left out.
func TestAgainst(t *testing.T) {
	cell := func(name string, ours, theirs float64) CellResult {
		return CellResult{
			Family: "W2", Cell: name, Sluice: samples(workload.CPU, ours), Etcd: samples(workload.CPU, theirs),
		}
	}
	var out bytes.Buffer
	printAgainst(&out, Results{Cells: []CellResult{cell("put", 50, 100), cell("gone", 1, 1)}},
		Results{Cells: []CellResult{cell("put", 25, 110), cell("new", 1, 1)}})
	text := strings.Join(strings.Fields(out.String()), " ")
	want := "W2 put CPU us/op 50.0 25.0 -50.0 % 2.00 [2.00, 2.00] 4.40 [4.40, 4.40]"
	if !strings.HasSuffix(text, want) {
		t.Errorf("printed %q, want at its end %q", text, want)
	}
}

func TestSavedByAnotherVersion(t *testing.T) {
	file := filepath.Join(t.TempDir(), "old.json")
	if err := os.WriteFile(file, []byte(`{"Format": 99}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := load(file); !errors.Is(err, errFormat) {
		t.Errorf("read with %v", err)
	}
}

// Cells that fail are reported, and make the command fail.
func TestOutcomeNamesFailures(t *testing.T) {
	r := Results{Cells: []CellResult{{Family: "W2", Cell: "put", Error: "no space"}, {Family: "W5", Cell: "get"}}}
	if err := r.outcome(io.Discard); err == nil || !strings.Contains(err.Error(), "W2 put: no space") {
		t.Errorf("outcome %v", err)
	}
}

func TestCommandLine(t *testing.T) {
	for _, args := range [][]string{
		{"measure"}, {"compare", "-only", "W99"}, {"compare", "-pairs", "-1"}, {"compare", "extra"},
		{"stages", "-workload", "dance"}, {"-clients", "0"},
	} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	o, err := parseCompare([]string{"-etcd-flags", "--a=1  --b=2", "-etcd-env", "GOGC=300"})
	if err != nil || len(o.etcdFlags) != 2 || o.etcdFlags[1] != "--b=2" || o.etcdEnv[0] != "GOGC=300" || o.pairs != 7 {
		t.Errorf("%+v, %v", o, err)
	}
}

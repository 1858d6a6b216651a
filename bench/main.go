package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"sluice/bench/process"
)

type options struct {
	workload string
	clients  int
	conns    int
	ops      int
	size     int
	keys     int
	pairs    int
	compare  bool
	profile  string   // file for the daemon's CPU profile of the run
	extra    []string // flags of the daemon
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.workload, "workload", "put", "put, get, serializable or mixed (nine gets to one put)")
	f.IntVar(&o.clients, "clients", 64, "requests in flight")
	f.IntVar(&o.conns, "conns", 8, "client connections")
	f.IntVar(&o.ops, "ops", 40000, "operations per run")
	f.IntVar(&o.size, "size", 256, "bytes of a value")
	f.IntVar(&o.keys, "keys", 100000, "size of the key space")
	f.IntVar(&o.pairs, "pairs", 4, "pairs of runs with -compare")
	f.BoolVar(&o.compare, "compare", false, "run real etcd 3.7.3 beside it")
	f.StringVar(&o.profile, "cpuprofile", "", "write the daemon's CPU profile of the run to this file")
	boxes := map[string]*int{}
	for _, name := range []string{"propose", "system", "replicate", "persist", "apply", "watch", "expire", "backend"} {
		boxes[name] = f.Int("mailbox-"+name, 0, "size of the "+name+" mailbox; 0 is the daemon's default")
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for name, n := range boxes {
		if *n > 0 {
			o.extra = append(o.extra, fmt.Sprintf("--mailbox-%s=%d", name, *n))
		}
	}
	if o.profile != "" {
		o.extra = append(o.extra, "--enable-pprof")
	}
	switch {
	case o.profile != "" && o.compare:
		return o, fmt.Errorf("-cpuprofile and -compare exclude each other")
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !slices.Contains([]string{"put", "get", "serializable", "mixed"}, o.workload):
		return o, fmt.Errorf("unknown workload %q", o.workload)
	case o.clients < 1 || o.conns < 1 || o.ops < o.clients || o.size < 0 || o.keys < 1 || o.pairs < 1:
		return o, fmt.Errorf("clients, conns, keys and pairs must be at least 1, and ops at least clients")
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	program, err := process.Sluice()
	if err != nil {
		return err
	}
	ours, err := launch(ctx, program, o, o.extra...)
	if err != nil {
		return err
	}
	defer ours.close()
	if !o.compare {
		before, err := ours.meters(ctx)
		if err != nil {
			return err
		}
		stop := ours.profile(ctx, o.profile)
		r, err := ours.load(ctx, o, 1)
		if err = errors.Join(err, stop()); err != nil {
			return err
		}
		after, err := ours.meters(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("%s, %d clients on %d connections, %d-byte values\n\n", o.workload, o.clients, o.conns, o.size)
		printResults([]string{"sluice"}, []result{r})
		printStages(after.since(before))
		return nil
	}
	tools, err := process.Oracle()
	if err != nil {
		return err
	}
	theirs, err := launch(ctx, tools.Etcd, o)
	if err != nil {
		return err
	}
	defer theirs.close()
	return compare(ctx, o, ours, theirs)
}

// compare runs ABBA blocks and prints the medians and the medians of the paired ratios.
func compare(ctx context.Context, o options, ours, theirs *target) error {
	var a, b []result
	for pair := range o.pairs {
		order := []*target{ours, theirs}
		if pair%2 == 1 {
			slices.Reverse(order)
		}
		for _, t := range order {
			r, err := t.load(ctx, o, uint64(pair))
			if err != nil {
				return err
			}
			if t == ours {
				a = append(a, r)
			} else {
				b = append(b, r)
			}
		}
		fmt.Fprintf(os.Stderr, "pair %d of %d\r", pair+1, o.pairs)
	}
	fmt.Fprint(os.Stderr, strings.Repeat(" ", 20)+"\r")
	fmt.Printf("%s, %d clients on %d connections, %d-byte values, %d pairs\n\n",
		o.workload, o.clients, o.conns, o.size, o.pairs)
	printResults([]string{"sluice", "etcd"}, []result{medianOf(a), medianOf(b)})
	ratio := func(of func(result) float64) float64 {
		var rs []float64
		for i := range a {
			rs = append(rs, of(b[i])/of(a[i]))
		}
		return median(rs)
	}
	fmt.Printf("\netcd / sluice, median of pairs: CPU per operation %.2f, p50 %.2f, p99 %.2f; "+
		"sluice / etcd: throughput %.2f\n",
		ratio(func(r result) float64 { return r.cpuMicros }), ratio(func(r result) float64 { return r.p50 }),
		ratio(func(r result) float64 { return r.p99 }), 1/ratio(func(r result) float64 { return r.rate }))
	return nil
}

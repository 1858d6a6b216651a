package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"

	"sluice/bench/process"
	"sluice/bench/workload"
)

// stageOptions are what the stages command was asked for.
type stageOptions struct {
	workload string
	clients  int
	conns    int
	ops      int
	size     int
	keys     int
	profile  string   // file for the daemon's CPU profile of the run
	extra    []string // flags of the daemon
}

func parseStages(args []string) (stageOptions, error) {
	var o stageOptions
	f := flag.NewFlagSet("bench stages", flag.ContinueOnError)
	f.StringVar(&o.workload, "workload", "put", "put, get, serializable or mixed (nine gets to one put)")
	f.IntVar(&o.clients, "clients", 64, "requests in flight")
	f.IntVar(&o.conns, "conns", 8, "client connections")
	f.IntVar(&o.ops, "ops", 40000, "operations")
	f.IntVar(&o.size, "size", 256, "bytes of a value")
	f.IntVar(&o.keys, "keys", 100000, "size of the key space")
	f.StringVar(&o.profile, "cpuprofile", "", "write the daemon's CPU profile of the run to this file")
	extra := daemonFlags(f)
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.extra = extra()
	if o.profile != "" {
		o.extra = append(o.extra, "--enable-pprof")
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !slices.Contains([]string{"put", "get", "serializable", "mixed"}, o.workload):
		return o, fmt.Errorf("unknown workload %q", o.workload)
	case o.clients < 1 || o.conns < 1 || o.ops < o.clients || o.size < 0 || o.keys < 1:
		return o, fmt.Errorf("clients, conns and keys must be at least 1, and ops at least clients")
	}
	return o, nil
}

// runStages loads the daemon and prints where the requests spent their time.
func runStages(ctx context.Context, o stageOptions) error {
	program, err := process.Sluice()
	if err != nil {
		return err
	}
	t, err := launch(ctx, program, o, o.extra...)
	if err != nil {
		return err
	}
	defer t.close()
	before, err := workload.Scrape(ctx, t.daemon)
	if err != nil {
		return err
	}
	stop := t.profile(ctx, o.profile)
	r, err := t.load(ctx, o, 1)
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	after, err := workload.Scrape(ctx, t.daemon)
	if err != nil {
		return err
	}
	fmt.Printf("%s, %d clients on %d connections, %d-byte values\n\n", o.workload, o.clients, o.conns, o.size)
	printResult(r)
	printStages(after.Since(before))
	return nil
}

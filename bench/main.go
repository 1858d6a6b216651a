package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"sluice/bench/process"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	process.CleanUp()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is the command: the first argument names what to do, unless it is a flag of stages.
func run(ctx context.Context, args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		args = append([]string{"stages"}, args...)
	}
	switch args[0] {
	case "stages":
		o, err := parseStages(args[1:])
		if err != nil {
			return err
		}
		return runStages(ctx, o)
	case "compare":
		o, err := parseCompare(args[1:])
		if err != nil {
			return err
		}
		return runCompare(ctx, o)
	default:
		return fmt.Errorf("unknown command %q: stages and compare are known", args[0])
	}
}

// daemonFlags adds the flags that both commands have, for Sluice's own settings. The returned function gives
// the daemon's flags once f has been parsed.
func daemonFlags(f *flag.FlagSet) func() []string {
	extra := f.String("sluice-flags", "", "further flags of the daemon, separated by spaces")
	var boxes []string
	for _, name := range []string{"propose", "system", "replicate", "persist", "apply", "watch", "expire", "backend"} {
		f.Func("mailbox-"+name, "size of the "+name+" mailbox", func(n string) error {
			boxes = append(boxes, "--mailbox-"+name+"="+n)
			return nil
		})
	}
	return func() []string { return append(boxes, strings.Fields(*extra)...) }
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"sluice/bench/process"
	"sluice/bench/workload"

	"golang.org/x/sys/unix"
)

// compareOptions are what the compare command was asked for.
type compareOptions struct {
	settings    workload.Settings
	pairs       int
	pairsAlone  int // of cells that take long
	quick       bool
	alone       bool     // without etcd
	only        []string // families; empty is all
	match       string   // part of a cell's name
	dir         string   // of the data
	save        string   // file
	against     string   // file
	generator   string   // file for the CPU profile of this command itself
	sluiceFlags []string
	sluiceEnv   []string
	etcdFlags   []string
	etcdEnv     []string
	out, notes  io.Writer // tables; progress
}

func parseCompare(args []string) (compareOptions, error) {
	o := compareOptions{out: os.Stdout, notes: os.Stderr}
	f := flag.NewFlagSet("bench compare", flag.ContinueOnError)
	f.BoolVar(&o.quick, "quick", false, "short runs, few pairs, key spaces of a fifth: under five minutes")
	f.IntVar(&o.pairs, "pairs", 0, "pairs of runs for each cell; 0 is 7, or 2 if quick")
	f.DurationVar(&o.settings.Duration, "duration", 0, "length of a run; 0 is 3s, or 500ms if quick")
	f.IntVar(&o.settings.Ops, "ops", 0, "calls of a run at most; 0 is as many as fit")
	f.IntVar(&o.settings.Divide, "divide", 0, "make key spaces and crowds this much smaller; 0 is 1, or 5 if quick")
	f.BoolVar(&o.alone, "alone", false, "measure Sluice only")
	only := f.String("only", "", "families to run, such as W2,W5; empty is all")
	f.StringVar(&o.match, "match", "", "run only cells with this in their name")
	f.StringVar(&o.dir, "dir", "", "folder for both members' data; empty is the system's temporary one")
	f.StringVar(&o.save, "json", "", "save all samples to this file")
	f.StringVar(&o.against, "against", "", "compare with what -json has saved in this file")
	f.StringVar(&o.generator, "generator-profile", "", "write the CPU profile of the load generator to this file")
	etcdFlags := f.String("etcd-flags", "", "further flags of etcd, separated by spaces")
	etcdEnv := f.String("etcd-env", "", "environment of etcd, such as GOGC=300, separated by spaces")
	sluiceEnv := f.String("sluice-env", "", "environment of Sluice, separated by spaces")
	extra := daemonFlags(f)
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.sluiceFlags, o.sluiceEnv = extra(), strings.Fields(*sluiceEnv)
	o.etcdFlags, o.etcdEnv = strings.Fields(*etcdFlags), strings.Fields(*etcdEnv)
	o.only = strings.FieldsFunc(strings.ToUpper(*only), func(r rune) bool { return r == ',' })
	o.fillDefaults()
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.pairs < 1 || o.settings.Duration < 0 || o.settings.Ops < 0 || o.settings.Divide < 1:
		return o, errors.New("pairs and divide must be at least 1, duration and ops not negative")
	}
	known := workload.All(o.settings)
	for _, id := range o.only {
		if !slices.ContainsFunc(known, func(f workload.Family) bool { return f.ID == id }) {
			return o, fmt.Errorf("unknown workload %q", id)
		}
	}
	return o, nil
}

func (o *compareOptions) fillDefaults() {
	or := func(v *int, full, quick int) {
		if *v == 0 {
			*v = full
			if o.quick {
				*v = quick
			}
		}
	}
	or(&o.pairs, 7, 2)
	or(&o.settings.Divide, 1, 5)
	o.pairsAlone = min(o.pairs, 3)
	if o.quick {
		o.pairsAlone = 1
	}
	if o.settings.Duration == 0 {
		o.settings.Duration = 3 * time.Second
		if o.quick {
			o.settings.Duration = 500 * time.Millisecond
		}
	}
}

// comparison is a run of the compare command.
type comparison struct {
	compareOptions
	ours, theirs workload.Program
	began        time.Time
	results      Results
}

func runCompare(ctx context.Context, o compareOptions) error {
	c := &comparison{compareOptions: o, began: time.Now(), results: describe(o)}
	var before *Results
	if o.against != "" {
		var err error
		if before, err = load(o.against); err != nil {
			return err
		}
	}
	program, err := process.Sluice()
	if err != nil {
		return err
	}
	c.ours = workload.Program{Name: "sluice", Path: program, Flags: o.sluiceFlags, Env: o.sluiceEnv}
	if !o.alone {
		tools, err := process.Oracle()
		if err != nil {
			return err
		}
		c.theirs = workload.Program{Name: "etcd", Path: tools.Etcd, Flags: o.etcdFlags, Env: o.etcdEnv}
	}
	dir, err := os.MkdirTemp(o.dir, "sluice-compare-")
	if err != nil {
		return fmt.Errorf("make a folder for data: %w", err)
	}
	defer os.RemoveAll(dir)
	stop, err := profileSelf(o.generator)
	if err != nil {
		return err
	}
	err = c.families(ctx, dir)
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	c.note("")
	if before != nil {
		printAgainst(o.out, *before, c.results)
	}
	return c.results.outcome(o.out)
}

// profileSelf begins a CPU profile of this process, none for an empty file name. The returned function ends it.
func profileSelf(file string) (stop func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, fmt.Errorf("profile the generator: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("profile the generator: %w", err)
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// describe is the head of the results.
func describe(o compareOptions) Results {
	return Results{
		Format: resultsFormat, Began: time.Now().UTC(), Quick: o.quick, Pairs: o.pairs, Settings: o.settings,
		CPUs: goruntime.NumCPU(), Go: goruntime.Version(),
		SluiceFlags: o.sluiceFlags, SluiceEnv: o.sluiceEnv, EtcdFlags: o.etcdFlags, EtcdEnv: o.etcdEnv,
	}
}

// families runs what was asked for, prints each family's tables and saves all samples after it.
func (c *comparison) families(ctx context.Context, dir string) error {
	for _, family := range workload.All(c.settings) {
		if len(c.only) > 0 && !slices.Contains(c.only, family.ID) {
			continue
		}
		first := len(c.results.Cells)
		for _, group := range family.Groups {
			group.Cells = slices.DeleteFunc(group.Cells, func(cell workload.Cell) bool {
				return c.quick && cell.Long || !strings.Contains(cell.Name, c.match)
			})
			if len(group.Cells) == 0 {
				continue
			}
			err := c.group(ctx, dir, family, group)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", family.ID, err)
			}
		}
		c.note("")
		if cells := c.results.Cells[first:]; len(cells) > 0 {
			fmt.Fprintf(c.out, "\n%s %s\n", family.ID, family.Title)
			for _, cell := range cells {
				printCell(c.out, cell)
			}
		}
		if err := c.results.store(c.save); err != nil {
			return err
		}
	}
	return nil
}

// databaseBytesMax is when members start anew before the next cell, far from the default quota.
const databaseBytesMax = 800 << 20

// group starts both members and runs all cells of a group. What fails in a cell is kept with it; the members
// then start anew.
func (c *comparison) group(ctx context.Context, dir string, family workload.Family, g workload.Group) error {
	c.note("%s: start and fill", family.ID)
	members := []*workload.Member{nil, nil}
	for i, p := range []workload.Program{c.ours, c.theirs} {
		if p.Path == "" {
			members = members[:1]
			break
		}
		m, err := workload.Start(ctx, p, dir, g.Security, g.Fill)
		if err != nil {
			return err
		}
		defer m.Close()
		members[i] = m
	}
	warm := false
	for _, cell := range g.Cells {
		for _, m := range members {
			if m.DatabaseBytes() > databaseBytesMax {
				if err := m.Reset(ctx); err != nil {
					return err
				}
			}
		}
		r := CellResult{Family: family.ID, Title: family.Title, Cell: cell.Name, Op: cell.Op, Gates: cell.Gates}
		err := c.cell(ctx, cell, members, &r, !warm && !cell.Alone)
		warm = warm || !cell.Alone
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.Error = err.Error()
			for _, m := range members {
				if err := m.Reset(ctx); err != nil {
					return err
				}
			}
		}
		c.results.Cells = append(c.results.Cells, r)
	}
	return nil
}

// cell runs one cell in ABBA order: what drifts over time then meets both members alike.
func (c *comparison) cell(
	ctx context.Context, cell workload.Cell, members []*workload.Member, r *CellResult, warm bool,
) error {
	if cell.Prepare != nil {
		c.note("%s: %s: prepare", r.Family, cell.Name)
		if err := cell.Prepare(ctx, members[len(members)-1]); err != nil {
			return err
		}
	}
	pairs := c.pairs
	if cell.Alone {
		pairs = c.pairsAlone
	}
	if warm {
		c.note("%s: %s: warm up", r.Family, cell.Name)
		for _, m := range members {
			if _, err := cell.Run(ctx, m); err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
		}
	}
	for pair := range pairs {
		order := slices.Clone(members)
		if pair%2 == 1 {
			slices.Reverse(order)
		}
		for _, m := range order {
			c.note("%s: %s: pair %d of %d, %s", r.Family, cell.Name, pair+1, pairs, m.Name)
			if err := c.settle(ctx); err != nil {
				return err
			}
			sample, err := cell.Run(ctx, m)
			if err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
			if m == members[0] {
				r.Sluice = append(r.Sluice, sample)
			} else {
				r.Etcd = append(r.Etcd, sample)
			}
		}
	}
	return nil
}

// settle lets the disk finish what the last run has left.
func (c *comparison) settle(ctx context.Context) error {
	unix.Sync()
	pause := 200 * time.Millisecond
	if c.quick {
		pause = 50 * time.Millisecond
	}
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// note shows what is going on, in place of what was shown before.
func (c *comparison) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if text != "" {
		text = fmt.Sprintf("[%s] %s", time.Since(c.began).Round(time.Second), text)
	}
	fmt.Fprintf(c.notes, "\r\x1b[K%s", text)
}

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/bench/process"
	"sluice/bench/workload"

	"github.com/google/pprof/profile"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// target is one running daemon under load.
type target struct {
	daemon  *process.Daemon
	dir     string
	clients []*clientv3.Client
}

// result is one run. Times are in microseconds.
type result struct {
	rate           float64 // operations per second
	p50, p99, p999 float64
	cpuMicros      float64 // of the server, per operation
	fsyncs         float64 // of the log, per operation
	allocs         float64 // of the server, per operation
	rssMiB         float64
}

func launch(ctx context.Context, program string, o stageOptions, flags ...string) (*target, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a data directory: %w", err)
	}
	t := &target{dir: dir}
	if t.daemon, err = process.New(program, dir, flags...); err == nil {
		err = t.daemon.Start(ctx)
	}
	for range o.conns {
		if err != nil {
			break
		}
		var c *clientv3.Client
		if c, err = t.daemon.Connect(); err == nil {
			t.clients = append(t.clients, c)
		}
	}
	if err == nil && o.workload != "put" {
		err = t.fill(ctx, o)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *target) close() {
	for _, c := range t.clients {
		c.Close()
	}
	if t.daemon != nil {
		t.daemon.Kill()
	}
	os.RemoveAll(t.dir)
}

func key(n int) string { return fmt.Sprintf("/registry/things/namespace-%03d/thing-%08d", n%300, n) }

// fill writes the key space that reads are spread over.
func (t *target) fill(ctx context.Context, o stageOptions) error {
	value := string(noise(o.size))
	var ops []clientv3.Op
	for n := range o.keys {
		ops = append(ops, clientv3.OpPut(key(n), value))
		if len(ops) == 100 || n == o.keys-1 {
			if _, err := t.clients[0].Txn(ctx).Then(ops...).Commit(); err != nil {
				return fmt.Errorf("fill: %w", err)
			}
			ops = ops[:0]
		}
	}
	return nil
}

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	g := rand.NewChaCha8([32]byte{1})
	_, _ = g.Read(b) // never fails
	return b
}

// load runs o.ops operations, closed loop, and measures them.
func (t *target) load(ctx context.Context, o stageOptions, seed uint64) (result, error) {
	value := string(noise(o.size))
	before, err := workload.Scrape(ctx, t.daemon)
	if err != nil {
		return result{}, err
	}
	cpu, err := workload.ProcessCPU(t.daemon.PID())
	if err != nil {
		return result{}, err
	}
	each := o.ops / o.clients
	took := make([][]float64, o.clients)
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for w := range o.clients {
		wg.Go(func() {
			g := rand.New(rand.NewPCG(seed, uint64(w)))
			c := t.clients[w%len(t.clients)]
			for range each {
				start := time.Now()
				if err := operate(ctx, c, o, g, value); err != nil {
					failed.Store(&err)
					return
				}
				took[w] = append(took[w], float64(time.Since(start).Nanoseconds())/1000)
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	if err := failed.Load(); err != nil {
		return result{}, *err
	}
	cpuAfter, err := workload.ProcessCPU(t.daemon.PID())
	if err != nil {
		return result{}, err
	}
	after, err := workload.Scrape(ctx, t.daemon)
	if err != nil {
		return result{}, err
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	n := float64(len(all))
	diff := after.Since(before)
	return result{
		rate: n / elapsed.Seconds(), p50: all[len(all)/2], p99: all[len(all)*99/100], p999: all[len(all)*999/1000],
		cpuMicros: float64((cpuAfter - cpu).Microseconds()) / n,
		fsyncs:    diff["etcd_disk_wal_fsync_duration_seconds_count"] / n,
		allocs:    diff["go_memstats_mallocs_total"] / n,
		rssMiB:    after["process_resident_memory_bytes"] / (1 << 20),
	}, nil
}

func operate(ctx context.Context, c *clientv3.Client, o stageOptions, g *rand.Rand, value string) error {
	k := key(g.IntN(o.keys))
	var err error
	switch {
	case o.workload == "put" || o.workload == "mixed" && g.IntN(10) == 0:
		_, err = c.Put(ctx, k, value)
	case o.workload == "serializable":
		_, err = c.Get(ctx, k, clientv3.WithSerializable())
	default:
		_, err = c.Get(ctx, k)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.workload, err)
	}
	return nil
}

// profile begins a CPU profile of the daemon, none for an empty file name. The returned function ends it and
// writes the file; the daemon profiles in steps of a second.
func (t *target) profile(ctx context.Context, file string) (stop func() error) {
	if file == "" {
		return func() error { return nil }
	}
	ended := make(chan struct{})
	written := make(chan error, 1)
	go func() {
		var profiles []*profile.Profile
		for {
			p, err := t.profileSecond(ctx)
			if err != nil {
				written <- err
				return
			}
			profiles = append(profiles, p)
			select {
			case <-ended:
				written <- writeProfile(file, profiles)
				return
			default:
			}
		}
	}()
	return func() error { close(ended); return <-written }
}

func (t *target) profileSecond(ctx context.Context) (*profile.Profile, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.daemon.Client+"/debug/pprof/profile?seconds=1", nil)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	defer resp.Body.Close()
	p, err := profile.Parse(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return p, nil
}

func writeProfile(file string, parts []*profile.Profile) error {
	whole, err := profile.Merge(parts)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer f.Close()
	if err := whole.Write(f); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return f.Close()
}

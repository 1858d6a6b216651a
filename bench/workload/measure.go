package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"sluice/bench/process"
	"sluice/bench/stats"

	"golang.org/x/sys/unix"
)

// Work is what a run has done.
type Work struct {
	Ops     int
	Latency *stats.Histogram // nil if nothing was timed
}

// measure runs do and returns what it cost the member, per operation.
func (m *Member) measure(ctx context.Context, do func() (Work, error)) (Sample, error) {
	// Scraped twice, to know what a scrape itself allocates.
	first, err := Scrape(ctx, m.daemon)
	if err != nil {
		return nil, err
	}
	second, err := Scrape(ctx, m.daemon)
	if err != nil {
		return nil, err
	}
	pid := m.daemon.PID()
	resetPeak(pid)
	before, err := readProcess(pid)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	work, err := do()
	elapsed := time.Since(began)
	if err != nil {
		return nil, err
	}
	after, err := readProcess(pid)
	if err != nil {
		return nil, err
	}
	last, err := Scrape(ctx, m.daemon)
	if err != nil {
		return nil, err
	}
	if work.Ops == 0 {
		return nil, fmt.Errorf("%s: no operation ended in %v", m.Name, elapsed)
	}
	n := float64(work.Ops)
	scraped := func(family string) float64 {
		return max(0, last[family]-second[family]-(second[family]-first[family])) / n
	}
	s := Sample{
		Ops: n, Rate: n / elapsed.Seconds(), CPU: micros(after.cpu-before.cpu) / n,
		Allocs: scraped("go_memstats_mallocs_total"), Bytes: scraped("go_memstats_alloc_bytes_total"),
		Fsyncs: scraped("etcd_disk_wal_fsync_duration_seconds_count"),
		Log:    scraped("etcd_disk_wal_write_bytes_total"),
		Reads:  float64(after.reads-before.reads) / n, Writes: float64(after.writes-before.writes) / n,
		Disk: float64(after.disk-before.disk) / n, Switches: float64(after.switches-before.switches) / n,
		Peak: mebi(after.peak), Extra: mebi(after.peak - before.resident), Resident: mebi(after.resident),
		ClientCPU: micros(after.client-before.client) / n,
	}
	if h := work.Latency; h != nil && h.Count() > 0 {
		s[P50], s[P99], s[P999] = quantile(h, 0.5), quantile(h, 0.99), quantile(h, 0.999)
	}
	return s, nil
}

func quantile(h *stats.Histogram, q float64) float64 { return float64(h.Quantile(q)) / 1000 }

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func mebi(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// usage is what the kernel has counted for a process so far.
type usage struct {
	cpu            time.Duration
	client         time.Duration // CPU of this process
	reads, writes  int64         // system calls
	disk           int64         // bytes
	switches       int64
	peak, resident int64 // bytes
}

func readProcess(pid int) (usage, error) {
	var u usage
	var err error
	if u.cpu, err = ProcessCPU(pid); err != nil {
		return u, err
	}
	var self unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &self); err != nil {
		return u, fmt.Errorf("read our own CPU time: %w", err)
	}
	u.client = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	err = readFields(fmt.Sprintf("/proc/%d/io", pid), map[string]*int64{
		"syscr": &u.reads, "syscw": &u.writes, "write_bytes": &u.disk,
	})
	if err != nil {
		return u, err
	}
	err = readFields(fmt.Sprintf("/proc/%d/status", pid), map[string]*int64{"VmHWM": &u.peak, "VmRSS": &u.resident})
	if err != nil {
		return u, err
	}
	u.peak, u.resident = u.peak<<10, u.resident<<10 // from kB
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return u, fmt.Errorf("list the server's threads: %w", err)
	}
	for _, t := range threads {
		var own, forced int64
		err := readFields(fmt.Sprintf("/proc/%d/task/%s/status", pid, t.Name()), map[string]*int64{
			"voluntary_ctxt_switches": &own, "nonvoluntary_ctxt_switches": &forced,
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a thread may end any time
			return u, err
		}
		u.switches += own + forced
	}
	return u, nil
}

// ProcessCPU reads the CPU clock of a process. /proc/pid/stat has the same in ticks of 10 ms, too coarse for
// short runs. The kernel's clock number of a process is its id, inverted, above three bits that say which
// clock: 2 is user and system time.
func ProcessCPU(pid int) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, fmt.Errorf("read the server's CPU time: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// resetPeak makes the kernel forget the most that was resident. Where it is not allowed to, the peak is
// that of the process's life.
func resetPeak(pid int) { _ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) }

// readFields reads "name: number" lines of a file of the kernel.
func readFields(path string, want map[string]*int64) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the server's counters: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		into, ok := want[name]
		if !ok {
			continue
		}
		if *into, err = strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err != nil {
			return fmt.Errorf("read %s of %s: %w", name, path, err)
		}
	}
	return nil
}

// Readings are the samples of one scrape, by name and labels.
type Readings map[string]float64

// Since returns how much each sample has grown.
func (r Readings) Since(before Readings) Readings {
	diff := Readings{}
	for name, v := range r {
		diff[name] = v - before[name]
	}
	return diff
}

// Scrape reads the daemon's metrics.
func Scrape(ctx context.Context, d *process.Daemon) (Readings, error) {
	client := d.HTTP()
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.PagesURL()+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	defer resp.Body.Close()
	r := Readings{}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			r[name] = v
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	return r, nil
}

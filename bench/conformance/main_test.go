package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"sluice/bench/process"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	opsFlag    = flag.Int("ops", 4000, "operations of the differential test")
	seedFlag   = flag.Uint64("seed", 1, "seed of random tests, 0 for a new one")
	roundsFlag = flag.Int("rounds", 4, "rounds of the kill -9 test")
	tinyFlag   = flag.Bool("tiny", false, "run every daemon with mailboxes of size 1")
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	process.CleanUp()
	os.Exit(code)
}

// seed returns the seed of a random test and prints it, so that a failure can be replayed.
func seed(t *testing.T) uint64 {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	return s
}

// tools returns the reference's programs. Without a network to fetch its modules from the test is skipped
// with the reason, unless CI asks for it.
func tools(t *testing.T) process.Tools {
	t.Helper()
	tools, err := process.Oracle()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("the reference etcd cannot be built here: %v", err)
	}
	return tools
}

// sluice describes a Sluice member with a fresh data directory.
func sluice(t *testing.T, extra ...string) *process.Daemon {
	t.Helper()
	program, err := process.Sluice()
	if err != nil {
		t.Fatal(err)
	}
	if *tinyFlag {
		extra = append(tinyMailboxes(), extra...)
	}
	return member(t, program, extra...)
}

func tinyMailboxes() []string {
	var flags []string
	for _, name := range []string{"propose", "system", "replicate", "persist", "apply", "watch", "expire", "backend"} {
		flags = append(flags, fmt.Sprintf("--mailbox-%s=1", name))
	}
	return flags
}

// etcd describes a member of the reference with a fresh data directory.
func etcd(t *testing.T, extra ...string) *process.Daemon {
	t.Helper()
	return member(t, tools(t).Etcd, extra...)
}

func member(t *testing.T, program string, extra ...string) *process.Daemon {
	t.Helper()
	d, err := process.New(program, t.TempDir(), extra...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// start runs d until the test ends.
func start(t *testing.T, d *process.Daemon) {
	t.Helper()
	t.Cleanup(d.Kill)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// connect returns a stock client of d that closes with the test.
func connect(t *testing.T, d *process.Daemon) *clientv3.Client {
	t.Helper()
	c, err := d.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// stopped ends d in order and fails the test if it does not.
func stopped(t *testing.T, d *process.Daemon) {
	t.Helper()
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
}

// within bounds one step of a test, so that a hang fails by name.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

package expire

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var rewrite = flag.Bool("rewrite", false, "write the scripts' output into them instead of checking it")

// Each file of testdata is one story: commands, and below each, indented, what the core decided.
func TestCoreScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(data))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(data) {
				t.Errorf("output differs; got:\n%s", got)
			}
		})
	}
}

// script is a core with the shell's part played by the test.
type script struct {
	core   *core
	now    int64
	fresh  bool
	room   int // revocations that are taken
	record bool
	names  map[*reply]string
	out    strings.Builder
}

func runScript(t *testing.T, text string) string {
	s := &script{fresh: true, room: 1 << 30, record: true, names: map[*reply]string{}}
	var all strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&all, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		s.out.Reset()
		if err := s.do(strings.Fields(line)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all.WriteString(s.out.String())
	}
	return all.String()
}

func (s *script) do(args []string) error {
	num := func(i int) int64 {
		if i >= len(args) {
			return 0
		}
		n, _ := strconv.ParseInt(args[i], 10, 64)
		return n
	}
	ask := func() *reply {
		r := &reply{ch: make(chan answer, 1)}
		s.names[r] = strings.Join(args, " ")
		return r
	}
	change := func(ch Change) { s.core.step(s.now, s.fresh, changesMsg{[]Change{ch}}) }
	switch args[0] {
	case "reset":
		change(Change{Kind: Reset})
	case "grant": // grant id ttl [remaining]
		change(Change{Kind: Granted, ID: num(1), TTL: num(2), Remaining: num(3)})
	case "grants": // grants from to ttl
		for id := num(1); id <= num(2); id++ {
			change(Change{Kind: Granted, ID: id, TTL: num(3)})
		}
	case "revoked":
		for i := range args[1:] {
			change(Change{Kind: Revoked, ID: num(i + 1)})
		}
	case "checkpointed":
		change(Change{Kind: Checkpointed, ID: num(1), Remaining: num(2)})
	case "lead":
		change(Change{Kind: Leading, Leads: true, Term: uint64(num(1))})
	case "follow":
		change(Change{Kind: Leading, Term: uint64(num(1))})
	case "renew":
		s.core.step(s.now, s.fresh, renewMsg{num(1), ask()})
	case "ttl":
		s.core.step(s.now, s.fresh, timeToLiveMsg{num(1), ask()})
	case "list":
		s.core.step(s.now, s.fresh, listMsg{ask()})
	case "barrier": // barrier ok|failed [took]
		took, _ := time.ParseDuration(strings.Join(args[2:], ""))
		s.core.step(s.now, s.fresh, confirmedMsg{s.now - int64(took), args[1] == "ok"})
	default:
		return s.set(args, num(1))
	}
	s.emit()
	return nil
}

// set changes the clock or what the shell does; n is the first argument as a number.
func (s *script) set(args []string, n int64) error {
	after := func() int64 {
		d, _ := time.ParseDuration(args[1])
		return int64(d)
	}
	switch args[0] {
	case "core": // core rate=N checkpoint
		set := settings{
			electionTimeout: second, requestTimeout: 7 * second, revokeRate: 1000, checkpointInterval: 300 * second,
		}
		for _, a := range args[1:] {
			if n, ok := strings.CutPrefix(a, "rate="); ok {
				set.revokeRate, _ = strconv.ParseInt(n, 10, 64)
			}
			set.checkpoint = set.checkpoint || a == "checkpoint"
		}
		s.core = newCore(set, s.now)
	case "tick": // tick after
		s.now += after()
		s.core.tick(s.now, s.fresh)
		s.emit()
	case "tock": // tock after n: n ticks
		count, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		for range count {
			s.now += after()
			s.core.tick(s.now, s.fresh)
			s.emit()
		}
	case "pass":
		s.now += after()
	case "stale", "fresh":
		s.fresh = args[0] == "fresh"
	case "room":
		s.room = int(n)
	case "records":
		s.record = args[1] == "taken"
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

// emit plays the shell: it prints what the core decided, and tells it what left.
func (s *script) emit() {
	if ids := s.core.revocations(s.now, s.fresh, nil); len(ids) > 0 {
		n := min(len(ids), s.room)
		fmt.Fprintf(&s.out, "  %s revoke %s", s.clock(), brief(ids[:n]))
		if n < len(ids) {
			fmt.Fprintf(&s.out, ", refused %s", brief(ids[n:]))
		}
		fmt.Fprintln(&s.out)
		s.core.sent(s.now, n)
	}
	if cps := s.core.records(s.now, s.fresh, nil); len(cps) > 0 {
		word := map[bool]string{true: "record", false: "refused record"}[s.record]
		for _, cp := range cps {
			fmt.Fprintf(&s.out, "  %s %s %d: %ds left\n", s.clock(), word, cp.ID, cp.Remaining)
		}
		s.core.recordsSent(s.now, cps, s.record)
	}
	if s.core.takeConfirm() {
		fmt.Fprintf(&s.out, "  %s confirm the leadership\n", s.clock())
	}
	for _, a := range s.core.out.answers {
		fmt.Fprintf(&s.out, "  %s %s: ", s.clock(), s.names[a.reply])
		switch {
		case a.err != nil:
			fmt.Fprintln(&s.out, a.err)
		case a.leases != nil:
			slices.SortFunc(a.leases, func(a, b remaining) int { return compare(a.expiry, b.expiry) })
			for _, l := range a.leases {
				fmt.Fprintf(&s.out, "%d ", l.id)
			}
			fmt.Fprintln(&s.out)
		default:
			fmt.Fprintf(&s.out, "granted %d, remaining %d\n", a.granted, a.answer.remaining)
		}
	}
	s.core.out.answers = nil
}

func (s *script) clock() string { return time.Duration(s.now).String() }

// brief prints few ids in full and many as a count.
func brief(ids []int64) string {
	if len(ids) > 8 {
		return fmt.Sprintf("%d leases from %d to %d", len(ids), ids[0], ids[len(ids)-1])
	}
	return strings.Trim(fmt.Sprint(ids), "[]")
}

// The heap gives leases in the order of their keys whatever was pushed, moved and removed: compared with a
// sorted list.
func TestHeapAgainstSort(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	h := heap{order: byExpiry}
	in := map[*lease]int64{}
	all := make([]*lease, 200)
	for i := range all {
		all[i] = &lease{id: int64(i - 100)}
	}
	for range 20_000 {
		l := all[rng.IntN(len(all))]
		switch rng.IntN(3) {
		case 0:
			h.remove(l)
			delete(in, l)
		default:
			key := rng.Int64N(50)
			h.push(l, key)
			in[l] = key
		}
		if len(in) == 0 {
			if h.top(forever) != nil {
				t.Fatal("a lease at the top of an empty heap")
			}
			continue
		}
		var want *lease
		for x, key := range in {
			if want == nil || key < in[want] || key == in[want] && x.id < want.id {
				want = x
			}
		}
		if got := h.top(forever); got != want {
			t.Fatalf("top is lease %d key %d, want %d key %d", got.id, in[got], want.id, in[want])
		}
	}
}

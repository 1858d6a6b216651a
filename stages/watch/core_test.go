package watch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"sluice/mailbox"
	"sluice/stages/wire"
)

var rewrite = flag.Bool("rewrite", false, "write the scripts' output into them instead of checking it")

// Each file of testdata is one story: commands, and below each, indented, what came of it.
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

// script drives a core with the shell, the workers, apply and the clients played by the test.
type script struct {
	t       *testing.T
	store   *model
	stage   *Stage
	now     time.Time
	streams map[string]*Stream
	held    []wire.Event
	holding bool
	unknown bool // events come without their previous values
	scans   []*job
	out     strings.Builder
}

func runScript(t *testing.T, text string) string {
	s := &script{t: t, store: newModel(), streams: map[string]*Stream{}, now: time.Unix(1000, 0)}
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
		s.do(strings.Fields(line))
		all.WriteString(s.out.String())
	}
	return all.String()
}

func (s *script) printf(format string, args ...any) { fmt.Fprintf(&s.out, "  "+format+"\n", args...) }

// options reads name=value arguments; a bare name is "yes".
func options(args []string) map[string]string {
	o := map[string]string{}
	for _, a := range args {
		name, value, ok := strings.Cut(a, "=")
		if !ok {
			value = "yes"
		}
		if q, err := strconv.Unquote(value); err == nil {
			value = q
		}
		o[name] = value
	}
	return o
}

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

func (s *script) do(args []string) {
	switch args[0] {
	case "stage":
		s.newStage(options(args[1:]))
	case "open":
		o := options(args[2:])
		cfg := StreamConfig{MessagesMax: int(number(o["messages"])), BytesMax: number(o["bytes"])}
		s.streams[args[1]] = s.stage.Open(cfg)
	case "close":
		s.streams[args[1]].Close()
		for _, st := range s.stage.takeRetired() {
			s.stage.core.closeStream(st)
		}
	case "put", "del", "txn":
		s.change(args)
	case "fill": // fill key n: n puts of one key
		for i := range number(args[2]) {
			s.change([]string{"put", args[1], fmt.Sprint("v", i)})
		}
	case "hold":
		s.holding = true
	case "flush":
		s.holding = false
		s.events(s.held)
		s.held = nil
	case "install": // install n: n puts of key z that only views tell of
		for range number(args[1]) {
			s.store.txn(op{"z", []byte("installed")})
		}
		s.events(nil)
	case "compact":
		s.store.compactAt(number(args[1]))
		s.events(nil)
	case "quietly": // quietly compact rev: only views know it
		s.store.compactAt(number(args[2]))
	case "unknown":
		s.unknown = args[1] == "on"
	case "create":
		s.create(args[1], options(args[2:]))
	case "cancel":
		s.ask(args[1], cancelMsg{s.streams[args[1]], number(args[2])})
	case "progress":
		s.ask(args[1], progressMsg{s.streams[args[1]]})
	case "take":
		n := 1 << 30
		if len(args) > 2 {
			n = int(number(args[2]))
		}
		s.take(args[1], n)
	case "scan": // one scan: made, carried out, its result taken
		s.start()
		s.finish()
	case "start":
		s.start()
	case "finish":
		s.finish()
	case "tick":
		d, err := time.ParseDuration(args[1])
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(d)
		s.stage.core.tick(s.now)
	case "state":
		s.state()
	default:
		s.t.Fatalf("unknown command %q", args[0])
	}
}

func (s *script) newStage(o map[string]string) {
	box := mailbox.NewSized(mailbox.Config{Capacity: 10}, InboundBytes)
	s.stage = New(Config{
		In: box.Receiver(), Self: box.Sender(mailbox.Wait), Views: s.store, Workers: 1,
		Revision: s.store.rev, Now: func() time.Time { return s.now },
		ProgressInterval: 10 * time.Second, RequestBytesMax: number(o["request"]) - fragmentOverhead,
		StreamMessagesMax: int(number(o["messages"])), WindowRevisions: int(number(o["window"])),
		WindowBytes: number(o["windowbytes"]), ChunkBytes: number(o["chunk"]),
	})
	if o["spot"] != "" {
		s.stage.core.spotEvents = int(number(o["spot"]))
	}
	if o["request"] == "" {
		s.stage.core.fragmentBytes = 1 << 21
	}
}

func (s *script) change(args []string) {
	var ops []op
	switch args[0] {
	case "put":
		ops = append(ops, op{args[1], []byte(args[2])})
	case "del":
		ops = append(ops, op{key: args[1]})
	default: // txn a=1 b=2 c
		for _, a := range args[1:] {
			key, value, put := strings.Cut(a, "=")
			o := op{key: key}
			if put {
				o.value = []byte(value)
			}
			ops = append(ops, o)
		}
	}
	evs := s.store.txn(ops...)
	for i := range evs {
		if s.unknown && evs[i].Prev != nil {
			evs[i].Prev, evs[i].PrevUnknown = nil, true
		}
	}
	if s.holding {
		s.held = append(s.held, evs...)
		return
	}
	s.events(evs)
}

func (s *script) events(evs []wire.Event) { s.step(eventsMsg{batch: s.store.batch(evs)}) }

func (s *script) step(m Inbound) { s.stage.core.step(m, s.now) }

func (s *script) ask(name string, m Inbound) {
	s.streams[name].answers <- struct{}{}
	s.step(m)
}

func (s *script) create(name string, o map[string]string) {
	st := s.streams[name]
	req := CreateRequest{
		ID: number(o["id"]), Key: []byte(o["key"]), End: []byte(o["end"]), Start: number(o["start"]),
		PrevKV: o["prev"] != "", Fragment: o["fragment"] != "", ProgressNotify: o["notify"] != "",
		NoPut: o["noput"] != "", NoDelete: o["nodelete"] != "", Refuse: strings.ReplaceAll(o["refuse"], "_", " "),
	}
	s.ask(name, createMsg{st, req})
}

// take pops and prints up to n responses.
func (s *script) take(name string, n int) {
	st := s.streams[name]
	for range n {
		it, ok, drained := st.out.pop()
		if !ok {
			s.printf("%s: nothing", name)
			return
		}
		if it.control {
			st.release()
		}
		s.printf("%s: %s", name, describe(s.t, &it.Message))
		if drained {
			s.printf("%s: drained", name)
			s.step(drainedMsg{st})
		}
	}
}

func (s *script) start() {
	j := s.stage.core.nextJob()
	if j == nil {
		s.printf("nothing to scan")
		return
	}
	source := "views"
	if j.window {
		source = "window"
	}
	n := 0
	for _, co := range j.cohorts {
		n += len(co.members)
	}
	s.printf("scan of %s from %d to %d for %d watchers in %d cohorts", source, j.from, j.to, n, len(j.cohorts))
	s.scans = append(s.scans, j)
}

func (s *script) finish() {
	if len(s.scans) == 0 {
		return
	}
	r, err := scan(s.scans[0], s.store)
	if err != nil {
		s.t.Fatal(err)
	}
	s.scans = s.scans[1:]
	s.printf("scanned up to %d", r.upTo)
	s.step(r)
}

func (s *script) state() {
	c := s.stage.core
	scanLag, blockedLag := c.lag()
	s.printf("revision %d, watchers %d: live %d, future %d, catching up %d, compacted %d; "+
		"lag %d and %d; window from %d", c.rev, c.total, c.counts[live], c.counts[future], c.counts[late],
		c.counts[compacted], scanLag, blockedLag,
		c.window.floor)
	s.printf("events waiting %d, spans %d", s.stage.pending.Load(), len(c.spans.all()))
}

// decode reads a message as a client would.
func decode(t testing.TB, m *Message) *pb.WatchResponse {
	b := m.AppendTo(nil, wire.Header{ClusterID: 1, MemberID: 2, RaftTerm: 3})
	r := new(pb.WatchResponse)
	if err := proto.Unmarshal(b, r); err != nil {
		t.Fatalf("not a WatchResponse: %v: %x", err, b)
	}
	size := len(m.Head)
	for _, ev := range m.Events {
		size += len(ev)
	}
	if size != m.Bytes {
		t.Fatalf("message of %d bytes says %d", size, m.Bytes)
	}
	return r
}

func describe(t testing.TB, m *Message) string {
	r := decode(t, m)
	var b strings.Builder
	fmt.Fprintf(&b, "id %d", r.WatchId)
	if r.Created {
		b.WriteString(" created")
	}
	if r.Canceled {
		b.WriteString(" canceled")
	}
	if r.CompactRevision != 0 {
		fmt.Fprintf(&b, " compacted at %d", r.CompactRevision)
	}
	if r.CancelReason != "" {
		fmt.Fprintf(&b, " because %q", r.CancelReason)
	}
	if r.Fragment {
		b.WriteString(" fragment")
	}
	fmt.Fprintf(&b, " revision %d", r.Header.Revision)
	for _, ev := range r.Events {
		fmt.Fprintf(&b, " %s %s@%d", ev.Type, ev.Kv.Key, ev.Kv.ModRevision)
		if ev.Type == mvccpb.Event_PUT {
			fmt.Fprintf(&b, "=%.12s", ev.Kv.Value)
		}
		if ev.PrevKv != nil {
			fmt.Fprintf(&b, "(was %.12s@%d)", ev.PrevKv.Value, ev.PrevKv.ModRevision)
		}
	}
	return b.String()
}

// The index finds the same spans as a walk over all of them, whatever was put in and taken out.
func TestIndexAgainstWalk(t *testing.T) {
	rng := newRand(t)
	for range 200 {
		var x index[int]
		in := map[span]int{}
		key := func() string {
			b := make([]byte, 1+rng.IntN(3))
			for i := range b {
				b[i] = "abc\x00\xff"[rng.IntN(5)]
			}
			return string(b)
		}
		for i := range 300 {
			s := span{key: key(), kind: spanKind(rng.IntN(3))}
			if s.kind == bounded {
				if s.end = key(); s.end <= s.key {
					continue
				}
			}
			if v, ok := x.get(s); ok != (in[s] != 0) || v != in[s] {
				t.Fatalf("get %v: %d, %v, want %d", s, v, ok, in[s])
			} else if ok && rng.IntN(2) == 0 {
				x.remove(s)
				delete(in, s)
			} else if !ok {
				x.put(s, i+1)
				in[s] = i + 1
			}
			at := []byte(key())
			var want []int
			for s, v := range in {
				if s.holds(at) {
					want = append(want, v)
				}
			}
			got := x.match(at, nil)
			sort.Ints(got)
			sort.Ints(want)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("match %q: %v, want %v", at, got, want)
			}
			if all := x.all(); len(all) != len(in) {
				t.Fatalf("all: %d values, want %d", len(all), len(in))
			}
		}
	}
}

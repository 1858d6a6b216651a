package apply

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/auth"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/buckets"
	"sluice/stages/apply/members"
	"sluice/stages/apply/mvcc"
	"sluice/stages/wire"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the scripts' expected output")

// bench is a core on buckets in memory, fed by scripts and random entries.
type bench struct {
	disk        *buckets.Memory
	cfg         Config
	core        *core
	store       *mvcc.Store
	out         outcome
	index, term uint64
	who         auth.Identity
	size        int64
	leads       uint64
	id          uint64
}

func testConfig() Config {
	c := Config{
		LocalID: 1, ServerVersion: members.Version{Major: 3, Minor: 7, Patch: 3}, LearnersMax: 1, LeaseTTLMin: 2,
		Tokens: auth.NewSimpleTokens(time.Minute, func() time.Time { return time.Unix(0, 0) }),
	}
	return c.withDefaults()
}

func newBench(t testing.TB, disk *buckets.Memory, index, term uint64) *bench {
	b := &bench{disk: disk, cfg: testConfig(), index: index, term: term, id: 0x4f9ea22f183bee00}
	b.cfg.LeaderTerm = func() uint64 { return b.leads }
	b.load(t)
	return b
}

// load makes the state anew from the buckets, as a start does.
func (b *bench) load(t testing.TB) {
	t.Helper()
	var err error
	b.core, b.store, err = loadCore(b.cfg, b.disk, b.disk, b.index, b.term)
	if err != nil {
		t.Fatal(err)
	}
	b.core.size = func() int64 { return b.size }
	b.core.storage.raise(b.core.members.Table().ClusterVersion(), b.term)
	b.store.Publish(b.disk)
}

// apply steps one entry and returns the outcome of it alone.
func (b *bench) apply(e *raftpb.Entry) *outcome {
	b.out = outcome{}
	var req wire.Request
	_, _ = b.core.step(e, &req, &b.out)
	b.store.Publish(b.disk)
	return &b.out
}

func (b *bench) next(typ raftpb.EntryType, data []byte) *raftpb.Entry {
	b.index++
	return wire.NewEntry(typ, max(b.term, 1), b.index, data)
}

// request makes the entry of r under the current identity.
func (b *bench) request(t testing.TB, r *pb.InternalRaftRequest) *raftpb.Entry {
	t.Helper()
	b.id++
	r.Header = &pb.RequestHeader{ID: b.id, Username: b.who.User, AuthRevision: b.who.Revision}
	data, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b.next(raftpb.EntryNormal, data)
}

func (b *bench) conf(t testing.TB, cc *raftpb.ConfChange) *raftpb.Entry {
	t.Helper()
	b.id++
	cc.Id = proto.Uint64(b.id)
	data, err := proto.Marshal(cc)
	if err != nil {
		t.Fatal(err)
	}
	return b.next(raftpb.EntryConfChange, data)
}

// oneLine is prototext without the spaces that it varies at random.
func oneLine(m proto.Message) string {
	s, err := prototext.MarshalOptions{}.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(string(s), "  ", " ")
}

// show writes what an entry led to, one line per decision.
func (b *bench) show(o *outcome, r *pb.InternalRaftRequest) string {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, "  "+format+"\n", args...) }
	for _, res := range o.results {
		switch {
		case res.Err != nil:
			line("%d: revision %d, %v", res.Index, res.Revision, res.Err)
		case res.Message != nil:
			line("%d: revision %d, {%s}", res.Index, res.Revision, oneLine(res.Message))
		default:
			line("%d: revision %d, {%s}", res.Index, res.Revision, body(r, res.Body))
		}
		if res.Physical != nil {
			line("physical")
		}
	}
	for _, v := range o.verdicts {
		line("%d: %s of %x: %v", v.Result.Index, v.Change.GetType(), v.Change.GetNodeId(), v.Result.Err)
	}
	for _, ev := range b.store.TakeEvents() {
		line("event %d type %d at %d", len(ev.Key), ev.Type, ev.Rev)
	}
	for _, l := range o.leases {
		line("expire %+v", l)
	}
	if o.raiseNoSpace {
		line("raise NOSPACE")
	}
	if o.removed {
		line("this member is removed")
	}
	if o.checkpoint {
		line("disk snapshot")
	}
	for _, m := range o.migrated {
		line("storage %s", m)
	}
	return out.String()
}

func body(r *pb.InternalRaftRequest, b []byte) string {
	var m proto.Message
	switch {
	case r.GetPut() != nil:
		m = &pb.PutResponse{}
	case r.GetDeleteRange() != nil:
		m = &pb.DeleteRangeResponse{}
	case r.GetTxn() != nil:
		m = &pb.TxnResponse{}
	default:
		return hex.EncodeToString(b)
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return err.Error()
	}
	return oneLine(m)
}

// command executes one line of a script and returns its output.
func (b *bench) command(t *testing.T, cmd string) string {
	word, rest, _ := strings.Cut(cmd, " ")
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		return n
	}
	switch word {
	case "term":
		b.term = number(rest)
	case "leads":
		b.leads = number(rest)
	case "size":
		b.size = int64(number(rest))
	case "quota":
		b.core.quota = int64(number(rest))
	case "who":
		name, rev, _ := strings.Cut(rest, " ")
		b.who = auth.Identity{User: name}
		if b.who.Revision = b.core.auth.Table().Revision(); rev != "" {
			b.who.Revision = number(rev)
		}
	case "nobody":
		b.who = auth.Identity{}
	case "empty":
		return b.show(b.apply(b.next(raftpb.EntryNormal, nil)), nil)
	case "conf":
		var cc raftpb.ConfChange
		if err := prototext.Unmarshal([]byte(rest), &cc); err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		return b.show(b.apply(b.conf(t, &cc)), nil)
	case "restart":
		b.index, b.term = b.core.index, b.core.term
		b.load(t)
	case "lease-keys":
		var keys []string
		b.core.leases.Publish().Keys(int64(number(rest)), func(k string) bool { keys = append(keys, k); return true })
		return fmt.Sprintf("  %q\n", keys)
	case "members":
		return fmt.Sprintf("  %+v\n  %s\n", b.core.members.Table().List(), b.core.members.Table().ConfStateJSON())
	case "dump":
		var of []backend.Bucket
		for _, name := range strings.Fields(rest) {
			for k := backend.Alarm; k <= backend.Meta; k++ {
				if k.String() == name {
					of = append(of, k)
				}
			}
		}
		lines := strings.TrimSuffix(buckets.Dump(b.disk, of...), "\n")
		return "  " + strings.ReplaceAll(lines, "\n", "\n  ") + "\n"
	default:
		var r pb.InternalRaftRequest
		if err := prototext.Unmarshal([]byte(cmd), &r); err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		return b.show(b.apply(b.request(t, &r)), &r)
	}
	return ""
}

// TestScripts feeds the entries of testdata to the core. go test -rewrite updates the expected output.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			b := newBench(t, buckets.New(), 0, 0)
			var got strings.Builder
			for _, line := range strings.Split(strings.TrimSuffix(string(want), "\n"), "\n") {
				if strings.HasPrefix(line, "  ") {
					continue
				}
				got.WriteString(line + "\n")
				if line != "" && line[0] != '#' {
					got.WriteString(b.command(t, line))
				}
			}
			if got.String() == string(want) {
				return
			}
			if *rewrite {
				if err := os.WriteFile(name, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("got\n%s", got.String())
		})
	}
}

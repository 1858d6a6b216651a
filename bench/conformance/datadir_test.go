package conformance

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/bench/process"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// state is what a data directory holds, as clients see it.
type state struct {
	revision, compact int64
	hash              uint32
	keys              string // every key with value and revisions
	leases            string
}

func read(t *testing.T, d *process.Daemon) state {
	t.Helper()
	ctx := within(t, time.Minute)
	c := connect(t, d)
	h, err := c.HashKV(ctx, c.Endpoints()[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Get(ctx, "\x00", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	s := state{revision: r.Header.Revision, compact: h.CompactRevision, hash: h.Hash}
	var b strings.Builder
	for _, kv := range r.Kvs {
		fmt.Fprintf(&b, "%q %d %d %d %d %d\n", kv.Key, len(kv.Value), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease)
	}
	s.keys = b.String()
	ls, err := c.Leases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, l := range ls.Leases {
		ttl, err := c.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys())
		if err != nil {
			t.Fatal(err)
		}
		n += len(ttl.Keys)
	}
	s.leases = fmt.Sprintf("%d leases with %d keys", len(ls.Leases), n)
	return s
}

// fill writes history, leases, deletions, compactions and enough bytes for several log segments.
func fill(t *testing.T, d *process.Daemon, seed uint64) {
	t.Helper()
	ctx := within(t, 2*time.Minute)
	c := connect(t, d)
	g := rand.New(rand.NewPCG(seed, 2))
	var leases []clientv3.LeaseID
	for range 20 {
		l, err := c.Grant(ctx, 3600)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l.ID)
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 400 {
		key := fmt.Sprintf("key%03d", g.IntN(150))
		switch g.IntN(10) {
		case 0:
			must(c.Delete(ctx, key))
		case 1:
			must(c.Put(ctx, key, "leased", clientv3.WithLease(leases[g.IntN(len(leases))])))
		case 2:
			must(c.Txn(ctx).Then(clientv3.OpPut("txn/"+key, "txn"), clientv3.OpDelete("key1", clientv3.WithPrefix())).Commit())
		default:
			must(c.Put(ctx, key, strings.Repeat("x", g.IntN(2000))))
		}
		if i%150 == 149 {
			r, err := c.Get(ctx, "k")
			must(r, err)
			must(c.Compact(ctx, r.Header.Revision-20, clientv3.WithCompactPhysical()))
		}
	}
	must(c.Revoke(ctx, leases[0]))
	big := strings.Repeat("b", 1<<20)
	for i := range 130 { // two cuts of the log
		must(c.Put(ctx, fmt.Sprintf("big%d", i%4), big))
	}
	must(c.Put(ctx, "last", "one"))
}

// A directory written by either kind opens in the other with the same content and hash, after an orderly
// stop and after kill -9, and back again.
func TestDataDirectoryMovesBothWays(t *testing.T) {
	reference := tools(t)
	program, err := process.Sluice()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, first, second string }{
		{"etcd to sluice", reference.Etcd, program}, {"sluice to etcd", program, reference.Etcd},
	} {
		for _, kill := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, kill %v", c.name, kill), func(t *testing.T) {
				flags := []string{"--snapshot-count=100", "--max-wals=0", "--max-snapshots=0"}
				d := member(t, c.first, flags...)
				start(t, d)
				fill(t, d, seed(t))
				for _, next := range []string{c.second, c.first, c.second} {
					want := read(t, d)
					if kill {
						d.Kill()
					} else {
						stopped(t, d)
					}
					d.Program = next
					start(t, d)
					if got := read(t, d); got.hash != want.hash || got != want {
						t.Fatalf("%s reads\n%+v\nwritten was\n%+v", filepath.Base(next), got, want)
					}
					if _, err := connect(t, d).Put(t.Context(), "moved", next); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

func run(ctx context.Context, t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(program), args, err, out)
	}
	return string(out)
}

// etcdutl works on Sluice's files: snapshot status and restore, hashkv, defrag; and Sluice starts from what
// etcdutl restored, plain and with bumped revisions.
func TestEtcdutl(t *testing.T) {
	tool := tools(t)
	d := sluice(t)
	start(t, d)
	fill(t, d, seed(t))
	ctx := within(t, 3*time.Minute)
	want := read(t, d)
	snapshot := filepath.Join(t.TempDir(), "snapshot.db")
	if out, err := d.Etcdctl(ctx, "", "snapshot", "save", snapshot); err != nil {
		t.Fatal(err, out)
	}
	status := run(ctx, t, tool.Etcdutl, "snapshot", "status", snapshot)
	if !strings.Contains(status, fmt.Sprintf(", %d, ", want.revision)) {
		t.Fatalf("snapshot status %q, want revision %d", status, want.revision)
	}
	stopped(t, d)
	db := filepath.Join(d.Dir, "member", "snap", "db")
	if out := run(ctx, t, tool.Etcdutl, "hashkv", db); !strings.HasPrefix(out, fmt.Sprintf("%x,", want.hash)) &&
		!strings.HasPrefix(out, fmt.Sprintf("%d,", want.hash)) {
		t.Fatalf("etcdutl hashkv %q, want %d (%x)", out, want.hash, want.hash)
	}
	run(ctx, t, tool.Etcdutl, "defrag", "--data-dir", d.Dir)
	start(t, d)
	if got := read(t, d); got != want {
		t.Fatalf("after etcdutl defrag\n%+v\nwant\n%+v", got, want)
	}
	d.Kill()
	t.Run("restore", func(t *testing.T) {
		r := restored(t, tool, snapshot)
		if got := read(t, r); got.revision != want.revision || got.keys != want.keys {
			t.Fatalf("restored\n%+v\nwant\n%+v", got, want)
		}
	})
	t.Run("restore with bumped revisions", func(t *testing.T) {
		r := restored(t, tool, snapshot, "--bump-revision=1000", "--mark-compacted")
		got := read(t, r)
		if got.revision != want.revision+1000 || got.keys != want.keys {
			t.Fatalf("restored revision %d, want %d; keys alike: %v", got.revision, want.revision+1000, got.keys == want.keys)
		}
		w := <-connect(t, r).Watch(within(t, 10*time.Second), "key", clientv3.WithRev(want.revision))
		if w.CompactRevision != got.revision {
			t.Fatalf("watch at an old revision: %+v", w)
		}
		p, err := connect(t, r).Put(ctx, "next", "1")
		if err != nil || p.Header.Revision != got.revision+1 {
			t.Fatalf("next put: %v %v", p, err)
		}
	})
}

func restored(t *testing.T, tool process.Tools, snapshot string, flags ...string) *process.Daemon {
	t.Helper()
	d := sluice(t)
	args := append([]string{
		"snapshot", "restore", snapshot, "--data-dir", d.Dir, "--name=m1",
		"--initial-cluster=m1=" + d.Peer, "--initial-advertise-peer-urls=" + d.Peer,
	}, flags...)
	run(within(t, time.Minute), t, tool.Etcdutl, args...)
	start(t, d)
	return d
}

// copyTree copies a data directory as it stands, for faults to be planted in the copy.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		target := filepath.Join(to, rel)
		if e.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
		return out.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

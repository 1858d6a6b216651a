package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"sluice/stages/apply/members"
	"sluice/stages/propose"
	"sluice/stages/watch"
	"sluice/stages/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig(t *testing.T, dir string, boxes Mailboxes) Config {
	t.Helper()
	var log *zap.Logger
	if testing.Verbose() {
		log = zaptest.NewLogger(t)
	}
	return Config{
		Name: "m1", DataDir: dir, AdvertiseClientURLs: []string{"http://127.0.0.1:1"},
		AdvertisePeerURLs: []string{"http://127.0.0.1:2"}, InitialCluster: "m1=http://127.0.0.1:2",
		InitialClusterToken: "etcd-cluster", NewCluster: true, Heartbeat: 100 * time.Millisecond, Election: time.Second,
		PreVote: true, SnapshotCount: 50, CatchUpEntries: 5000, WALsMax: 5, SnapshotsMax: 5, LearnersMax: 1,
		RequestBytesMax: 1572864, Version: members.Version{Major: 3, Minor: 7, Patch: 3}, TokenTTL: time.Minute,
		Mailboxes: boxes, Logger: log,
	}
}

func run(t *testing.T, cfg Config) *Member {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m.Start(context.Background())
	select {
	case <-m.Ready():
	case <-m.Done():
		t.Fatalf("the member stopped: %v", m.Stop(context.Background()))
	case <-time.After(20 * time.Second):
		t.Fatal("not ready")
	}
	return m
}

func stop(t *testing.T, m *Member) {
	t.Helper()
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, m *Member, key, value string) int64 {
	t.Helper()
	r, err := m.Propose(t.Context(), &wire.Request{Put: &wire.PutRequest{Key: []byte(key), Value: []byte(value)}}, propose.Client)
	if err != nil || r.Err != nil {
		t.Fatal(err, r.Err)
	}
	return r.Revision
}

var tiny = Mailboxes{Propose: 1, System: 1, Replicate: 1, Persist: 1, Apply: 1, Watch: 1, Expire: 1, Backend: 1}

// A member takes writes, reads them back, delivers them to watchers, keeps them over a restart, and leaves
// no goroutine behind; with mailboxes of size 1 as with large ones.
func TestMember(t *testing.T) {
	for name, boxes := range map[string]Mailboxes{"default": {}, "size 1": tiny} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			m := run(t, testConfig(t, dir, boxes))
			stream := m.OpenWatch(watch.StreamConfig{})
			if err := stream.Create(t.Context(), watch.CreateRequest{Key: []byte("k"), End: []byte("l")}); err != nil {
				t.Fatal(err)
			}
			if msg, err := stream.Next(t.Context()); err != nil || msg.Revision != 1 {
				t.Fatal(msg, err)
			}
			const writers, each = 8, 50
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for i := range each {
						put(t, m, fmt.Sprintf("k%d/%d", w, i), "v")
						if err := m.Barrier(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for seen := 0; seen < writers*each; {
				msg, err := stream.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				seen += len(msg.Events)
			}
			wg.Wait()
			stream.Close()
			if err := m.Defragment(t.Context()); err != nil {
				t.Fatal(err)
			}
			view := m.View()
			hash, _, rev, err := view.KV.HashKV(0)
			view.Release()
			if err != nil || rev != 1+writers*each {
				t.Fatal(rev, err)
			}
			stop(t, m)

			m = run(t, testConfig(t, dir, boxes))
			view = m.View()
			again, _, _, err := view.KV.HashKV(0)
			keys := view.KV.Keys()
			view.Release()
			if err != nil || again != hash || keys != writers*each {
				t.Fatalf("hash %d, %d keys after the restart; before %d, %d: %v", again, keys, hash, writers*each, err)
			}
			stop(t, m)
		})
	}
}

// A lease that runs out takes its keys with it.
func TestLeaseRunsOut(t *testing.T) {
	m := run(t, testConfig(t, filepath.Join(t.TempDir(), "data"), Mailboxes{}))
	defer stop(t, m)
	grant := &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: -7, TTL: 1}}
	if r, err := m.Propose(t.Context(), &wire.Request{Other: grant}, propose.Client); err != nil || r.Err != nil {
		t.Fatal(err, r.Err)
	}
	stream := m.OpenWatch(watch.StreamConfig{})
	defer stream.Close()
	if err := stream.Create(t.Context(), watch.CreateRequest{Key: []byte("k"), NoPut: true}); err != nil {
		t.Fatal(err)
	}
	put := &wire.Request{Put: &wire.PutRequest{Key: []byte("k"), Lease: -7}}
	if r, err := m.Propose(t.Context(), put, propose.Client); err != nil || r.Err != nil {
		t.Fatal(err, r.Err)
	}
	for deleted := 0; deleted == 0; {
		msg, err := stream.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		deleted += len(msg.Events)
	}
	if _, err := m.Renew(t.Context(), -7); err == nil {
		t.Error("a revoked lease was renewed")
	}
}

// What the data directory does not fit is refused with a clear error, and nothing is changed.
func TestRefusedStarts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   error
	}{
		"several members": {func(c *Config) { c.InitialCluster = "m1=http://127.0.0.1:2,m2=http://127.0.0.1:3" }, ErrOneMember},
		"joining":         {func(c *Config) { c.NewCluster = false }, ErrNoJoin},
		"wrong name":      {func(c *Config) { c.Name = "m2" }, nil},
		"other URLs":      {func(c *Config) { c.AdvertisePeerURLs = []string{"http://127.0.0.1:9"} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, filepath.Join(t.TempDir(), "data"), Mailboxes{})
			c.change(&cfg)
			_, err := New(cfg)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
	t.Run("log without its database's entries", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		m := run(t, testConfig(t, dir, Mailboxes{}))
		put(t, m, "k", "v")
		stop(t, m)
		if err := os.RemoveAll(filepath.Join(dir, "member", "wal")); err != nil {
			t.Fatal(err)
		}
		if _, err := New(testConfig(t, dir, Mailboxes{})); err == nil {
			t.Fatal("started without its log")
		}
	})
}

package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"sluice/bench/process"
	"sluice/mailbox"
	"sluice/stages/apply"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/buckets"
	"sluice/stages/apply/members"
	"sluice/stages/persist/wal"
	"sluice/stages/wire"
)

// administrator makes random requests of every kind that changes replicated state, as several users, and does not
// mind refusals: a refusal is an entry like any other.
type administrator struct {
	t       *testing.T
	d       *process.Daemon
	rnd     *rand.Rand
	plain   *clientv3.Client            // without a login
	logins  map[string]*clientv3.Client // by user name
	enabled bool                        // authentication
}

func (a *administrator) pick(of ...string) string { return of[a.rnd.IntN(len(of))] }
func (a *administrator) user() string             { return a.pick("root", "u1", "u2") }
func (a *administrator) role() string             { return a.pick("root", "r1", "r2") }
func (a *administrator) key() string              { return string(rune('a' + a.rnd.IntN(15))) }
func (a *administrator) lease() clientv3.LeaseID  { return clientv3.LeaseID(a.rnd.IntN(6) - 1) }

// span returns a key and the end of an interval from it. None is inverted or empty: whether somebody without
// the role root may name such a one depends, in the reference, on the shape that its tree of permissions
// happens to have.
func (a *administrator) span() (string, clientv3.OpOption) {
	key, end := a.key(), a.key()+"~"
	if end < key {
		key, end = end[:1], key+"~"
	}
	return key, clientv3.WithRange(a.pick("", "\x00", end))
}

func (a *administrator) op(depth int) clientv3.Op {
	switch n := a.rnd.IntN(6); {
	case n < 2:
		return clientv3.OpPut(a.key()+fmt.Sprint(a.rnd.IntN(1000)), "v", clientv3.WithLease(a.lease()))
	case n == 2:
		return clientv3.OpDelete(a.span())
	case n == 3:
		key, end := a.span()
		return clientv3.OpGet(key, end, clientv3.WithRev(int64(a.rnd.IntN(3)*a.rnd.IntN(200))))
	case n == 4 && depth < 2:
		return clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.Version(a.key()), ">", a.rnd.IntN(2))},
			[]clientv3.Op{a.op(depth + 1)}, []clientv3.Op{a.op(depth + 1)})
	}
	return clientv3.OpPut(a.key(), fmt.Sprint(a.rnd.IntN(100)), clientv3.WithPrevKV())
}

// client returns the connection of some user, or one without a login. A user that cannot log in has none.
func (a *administrator) client(ctx context.Context) *clientv3.Client {
	if !a.enabled || a.rnd.IntN(5) == 0 {
		return a.plain
	}
	return a.login(ctx, a.user())
}

func (a *administrator) login(ctx context.Context, name string) *clientv3.Client {
	if a.logins[name] == nil {
		c, err := clientv3.New(clientv3.Config{
			Context: ctx, Endpoints: []string{a.d.Client}, Username: name, Password: "x",
			DialTimeout: time.Second, Logger: zap.NewNop(),
		})
		if err != nil {
			return a.plain
		}
		a.t.Cleanup(func() { c.Close() })
		a.logins[name] = c
	}
	return a.logins[name]
}

// finish compacts everything and waits until the deletions are done.
func (a *administrator) finish(ctx context.Context) {
	a.t.Helper()
	c := a.plain
	if a.enabled {
		c = a.login(ctx, "root")
	}
	r, err := c.Put(ctx, "last", "")
	if err == nil {
		_, err = c.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// step makes one request.
func (a *administrator) step(ctx context.Context) {
	c := a.client(ctx)
	switch n := a.rnd.IntN(64); {
	case n < 16:
		_, _ = c.Put(ctx, a.key(), fmt.Sprint(n), clientv3.WithLease(a.lease()))
	case n < 20:
		key, end := a.span()
		_, _ = c.Delete(ctx, key, end)
	case n < 27:
		created := clientv3.Compare(clientv3.CreateRevision(a.key()), "=", 0)
		_, _ = c.Txn(ctx).If(created).Then(a.op(0), a.op(0)).Else(a.op(0)).Commit()
	case n < 29:
		if r, err := c.Get(ctx, a.key()); err == nil {
			_, _ = c.Compact(ctx, r.Header.Revision-int64(a.rnd.IntN(20)))
		}
	case n < 33:
		_, _ = pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(a.lease()), TTL: 600})
	case n < 35:
		_, _ = c.Revoke(ctx, a.lease())
	case n < 36:
		_, _ = c.AlarmList(ctx)
	case n < 38:
		a.member(ctx, c)
	default:
		a.manage(ctx, c)
	}
}

// member adds, changes and removes learners: the cluster keeps its one voter.
func (a *administrator) member(ctx context.Context, c *clientv3.Client) {
	list, err := c.MemberList(ctx)
	if err != nil {
		return
	}
	id := uint64(77) // nobody
	for _, m := range list.Members {
		if m.IsLearner {
			id = m.ID
		}
	}
	url := []string{fmt.Sprintf("http://127.0.0.1:%d", 1+a.rnd.IntN(4))}
	switch a.rnd.IntN(4) {
	case 0, 1:
		_, _ = c.MemberAddAsLearner(ctx, url)
	case 2:
		_, _ = c.MemberUpdate(ctx, id, url)
	case 3:
		_, _ = c.MemberRemove(ctx, id)
	}
}

func (a *administrator) manage(ctx context.Context, c *clientv3.Client) {
	var err error
	switch a.rnd.IntN(14) {
	case 0, 1:
		_, err = c.UserAdd(ctx, a.user(), "x")
	case 2:
		_, err = c.UserDelete(ctx, a.user())
	case 3:
		_, err = c.UserChangePassword(ctx, a.user(), "x")
	case 4, 5:
		_, err = c.UserGrantRole(ctx, a.user(), a.role())
	case 6:
		_, err = c.UserRevokeRole(ctx, a.user(), a.role())
	case 7:
		_, err = c.RoleDelete(ctx, a.role())
	case 8:
		_, err = c.RoleAdd(ctx, a.role())
	case 9, 10, 11:
		typ := clientv3.PermissionType(a.rnd.IntN(3))
		_, err = c.RoleGrantPermission(ctx, a.role(), a.key(), a.pick("", "\x00", a.key()), typ)
	case 12:
		_, err = c.RoleRevokePermission(ctx, a.role(), a.key(), "")
	case 13:
		a.toggle(ctx)
	}
	_ = err // refused or not: both are entries
}

// toggle turns authentication on, with a root that can log in, or off.
func (a *administrator) toggle(ctx context.Context) {
	if a.enabled {
		if c := a.logins["root"]; c != nil && a.rnd.IntN(4) == 0 {
			_, err := c.AuthDisable(ctx)
			a.enabled = err != nil
		}
		return
	}
	_, _ = a.plain.UserAdd(ctx, "root", "x")
	_, _ = a.plain.UserChangePassword(ctx, "root", "x")
	_, _ = a.plain.UserGrantRole(ctx, "root", "root")
	_, err := a.plain.AuthEnable(ctx)
	a.enabled = err == nil
}

// TestSameLogSameDatabase feeds the log that the reference wrote to Sluice's applier, and compares the databases
// byte by byte, in every bucket: the members of a mixed cluster must not differ.
//
// Rule: design.md section 7.
func TestSameLogSameDatabase(t *testing.T) {
	d := etcd(t, "--bcrypt-cost=4", "--strict-reconfig-check=false", "--max-learners=2")
	start(t, d)
	ctx := within(t, 4*time.Minute)
	a := &administrator{
		t: t, d: d, rnd: rand.New(rand.NewPCG(seed(t), 3)), plain: connect(t, d), logins: map[string]*clientv3.Client{},
	}
	for range *opsFlag {
		step, cancel := context.WithTimeout(ctx, 5*time.Second)
		a.step(step)
		cancel()
	}
	a.finish(ctx)
	stopped(t, d)
	log, err := wal.Read(wal.Disk{}, filepath.Join(d.Dir, "member", "wal"), wal.Snapshot{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "db")
	applyLog(t, path, log, a.rnd)
	got, want := databaseLines(t, path), databaseLines(t, filepath.Join(d.Dir, "member", "snap", "db"))
	for line := range got {
		if !want[line] {
			t.Errorf("only in Sluice's database: %s", line)
		}
	}
	for line := range want {
		if !got[line] {
			t.Errorf("only in the reference's database: %s", line)
		}
	}
	t.Logf("%d entries, %d keys in all buckets", len(log.Entries), len(want))
}

// applyLog runs the applier alone on the log, in batches of random size, until its compactions are done.
func applyLog(t *testing.T, path string, log wal.Contents, rnd *rand.Rand) {
	t.Helper()
	db, err := backend.Open(backend.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	in := mailbox.New[apply.Message](mailbox.Config{Name: "apply", Capacity: 1})
	last := log.Entries[log.HardState.Commit-1].GetIndex()
	out := &applied{done: make(chan struct{}), last: last}
	stage, err := apply.New(apply.Config{
		Backend: db, Log: in.Receiver(), Out: out, LocalID: log.Metadata.NodeID, LearnersMax: 2, LeaseTTLMin: 2,
		ServerVersion: members.Version{Major: 3, Minor: 7}, CheckpointEntries: 1 << 40,
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 4)
	for _, loop := range []func(context.Context) error{db.Run, stage.RunCompactor, stage.RunFlusher, stage.Run} {
		go func() { ended <- loop(t.Context()) }()
	}
	send := in.Sender(mailbox.Wait)
	for rest := log.Entries[:log.HardState.Commit]; len(rest) > 0; {
		n := min(1+rnd.IntN(50), len(rest))
		if err := send.Send(t.Context(), apply.Batch{Entries: rest[:n]}); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	<-out.done
	<-out.physical
	in.Close()
	for range 3 { // the stage and its workers
		if err := <-ended; !errors.Is(err, mailbox.ErrClosed) {
			t.Fatal(err)
		}
	}
	stage.Close()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// applied is the applier's way out. Only the end of the log matters, and the compaction that is in it.
type applied struct {
	last     uint64
	done     chan struct{}
	physical <-chan struct{} // of the last compaction; read after done
}

func (o *applied) Events(context.Context, wire.EventBatch) error     { return nil }
func (o *applied) Leases(context.Context, []apply.LeaseChange) error { return nil }
func (o *applied) Published(uint64)                                  {}
func (o *applied) RaiseNoSpace()                                     {}

func (o *applied) Complete(results []wire.Result) {
	for _, r := range results {
		if r.Physical != nil {
			o.physical = r.Physical
		}
	}
}

func (o *applied) Acknowledge(a apply.Ack) {
	if a.Batches > 0 && a.Index == o.last {
		close(o.done)
	}
}

// databaseLines is the whole content of a database, a line per key.
func databaseLines(t *testing.T, path string) map[string]bool {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all := buckets.New()
	err = db.View(func(tx *bolt.Tx) error {
		for b := backend.Alarm; b <= backend.Meta; b++ {
			err := tx.Bucket([]byte(b.String())).ForEach(func(k, v []byte) error {
				all.Put(b, append([]byte{}, k...), append([]byte{}, v...))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for _, l := range strings.Split(buckets.Dump(all), "\n") {
		lines[l] = true
	}
	return lines
}

package rpc

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/mailbox"
	"sluice/stages/apply"
	"sluice/stages/apply/auth"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/lease"
	"sluice/stages/apply/members"
	"sluice/stages/expire"
	"sluice/stages/propose"
	"sluice/stages/watch"
	"sluice/stages/wire"
)

const (
	testMemberID  = 0x1001
	testClusterID = 0xc1
	testTerm      = 3
)

// testMember is a member without a log: what is proposed is applied at once, by the real apply stage on a real
// backend, and watched through the real watch stage. Raft's part is played by a counter.
type testMember struct {
	apply   *apply.Stage
	watch   *watch.Stage
	backend *backend.Backend
	tokens  auth.Tokens
	in      *mailbox.Mailbox[apply.Message]
	done    chan struct{}

	leader   atomic.Uint64
	quota    atomic.Int64
	peers    bool
	barriers atomic.Int64
	proposed atomic.Int64
	snapshot string // what Snapshot returns
	defrag   func() // called by Defragment
	renewing func() // called by Renew
	// proposing is called before each proposal, opening before each watch stream, reading before each barrier.
	proposing, opening atomic.Pointer[func()]
	reading            atomic.Pointer[func() error]
	refuse             atomic.Pointer[error]

	order   sync.Mutex // held while an entry gets its index and is sent
	mu      sync.Mutex
	index   uint64
	waiting map[uint64]chan wire.Result
	applied *sync.Cond
	at      uint64
}

var _ Member = (*testMember)(nil)

func newTestMember(t testing.TB) *testMember { return newTestMemberAs(t, false) }

func newTestMemberAs(t testing.TB, learner bool) *testMember {
	t.Helper()
	m := &testMember{done: make(chan struct{}), waiting: make(map[uint64]chan wire.Result)}
	m.applied = sync.NewCond(&m.mu)
	m.leader.Store(testMemberID)
	m.tokens = auth.NewSimpleTokens(time.Minute, time.Now)
	var err error
	m.backend, err = backend.Open(backend.Config{
		Path: filepath.Join(t.TempDir(), "db"), MappingBytes: 64 << 20, UnsafeNoFsync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.in = mailbox.New[apply.Message](mailbox.Config{Name: "apply", Capacity: 16})
	m.apply, err = apply.New(apply.Config{
		Log: m.in.Receiver(), Out: testOut{m}, Backend: m.backend, LocalID: testMemberID, Tokens: m.tokens,
		ServerVersion: members.Version{Major: 3, Minor: 7, Patch: 3}, LearnersMax: 1, LeaseTTLMin: 2,
		CheckpointEntries: 1 << 40, LeaderTerm: func() uint64 { return testTerm },
		Image: func(*members.Table) []byte { return nil }, Removed: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	watchIn := mailbox.NewSized[watch.Inbound](
		mailbox.Config{Name: "watch", Capacity: 16, BytesMax: 64 << 20}, watch.InboundBytes)
	m.watch = watch.New(watch.Config{
		In: watchIn.Receiver(), Self: watchIn.Sender(mailbox.Wait), Views: testHistory{m}, Revision: 1,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	for _, run := range []func(context.Context) error{
		m.backend.Run, m.watch.Run, m.apply.Run, m.apply.RunCompactor, m.apply.RunFlusher,
	} {
		loops.Go(func() { _ = run(ctx) })
	}
	for _, w := range m.watch.Workers() {
		loops.Go(func() { _ = w.Run(ctx) })
	}
	t.Cleanup(func() {
		close(m.done)
		cancel()
		loops.Wait()
		m.apply.Close()
		_ = m.backend.Close()
	})
	m.bootstrap(t, learner)
	return m
}

// bootstrap makes it a cluster of one started member.
func (m *testMember) bootstrap(t testing.TB, learner bool) {
	ctx := context.Background()
	me := members.Member{ID: testMemberID, PeerURLs: []string{"http://127.0.0.1:2380"}, IsLearner: learner}
	if res, err := m.ProposeConfChange(ctx, members.Add(me)); err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
	for _, r := range []*pb.InternalRaftRequest{
		{ClusterMemberAttrSet: &membershippb.ClusterMemberAttrSetRequest{
			Member_ID: testMemberID, MemberAttributes: &membershippb.Attributes{
				Name: "one", ClientUrls: []string{"http://127.0.0.1:2379"},
			},
		}},
		{ClusterVersionSet: &membershippb.ClusterVersionSetRequest{Ver: "3.7.0"}},
	} {
		if res, err := m.Propose(ctx, &wire.Request{Other: r}, propose.System); err != nil || res.Err != nil {
			t.Fatal(err, res.Err)
		}
	}
}

// submit applies one entry and returns its result.
func (m *testMember) submit(
	ctx context.Context, typ raftpb.EntryType, encode func(id uint64) []byte,
) (wire.Result, error) {
	if err := ctx.Err(); err != nil {
		return wire.Result{}, err
	}
	m.order.Lock() // not mu, which apply needs to go on
	m.mu.Lock()
	m.index++
	index, answer := m.index, make(chan wire.Result, 1)
	m.waiting[index] = answer
	m.mu.Unlock()
	entry := wire.NewEntry(typ, testTerm, index, encode(index))
	err := m.in.Sender(mailbox.Wait).Send(ctx, apply.Batch{Entries: []*raftpb.Entry{entry}})
	if err != nil {
		m.mu.Lock()
		m.index-- // nobody has seen it
		delete(m.waiting, index)
		m.mu.Unlock()
	}
	m.order.Unlock()
	if err != nil {
		return wire.Result{}, err
	}
	select {
	case res := <-answer:
		return res, nil
	case <-ctx.Done():
		return wire.Result{}, ctx.Err()
	case <-m.done:
		return wire.Result{}, propose.ErrStopped
	}
}

func (m *testMember) Propose(ctx context.Context, r *wire.Request, _ propose.Lane) (wire.Result, error) {
	called(&m.proposing)
	if refused := m.refuse.Load(); refused != nil {
		return wire.Result{}, *refused
	}
	m.proposed.Add(1)
	return m.submit(ctx, raftpb.EntryNormal, func(id uint64) []byte {
		r.ID = id
		return r.Append(nil)
	})
}

func (m *testMember) ProposeConfChange(ctx context.Context, cc *raftpb.ConfChange) (wire.Result, error) {
	return m.submit(ctx, raftpb.EntryConfChange, func(id uint64) []byte {
		cc.Id = &id
		b, err := proto.Marshal(cc)
		if err != nil {
			panic(err)
		}
		return b
	})
}

func (m *testMember) complete(results []wire.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range results {
		if w := m.waiting[r.ID]; w != nil {
			w <- r
			delete(m.waiting, r.ID)
		}
	}
}

func (m *testMember) Barrier(ctx context.Context) error {
	m.barriers.Add(1)
	if reading := m.reading.Load(); reading != nil {
		if err := (*reading)(); err != nil {
			return err
		}
	}
	if refused := m.refuse.Load(); refused != nil {
		return *refused
	}
	return m.Applied(ctx, m.CommitIndex())
}

func (m *testMember) Applied(ctx context.Context, index uint64) error {
	stop := context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.applied.Broadcast()
	})
	defer stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.at < index && ctx.Err() == nil {
		m.applied.Wait()
	}
	return ctx.Err()
}

func (m *testMember) CommitIndex() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index
}

func (m *testMember) AppliedIndex() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

func (m *testMember) ClusterID() uint64     { return testClusterID }
func (m *testMember) MemberID() uint64      { return testMemberID }
func (m *testMember) Leader() uint64        { return m.leader.Load() }
func (m *testMember) Term() uint64          { return testTerm }
func (m *testMember) View() *apply.View     { return m.apply.View() }
func (m *testMember) Tokens() auth.Tokens   { return m.tokens }
func (m *testMember) Done() <-chan struct{} { return m.done }
func (m *testMember) PeersSupported() bool  { return m.peers }

func (m *testMember) OpenWatch(cfg watch.StreamConfig) *watch.Stream {
	called(&m.opening)
	return m.watch.Open(cfg)
}

// called calls a test's hook, if there is one.
func called(hook *atomic.Pointer[func()]) {
	if fn := hook.Load(); fn != nil {
		(*fn)()
	}
}

func (m *testMember) Renew(_ context.Context, id int64) (int64, error) {
	if m.renewing != nil {
		m.renewing()
	}
	ttl, _, err := m.TimeToLive(context.Background(), id)
	return ttl, err
}

func (m *testMember) TimeToLive(_ context.Context, id int64) (granted, remaining int64, err error) {
	if m.Leader() != testMemberID {
		return 0, 0, expire.ErrNotPrimary
	}
	v := m.View()
	defer v.Release()
	l, ok := v.Leases.Get(id)
	if !ok {
		return 0, 0, expire.ErrNotFound
	}
	return l.TTL, l.TTL, nil
}

func (m *testMember) Leases(context.Context) ([]int64, error) {
	v := m.View()
	defer v.Release()
	var ids []int64
	v.Leases.Each(func(l lease.Info) bool { ids = append(ids, l.ID); return true })
	return ids, nil
}

func (m *testMember) DBSize() (total, inUse, quota int64) {
	total, inUse = m.backend.Size()
	return total, inUse, m.quota.Load()
}

func (m *testMember) Snapshot(context.Context) (int64, io.ReadCloser, error) {
	return int64(len(m.snapshot)), io.NopCloser(strings.NewReader(m.snapshot)), nil
}

func (m *testMember) Hash(context.Context) (uint32, error) { return 77, nil }

func (m *testMember) Defragment(context.Context) error {
	if m.defrag != nil {
		m.defrag()
	}
	return nil
}

func (m *testMember) MoveLeader(ctx context.Context, _ uint64) error {
	<-ctx.Done()
	return ctx.Err()
}

func (m *testMember) ActiveSince(id uint64) time.Time {
	if id == testMemberID {
		return time.Now().Add(-time.Hour)
	}
	return time.Time{}
}

// testOut connects apply to the member.
type testOut struct{ m *testMember }

func (o testOut) Events(ctx context.Context, b wire.EventBatch) error {
	return o.m.watch.Events(ctx, b)
}
func (o testOut) Leases(context.Context, []apply.LeaseChange) error { return nil }
func (o testOut) Complete(results []wire.Result)                    { o.m.complete(results) }
func (o testOut) RaiseNoSpace()                                     {}
func (o testOut) Published(index uint64) {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	o.m.at = index
	o.m.applied.Broadcast()
}

func (o testOut) Acknowledge(a apply.Ack) {
	for _, v := range a.Verdicts {
		o.m.complete([]wire.Result{v.Result})
	}
}

// testHistory is where watch catches up from.
type testHistory struct{ m *testMember }

type testHistoryView struct{ *apply.View }

func (h testHistory) Acquire() watch.HistoryView { return testHistoryView{h.m.View()} }

func (v testHistoryView) Revision() int64        { return v.KV.Revision() }
func (v testHistoryView) CompactRevision() int64 { return v.KV.CompactRevision() }
func (v testHistoryView) History(from, to int64, fn func(ev *wire.Event) bool) error {
	return v.KV.History(from, to, fn)
}
func (v testHistoryView) Get(key []byte, rev int64) ([]byte, bool) { return v.KV.Get(key, rev) }

package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"sluice/stages/propose"
	"sluice/stages/wire"
)

// inBubble runs a test under fake time with mailboxes of each size. Time stands still while anything runs, the
// real disk included, so what is asserted of it does not depend on the machine.
func inBubble(t *testing.T, test func(t *testing.T, cfg Config, disk *faultyDisk)) {
	t.Helper()
	for name, boxes := range sizes {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			synctest.Test(t, func(t *testing.T) {
				disk := &faultyDisk{}
				cfg := testConfig(t, dir, boxes)
				cfg.Disk, cfg.SegmentBytes, cfg.SnapshotCount = disk, 4<<20, 10_000
				test(t, cfg, disk)
			})
		})
	}
}

// other proposes one of the rarer requests in the system lane.
func other(t *testing.T, m *Member, req *pb.InternalRaftRequest) wire.Result {
	t.Helper()
	r, err := m.Propose(t.Context(), &wire.Request{Other: req}, propose.System)
	if err != nil || r.Err != nil {
		t.Error(err, r.Err)
	}
	return r
}

func grant(t *testing.T, m *Member, id, ttl int64) {
	t.Helper()
	other(t, m, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: id, TTL: ttl}})
	r := request(fmt.Sprint("leased/", id), "v")
	r.Put.Lease = id
	if res, err := m.Propose(t.Context(), r, propose.Client); err != nil || res.Err != nil {
		t.Error(err, res.Err)
	}
}

// flood is many puts at once, each of a key of its own.
type flood struct {
	clients  sync.WaitGroup
	mu       sync.Mutex // guards results: written by every client
	results  []wire.Result
	answered atomic.Int64
	late     atomic.Int64
	refused  atomic.Int64
}

func (f *flood) start(t *testing.T, m *Member, name string, n, valueBytes int) {
	value := strings.Repeat("v", valueBytes)
	for i := range n {
		f.clients.Go(func() {
			r, err := m.Propose(t.Context(), request(fmt.Sprintf("%s/%d", name, i), value), propose.Client)
			switch {
			case err == nil && r.Err == nil:
				f.answered.Add(1)
				f.mu.Lock()
				f.results = append(f.results, r)
				f.mu.Unlock()
			case errors.Is(err, propose.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
				f.late.Add(1)
			case errors.Is(err, propose.ErrTooManyRequests):
				f.refused.Add(1)
			default:
				t.Errorf("put: %v %v", err, r.Err)
			}
		})
	}
}

// once checks that every answered put has a revision of its own, and that each key that is there was written
// once. It returns how many there are.
func (f *flood) once(t *testing.T, m *Member, name string, n int) (found int64) {
	t.Helper()
	seen := map[int64]bool{}
	for _, r := range f.results {
		if seen[r.Revision] {
			t.Errorf("revision %d was given to two puts", r.Revision)
		}
		seen[r.Revision] = true
	}
	view := m.View()
	defer view.Release()
	for i := range n {
		encoded, ok := view.KV.Get(fmt.Appendf(nil, "%s/%d", name, i), view.KV.Revision())
		if !ok {
			continue
		}
		found++
		var kv wire.KeyValue
		if err := kv.Decode(encoded); err != nil {
			t.Fatal(err)
		}
		if kv.Version != 1 {
			t.Errorf("%s was applied %d times", kv.Key, kv.Version)
		}
	}
	return found
}

// heap is the live heap.
func heap() int64 {
	goruntime.GC()
	var s goruntime.MemStats
	goruntime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// bounded checks every mailbox against its limits.
func bounded(t *testing.T, m *Member) {
	t.Helper()
	for _, box := range m.mailboxes() {
		s := box.Stats()
		if s.HighWater > s.Capacity || s.BytesMax > 0 && s.Depth > 1 && s.Bytes > s.BytesMax {
			t.Errorf("mailbox %s held %d of %d messages, holds %d of %d bytes",
				s.Name, s.HighWater, s.Capacity, s.Bytes, s.BytesMax)
		}
	}
}

// alive checks what a member promises while its disk does not answer: raft's time goes on, it still leads the
// same term, linearizable and serializable reads are answered at once with what is durable, nothing else is
// visible.
func alive(t *testing.T, m *Member, term uint64) {
	t.Helper()
	if st := m.replicate.Standing(); !st.Leading || st.Term != term {
		t.Errorf("leadership of term %d lost: %+v", term, st)
	}
	if age := m.replicate.TickAge(); age > 2*m.cfg.Heartbeat || !m.replicate.Fresh() {
		t.Errorf("the last tick is %v old", age)
	}
	begun := time.Now()
	if err := m.Barrier(t.Context()); err != nil {
		t.Errorf("a read during the stall: %v", err)
	}
	if took := time.Since(begun); took > m.cfg.Heartbeat {
		t.Errorf("a read took %v", took)
	}
	if get(m, "before") != "v" {
		t.Error("what was acknowledged cannot be read")
	}
}

// renewing keeps lease id alive until the returned function is called.
func renewing(t *testing.T, m *Member, id, ttl int64) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var loop sync.WaitGroup
	loop.Go(func() {
		for {
			if got, err := m.Renew(ctx, id); (err != nil || got != ttl) && ctx.Err() == nil {
				t.Errorf("renewal of a lease that is alive: %d, %v", got, err)
			}
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); loop.Wait() }
}

// A disk that does not answer while 20,000 puts come: what waits is bounded, heartbeats and reads go on,
// leases neither run out wrongly nor live on; when it answers again everybody is served, each once.
func TestStalledDisk(t *testing.T) {
	const valueBytes, limit = 1000, 4 << 20
	puts := 20_000
	if raced {
		puts = 6000 // tenfold slower, and no more to see
	}
	inBubble(t, func(t *testing.T, cfg Config, disk *faultyDisk) {
		cfg.UncommittedBytes = limit
		m := run(t, cfg)
		put(t, m, "before", "v")
		grant(t, m, 1, 3) // renewed all along
		grant(t, m, 2, 3) // never renewed: runs out during the stall
		base := m.CommitIndex()
		term, before := m.Term(), heap()
		end := renewing(t, m, 1, 3)
		reached, release := disk.stall(t)
		f := &flood{}
		f.start(t, m, "k", puts, valueBytes)
		<-reached
		time.Sleep(time.Second)
		early := heap()
		// The system lane does not wait behind the flood, which has filled the log up to its limit.
		var alarm wire.Result
		f.clients.Go(func() {
			alarm = other(t, m, &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{
				Action: pb.AlarmRequest_DEACTIVATE, MemberID: 77, Alarm: pb.AlarmType_CORRUPT}})
		})
		for range 16 {
			time.Sleep(250 * time.Millisecond)
			alive(t, m, term)
			if get(m, "k/0") != "" && get(m, "k/1") != "" {
				t.Error("a put can be read that is not durable")
			}
		}
		bounded(t, m)
		if grown := heap() - before; grown > int64(puts)*4*valueBytes {
			t.Errorf("%d bytes more in use", grown)
		}
		if grown := heap() - early; grown > 1<<20 {
			t.Errorf("%d bytes more in use since the stall began", grown)
		}
		// Lease 2 has run out; its revocation waits for the disk, and a renewal waits with it.
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if ttl, err := m.Renew(ctx, 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a lease that has run out was renewed to %d: %v", ttl, err)
		}
		cancel()
		if f.answered.Load()+f.late.Load() != 0 {
			t.Errorf("%d puts answered, %d late, while nothing was durable", f.answered.Load(), f.late.Load())
		}
		release()
		f.clients.Wait()
		if n := f.answered.Load(); n != int64(puts) {
			t.Errorf("%d of %d puts answered, %d late, %d refused", n, puts, f.late.Load(), f.refused.Load())
		}
		// Besides the log's limit, replicate's intake and one batch on the way were before the alarm.
		if ahead := alarm.Index - base; ahead > (limit+10<<20)/valueBytes {
			t.Errorf("%d entries came before the system lane's", ahead)
		}
		if n := f.once(t, m, "k", puts); n != int64(puts) {
			t.Errorf("%d keys", n)
		}
		time.Sleep(2 * time.Second)
		end()
		if get(m, "leased/1") != "v" || get(m, "leased/2") != "" {
			t.Errorf("leased keys %q %q, want the first one only", get(m, "leased/1"), get(m, "leased/2"))
		}
		stop(t, m)
	})
}

// A disk that is away for longer than a request waits: everybody is told so in time, what was handed to raft
// takes effect once when the disk is back, what was not never does, and the member goes on.
func TestStallBeyondTheTimeout(t *testing.T) {
	// More than the limit, replicate's intake of 8 MiB and the batches on the way hold together.
	const puts, valueBytes, limit = 5000, 4000, 1 << 20
	inBubble(t, func(t *testing.T, cfg Config, disk *faultyDisk) {
		cfg.UncommittedBytes = limit
		m := run(t, cfg)
		put(t, m, "before", "v")
		term := m.Term()
		reached, release := disk.stall(t)
		f := &flood{}
		begun := time.Now()
		f.start(t, m, "k", puts, valueBytes)
		<-reached
		f.clients.Wait()
		if took := time.Since(begun); took > cfg.requestTimeout()+time.Second {
			t.Errorf("the puts waited %v", took)
		}
		if f.late.Load() != puts {
			t.Errorf("%d of %d puts are late, %d answered", f.late.Load(), puts, f.answered.Load())
		}
		time.Sleep(10 * time.Second)
		alive(t, m, term)
		release()
		put(t, m, "after", "v")
		if n := f.once(t, m, "k", puts); n == 0 || n == puts {
			t.Errorf("%d of %d puts took effect: want those that raft had", n, puts)
		}
		stop(t, m)
	})
}

// gate stands before what apply logs: a log that does not take its lines holds apply up as anything else does
// that it waits for. With a negative WarningDuration there is a line for every entry.
type gate struct {
	zapcore.LevelEnabler
	pass atomic.Pointer[func()] // nil: open
}

func (g *gate) With([]zapcore.Field) zapcore.Core { return g }
func (g *gate) Sync() error                       { return nil }
func (g *gate) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return c.AddCore(e, g)
}
func (g *gate) Write(e zapcore.Entry, _ []zapcore.Field) error {
	if pass := g.pass.Load(); pass != nil && e.LoggerName == "apply" {
		(*pass)()
	}
	return nil
}

// shut has pass called before each line.
func (g *gate) shut(pass func()) { g.pass.Store(&pass) }

// An apply that is 5000 entries behind: further requests are refused at once, what was taken is applied when
// it goes on, and then all is as before.
func TestSlowApply(t *testing.T) {
	inBubble(t, func(t *testing.T, cfg Config, _ *faultyDisk) {
		g := &gate{LevelEnabler: zap.InfoLevel}
		cfg.Logger, cfg.WarningDuration, cfg.PriorityRequest = zap.New(g), -1, true
		m := run(t, cfg)
		put(t, m, "before", "v")
		grant(t, m, 1, 2)
		term, base := m.Term(), m.AppliedIndex()
		closed := make(chan struct{})
		open := sync.OnceFunc(func() { close(closed) })
		defer open()
		g.shut(func() { <-closed })
		f := &flood{}
		f.start(t, m, "k", 5000, 10)
		synctest.Wait()
		if gap := m.CommitIndex() - m.AppliedIndex(); gap != 5000 || m.AppliedIndex() != base {
			t.Errorf("%d entries committed and not applied", gap)
		}
		f.start(t, m, "at the limit", 1, 10)
		synctest.Wait()
		if n := f.refused.Load(); n != 0 {
			t.Errorf("%d refused at a gap of 5000", n)
		}
		f.start(t, m, "above", 100, 10)
		synctest.Wait()
		if n := f.refused.Load(); n != 100 {
			t.Errorf("%d of 100 refused at a gap of 5001", n)
		}
		// The lease runs out meanwhile. Its revocation still passes, and takes effect in its turn.
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if gap := m.CommitIndex() - m.AppliedIndex(); gap != 5002 {
			t.Errorf("gap of %d, want the revocation to be the 5002nd entry", gap)
		}
		if st := m.replicate.Standing(); !st.Leading || st.Term != term || !m.replicate.Fresh() {
			t.Errorf("leadership lost: %+v", st)
		}
		bounded(t, m)
		// A linearizable read waits for apply; a serializable one does not.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := m.Barrier(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a linearizable read was answered with a view that is behind: %v", err)
		}
		cancel()
		if get(m, "before") != "v" {
			t.Error("a serializable read is not answered")
		}
		open()
		f.clients.Wait()
		if f.answered.Load() != 5001 || f.once(t, m, "k", 5000) != 5000 {
			t.Errorf("%d answered, %d late", f.answered.Load(), f.late.Load())
		}
		if err := m.Barrier(t.Context()); err != nil {
			t.Error(err)
		}
		if get(m, "leased/1") != "" {
			t.Error("the lease lives on")
		}
		put(t, m, "after", "v")
		stop(t, m)
	})
}

// A database that cannot be written, here because a reader holds the old mapping of a file that must grow: apply
// goes on in memory up to its limit, then the pipeline fills up to its limits and waits; raft's time goes on,
// serializable reads are answered. When the reader is gone everything is applied, once, and becomes durable.
func TestStalledDatabase(t *testing.T) {
	const puts, valueBytes, buffer = 3000, 10_000, 2 << 20
	inBubble(t, func(t *testing.T, cfg Config, _ *faultyDisk) {
		cfg.MappingBytes, cfg.UncommittedBytes, cfg.BufferBytes = 1<<20, 4<<20, buffer
		m := run(t, cfg)
		put(t, m, "before", "v")
		term := m.Term()
		held := m.View()
		f := &flood{}
		f.start(t, m, "k", puts, valueBytes)
		time.Sleep(3 * time.Second)
		answered := f.answered.Load()
		// Two sealed buffers and one that is being filled; fewer, when a batch is held up in the middle.
		if answered > 4*buffer/valueBytes {
			t.Errorf("%d of %d puts answered, want up to three buffers of them", answered, puts)
		}
		time.Sleep(time.Second)
		if n := f.answered.Load(); n != answered {
			t.Errorf("%d puts answered a second later, %d before: apply does not wait", n, answered)
		}
		if st := m.replicate.Standing(); !st.Leading || st.Term != term || !m.replicate.Fresh() {
			t.Errorf("leadership lost: %+v", st)
		}
		if get(m, "before") != "v" {
			t.Error("what was acknowledged cannot be read")
		}
		bounded(t, m)
		held.Release()
		f.clients.Wait()
		if f.answered.Load() != puts || f.once(t, m, "k", puts) != puts {
			t.Errorf("%d of %d puts answered, %d late", f.answered.Load(), puts, f.late.Load())
		}
		stop(t, m)
		m = run(t, cfg)
		if n := f.once(t, m, "k", puts); n != puts {
			t.Errorf("%d keys after a restart", n)
		}
		stop(t, m)
	})
}

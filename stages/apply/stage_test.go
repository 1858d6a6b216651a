package apply

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"

	"sluice/mailbox"
	"sluice/stages/apply/backend"
	"sluice/stages/apply/buckets"
	"sluice/stages/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is the stage's Out. Order is what came, in order; each channel yields what tests wait for.
type recorder struct {
	stage *Stage
	acks  chan Ack

	mu      sync.Mutex // guards the rest, written by Run
	order   []string
	results []wire.Result
	leases  []LeaseChange
	events  []wire.EventBatch
	raised  int
	fail    error         // what Events returns from now on
	gate    chan struct{} // the next Events says here that it has begun, and waits until it may go on
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order = append(r.order, fmt.Sprintf(format, args...))
}

func (r *recorder) Events(ctx context.Context, b wire.EventBatch) error {
	v := r.stage.View()
	defer v.Release()
	r.note("events %d revision %d view %d", len(b.Events), b.Revision, v.KV.Revision())
	r.mu.Lock()
	r.events = append(r.events, b)
	gate, fail := r.gate, r.fail
	r.gate = nil
	r.mu.Unlock()
	if gate != nil {
		gate <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fail
}

func (r *recorder) Leases(_ context.Context, changes []LeaseChange) error {
	r.note("leases %d", len(changes))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leases = append(r.leases, changes...)
	return nil
}

func (r *recorder) Complete(results []wire.Result) {
	r.note("complete %d", len(results))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, results...)
}

func (r *recorder) Published(index uint64) {
	v := r.stage.View()
	defer v.Release()
	r.note("published %d view %d", index, v.Index)
}

func (r *recorder) Acknowledge(a Ack) {
	r.note("ack %d up to %d checkpoint %t", a.Batches, a.Index, a.Checkpoint != nil)
	r.acks <- a
}

func (r *recorder) RaiseNoSpace() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raised++
}

func (r *recorder) took() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.order
	r.order = nil
	return o
}

// member is a stage on a real database with everything that must run.
type member struct {
	t      testing.TB
	cfg    Config
	disk   *backend.Backend
	stage  *Stage
	out    *recorder
	log    *mailbox.Mailbox[Message]
	logs   *observer.ObservedLogs
	cancel context.CancelFunc
	done   sync.WaitGroup // backend and stage
	worker sync.WaitGroup
	runErr chan error
	index  uint64
	id     uint64
}

func start(t testing.TB, dir string, change func(*Config)) *member {
	t.Helper()
	disk, err := backend.Open(backend.Config{Path: filepath.Join(dir, "db"), MappingBytes: 1 << 20, Capacity: 1})
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	m := &member{
		t: t, disk: disk, logs: logs, runErr: make(chan error, 1), out: &recorder{acks: make(chan Ack, 1000)},
		log: mailbox.New[Message](mailbox.Config{Name: "apply", Capacity: 1}), id: 1 << 20,
	}
	m.cfg = testConfig()
	m.cfg.Backend, m.cfg.Out, m.cfg.Log, m.cfg.Logger = disk, m.out, m.log.Receiver(), zap.New(core)
	m.cfg.CheckpointEntries, m.cfg.WorkCapacity, m.cfg.CompactionPause = 1<<40, 1, time.Millisecond
	m.cfg.SnapshotFile = func(index uint64) string { return filepath.Join(dir, fmt.Sprintf("%016x.snap.db", index)) }
	if change != nil {
		change(&m.cfg)
	}
	if m.stage, err = New(m.cfg); err != nil {
		_ = disk.Close()
		t.Fatal(err)
	}
	m.out.stage = m.stage
	m.index = m.stage.core.index
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	run := func(of *sync.WaitGroup, fn func(context.Context) error) {
		of.Add(1)
		go func() {
			defer of.Done()
			if err := fn(ctx); err != nil && !errors.Is(err, mailbox.ErrClosed) && ctx.Err() == nil {
				t.Errorf("run: %v", err)
			}
		}()
	}
	run(&m.done, disk.Run)
	run(&m.worker, m.stage.RunCompactor)
	run(&m.worker, m.stage.RunFlusher)
	m.done.Add(1)
	go func() { defer m.done.Done(); m.runErr <- m.stage.Run(ctx) }()
	return m
}

// stop is the orderly end.
func (m *member) stop() {
	m.t.Helper()
	m.log.Close()
	if err := <-m.runErr; !errors.Is(err, mailbox.ErrClosed) {
		m.t.Errorf("run: %v", err)
	}
	m.worker.Wait() // they end by themselves, whatever they are doing
	m.stage.Close()
	if err := m.disk.Close(); err != nil {
		m.t.Errorf("close the backend: %v", err)
	}
	m.cancel()
	m.done.Wait()
}

// kill ends everything without a flush: what is not committed is lost.
func (m *member) kill() {
	m.cancel()
	<-m.runErr
	m.worker.Wait()
	m.done.Wait()
	m.stage.Close()
	_ = m.disk.Close()
}

func (m *member) entry(r *pb.InternalRaftRequest) *raftpb.Entry {
	m.t.Helper()
	m.id++
	r.Header = &pb.RequestHeader{ID: m.id}
	data, err := proto.Marshal(r)
	if err != nil {
		m.t.Fatal(err)
	}
	m.index++
	return wire.NewEntry(raftpb.EntryNormal, 1, m.index, data)
}

func (m *member) send(msg Message) {
	m.t.Helper()
	if err := m.log.Sender(mailbox.Wait).Send(context.Background(), msg); err != nil {
		m.t.Fatal(err)
	}
}

// do applies requests as one batch and returns the acknowledgement and the results.
func (m *member) do(rs ...*pb.InternalRaftRequest) (Ack, []wire.Result) {
	m.t.Helper()
	var b Batch
	for _, r := range rs {
		b.Entries = append(b.Entries, m.entry(r))
	}
	m.send(b)
	a := m.ack(m.index)
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	return a, append([]wire.Result(nil), m.out.results[len(m.out.results)-len(rs):]...)
}

// ack waits for the acknowledgement of the batch that ends at index.
func (m *member) ack(index uint64) Ack {
	m.t.Helper()
	for a := range m.out.acks {
		if a.Batches > 0 && a.Index >= index {
			return a
		}
	}
	panic("unreachable")
}

func put(key, value string) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}
}

// onDisk opens the database of a stopped member and dumps it.
func onDisk(t testing.TB, dir string) string {
	t.Helper()
	b, err := backend.Open(backend.Config{Path: filepath.Join(dir, "db"), MappingBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := b.Acquire()
	out := buckets.Dump(s)
	s.Release()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

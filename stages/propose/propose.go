package propose

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/mailbox"
	"sluice/stages/wire"
)

// Stage is the intake. New makes it, Run runs it; every other method may be called by anybody.
type Stage struct {
	// Fixed at New.
	cfg     Config
	timeout time.Duration
	ids     *idGenerator
	lanes   [2]*mailbox.Mailbox[request]
	events  *mailbox.Mailbox[struct{}] // "look again": a level or the time has changed

	// Owned by Run.
	core      core
	taken     []request
	gathering gathering
	gathered  int // requests taken and reads asked for in this turn

	// Shared: each guards itself.
	cells   *cells
	reads   reads
	levels  levels
	confID  atomic.Uint64           // id of the outstanding conf change; Run sets it, its outcome clears it
	outlook atomic.Pointer[outlook] // Run writes it, waiters read it
	closing atomic.Bool
}

// levels is what others tell Run, newest value only. Everybody writes, Run takes.
type levels struct {
	mu       sync.Mutex
	standing Standing
	backlog  int64
	ticked   bool
	again    []request // conf changes to propose again at the next tick
}

// New makes the stage.
func New(cfg Config) *Stage {
	cfg = cfg.withDefaults()
	s := &Stage{
		cfg: cfg, timeout: requestTimeoutBase + 2*cfg.ElectionTimeout,
		ids: newIDGenerator(cfg.MemberID, cfg.StartMillis), core: core{limit: cfg.UncommittedBytes},
	}
	s.cells = newCells(s.ids, cfg.CellsFirst, cfg.CellsMax)
	s.lanes[Client] = mailbox.NewSized(mailbox.Config{
		Name: "propose", Capacity: cfg.ClientMessages, BytesMax: cfg.ClientBytesMax,
	}, request.bytes)
	s.lanes[System] = mailbox.NewSized(mailbox.Config{
		Name: "propose-system", Capacity: cfg.SystemMessages, BytesMax: cfg.SystemBytesMax,
	}, request.bytes)
	s.events = mailbox.New[struct{}](mailbox.Config{Name: "propose-events", Capacity: 1})
	s.reads.core.timeout = s.timeout
	s.outlook.Store(&outlook{election: cfg.ElectionTimeout, links: cfg.Links})
	return s
}

// Mailboxes are the stage's inboxes, for meters and settings.
func (s *Stage) Mailboxes() []mailbox.Metered {
	return []mailbox.Metered{s.lanes[Client], s.lanes[System], s.events}
}

// NextID returns a new id of the request sequence, also for leases.
func (s *Stage) NextID() uint64 { return s.ids.next() }

// Pending returns how many requests wait for a result.
func (s *Stage) Pending() int64 { return s.cells.used.Load() }

// Propose proposes r and waits until it was applied here, at most the request timeout. It fills r.ID.
//
// A result with Err set was applied and refused. An error means that no result is known: ErrTimeout,
// ErrTimeoutLeaderFail, ErrTimeoutConnectionLost, ErrCanceled and ErrStopped leave it open whether r takes
// effect; ErrTooManyRequests, ErrRequestTooLarge, ErrNoLeader and a context error say that it does not.
func (s *Stage) Propose(ctx context.Context, r *wire.Request, lane Lane) (wire.Result, error) {
	if err := s.admit(r); err != nil {
		return wire.Result{}, err
	}
	now := s.cfg.Clock()
	cl, id, err := s.cells.acquire(ctx, now, now+int64(s.timeout))
	if err != nil {
		return wire.Result{}, s.failed(s.outlook.Load().ended(err, s.cfg.Clock(), now, false))
	}
	r.ID = id
	data, err := s.encode(r)
	if err != nil {
		s.cells.release(cl)
		return wire.Result{}, err
	}
	return s.submit(ctx, cl, request{id: id, entry: &raftpb.Entry{Data: data}, waits: true}, lane)
}

// Submit proposes r without waiting for its result; it waits only for room in the lane.
func (s *Stage) Submit(ctx context.Context, r *wire.Request, lane Lane) error {
	if err := s.admit(r); err != nil {
		return err
	}
	r.ID = s.ids.next()
	data, err := s.encode(r)
	if err != nil {
		return err
	}
	err = s.lanes[lane].Sender(mailbox.Wait).Send(ctx, request{id: r.ID, entry: &raftpb.Entry{Data: data}})
	return stopped(err)
}

// ProposeConfChange proposes cc, fills its Id and waits until it was applied and raft knows it. It waits
// as long as ctx allows, and for those proposed before: one is outstanding at a time, since raft turns a
// second one into an empty entry without a word.
func (s *Stage) ProposeConfChange(ctx context.Context, cc *raftpb.ConfChange) (wire.Result, error) {
	now := s.cfg.Clock()
	cl, id, err := s.cells.acquire(ctx, now, 0)
	if err != nil {
		return wire.Result{}, s.failed(s.outlook.Load().ended(err, s.cfg.Clock(), now, false))
	}
	cc.Id = &id
	data, err := proto.Marshal(cc)
	if err != nil {
		s.cells.release(cl)
		return wire.Result{}, fmt.Errorf("encode conf change: %w", err)
	}
	entry := &raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Data: data}
	return s.submit(ctx, cl, request{id: id, entry: entry, waits: true}, System)
}

// admit is the gates that need no encoding.
func (s *Stage) admit(r *wire.Request) error {
	gap := s.cfg.GapMax
	if r.Other != nil && r.Other.LeaseRevoke != nil {
		gap = s.cfg.PriorityGapMax
	}
	// Applied is read first: the other order could see entries that were committed and applied in between.
	applied := s.cfg.Progress.Applied()
	if committed := s.cfg.Progress.Committed(); committed > applied && committed-applied > uint64(gap) {
		return ErrTooManyRequests
	}
	if s.cfg.WaitingMax > 0 && s.cells.used.Load() >= s.cfg.WaitingMax ||
		s.cfg.WaitingBytesMax > 0 && s.cells.held.Load() >= s.cfg.WaitingBytesMax {
		return ErrTooManyRequests
	}
	return nil
}

// encode is the only encoding of a request on its way: raft, the WAL and the peers share these bytes.
func (s *Stage) encode(r *wire.Request) ([]byte, error) {
	size := r.Size()
	if size > s.cfg.RequestBytesMax {
		return nil, ErrRequestTooLarge
	}
	if len(r.Trace) > 0 {
		size += wire.SizeBytesField(fieldTrace, len(r.Trace))
	}
	return r.Append(make([]byte, 0, size)), nil
}

const fieldTrace = 15000 // see wire.Request

// submit puts req into its lane and waits for the outcome of cl.
func (s *Stage) submit(ctx context.Context, cl *cell, req request, lane Lane) (wire.Result, error) {
	n := int64(req.bytes())
	cl.mu.Lock()
	cl.bytes = n
	cl.mu.Unlock()
	s.cells.held.Add(n)
	if err := s.enqueue(ctx, cl, req, lane); err != nil {
		s.cells.release(cl)
		return wire.Result{}, s.failed(stopped(err))
	}
	result, err, started, handed := s.cells.await(ctx, cl)
	if err != nil {
		return wire.Result{}, s.failed(s.outlook.Load().ended(err, s.cfg.Clock(), started, handed))
	}
	return result, nil
}

// enqueue puts req into its lane. While the lane is full, completing the cell - at its deadline, or at
// the stop - ends the wait too, so that no timer is needed; nil is returned then, for await to see why.
func (s *Stage) enqueue(ctx context.Context, cl *cell, req request, lane Lane) error {
	err := s.lanes[lane].Sender(mailbox.Refuse).Send(ctx, req)
	if !errors.Is(err, mailbox.ErrFull) {
		return err
	}
	room, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cl.mu.Lock()
	if cl.done {
		cl.mu.Unlock()
		return nil
	}
	cl.abort = cancel
	cl.mu.Unlock()
	err = s.lanes[lane].Sender(mailbox.Wait).Send(room, req)
	cl.mu.Lock()
	cl.abort = nil
	done := cl.done
	cl.mu.Unlock()
	if done || ctx.Err() != nil {
		return nil // await tells
	}
	return err
}

func stopped(err error) error {
	if errors.Is(err, mailbox.ErrClosed) {
		return ErrStopped
	}
	return err
}

func (s *Stage) failed(err error) error {
	s.cfg.Metrics.Failed.Add(1)
	return err
}

// Complete gives results to those who wait for them. It never waits; ids nobody waits for are ignored.
func (s *Stage) Complete(results []wire.Result) {
	conf := s.confID.Load()
	for i := range results {
		id := results[i].ID
		s.cells.complete(id, results[i], nil)
		if id == conf && conf != 0 {
			s.confDone(id)
		}
	}
}

// confDone lets the next conf change go, if id is the outstanding one.
func (s *Stage) confDone(id uint64) {
	if s.confID.CompareAndSwap(id, 0) {
		s.wake()
	}
}

// Refuse takes back entries that reached no log. It never waits.
func (s *Stage) Refuse(entries []*raftpb.Entry, why Refusal) {
	for _, e := range entries {
		id := entryID(e)
		switch {
		case why == Pending && e.GetType() == raftpb.EntryConfChange:
			s.cells.unhand(id)
			s.levels.mu.Lock()
			s.levels.again = append(s.levels.again, request{id: id, entry: e, waits: true})
			s.levels.mu.Unlock()
			continue // it stays the outstanding one, so that none overtakes it
		case why == Overloaded:
			s.cells.complete(id, wire.Result{}, ErrTooManyRequests)
		default:
			s.cells.complete(id, wire.Result{}, ErrNoLeader)
		}
		s.confDone(id)
	}
}

// entryID reads the request id out of an entry; 0 when it has none.
func entryID(e *raftpb.Entry) uint64 {
	if e.GetType() == raftpb.EntryConfChange {
		var cc raftpb.ConfChange
		if proto.Unmarshal(e.GetData(), &cc) != nil {
			return 0
		}
		return cc.GetId()
	}
	var r wire.Request
	if r.Decode(e.GetData()) != nil {
		return 0
	}
	return r.ID
}

// Standing tells who leads. It never waits.
func (s *Stage) Standing(st Standing) {
	s.levels.mu.Lock()
	s.levels.standing = st
	s.levels.mu.Unlock()
	s.wake()
}

// Backlog tells how many bytes are appended but not applied. It never waits.
func (s *Stage) Backlog(bytes int64) {
	s.levels.mu.Lock()
	was := s.levels.backlog
	s.levels.backlog = bytes
	s.levels.mu.Unlock()
	for _, l := range []Lane{Client, System} {
		if limit := s.core.limitOf(l); was > limit && bytes <= limit {
			s.wake()
		}
	}
}

// Tick says that time has passed: deadlines are looked at. It never waits.
func (s *Stage) Tick() {
	s.levels.mu.Lock()
	s.levels.ticked = true
	s.levels.mu.Unlock()
	s.wake()
}

func (s *Stage) wake() {
	_ = s.events.Sender(mailbox.Latest).Send(context.Background(), struct{}{}) // closed: Run has ended
}

// Close begins the orderly stop: new requests get ErrStopped; Run hands over what waits and can be handed
// over, fails the rest, and ends. Who waits for a result keeps waiting, for apply or Abandon.
func (s *Stage) Close() {
	s.lanes[Client].Close()
	s.lanes[System].Close()
	s.closing.Store(true)
	s.wake()
}

// Abandon fails everybody who still waits with ErrStopped: nobody will complete them any more.
func (s *Stage) Abandon() {
	s.lanes[Client].Close()
	s.lanes[System].Close()
	s.cells.stop(ErrStopped)
	s.reads.stop()
}

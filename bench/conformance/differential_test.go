package conformance

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"sluice/bench/process"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// The same operations in the same order give the same answers, errors, revisions, events and hashes as
// the reference.
func TestDifferential(t *testing.T) {
	a, b := etcd(t), sluice(t)
	start(t, a)
	start(t, b)
	differ(t, a, b, newGenerator(seed(t)), *opsFlag)
}

func differ(t *testing.T, a, b *process.Daemon, g *generator, ops int) {
	ref, got := newSide(t, a), newSide(t, b)
	ctx := within(t, 30*time.Second+time.Duration(ops)*20*time.Millisecond)
	for i := range ops {
		if g.chance(2) {
			w := g.watch()
			// Caught up before the next operation: a compaction cancels whoever is still behind, and how
			// fast a server catches up is its own affair.
			for _, s := range []*side{ref, got} {
				s.watch(ctx, w)
				settle(ctx, s, s.watches[len(s.watches)-1])
			}
		}
		req := g.next()
		var want, have answer
		var wg sync.WaitGroup
		wg.Go(func() { want = ref.call(ctx, req) })
		wg.Go(func() { have = got.call(ctx, req) })
		wg.Wait()
		if diff := want.diff(have); diff != "" {
			t.Fatalf("operation %d: %T %s\n%s", i, req, short(req), diff)
		}
		if want.err == nil {
			g.learn(req, want.resp)
		}
		if (i+1)%500 == 0 || i == ops-1 {
			compareWatches(ctx, t, ref, got)
			if t.Failed() {
				t.Fatalf("after operation %d", i)
			}
			t.Logf("%d operations alike, revision %d", i+1, g.revision)
		}
	}
}

// side is one of the two servers.
type side struct {
	name    string
	party   *party
	kv      pb.KVClient
	lease   pb.LeaseClient
	maint   pb.MaintenanceClient
	watcher pb.WatchClient
	watches []*recording
}

func newSide(t *testing.T, d *process.Daemon) *side {
	conn := connect(t, d).ActiveConnection()
	return &side{
		name: d.Program, party: &party{d, conn}, kv: pb.NewKVClient(conn), lease: pb.NewLeaseClient(conn),
		maint: pb.NewMaintenanceClient(conn), watcher: pb.NewWatchClient(conn),
	}
}

type answer struct {
	resp proto.Message
	err  error
}

func (s *side) call(ctx context.Context, req proto.Message) (a answer) {
	opts := []grpc.CallOption{grpc.MaxCallRecvMsgSize(1 << 30)}
	switch r := req.(type) {
	case *pb.PutRequest:
		a.resp, a.err = s.kv.Put(ctx, r, opts...)
	case *pb.RangeRequest:
		a.resp, a.err = s.kv.Range(ctx, r, opts...)
	case *pb.DeleteRangeRequest:
		a.resp, a.err = s.kv.DeleteRange(ctx, r, opts...)
	case *pb.TxnRequest:
		a.resp, a.err = s.kv.Txn(ctx, r, opts...)
	case *pb.CompactionRequest:
		a.resp, a.err = s.kv.Compact(ctx, r, opts...)
	case *pb.LeaseGrantRequest:
		a.resp, a.err = s.lease.LeaseGrant(ctx, r, opts...)
	case *pb.LeaseRevokeRequest:
		a.resp, a.err = s.lease.LeaseRevoke(ctx, r, opts...)
	case *pb.LeaseTimeToLiveRequest:
		a.resp, a.err = s.lease.LeaseTimeToLive(ctx, r, opts...)
	case *pb.LeaseLeasesRequest:
		a.resp, a.err = s.lease.LeaseLeases(ctx, r, opts...)
	case *pb.HashKVRequest:
		a.resp, a.err = s.maint.HashKV(ctx, r, opts...)
	default:
		return s.other(ctx, req)
	}
	if a.err == nil {
		normalize(req, a.resp)
	}
	return a
}

// other makes the calls whose answers are normalized by the message.
func (s *side) other(ctx context.Context, req proto.Message) answer {
	method := ""
	switch req.(type) {
	case streamed:
		method = "/etcdserverpb.KV/RangeStream"
	case *pb.LeaseKeepAliveRequest:
		method = "/etcdserverpb.Lease/LeaseKeepAlive"
	case *pb.StatusRequest:
		method = "/etcdserverpb.Maintenance/Status"
	case *pb.AlarmRequest:
		method = "/etcdserverpb.Maintenance/Alarm"
	case *pb.MemberListRequest:
		method = "/etcdserverpb.Cluster/MemberList"
	default:
		panic(fmt.Sprintf("no call for %T", req))
	}
	data, err := proto.Marshal(req)
	if err != nil {
		return answer{err: err}
	}
	o := s.party.call(ctx, method, data)
	if o.code != codes.OK {
		return answer{err: status.Error(o.code, o.message)}
	}
	whole := output(method)
	for _, m := range o.messages {
		proto.Merge(whole, m)
	}
	return answer{resp: whole}
}

// normalize removes what may differ: who answered, the term, times left, and orders that are not promised.
func normalize(req, m proto.Message) {
	if h, ok := m.(interface{ GetHeader() *pb.ResponseHeader }); ok && h.GetHeader() != nil {
		h.GetHeader().ClusterId, h.GetHeader().MemberId, h.GetHeader().RaftTerm = 0, 0, 0
	}
	switch r := m.(type) {
	case *pb.RangeResponse:
		untie(req.(*pb.RangeRequest), r)
	case *pb.TxnResponse:
		untieTxn(req.(*pb.TxnRequest), r)
	case *pb.LeaseTimeToLiveResponse:
		if r.TTL > 0 {
			r.TTL = 1
		}
		slices.SortFunc(r.Keys, bytes.Compare)
	case *pb.LeaseLeasesResponse:
		slices.SortFunc(r.Leases, func(a, b *pb.LeaseStatus) int { return cmp.Compare(a.ID, b.ID) })
	}
}

func untieTxn(req *pb.TxnRequest, resp *pb.TxnResponse) {
	ops := req.Failure
	if resp.Succeeded {
		ops = req.Success
	}
	for i, r := range resp.Responses {
		switch {
		case r.GetResponseRange() != nil:
			untie(ops[i].GetRequestRange(), r.GetResponseRange())
		case r.GetResponseTxn() != nil:
			untieTxn(ops[i].GetRequestTxn(), r.GetResponseTxn())
		}
	}
}

// untie orders rows that are equal by the sort target, whose order is not promised, by key. Where a limit
// cuts through such a group, which of its rows stay is not promised either: their keys are blanked.
func untie(req *pb.RangeRequest, resp *pb.RangeResponse) {
	var same func(a, b *mvccpb.KeyValue) bool
	switch req.SortTarget {
	case pb.RangeRequest_VERSION:
		same = func(a, b *mvccpb.KeyValue) bool { return a.Version == b.Version }
	case pb.RangeRequest_CREATE:
		same = func(a, b *mvccpb.KeyValue) bool { return a.CreateRevision == b.CreateRevision }
	case pb.RangeRequest_MOD:
		same = func(a, b *mvccpb.KeyValue) bool { return a.ModRevision == b.ModRevision }
	case pb.RangeRequest_VALUE: // without values, keys_only, all rows are one group
		same = func(a, b *mvccpb.KeyValue) bool { return bytes.Equal(a.Value, b.Value) }
	default:
		return
	}
	for from := 0; from < len(resp.Kvs); {
		to := from + 1
		for to < len(resp.Kvs) && same(resp.Kvs[from], resp.Kvs[to]) {
			to++
		}
		group := resp.Kvs[from:to]
		slices.SortFunc(group, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
		if resp.More && to == len(resp.Kvs) {
			for i := range group {
				group[i] = &mvccpb.KeyValue{}
			}
		}
		from = to
	}
}

// short cuts a message for a failure's text.
func short(m proto.Message) string {
	text := fmt.Sprint(m)
	return text[:min(len(text), 4000)]
}

func (a answer) diff(b answer) string {
	if (a.err == nil) != (b.err == nil) || status.Code(a.err) != status.Code(b.err) ||
		status.Convert(a.err).Message() != status.Convert(b.err).Message() {
		return fmt.Sprintf("reference: %v %s\nsluice:    %v %s", a.err, short(a.resp), b.err, short(b.resp))
	}
	if a.err == nil && !proto.Equal(a.resp, b.resp) {
		return fmt.Sprintf("reference: %s\nsluice:    %s", short(a.resp), short(b.resp))
	}
	return ""
}

// watch returns a random watcher.
func (g *generator) watch() *pb.WatchCreateRequest {
	w := &pb.WatchCreateRequest{PrevKv: g.chance(40)}
	w.Key, w.RangeEnd = g.interval()
	switch g.IntN(4) {
	case 0:
		w.StartRevision = g.past(false)
	case 1:
		w.StartRevision = max(g.compacted, 1) + int64(g.IntN(3)) - 1
	case 2:
		w.StartRevision = g.revision + 1 + int64(g.IntN(4))
	}
	if g.chance(15) {
		w.Filters = append(w.Filters, pb.WatchCreateRequest_FilterType(g.IntN(2)))
	}
	return w
}

// recording is what one watcher has received.
type recording struct {
	req    *pb.WatchCreateRequest
	cancel context.CancelFunc

	mu     sync.Mutex // guards all below: written by the receiving goroutine
	lines  []string   // control responses
	events []*mvccpb.Event
	ended  bool // canceled by the server
	synced int64
	from   int64 // first revision it is told of
	kick   chan struct{}
}

// watch opens one stream with one watcher and waits for its created response, so that both servers start
// it at the same point of the sequence.
func (s *side) watch(ctx context.Context, req *pb.WatchCreateRequest) {
	ctx, cancel := context.WithCancel(ctx)
	rec := &recording{req: req, cancel: cancel, kick: make(chan struct{}, 1)}
	s.watches = append(s.watches, rec)
	stream, err := s.watcher.Watch(ctx, grpc.MaxCallRecvMsgSize(1<<30))
	if err == nil {
		err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: req}})
	}
	if err != nil {
		rec.lines, rec.ended = append(rec.lines, "open: "+err.Error()), true
		return
	}
	created := make(chan struct{})
	go rec.receive(stream, created)
	select {
	case <-created:
	case <-ctx.Done():
	}
}

func (rec *recording) receive(stream pb.Watch_WatchClient, created chan struct{}) {
	first := true
	for {
		resp, err := stream.Recv()
		rec.mu.Lock()
		if err != nil {
			rec.ended = true
			rec.mu.Unlock()
			if first {
				close(created)
			}
			return
		}
		if len(resp.Events) == 0 {
			rec.lines = append(rec.lines, fmt.Sprintf("id %d created %v canceled %v compact %d reason %q revision %d",
				resp.WatchId, resp.Created, resp.Canceled, resp.CompactRevision, resp.CancelReason, resp.Header.Revision))
		}
		if resp.Created {
			if rec.from = rec.req.StartRevision; rec.from == 0 {
				rec.from = resp.Header.Revision + 1
			}
		}
		rec.events = append(rec.events, resp.Events...)
		rec.ended = rec.ended || resp.Canceled
		if n := len(resp.Events); n > 0 {
			rec.synced = resp.Events[n-1].Kv.ModRevision
		}
		rec.mu.Unlock()
		if first {
			close(created)
			first = false
		}
		select {
		case rec.kick <- struct{}{}:
		default:
		}
	}
}

// compareWatches waits until both sides have delivered as much as the reference will, then compares and
// ends the watchers. A put of an own key marks the end of what was written; a watcher that cannot see it
// is compared by what it saw of the reference's events.
func compareWatches(ctx context.Context, t *testing.T, ref, got *side) {
	t.Helper()
	for i, want := range ref.watches {
		have := got.watches[i]
		settle(ctx, ref, want)
		settle(ctx, got, have)
		want.mu.Lock()
		have.mu.Lock()
		if diff := diffRecordings(want, have); diff != "" {
			t.Errorf("watch %v:\n%s", want.req, diff)
		}
		have.mu.Unlock()
		want.mu.Unlock()
		want.cancel()
		have.cancel()
	}
	ref.watches, got.watches = nil, nil
}

// settle waits until rec has everything up to the store's present: it reads the history that the watcher
// should have seen through a second watcher that is known to be complete by a progress answer.
func settle(ctx context.Context, s *side, rec *recording) {
	probeCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	last := s.lastRevision(probeCtx, rec.req)
	for {
		rec.mu.Lock()
		done := rec.ended || rec.synced >= last || last < rec.from
		rec.mu.Unlock()
		if done {
			return
		}
		select {
		case <-rec.kick:
		case <-probeCtx.Done():
			return
		}
	}
}

// lastRevision returns the newest revision that an unfiltered watcher like req would be told of.
func (s *side) lastRevision(ctx context.Context, req *pb.WatchCreateRequest) int64 {
	stream, err := s.watcher.Watch(ctx, grpc.MaxCallRecvMsgSize(1<<30))
	if err != nil {
		return 0
	}
	probe := proto.Clone(req).(*pb.WatchCreateRequest)
	probe.PrevKv = false
	hdr, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true})
	if err != nil {
		return 0
	}
	// A watcher that starts at the compaction revision sees all that any watcher can still see.
	status, err := s.maint.HashKV(ctx, &pb.HashKVRequest{})
	if err != nil {
		return 0
	}
	probe.StartRevision = max(req.StartRevision, status.CompactRevision, 1)
	if probe.StartRevision > hdr.Header.Revision {
		return 0
	}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: probe}}); err != nil {
		return 0
	}
	var last int64
	progress := time.NewTicker(50 * time.Millisecond) // the reference drops a request while it catches up
	defer progress.Stop()
	go func() {
		for {
			select {
			case <-progress.C:
				if stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}) != nil {
					return
				}
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for {
		resp, err := stream.Recv()
		if err != nil || resp.Canceled {
			return last
		}
		for _, ev := range resp.Events {
			last = max(last, ev.Kv.ModRevision)
		}
		if resp.WatchId == -1 && resp.Header.Revision >= hdr.Header.Revision {
			return last
		}
	}
}

func diffRecordings(want, have *recording) string {
	if !slices.Equal(want.lines, have.lines) {
		return fmt.Sprintf("control\nreference: %v\nsluice:    %v", want.lines, have.lines)
	}
	for i := range max(len(want.events), len(have.events)) {
		switch {
		case i >= len(want.events):
			return fmt.Sprintf("event %d only from sluice: %v", i, have.events[i])
		case i >= len(have.events):
			return fmt.Sprintf("event %d only from the reference: %v", i, want.events[i])
		case !proto.Equal(want.events[i], have.events[i]):
			return fmt.Sprintf("event %d\nreference: %v\nsluice:    %v", i, want.events[i], have.events[i])
		}
	}
	return ""
}

package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"sluice/runtime"
	"sluice/server/rpc"
)

// content is a value that says which it is in every eight bytes: bytes from another value, or poison, show
// wherever they stand. Keys carry their owner, so that a wrong key shows too.
func content(seed uint64, size int) []byte {
	b := make([]byte, 0, size+8)
	for i := uint64(0); len(b) < size; i++ {
		b = binary.BigEndian.AppendUint64(b, seed<<20|i)
	}
	return b[:size]
}

// sound says whether a value is one of content's: whole, and of one seed.
func sound(b []byte) bool {
	return len(b) < 8 || bytes.Equal(b, content(binary.BigEndian.Uint64(b)>>20, len(b)))
}

var valueSizes = []int{512, 1 << 10, 4 << 10, 16 << 10, 100 << 10}

// hammer is one client with keys of its own, of which it knows the content.
type hammer struct {
	t      *testing.T
	s      *served
	id     int
	g      *rand.Rand
	kv     etcdserverpb.KVClient
	known  map[string][]byte
	seed   uint64
	leases etcdserverpb.LeaseClient
	lease  int64
}

func (h *hammer) key() string { return fmt.Sprintf("h%02d/%02d", h.id, h.g.IntN(12)) }

func (h *hammer) value() []byte {
	h.seed++
	return content(uint64(h.id)<<30|h.seed, valueSizes[h.g.IntN(len(valueSizes))])
}

func (h *hammer) check(what string, kv *mvccpb.KeyValue) {
	if want, ok := h.known[string(kv.Key)]; !ok || !bytes.Equal(kv.Value, want) {
		h.t.Errorf("client %d: %s: key %q has %.16x (%d bytes), want %.16x (%d bytes)",
			h.id, what, kv.Key, kv.Value, len(kv.Value), want, len(want))
	}
}

func (h *hammer) step(ctx context.Context) error {
	key := h.key()
	switch h.g.IntN(8) {
	case 0, 1:
		value := h.value()
		r, err := h.kv.Put(ctx, &etcdserverpb.PutRequest{Key: []byte(key), Value: value, PrevKv: true, Lease: h.lease})
		if err != nil {
			return err
		}
		if r.PrevKv != nil {
			h.check("previous value", r.PrevKv)
		}
		h.known[key] = value
	case 2:
		r, err := h.kv.DeleteRange(ctx, &etcdserverpb.DeleteRangeRequest{Key: []byte(key), PrevKv: true})
		if err != nil {
			return err
		}
		for _, kv := range r.PrevKvs {
			h.check("deleted value", kv)
		}
		delete(h.known, key)
	case 3:
		return h.txn(ctx)
	case 4:
		return h.list(ctx)
	case 5:
		return h.stream(ctx)
	case 6:
		return h.keepAlive(ctx)
	default:
		r, err := h.kv.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(key), Serializable: h.g.IntN(2) == 0})
		if err != nil {
			return err
		}
		if _, ok := h.known[key]; ok != (len(r.Kvs) == 1) {
			h.t.Errorf("client %d: %d values of %q", h.id, len(r.Kvs), key)
		}
		for _, kv := range r.Kvs {
			h.check("value", kv)
		}
	}
	return nil
}

// txn compares a value as it should be, and puts two.
func (h *hammer) txn(ctx context.Context) error {
	at, first := h.key(), h.key()
	second := h.key()
	for second == first {
		second = h.key()
	}
	values := [2][]byte{h.value(), h.value()}
	put := func(key string, value []byte) *etcdserverpb.RequestOp {
		return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestPut{
			RequestPut: &etcdserverpb.PutRequest{Key: []byte(key), Value: value}}}
	}
	r, err := h.kv.Txn(ctx, &etcdserverpb.TxnRequest{
		Compare: []*etcdserverpb.Compare{{
			Key: []byte(at), Target: etcdserverpb.Compare_VALUE, Result: etcdserverpb.Compare_EQUAL,
			TargetUnion: &etcdserverpb.Compare_Value{Value: h.known[at]},
		}},
		Success: []*etcdserverpb.RequestOp{put(first, values[0]), put(second, values[1])},
		Failure: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestRange{
			RequestRange: &etcdserverpb.RangeRequest{Key: []byte(at)}}}},
	})
	if err != nil {
		return err
	}
	if _, there := h.known[at]; r.Succeeded != there {
		h.t.Errorf("client %d: the comparison with %q of %q says %v", h.id, h.known[at], at, r.Succeeded)
	}
	if r.Succeeded {
		h.known[first], h.known[second] = values[0], values[1]
	}
	return nil
}

func (h *hammer) own() *etcdserverpb.RangeRequest {
	return &etcdserverpb.RangeRequest{Key: fmt.Appendf(nil, "h%02d/", h.id), RangeEnd: fmt.Appendf(nil, "h%02d0", h.id)}
}

func (h *hammer) checkAll(what string, kvs []*mvccpb.KeyValue) {
	if len(kvs) != len(h.known) {
		h.t.Errorf("client %d: %s: %d keys, want %d", h.id, what, len(kvs), len(h.known))
	}
	for _, kv := range kvs {
		h.check(what, kv)
	}
}

func (h *hammer) list(ctx context.Context) error {
	r, err := h.kv.Range(ctx, h.own())
	if err == nil {
		h.checkAll("list", r.Kvs)
	}
	return err
}

func (h *hammer) stream(ctx context.Context) error {
	stream, err := h.kv.RangeStream(ctx, h.own())
	if err != nil {
		return err
	}
	var kvs []*mvccpb.KeyValue
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			h.checkAll("stream", kvs)
			return nil
		}
		if err != nil {
			return err
		}
		kvs = append(kvs, r.RangeResponse.Kvs...)
	}
}

func (h *hammer) keepAlive(ctx context.Context) error {
	if h.lease == 0 {
		r, err := h.leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: 600})
		if err != nil {
			return err
		}
		h.lease = r.ID
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := h.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return err
	}
	for range 3 {
		if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: h.lease}); err != nil {
			return err
		}
		if r, err := stream.Recv(); err != nil || r.ID != h.lease || r.TTL != 600 {
			return fmt.Errorf("keepalive of %d: %v %w", h.lease, r, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	_, err = stream.Recv()
	if err == io.EOF {
		return nil
	}
	return fmt.Errorf("end of keepalives: %w", err)
}

// follow watches every key until the key "end" is written, and checks every event and its previous value.
func follow(t *testing.T, s *served, fragment bool) (events func() int) {
	ctx, cancel := context.WithCancel(within(t))
	stream, err := etcdserverpb.NewWatchClient(s.dial(t)).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	create := &etcdserverpb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true, Fragment: fragment}
	if err := stream.Send(&etcdserverpb.WatchRequest{
		RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create},
	}); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || !r.Created {
		t.Fatal(r, err)
	}
	progress := &etcdserverpb.WatchRequest_ProgressRequest{ProgressRequest: &etcdserverpb.WatchProgressRequest{}}
	if err := stream.Send(&etcdserverpb.WatchRequest{RequestUnion: progress}); err != nil { // frees the create's bytes
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	seen := 0
	done.Go(func() {
		defer cancel()
		last := map[string][]byte{}
		for {
			r, err := stream.Recv()
			if err != nil {
				t.Errorf("watch: %v", err)
				return
			}
			for _, ev := range r.Events {
				seen++
				key := string(ev.Kv.Key)
				if key == "end" {
					return
				}
				if !sound(ev.Kv.Value) || ev.PrevKv != nil && !bytes.Equal(ev.PrevKv.Value, last[key]) {
					t.Errorf("watch: event of %q with %.16x after %.16x", key, ev.Kv.Value, last[key])
				}
				last[key] = slices.Clone(ev.Kv.Value)
			}
		}
	})
	return func() int { done.Wait(); return seen }
}

// Every buffer that the server gives back is overwritten, and never used again: who still reads it reads poison.
// Several clients write, read, watch and renew with values on both sides of every threshold, and know what must
// come. At the end all buffers are back.
func TestPoisonedBuffers(t *testing.T) {
	const clients, steps = 6, 150
	for name, boxes := range sizes {
		t.Run(name, func(t *testing.T) {
			s := serve(t, boxes, func(c *runtime.Config, r *rpc.Config) {
				c.ValueCacheBytes, c.WindowBytes, c.SnapshotCount = 1<<20, 1<<20, 200 // values from memory and from the file
				r.ReadBudgetBytes = 1 << 20
			})
			watches := []func() int{follow(t, s, false), follow(t, s, true)}
			var all sync.WaitGroup
			for id := range clients {
				conn := s.dial(t)
				h := &hammer{
					t: t, s: s, id: id, g: rand.New(rand.NewPCG(11, uint64(id))), known: map[string][]byte{},
					kv: etcdserverpb.NewKVClient(conn), leases: etcdserverpb.NewLeaseClient(conn),
				}
				ctx := within(t)
				all.Go(func() {
					for range steps {
						if err := h.step(ctx); err != nil {
							t.Errorf("client %d: %v", id, err)
							return
						}
					}
				})
			}
			maintenance := etcdserverpb.NewMaintenanceClient(s.dial(t))
			for range 2 {
				if _, err := maintenance.Defragment(within(t), &etcdserverpb.DefragmentRequest{}); err != nil {
					t.Error(err)
				}
			}
			all.Wait()
			kv := etcdserverpb.NewKVClient(s.dial(t))
			if _, err := kv.Put(within(t), &etcdserverpb.PutRequest{Key: []byte("end")}); err != nil {
				t.Fatal(err)
			}
			if a, b := watches[0](), watches[1](); a != b || a < clients*steps/4 {
				t.Errorf("the watches saw %d and %d events", a, b)
			}
			s.stop(t)
		})
	}
}

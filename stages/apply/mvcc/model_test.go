package mvcc

import (
	"bytes"
	"cmp"
	"slices"
	"sort"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/wire"
)

// model is the slow obvious store: every key with all it ever was. It forgets nothing; a compaction only
// moves the revision below which it refuses to answer.
type model struct {
	rev, compact int64
	sub          int
	keys         map[string][]change // in order
	log          []change            // of all keys, in order
	leases       map[int64]bool
}

// change is one record: kv nil for a deletion.
type change struct {
	rev int64
	sub int
	key string
	kv  *mvccpb.KeyValue
}

func newModel(leases ...int64) *model {
	m := &model{rev: 1, compact: -1, keys: map[string][]change{}, leases: map[int64]bool{}}
	for _, id := range leases {
		m.leases[id] = true
	}
	return m
}

func (m *model) at(key string, rev int64) *mvccpb.KeyValue {
	var kv *mvccpb.KeyValue
	for _, c := range m.keys[key] {
		if c.rev <= rev {
			kv = c.kv
		}
	}
	return kv
}

func inSpan(k string, key, end []byte) bool {
	switch {
	case len(end) == 0:
		return k == string(key)
	case len(end) == 1 && end[0] == 0:
		return k >= string(key)
	}
	return k >= string(key) && k < string(end)
}

func (m *model) list(key, end []byte, rev int64) (kvs []*mvccpb.KeyValue) {
	var names []string
	for k := range m.keys {
		if inSpan(k, key, end) {
			names = append(names, k)
		}
	}
	sort.Strings(names)
	for _, k := range names {
		if kv := m.at(k, rev); kv != nil {
			kvs = append(kvs, kv)
		}
	}
	return kvs
}

func (m *model) check(rev int64) error {
	switch {
	case rev > m.rev:
		return ErrFutureRev
	case rev > 0 && rev < m.compact:
		return ErrCompacted
	}
	return nil
}

func (m *model) rangeKVs(r *wire.RangeRequest) *pb.RangeResponse {
	rev := r.Revision
	if rev <= 0 {
		rev = m.rev + 1
	}
	kvs := m.list(r.Key, r.RangeEnd, rev)
	resp := &pb.RangeResponse{Count: int64(len(kvs))}
	if r.CountOnly {
		return resp
	}
	filter := r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
	if !filter && r.SortOrder == 0 && r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs = kvs[:r.Limit+1]
	}
	kvs = slices.DeleteFunc(slices.Clone(kvs), func(kv *mvccpb.KeyValue) bool {
		return r.MinModRevision != 0 && kv.ModRevision < r.MinModRevision ||
			r.MaxModRevision != 0 && kv.ModRevision > r.MaxModRevision ||
			r.MinCreateRevision != 0 && kv.CreateRevision < r.MinCreateRevision ||
			r.MaxCreateRevision != 0 && kv.CreateRevision > r.MaxCreateRevision
	})
	slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		c := 0
		switch pb.RangeRequest_SortTarget(r.SortTarget) {
		case pb.RangeRequest_KEY:
			c = bytes.Compare(a.Key, b.Key)
		case pb.RangeRequest_VERSION:
			c = cmp.Compare(a.Version, b.Version)
		case pb.RangeRequest_CREATE:
			c = cmp.Compare(a.CreateRevision, b.CreateRevision)
		case pb.RangeRequest_MOD:
			c = cmp.Compare(a.ModRevision, b.ModRevision)
		case pb.RangeRequest_VALUE:
			c = bytes.Compare(a.Value, b.Value)
		}
		if r.SortOrder == int32(pb.RangeRequest_DESCEND) {
			return -c
		}
		return c
	})
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs, resp.More = kvs[:r.Limit], true
	}
	for _, kv := range kvs {
		kv = proto.CloneOf(kv)
		if r.KeysOnly {
			kv.Value = nil
			if r.SortTarget != int32(pb.RangeRequest_VALUE) {
				kv.Lease = 0
			}
		}
		resp.Kvs = append(resp.Kvs, kv)
	}
	return resp
}

func (m *model) add(key string, kv *mvccpb.KeyValue) {
	c := change{m.rev + 1, m.sub, key, kv}
	m.sub++
	m.keys[key] = append(m.keys[key], c)
	m.log = append(m.log, c)
}

func (m *model) checkPut(r *wire.PutRequest, gone func(string) bool) error {
	if r.Lease != 0 && !m.leases[r.Lease] {
		return ErrLeaseNotFound
	}
	if (r.IgnoreLease || r.IgnoreValue) && (m.at(string(r.Key), m.rev) == nil || gone(string(r.Key))) {
		return ErrKeyNotFound
	}
	return nil
}

func (m *model) put(r *wire.PutRequest) *pb.PutResponse {
	old := m.at(string(r.Key), m.rev+1)
	kv := &mvccpb.KeyValue{
		Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value), Lease: r.Lease,
		CreateRevision: m.rev + 1, ModRevision: m.rev + 1, Version: 1,
	}
	if old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		if r.IgnoreLease {
			kv.Lease = old.Lease
		}
		if r.IgnoreValue {
			kv.Value = old.Value
		}
	}
	m.add(string(r.Key), kv)
	resp := &pb.PutResponse{}
	if r.PrevKV {
		resp.PrevKv = old
	}
	return resp
}

func (m *model) deleteRange(r *wire.DeleteRangeRequest) *pb.DeleteRangeResponse {
	kvs := m.list(r.Key, r.RangeEnd, m.rev+1)
	for _, kv := range kvs {
		m.add(string(kv.Key), nil)
	}
	resp := &pb.DeleteRangeResponse{Deleted: int64(len(kvs))}
	if r.PrevKV {
		resp.PrevKvs = kvs
	}
	return resp
}

// end closes a transaction and returns whether a revision was consumed.
func (m *model) end() bool {
	if m.sub == 0 {
		return false
	}
	m.rev, m.sub = m.rev+1, 0
	return true
}

func (m *model) holds(c *wire.Compare) bool {
	kvs := m.list(c.Key, c.RangeEnd, m.rev)
	if len(kvs) == 0 {
		if c.Target == int32(pb.Compare_VALUE) {
			return false
		}
		kvs = []*mvccpb.KeyValue{{}}
	}
	given := map[wire.CompareOperand]int64{c.Operand: c.Int}
	for _, kv := range kvs {
		order := 0
		switch pb.Compare_CompareTarget(c.Target) {
		case pb.Compare_VERSION:
			order = cmp.Compare(kv.Version, given[wire.OperandVersion])
		case pb.Compare_CREATE:
			order = cmp.Compare(kv.CreateRevision, given[wire.OperandCreate])
		case pb.Compare_MOD:
			order = cmp.Compare(kv.ModRevision, given[wire.OperandMod])
		case pb.Compare_LEASE:
			order = cmp.Compare(kv.Lease, given[wire.OperandLease])
		case pb.Compare_VALUE:
			want := ""
			if c.Operand == wire.OperandValue {
				want = string(c.Value)
			}
			order = strings.Compare(string(kv.Value), want)
		}
		ok := true
		switch c.Result {
		case 0:
			ok = order == 0
		case 1:
			ok = order > 0
		case 2:
			ok = order < 0
		case 3:
			ok = order != 0
		}
		if !ok {
			return false
		}
	}
	return true
}

// plan is a transaction with its outcome decided: the operations to run, nested ones in place.
type plan struct {
	ok    bool
	ops   []wire.RequestOp
	inner map[int]*plan
}

func (m *model) plan(r *wire.TxnRequest) *plan {
	p := &plan{ok: true, ops: r.Success, inner: map[int]*plan{}}
	for i := range r.Compare {
		p.ok = p.ok && m.holds(&r.Compare[i])
	}
	if !p.ok {
		p.ops = r.Failure
	}
	for i, op := range p.ops {
		if op.Txn != nil {
			p.inner[i] = m.plan(op.Txn)
		}
	}
	return p
}

// flat lists the operations in the order in which they run.
func (p *plan) flat() (ops []wire.RequestOp) {
	for i, op := range p.ops {
		if op.Txn != nil {
			ops = append(ops, p.inner[i].flat()...)
		} else {
			ops = append(ops, op)
		}
	}
	return ops
}

func (m *model) txn(r *wire.TxnRequest) (*pb.TxnResponse, error) {
	p := m.plan(r)
	var deletes []*wire.DeleteRangeRequest
	var late error
	for _, op := range p.flat() {
		var err error
		switch {
		case op.Range != nil:
			err = m.check(op.Range.Revision)
		case op.Put != nil:
			if err = m.checkPut(op.Put, func(string) bool { return false }); err == nil {
				late = cmp.Or(late, m.checkPut(op.Put, func(k string) bool {
					return slices.ContainsFunc(deletes, func(d *wire.DeleteRangeRequest) bool {
						return inSpan(k, d.Key, d.RangeEnd)
					})
				}))
			}
		case op.Delete != nil:
			deletes = append(deletes, op.Delete)
		}
		if err != nil {
			return nil, err
		}
	}
	if late != nil {
		return nil, late
	}
	return m.run(p), nil
}

func (m *model) run(p *plan) *pb.TxnResponse {
	resp := &pb.TxnResponse{Succeeded: p.ok}
	for i, op := range p.ops {
		out := &pb.ResponseOp{}
		switch {
		case op.Range != nil:
			r := m.rangeKVs(op.Range)
			r.Header = m.header()
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: r}
		case op.Put != nil:
			r := m.put(op.Put)
			r.Header = m.header()
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: r}
		case op.Delete != nil:
			r := m.deleteRange(op.Delete)
			r.Header = m.header()
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: r}
		case op.Txn != nil:
			r := m.run(p.inner[i])
			r.Header = &pb.ResponseHeader{}
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: r}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp
}

func (m *model) header() *pb.ResponseHeader {
	if m.sub > 0 {
		return &pb.ResponseHeader{Revision: m.rev + 1}
	}
	return &pb.ResponseHeader{Revision: m.rev}
}

// leaseOf returns the keys that hang on lease id, in order.
func (m *model) leaseOf(id int64) (keys []string) {
	for k := range m.keys {
		if kv := m.at(k, m.rev); kv != nil && kv.Lease == id {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	return keys
}

// event is what a watcher must get for a change.
func (m *model) event(c change) *mvccpb.Event {
	if c.kv == nil {
		return &mvccpb.Event{
			Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(c.key), ModRevision: c.rev},
			PrevKv: m.at(c.key, c.rev-1),
		}
	}
	ev := &mvccpb.Event{Kv: c.kv}
	if c.kv.CreateRevision != c.kv.ModRevision {
		ev.PrevKv = m.at(c.key, c.rev-1)
	}
	return ev
}

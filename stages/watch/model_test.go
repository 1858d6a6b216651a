package watch

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"sluice/stages/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record is one change in the model's history.
type record struct {
	rev  int64
	typ  wire.EventType
	kv   wire.KeyValue
	prev *wire.KeyValue // nil: none
}

func encode(kv *wire.KeyValue) []byte { return kv.Append(nil) }

// event is the record as apply hands it over.
func (r *record) event() wire.Event {
	ev := wire.Event{Type: r.typ, Key: r.kv.Key, Rev: r.rev, KV: encode(&r.kv)}
	if r.prev != nil {
		ev.Prev = encode(r.prev)
	}
	ev.Created = r.typ == wire.EventPut && r.prev == nil
	return ev
}

// op is one change of a transaction. A nil value deletes.
type op struct {
	key   string
	value []byte
}

// model is the slow, obvious store: every record ever made, and the ones that compaction has left.
type model struct {
	mu      sync.Mutex // the writer writes, views and the checker read
	rev     int64
	compact int64
	all     []record // complete
	kept    []record // replaced by compactions, appended to by changes
	live    map[string]*wire.KeyValue
	views   int // held
}

func newModel() *model { return &model{rev: 1, live: map[string]*wire.KeyValue{}} }

// txn makes the changes of one revision, one per key at most, and returns their events; none when nothing changed.
func (m *model) txn(ops ...op) []wire.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	var evs []wire.Event
	rev := m.rev + 1
	for _, o := range ops {
		old := m.live[o.key]
		r := record{rev: rev, typ: wire.EventPut, prev: old}
		if o.value == nil {
			if old == nil {
				continue
			}
			r.typ = wire.EventDelete
			r.kv = wire.KeyValue{Key: []byte(o.key), ModRevision: rev}
			delete(m.live, o.key)
		} else {
			kv := wire.KeyValue{Key: []byte(o.key), Value: o.value, CreateRevision: rev, ModRevision: rev, Version: 1}
			if old != nil {
				kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
			}
			r.kv = kv
			m.live[o.key] = &kv
		}
		m.all = append(m.all, r)
		m.kept = append(m.kept, r)
		evs = append(evs, r.event())
	}
	if len(evs) > 0 {
		m.rev = rev
	}
	return evs
}

// compactAt forgets what a compaction at rev forgets.
func (m *model) compactAt(rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rev <= m.compact || rev > m.rev {
		return
	}
	m.compact = rev
	newest := map[string]int64{}
	for _, r := range m.kept {
		if r.rev <= rev {
			newest[string(r.kv.Key)] = r.rev
		}
	}
	var kept []record
	for _, r := range m.kept {
		gone := r.rev <= rev && newest[string(r.kv.Key)] != r.rev || r.rev < rev && r.typ == wire.EventDelete
		if !gone {
			kept = append(kept, r)
		}
	}
	m.kept = kept
}

func (m *model) batch(evs []wire.Event) wire.EventBatch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return wire.EventBatch{Events: evs, Revision: m.rev, CompactRevision: m.compact}
}

// Acquire makes the model the stage's Views.
func (m *model) Acquire() HistoryView {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.views++
	return &modelView{m, m.rev, m.compact, m.kept[:len(m.kept):len(m.kept)]}
}

type modelView struct {
	m            *model
	rev, compact int64
	records      []record
}

func (v *modelView) Revision() int64        { return v.rev }
func (v *modelView) CompactRevision() int64 { return v.compact }
func (v *modelView) Release() {
	v.m.mu.Lock()
	v.m.views--
	v.m.mu.Unlock()
}

func (v *modelView) from(rev int64) int {
	i, _ := slices.BinarySearchFunc(v.records, rev, func(r record, rev int64) int { return int(r.rev - rev) })
	return i
}

// History hands out events whose bytes are overwritten after the call, as a view's may be.
func (v *modelView) History(from, to int64, fn func(ev *wire.Event) bool) error {
	if from < v.compact {
		return fmt.Errorf("history from %d, compacted at %d", from, v.compact)
	}
	for i := v.from(from); i < len(v.records) && v.records[i].rev <= to; i++ {
		ev := v.records[i].event()
		ev.Prev, ev.PrevUnknown, ev.Created = nil, true, false
		ev.Key = slices.Clone(ev.Key)
		more := fn(&ev)
		for j := range ev.KV {
			ev.KV[j] = 0xee
		}
		for j := range ev.Key {
			ev.Key[j] = 0xee
		}
		if !more {
			break
		}
	}
	return nil
}

func (v *modelView) Get(key []byte, rev int64) ([]byte, bool) {
	for i := v.from(rev+1) - 1; i >= 0; i-- {
		if r := &v.records[i]; string(r.kv.Key) == string(key) {
			return encode(&r.kv), r.typ == wire.EventPut
		}
	}
	return nil, false
}

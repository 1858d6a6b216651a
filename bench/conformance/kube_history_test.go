package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// kubeHistory is what the clients of TestKubeTraffic were told: every acknowledged write and every list that
// was read. Replayed after the run, the writes say what each list had to hold.
type kubeHistory struct {
	mu     sync.Mutex // guards all: written by all clients, read at the end
	writes []kubeWrite
	lists  []kubeList
}

// kubeWrite is one acknowledged change of a key; a deletion where deleted.
type kubeWrite struct {
	key, value string
	revision   int64
	deleted    bool
}

// kubeList is one answer, or the whole of one stream of answers.
type kubeList struct {
	what     string
	from     string // first key asked for
	prefix   string // of the resource: the range ends with it
	limit    int64
	revision int64 // read at
	kvs      []*mvccpb.KeyValue
	count    int64
	more     bool
}

func (h *kubeHistory) wrote(w ...kubeWrite) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writes = append(h.writes, w...)
}

func (h *kubeHistory) listed(l kubeList) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lists = append(h.lists, l)
}

// check replays the writes and compares every list with the state at its revision.
func (h *kubeHistory) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.writes, compareWrites)
	slices.SortFunc(h.lists, func(a, b kubeList) int { return cmp.Compare(a.revision, b.revision) })
	model := kubeModel{state: map[string]*mvccpb.KeyValue{}}
	for _, l := range h.lists {
		model.replay(h.writes, l.revision)
		if err := model.differs(l); err != nil {
			t.Errorf("%s of %s from %q limit %d at revision %d: %v", l.what, l.prefix, l.from, l.limit, l.revision, err)
		}
	}
	t.Logf("%d lists held against %d writes", len(h.lists), len(h.writes))
}

func compareWrites(a, b kubeWrite) int {
	return cmp.Or(cmp.Compare(a.revision, b.revision), strings.Compare(a.key, b.key))
}

// kubeModel is the store, the slow and obvious way.
type kubeModel struct {
	state map[string]*mvccpb.KeyValue
	done  int // writes replayed
}

func (m *kubeModel) replay(writes []kubeWrite, revision int64) {
	for ; m.done < len(writes) && writes[m.done].revision <= revision; m.done++ {
		w := writes[m.done]
		if w.deleted {
			delete(m.state, w.key)
			continue
		}
		kv := &mvccpb.KeyValue{
			Key: []byte(w.key), Value: []byte(w.value), ModRevision: w.revision, CreateRevision: w.revision, Version: 1,
		}
		if old := m.state[w.key]; old != nil {
			kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		}
		m.state[w.key] = kv
	}
}

func (m *kubeModel) differs(l kubeList) error {
	var names []string
	end := clientv3.GetPrefixRangeEnd(l.prefix)
	for k := range m.state {
		if k >= l.from && k < end {
			names = append(names, k)
		}
	}
	sort.Strings(names)
	total := len(names)
	if l.limit > 0 && int64(total) > l.limit {
		names = names[:l.limit]
	}
	if l.count != int64(total) || l.more != (len(names) < total) || len(l.kvs) != len(names) {
		return fmt.Errorf("%d keys, count %d, more %v; want %d, %d, %v",
			len(l.kvs), l.count, l.more, len(names), total, len(names) < total)
	}
	for i, name := range names {
		if !sameKV(l.kvs[i], m.state[name]) {
			return fmt.Errorf("key %d is %v, want %v", i, brief(l.kvs[i]), brief(m.state[name]))
		}
	}
	return nil
}

// sameKV says whether two readings of a key agree in all that is stored.
func sameKV(a, b *mvccpb.KeyValue) bool {
	if a == nil || b == nil {
		return a == b
	}
	return string(a.Key) == string(b.Key) && string(a.Value) == string(b.Value) && a.ModRevision == b.ModRevision &&
		a.CreateRevision == b.CreateRevision && a.Version == b.Version && a.Lease == b.Lease
}

// brief is kv without its padding, for a failure's text.
func brief(kv *mvccpb.KeyValue) string {
	if kv == nil {
		return "absent"
	}
	return fmt.Sprintf("%s mod %d create %d version %d lease %x value %.20q",
		kv.Key, kv.ModRevision, kv.CreateRevision, kv.Version, kv.Lease, kv.Value)
}

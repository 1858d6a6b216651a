package conformance

import (
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The model finds each fault that a list can have.
func TestKubeModelFinds(t *testing.T) {
	writes := []kubeWrite{
		{key: "/r/a", value: "1", revision: 2}, {key: "/r/b", value: "1", revision: 3},
		{key: "/r/c", value: "1", revision: 4},
		{key: "/r/a", value: "2", revision: 5}, {key: "/r/b", revision: 6, deleted: true},
	}
	kv := func(key, value string, create, mod, version int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{
			Key: []byte(key), Value: []byte(value), CreateRevision: create, ModRevision: mod, Version: version,
		}
	}
	a, b, c := kv("/r/a", "2", 2, 5, 2), kv("/r/b", "1", 3, 3, 1), kv("/r/c", "1", 4, 4, 1)
	for name, l := range map[string]kubeList{
		"":                   {kvs: []*mvccpb.KeyValue{a, b}, count: 3, more: true},
		"a key is missing":   {kvs: []*mvccpb.KeyValue{a}, count: 3, more: true},
		"a key is skipped":   {kvs: []*mvccpb.KeyValue{a, c}, count: 3, more: true},
		"the limit is past":  {kvs: []*mvccpb.KeyValue{a, b, c}, count: 3},
		"a value is old":     {kvs: []*mvccpb.KeyValue{kv("/r/a", "1", 2, 2, 1), b}, count: 3, more: true},
		"a version is wrong": {kvs: []*mvccpb.KeyValue{kv("/r/a", "2", 2, 5, 1), b}, count: 3, more: true},
		"the count is low":   {kvs: []*mvccpb.KeyValue{a, b}, count: 2, more: true},
		"more is missing":    {kvs: []*mvccpb.KeyValue{a, b}, count: 3},
		"a deleted key":      {kvs: []*mvccpb.KeyValue{a, b}, count: 3, more: true, revision: 6},
	} {
		if l.revision == 0 {
			l.revision = 5
		}
		l.prefix, l.from, l.limit = "/r/", "/r/", 2
		model := kubeModel{state: map[string]*mvccpb.KeyValue{}}
		model.replay(writes, l.revision)
		if err := model.differs(l); (err != nil) != (name != "") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// The cache finds each fault that a watch can have.
func TestKubeCacheFinds(t *testing.T) {
	kv := func(mod int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte("/r/a"), CreateRevision: 4, ModRevision: mod, Version: mod - 3}
	}
	put := func(mod int64, prev *mvccpb.KeyValue) *clientv3.Event {
		return &clientv3.Event{Kv: kv(mod), PrevKv: prev}
	}
	for name, events := range map[string][]*clientv3.Event{
		"":                       {put(6, kv(5)), put(7, kv(6))},
		"an event is lost":       {put(7, kv(6))},
		"an event comes twice":   {put(6, kv(5)), put(6, kv(5))},
		"events change places":   {put(7, kv(5)), put(6, kv(5))},
		"progress came too soon": {put(5, kv(4))},
		"no previous value":      {put(6, nil)},
		"a stranger":             {{Kv: &mvccpb.KeyValue{Key: []byte("/s"), ModRevision: 6}}},
	} {
		c := &kubeCache{prefix: "/r/", state: map[string]*mvccpb.KeyValue{"/r/a": kv(5)}, revision: 5, progress: 5}
		found := slices.ContainsFunc(events, func(ev *clientv3.Event) bool { return c.apply(ev, 0) != nil })
		if found != (name != "") {
			t.Errorf("%q: found %v", name, found)
		}
	}
}

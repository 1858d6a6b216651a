package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// storeKilled kills the store under load: what was acknowledged is there, writes go on by themselves, and a
// watch gives each object once.
func (r *kubeRun) storeKilled(t *testing.T) {
	path := r.namespace(t, "killed")
	follower := make(chan map[string]bool, 1)
	go func() { follower <- r.follow(t, path) }()
	var known sync.Map // names: true where acknowledged
	var restarted atomic.Bool
	var after, failed atomic.Int64
	writers, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := 0; writers.Err() == nil; i++ {
				name := fmt.Sprintf("w%d-%05d", w, i)
				known.Store(name, false)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				if _, err := r.do(ctx, http.MethodPost, path, configMap(name)); err != nil {
					failed.Add(1)
				} else if known.Store(name, true); restarted.Load() && after.Add(1) == 200 {
					stop()
				}
				cancel()
			}
		})
	}
	for range 3 {
		time.Sleep(500 * time.Millisecond) // when the kill strikes, not a wait for anything
		r.store.Kill()
		if err := r.store.Start(t.Context()); err != nil {
			t.Error(err)
		}
	}
	began := time.Now()
	restarted.Store(true)
	select {
	case <-writers.Done():
	case <-time.After(time.Minute):
		t.Errorf("only %d objects created in the minute after the restart", after.Load())
		stop()
	}
	wg.Wait()
	t.Logf("200 objects made %v after the last restart; %d requests failed", time.Since(began), failed.Load())
	if err := r.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.holds(t, path, &known)
	r.must(t, http.MethodPost, path, configMap(lastObject))
	followed := <-follower
	known.Range(func(name, acknowledged any) bool {
		if acknowledged.(bool) && !followed[name.(string)] {
			t.Errorf("the watch did not give %s", name)
		}
		return true
	})
}

const lastObject = "last"

// follow watches as an informer does, going on where a watch was cut, and returns what it was given once the
// last object has come.
func (r *kubeRun) follow(t *testing.T, path string) map[string]bool {
	found, revision, watches, lists := map[string]bool{}, int64(0), 0, 0
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for t.Context().Err() == nil && !found[lastObject] {
		if revision == 0 {
			lists++
			l, err := r.do(t.Context(), http.MethodGet, path, nil)
			if err != nil { // the store is away
				<-pause.C
				continue
			}
			revision = l.revision()
			for _, o := range l.Items {
				found[o.Metadata.Name] = true
			}
		}
		watches++
		q := url.Values{"resourceVersion": {strconv.FormatInt(revision, 10)}, "timeoutSeconds": {"100"}}
		err := r.watch(t.Context(), path, q, func(ev kubeEvent) bool {
			name := ev.Object.Metadata.Name
			if ev.Type != "ADDED" || found[name] || ev.Object.revision() <= revision {
				t.Errorf("%s %s at %d after %d, known: %v", ev.Type, name, ev.Object.revision(), revision, found[name])
			}
			found[name], revision = true, ev.Object.revision()
			return name != lastObject
		})
		if answered(err, http.StatusGone) {
			revision = 0
		}
		<-pause.C
	}
	t.Logf("the watch gave %d objects by %d watches and %d lists", len(found), watches, lists)
	return found
}

// holds fails unless the server lists every acknowledged object, and none that was never sent.
func (r *kubeRun) holds(t *testing.T, path string, known *sync.Map) {
	t.Helper()
	found := map[string]bool{}
	for _, o := range r.must(t, http.MethodGet, path, nil).Items {
		found[o.Metadata.Name] = true
		if _, sent := known.Load(o.Metadata.Name); !sent {
			t.Errorf("%s was never created", o.Metadata.Name)
		}
	}
	known.Range(func(name, acknowledged any) bool {
		if acknowledged.(bool) && !found[name.(string)] {
			t.Errorf("%s is lost", name)
		}
		return true
	})
	t.Logf("%d objects", len(found))
}

// serverKilled starts kube-apiserver again on the same store, the second time as older ones are: without its
// cache and without streamed lists, so that from then on each list, page and watch is one of the store.
func (r *kubeRun) serverKilled(t *testing.T) {
	flags := r.Extra
	bare := []string{"--watch-cache=false", "--feature-gates=EtcdRangeStream=false,WatchList=false"}
	for _, extra := range [][]string{nil, bare} {
		r.APIServer.Kill()
		r.Extra = append(flags[:len(flags):len(flags)], extra...)
		began := time.Now()
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("ready after %v with %q", time.Since(began), extra)
		r.pages(t)
		if l := r.must(t, http.MethodGet, "/api/v1/namespaces/load/pods?limit=1", nil); l.Metadata.Remaining != 299 {
			t.Errorf("%d pods after the first", l.Metadata.Remaining)
		}
	}
}

// compaction lets the server compact the store twice and holds on to a page of before.
func (r *kubeRun) compaction(t *testing.T) {
	page := r.must(t, http.MethodGet, configMaps("load")+"?limit=10", nil)
	ctx := within(t, time.Minute)
	compacted := int64(0)
	for w := range r.store.c.Watch(ctx, "compact_rev_key") {
		// The key is written before the compaction: a write says that the one before it is done.
		if compacted > page.revision() {
			break
		}
		for _, ev := range w.Events {
			rev, err := strconv.ParseInt(string(ev.Kv.Value), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			compacted = rev
			r.must(t, http.MethodPatch, configMaps("load")+"/cm000000", fmt.Sprintf(`{"data":{"n":"c%d"}}`, rev))
		}
	}
	_, err := r.store.c.Get(ctx, "/registry/", clientv3.WithRev(page.revision()), clientv3.WithPrefix())
	if !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("a read at %d, compacted at %d: %v", page.revision(), compacted, err)
	}
	q := url.Values{"limit": {"10"}, "continue": {page.Metadata.Continue}}
	_, err = r.do(ctx, http.MethodGet, configMaps("load")+"?"+q.Encode(), nil)
	var refusal *kubeError
	if !errors.As(err, &refusal) || refusal.code != http.StatusGone || refusal.Metadata.Continue == "" {
		t.Fatalf("the next page of before the compaction: %v", err)
	}
	q.Set("continue", refusal.Metadata.Continue) // goes on at the present revision
	if l := r.must(t, http.MethodGet, configMaps("load")+"?"+q.Encode(), nil); len(l.Items) != 10 ||
		l.Items[0].Metadata.Name != "cm000010" {
		t.Errorf("the page after the refusal: %d objects", len(l.Items))
	}
	err = r.watch(ctx, configMaps("load"), url.Values{"resourceVersion": {"1"}}, func(kubeEvent) bool { return false })
	if !answered(err, http.StatusGone) {
		t.Errorf("a watch from revision 1: %v", err)
	}
}

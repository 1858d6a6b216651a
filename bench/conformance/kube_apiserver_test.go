package conformance

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/bench/process"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	kubeFlag        = flag.Bool("kube", false, "run a real kube-apiserver on the daemon, built if need be")
	kubeObjectsFlag = flag.Int("kube-objects", 3000, "config maps that the kube-apiserver test makes")
)

// kubeRun is one kube-apiserver on one daemon, its only store.
type kubeRun struct {
	kubeAPI
	store *server
	seed  uint64
}

// A real kube-apiserver with the daemon as its only store: objects by the thousand, pages, watches with
// bookmarks, conflicts, lists from its cache that must be up to date, custom resources, events that expire,
// kill -9 of the store and of the server, compaction. Each step builds on those before it.
func TestKubeAPIServer(t *testing.T) {
	if !*kubeFlag {
		t.Skip("kube-apiserver takes minutes to build and more than one to run: ask for it with -kube")
	}
	program, err := process.KubeAPIServer()
	if err != nil {
		t.Fatal(err)
	}
	store := serve(t, "--watch-progress-notify-interval=5s")
	began := time.Now()
	api, err := process.NewAPIServer(program, t.TempDir(), store.Daemon, "--event-ttl=5s",
		"--etcd-compaction-interval=5s", "--etcd-db-metric-poll-interval=1s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Kill)
	if err := api.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("kube-apiserver was ready after %v", time.Since(began))
	r := &kubeRun{kubeAPI{api}, store, seed(t)}
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"objects", r.objects},
		{"pages", r.pages},
		{"watch", r.watches},
		{"conflicts", r.conflicts},
		{"consistent lists", r.consistentLists},
		{"custom resources", r.customResources},
		{"events", r.events},
		{"metrics", r.metrics},
		{"store killed", r.storeKilled},
		{"server killed", r.serverKilled},
		{"compaction", r.compaction},
		{"collection deleted", r.collectionDeleted},
	} {
		began := time.Now()
		if !t.Run(step.name, step.run) {
			t.Fatalf("end of the server's log:\n%s", tail(api.Log(), 4000))
		}
		t.Logf("%s: %v", step.name, time.Since(began).Round(time.Millisecond))
	}
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// workers runs n workers until one fails or all are done.
func workers(t *testing.T, n int, work func(ctx context.Context, worker int) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := work(ctx, i); err != nil {
				t.Errorf("worker %d: %v", i, err)
				cancel()
			}
		})
	}
	wg.Wait()
}

func (r *kubeRun) namespace(t *testing.T, name string) string {
	t.Helper()
	r.must(t, http.MethodPost, "/api/v1/namespaces", kubeObject{Metadata: kubeMeta{Name: name}})
	return configMaps(name)
}

func (r *kubeRun) objects(t *testing.T) {
	path := r.namespace(t, "load")
	began := time.Now()
	const n = 16
	workers(t, n, func(ctx context.Context, w int) error {
		for i := w; i < *kubeObjectsFlag; i += n {
			o := configMap(fmt.Sprintf("cm%06d", i), "n", "0", "text", strings.Repeat("x", 700))
			if _, err := r.do(ctx, http.MethodPost, path, o); err != nil {
				return err
			}
		}
		return nil
	})
	t.Logf("%.0f config maps per second", float64(*kubeObjectsFlag)/time.Since(began).Seconds())
	pod := `{"metadata":{"name":"pod%d"},"spec":{"containers":[{"name":"c","image":"example.invalid/i"}]}}`
	workers(t, n, func(ctx context.Context, w int) error {
		for i := w; i < 300; i += n {
			if _, err := r.do(ctx, http.MethodPost, "/api/v1/namespaces/load/pods", fmt.Sprintf(pod, i)); err != nil {
				return err
			}
		}
		return nil
	})
	if l := r.must(t, http.MethodGet, "/api/v1/namespaces/load/pods", nil); len(l.Items) != 300 {
		t.Errorf("%d pods", len(l.Items))
	}
	for range 50 { // names are taken, wherever the server looks
		o, err := r.do(t.Context(), http.MethodPost, path, configMap("cm000001"))
		if !answered(err, http.StatusConflict) {
			t.Fatalf("a second creation: %+v, %v", o, err)
		}
	}
}

// pages lists with limit and continue while the objects change, from the server's cache and by itself.
func (r *kubeRun) pages(t *testing.T) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		g := rand.New(rand.NewPCG(r.seed, uint64(w)))
		wg.Go(func() {
			for n := 1; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("%s/cm%06d", configMaps("load"), g.IntN(*kubeObjectsFlag))
				if _, err := r.do(t.Context(), http.MethodPatch, name, fmt.Sprintf(`{"data":{"n":"%d"}}`, n)); err != nil {
					t.Errorf("patch %s: %v", name, err)
					return
				}
			}
		})
	}
	for _, limit := range []int{100, 237, 500, 0} {
		r.pagesOf(t, limit)
	}
	close(stop)
	wg.Wait()
}

func (r *kubeRun) pagesOf(t *testing.T, limit int) {
	t.Helper()
	var names []string
	var version, token string
	for pages := 1; ; pages++ {
		q := url.Values{"limit": {strconv.Itoa(limit)}, "continue": {token}}
		l := r.must(t, http.MethodGet, configMaps("load")+"?"+q.Encode(), nil)
		if pages > 1 && l.Metadata.ResourceVersion != version {
			t.Errorf("page %d is of version %s, the first of %s", pages, l.Metadata.ResourceVersion, version)
		}
		version = l.Metadata.ResourceVersion
		for _, o := range l.Items {
			if o.revision() > l.revision() {
				t.Errorf("%s of version %d in a list of %d", o.Metadata.Name, o.revision(), l.revision())
			}
			names = append(names, o.Metadata.Name)
		}
		if token = l.Metadata.Continue; token == "" {
			break
		}
		if len(l.Items) != limit || l.Metadata.Remaining != *kubeObjectsFlag-len(names) {
			t.Errorf("page %d: %d objects, %d remain after %d", pages, len(l.Items), l.Metadata.Remaining, len(names))
		}
	}
	if len(names) != *kubeObjectsFlag {
		t.Errorf("limit %d: %d objects, want %d", limit, len(names), *kubeObjectsFlag)
	}
	for i, name := range names {
		if name != fmt.Sprintf("cm%06d", i) {
			t.Fatalf("limit %d: object %d is %s", limit, i, name)
		}
	}
}

// watches opens a watch that begins with what is there, marks where that ends, gives every change in order,
// and bookmarks the last revision before the server ends it.
func (r *kubeRun) watches(t *testing.T) {
	path := r.namespace(t, "watched")
	for i := range 5 {
		r.must(t, http.MethodPost, path, configMap(fmt.Sprintf("old%d", i)))
	}
	var want, got []string
	var middle, last int64
	changed := func(kind string, o kubeObject) {
		want = append(want, kind+" "+o.Metadata.Name)
		last = max(last, o.revision())
	}
	begun := false
	var seen, bookmark int64
	q := url.Values{
		"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}, "allowWatchBookmarks": {"true"},
		"timeoutSeconds": {"8"},
	}
	err := r.watch(t.Context(), path, q, func(ev kubeEvent) bool {
		switch {
		case ev.Type != "BOOKMARK":
			got, seen = append(got, ev.Type+" "+ev.Object.Metadata.Name), ev.Object.revision()
		case ev.Object.Metadata.Annotations["k8s.io/initial-events-end"] == "true":
			if begun = true; len(got) != 5 {
				t.Errorf("the beginning ended after %q", got)
			}
			got = nil
			for i := range 20 {
				o := r.must(t, http.MethodPost, path, configMap(fmt.Sprintf("new%d", i)))
				changed("ADDED", o)
				o.Data = map[string]string{"k": "v"}
				changed("MODIFIED", r.must(t, http.MethodPut, path+"/"+o.Metadata.Name, o))
				if i == 10 {
					middle = last
				}
				r.must(t, http.MethodDelete, path+"/"+o.Metadata.Name, nil)
				changed("DELETED", o)
			}
		default:
			if bookmark = ev.Object.revision(); bookmark < seen {
				t.Errorf("bookmark of %d after %d", bookmark, seen)
			}
		}
		return true
	})
	if err != nil || !begun || bookmark < last || strings.Join(got, ",") != strings.Join(want, ",") {
		t.Fatalf("begun %v, bookmark of %d at %d, %v\n%q\nwant\n%q", begun, bookmark, last, err, got, want)
	}
	got, want = nil, want[10*3+2:]
	q = url.Values{"resourceVersion": {strconv.FormatInt(middle, 10)}, "timeoutSeconds": {"30"}}
	err = r.watch(t.Context(), path, q, func(ev kubeEvent) bool {
		got = append(got, ev.Type+" "+ev.Object.Metadata.Name)
		return len(got) < len(want)
	})
	if err != nil || strings.Join(got, ",") != strings.Join(want, ",") {
		t.Errorf("from the middle: %v\n%q\nwant\n%q", err, got, want)
	}
}

// conflicts counts one object up from many clients; each update names the version that it read.
func (r *kubeRun) conflicts(t *testing.T) {
	path := r.namespace(t, "contended") + "/counter"
	r.must(t, http.MethodPost, configMaps("contended"), configMap("counter", "n", "0"))
	var refused atomic.Int64
	const clients, each = 8, 25
	workers(t, clients, func(ctx context.Context, _ int) error {
		for done := 0; done < each; {
			o, err := r.do(ctx, http.MethodGet, path, nil)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(o.Data["n"])
			if err != nil {
				return err
			}
			o.Data["n"] = strconv.Itoa(n + 1)
			switch _, err = r.do(ctx, http.MethodPut, path, o); {
			case err == nil:
				done++
			case answered(err, http.StatusConflict):
				refused.Add(1)
			default:
				return err
			}
		}
		return nil
	})
	if o := r.must(t, http.MethodGet, path, nil); o.Data["n"] != strconv.Itoa(clients*each) || refused.Load() == 0 {
		t.Errorf("counted to %s with %d refused, want %d", o.Data["n"], refused.Load(), clients*each)
	}
	t.Logf("%d updates refused", refused.Load())
}

// consistentLists reads back each write by a list, which the server answers from its cache once a progress
// notification says that the cache is as new as the store.
func (r *kubeRun) consistentLists(t *testing.T) {
	path := r.namespace(t, "consistent")
	began := time.Now()
	const clients, each = 8, 25
	workers(t, clients, func(ctx context.Context, w int) error {
		for i := range each {
			if _, err := r.do(ctx, http.MethodPost, path, configMap(fmt.Sprintf("w%d-%03d", w, i))); err != nil {
				return err
			}
			l, err := r.do(ctx, http.MethodGet, path, nil)
			if err != nil {
				return err
			}
			own := 0
			for _, o := range l.Items {
				if strings.HasPrefix(o.Metadata.Name, fmt.Sprintf("w%d-", w)) {
					own++
				}
			}
			if own != i+1 {
				return fmt.Errorf("a list after creation %d holds %d", i+1, own)
			}
		}
		return nil
	})
	t.Logf("%.0f rounds per second", clients*each/time.Since(began).Seconds())
	const name, of = "apiserver_watch_cache_consistent_read_total", `resource="configmaps"`
	ok, bad := r.metric(t, name, of+`,success="true"`), r.metric(t, name, of+`,success="false"`)
	if ok == 0 || bad > 0 {
		t.Errorf("%.0f consistent reads from the cache, %.0f failed", ok, bad)
	}
}

func (r *kubeRun) customResources(t *testing.T) {
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	const things = "/apis/example.org/v1/things"
	r.must(t, http.MethodPost, definitions, `{"metadata":{"name":"things.example.org"},"spec":{"group":"example.org",
		"scope":"Cluster","names":{"plural":"things","singular":"thing","kind":"Thing"},"versions":[{"name":"v1",
		"served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
		"properties":{"n":{"type":"integer"}}}}}}}]}}`)
	q := url.Values{"fieldSelector": {"metadata.name=things.example.org"}, "timeoutSeconds": {"60"}}
	err := r.watch(t.Context(), definitions, q, func(ev kubeEvent) bool {
		return !strings.Contains(string(ev.Object.Status), `{"type":"Established","status":"True"`)
	})
	if err != nil {
		t.Fatalf("wait for the definition: %v", err)
	}
	workers(t, 8, func(ctx context.Context, w int) error {
		for i := w; i < 200; {
			o := fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Thing","metadata":{"name":"t%d"},"spec":{"n":%d}}`, i, i)
			_, err := r.do(ctx, http.MethodPost, things, o)
			switch {
			case err == nil:
				i += 8
			case !answered(err, http.StatusNotFound) && !answered(err, http.StatusTooManyRequests): // served soon
				return err
			}
		}
		return nil
	})
	if l := r.must(t, http.MethodGet, things, nil); len(l.Items) != 200 {
		t.Errorf("%d things", len(l.Items))
	}
	ctx := within(t, time.Minute)
	gone := r.store.c.Watch(ctx, "/registry/apiextensions.k8s.io/customresourcedefinitions/things.example.org")
	r.must(t, http.MethodDelete, definitions+"/things.example.org", nil)
	for w := range gone { // the finalizer deletes the things first
		if err := w.Err(); err != nil {
			t.Fatal(err)
		}
		if len(w.Events) > 0 && w.Events[len(w.Events)-1].Type == clientv3.EventTypeDelete {
			break
		}
	}
	if n := r.store.get(t, "/registry/example.org/", clientv3.WithPrefix()).Count; n != 0 || ctx.Err() != nil {
		t.Errorf("%d things after their definition", n)
	}
}

// events creates events, which live under leases for the event TTL of five seconds.
func (r *kubeRun) events(t *testing.T) {
	r.namespace(t, "eventful")
	const n, prefix = 100, "/registry/events/eventful/"
	ctx := within(t, time.Minute)
	began := time.Now()
	gone := r.store.c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithFilterPut())
	workers(t, 8, func(ctx context.Context, w int) error {
		for i := w; i < n; i += 8 {
			body := fmt.Sprintf(`{"metadata":{"name":"e%d"},"involvedObject":{"namespace":"eventful"},"reason":"Test"}`, i)
			if _, err := r.do(ctx, http.MethodPost, "/api/v1/namespaces/eventful/events", body); err != nil {
				return err
			}
		}
		return nil
	})
	if l := r.must(t, http.MethodGet, "/api/v1/namespaces/eventful/events", nil); len(l.Items) != n {
		t.Errorf("%d events after %v", len(l.Items), time.Since(began))
	}
	leases, err := r.store.c.Leases(ctx)
	if err != nil || len(leases.Leases) == 0 {
		t.Errorf("leases: %v %v", leases, err)
	}
	for _, kv := range r.store.get(t, prefix, clientv3.WithPrefix()).Kvs {
		if kv.Lease == 0 {
			t.Errorf("%s has no lease", kv.Key)
		}
	}
	left := n
	for w := range gone {
		if left -= len(w.Events); left == 0 {
			break
		}
	}
	if lasted := time.Since(began); left != 0 || lasted < 5*time.Second {
		t.Errorf("%d events are left after %v", left, lasted)
	}
	if l := r.must(t, http.MethodGet, "/api/v1/namespaces/eventful/events", nil); len(l.Items) != 0 {
		t.Errorf("%d events outlived their leases", len(l.Items))
	}
	if kvs := r.store.get(t, "/registry/masterleases/", clientv3.WithPrefix()).Kvs; len(kvs) != 1 || kvs[0].Lease == 0 {
		t.Errorf("the server's own lease: %v", kvs)
	}
}

// metrics asks the server what it thinks of its store.
func (r *kubeRun) metrics(t *testing.T) {
	streamed := r.metric(t, "etcd_requests_total", `operation="listStream"`)
	failed := r.metric(t, "etcd_request_errors_total", "")
	size := r.metric(t, "apiserver_storage_size_bytes", "")
	if streamed == 0 || failed != 0 || size == 0 {
		t.Errorf("%.0f streamed lists, %.0f errors, %.0f bytes", streamed, failed, size)
	}
	for _, operation := range []string{"create", "update", "delete", "get", "list", "listStream"} {
		of := `operation="` + operation + `"`
		count := r.metric(t, "etcd_request_duration_seconds_count", of)
		t.Logf("%6.0f %-10s %.2f ms on average", count, operation,
			1000*r.metric(t, "etcd_request_duration_seconds_sum", of)/max(count, 1))
	}
}

func (r *kubeRun) collectionDeleted(t *testing.T) {
	for _, c := range []struct {
		path string
		want int
	}{{configMaps("load"), *kubeObjectsFlag}, {"/api/v1/namespaces/load/pods", 300}} {
		began := time.Now()
		if l := r.must(t, http.MethodGet, c.path, nil); len(l.Items) != c.want {
			t.Errorf("%s: %d objects, want %d", c.path, len(l.Items), c.want)
		}
		// The server lists in pages what it deletes: where that takes longer than two compactions, the client
		// is told to ask again.
		_, err := r.do(t.Context(), http.MethodDelete, c.path+"?gracePeriodSeconds=0", nil)
		for answered(err, http.StatusGone) {
			_, err = r.do(t.Context(), http.MethodDelete, c.path+"?gracePeriodSeconds=0", nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if l := r.must(t, http.MethodGet, c.path, nil); len(l.Items) != 0 {
			t.Errorf("%s: %d objects left", c.path, len(l.Items))
		}
		t.Logf("%s: %.0f deletions per second", c.path, float64(c.want)/time.Since(began).Seconds())
	}
	left := r.store.get(t, "/registry/configmaps/load/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if n := cmp.Or(left.Count, r.store.get(t, "/registry/pods/load/", clientv3.WithPrefix()).Count); n != 0 {
		t.Errorf("%d objects left in the store", n)
	}
}

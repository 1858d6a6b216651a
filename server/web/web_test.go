package web

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"sluice/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeMember is a healthy member that tests make ill.
type fakeMember struct {
	mu      sync.Mutex // guards all: tests and handlers
	leader  uint64
	learner bool
	alarms  []string
	read    func(ctx context.Context, serializable bool) error
	cluster string
}

func (f *fakeMember) Leader() uint64 { f.mu.Lock(); defer f.mu.Unlock(); return f.leader }
func (f *fakeMember) Learner() bool  { f.mu.Lock(); defer f.mu.Unlock(); return f.learner }
func (f *fakeMember) Alarms() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alarms
}
func (f *fakeMember) Read(ctx context.Context, serializable bool) error {
	f.mu.Lock()
	read := f.read
	f.mu.Unlock()
	if read == nil {
		return nil
	}
	return read(ctx, serializable)
}
func (f *fakeMember) ClusterVersion() string { return f.cluster }
func (f *fakeMember) StorageVersion() string { return f.cluster }
func (f *fakeMember) RaftStatus() RaftStatus {
	return RaftStatus{
		ID: "1", Lead: "1", RaftState: "StateLeader", Progress: map[string]Progress{"1": {Match: 3, Next: 4}},
	}
}

func newWeb(m Member, change func(*Config)) *Web {
	cfg := Config{
		Member: m, Metrics: tracing.NewMetrics(false), Logger: zap.NewNop(), Version: "3.7.3",
		RequestTimeout: 7 * time.Second, CORS: []string{"*"}, HostWhitelist: []string{"*"},
	}
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}

func get(h http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// BC-74: the health family with its texts, as etcd 3.7.3 gave them.
func TestHealthFamily(t *testing.T) {
	timeout := errors.New("etcdserver: request timed out")
	noRead := func(_ context.Context, serializable bool) error {
		if serializable {
			return nil
		}
		return timeout
	}
	const detail = "[+]data_corruption ok\n[+]serializable_read ok\n"
	for _, c := range []struct {
		name   string
		ill    func(*fakeMember)
		target string
		code   int
		body   string
	}{
		{"healthy", nil, "/health", 200, `{"health":"true","reason":""}`},
		{"no space", func(f *fakeMember) { f.alarms = []string{"NOSPACE", "NOSPACE"} }, "/health",
			503, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n"},
		{"no space excluded", func(f *fakeMember) { f.alarms = []string{"NOSPACE", "NOSPACE"} }, "/health?exclude=NOSPACE",
			200, `{"health":"true","reason":""}`},
		{"exclusion in lower case", func(f *fakeMember) { f.alarms = []string{"NOSPACE"} }, "/health?exclude=nospace",
			503, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n"},
		{"exclusion as a list", func(f *fakeMember) { f.alarms = []string{"NOSPACE"} }, "/health?exclude=CORRUPT,NOSPACE",
			503, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n"},
		{"both excluded", func(f *fakeMember) { f.alarms = []string{"CORRUPT", "NOSPACE"} },
			"/health?exclude=CORRUPT&exclude=NOSPACE", 200, `{"health":"true","reason":""}`},
		{"alarm before leader", func(f *fakeMember) { f.alarms, f.leader = []string{"CORRUPT"}, 0 }, "/health",
			503, "{\"health\":\"false\",\"reason\":\"ALARM CORRUPT\"}\n"},
		{"no leader", func(f *fakeMember) { f.leader = 0 }, "/health",
			503, "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}\n"},
		{"no leader, serializable", func(f *fakeMember) { f.leader, f.read = 0, noRead }, "/health?serializable=true",
			200, `{"health":"true","reason":""}`},
		{"only true is true", func(f *fakeMember) { f.leader = 0 }, "/health?serializable=1",
			503, "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}\n"},
		{"read fails", func(f *fakeMember) { f.read = noRead }, "/health",
			503, "{\"health\":\"false\",\"reason\":\"RANGE ERROR:etcdserver: request timed out\"}\n"},
		{"learner", func(f *fakeMember) { f.learner = true }, "/health", 200, `{"health":"true","reason":""}`},

		{"livez", nil, "/livez", 200, "ok\n"},
		{"livez verbose", nil, "/livez?verbose", 200, "[+]serializable_read ok\nok\n"},
		{"livez by name", nil, "/livez/serializable_read", 200, "ok\n"},
		{"livez without quorum", func(f *fakeMember) { f.leader, f.read = 0, noRead }, "/livez", 200, "ok\n"},
		{"livez unknown exclusion", nil, "/livez?exclude=NOSPACE", 200, "ok\n"},
		{"livez under alarm", func(f *fakeMember) { f.alarms = []string{"CORRUPT"} }, "/livez", 200, "ok\n"},
		{"readyz", nil, "/readyz", 200, "ok\n"},
		{"readyz verbose", nil, "/readyz?verbose", 200, detail + "[+]linearizable_read ok\n[+]non_learner ok\nok\n"},
		{"readyz excluded", nil, "/readyz?exclude=non_learner&verbose", 200, detail + "[+]linearizable_read ok\nok\n"},
		{"readyz no space", func(f *fakeMember) { f.alarms = []string{"NOSPACE"} }, "/readyz", 200, "ok\n"},
		{"readyz corrupt", func(f *fakeMember) { f.alarms = []string{"CORRUPT"} }, "/readyz/data_corruption",
			503, "[-]data_corruption failed: alarm activated: CORRUPT\n\n"},
		{"readyz learner", func(f *fakeMember) { f.learner = true }, "/readyz", 503,
			detail + "[+]linearizable_read ok\n[-]non_learner failed: not supported for learner\n\n"},
		{"readyz without quorum", func(f *fakeMember) { f.read = noRead }, "/readyz", 503,
			detail + "[-]linearizable_read failed: etcdserver: request timed out\n[+]non_learner ok\n\n"},
		{"readyz unknown check", nil, "/readyz/nothing", 404, "404 page not found\n"},
		{"anything else", nil, "/healthz", 404, "404 page not found\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &fakeMember{leader: 1}
			if c.ill != nil {
				c.ill(m)
			}
			w := newWeb(m, nil)
			for _, h := range []http.Handler{w.Client(), w.Metrics()} {
				got := get(h, http.MethodGet, c.target)
				if got.Code != c.code || got.Body.String() != c.body ||
					got.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
					t.Errorf("%d %q %v\nwant %d %q", got.Code, got.Body, got.Header(), c.code, c.body)
				}
			}
		})
	}
}

func TestOnlyGet(t *testing.T) {
	h := newWeb(&fakeMember{leader: 1}, nil).Client()
	for _, target := range []string{"/health", "/livez", "/readyz/non_learner", "/version", "/debug/vars"} {
		for _, method := range []string{http.MethodPost, http.MethodHead, http.MethodPut} {
			if w := get(h, method, target); w.Code != 405 || w.Header().Get("Allow") != "GET" ||
				w.Body.String() != "Method Not Allowed\n" {
				t.Errorf("%s %s: %d %q", method, target, w.Code, w.Body)
			}
		}
	}
	if w := get(h, http.MethodPost, "/metrics"); w.Code != 200 {
		t.Errorf("POST /metrics: %d, want 200", w.Code)
	}
}

// A probe without quorum is answered after the request timeout, not before and not later.
func TestProbeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fakeMember{leader: 1, read: func(ctx context.Context, _ bool) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		start := time.Now()
		w := get(newWeb(m, nil).Client(), http.MethodGet, "/readyz/linearizable_read")
		if took := time.Since(start); w.Code != 503 || took != 7*time.Second {
			t.Errorf("%d after %v", w.Code, took)
		}
	})
}

func TestHealthMetrics(t *testing.T) {
	m := &fakeMember{leader: 1, learner: true}
	w := newWeb(m, nil)
	get(w.Client(), http.MethodGet, "/readyz")
	get(w.Client(), http.MethodGet, "/health")
	m.leader = 0
	get(w.Client(), http.MethodGet, "/health")
	text := get(w.Metrics(), http.MethodGet, "/metrics").Body.String()
	for _, want := range []string{
		`etcd_server_healthcheck{name="non_learner",type="readyz"} 0`,
		`etcd_server_healthcheck{name="serializable_read",type="readyz"} 1`,
		`etcd_server_healthchecks_total{name="non_learner",status="error",type="readyz"} 1`,
		`etcd_server_healthchecks_total{name="serializable_read",status="success",type="livez"} 0`,
		"etcd_server_health_success 1", "etcd_server_health_failures 1",
		`promhttp_metric_handler_requests_total{code="503"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is not in the scrape", want)
		}
	}
}

// The text form whatever is asked for, but gzip if asked for.
func TestMetricsForm(t *testing.T) {
	h := newWeb(&fakeMember{leader: 1}, nil).Metrics()
	const form = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
	w := get(h, http.MethodGet, "/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	if got := w.Header().Get("Content-Type"); got != form || strings.Contains(w.Body.String(), "# EOF") {
		t.Errorf("form %q", got)
	}
	if w = get(h, http.MethodGet, "/metrics", "Accept-Encoding", "gzip"); w.Header().Get("Content-Encoding") != "gzip" {
		t.Errorf("headers %v, want gzip", w.Header())
	}
	if w = get(h, http.MethodGet, "/version"); w.Code != 404 {
		t.Errorf("/version on a metrics URL: %d", w.Code)
	}
}

func TestVersion(t *testing.T) {
	m := &fakeMember{leader: 1}
	h := newWeb(m, nil).Client()
	if got := get(h, http.MethodGet, "/version").Body.String(); got !=
		`{"etcdserver":"3.7.3","etcdcluster":"not_decided","storage":"unknown"}` {
		t.Errorf("undecided: %s", got)
	}
	m.cluster = "3.7.0"
	w := get(h, http.MethodGet, "/version")
	if w.Body.String() != `{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}` ||
		w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("decided: %s %v", w.Body, w.Header())
	}
}

func TestVars(t *testing.T) {
	body := get(newWeb(&fakeMember{leader: 1}, nil).Client(), http.MethodGet, "/debug/vars").Body.String()
	lines := strings.Split(body, "\n")
	if len(lines) != 7 || !strings.HasPrefix(lines[1], `"cmdline": [`) || !strings.HasPrefix(lines[3], `"memstats": {`) ||
		lines[4] != `"raft.status": {"id":"1","term":0,"vote":"","commit":0,"lead":"1","raftState":"StateLeader",`+
			`"applied":0,"progress":{"1":{"match":3,"next":4,"state":""}},"leadtransferee":""}` {
		t.Errorf("vars %s", body)
	}
}

func TestPprofSwitch(t *testing.T) {
	if w := get(newWeb(&fakeMember{}, nil).Client(), http.MethodGet, "/debug/pprof/heap"); w.Code != 404 {
		t.Errorf("off: %d", w.Code)
	}
	on := newWeb(&fakeMember{}, func(c *Config) { c.Pprof = true }).Client()
	for _, path := range []string{"", "heap", "goroutine", "allocs", "mutex", "cmdline"} {
		if w := get(on, http.MethodGet, "/debug/pprof/"+path); w.Code != 200 {
			t.Errorf("on, %s: %d", path, w.Code)
		}
	}
}

func TestForeignPages(t *testing.T) {
	all := newWeb(&fakeMember{leader: 1}, nil).Client()
	w := get(all, http.MethodOptions, "/v3/kv/put")
	if w.Code != 200 || w.Body.Len() != 0 || w.Header().Get("Access-Control-Allow-Origin") != "*" ||
		w.Header().Get("Access-Control-Allow-Methods") != "POST, GET, OPTIONS, PUT, DELETE" ||
		w.Header().Get("Access-Control-Allow-Headers") != "accept, content-type, authorization" {
		t.Errorf("options: %d %v", w.Code, w.Header())
	}
	one := newWeb(&fakeMember{leader: 1}, func(c *Config) { c.CORS = []string{"http://a.com:80"} }).Client()
	if w = get(one, http.MethodGet, "/health", "Origin", "http://a.com:80"); w.Code != 200 ||
		w.Header().Get("Access-Control-Allow-Origin") != "http://a.com:80" {
		t.Errorf("listed origin: %d %v", w.Code, w.Header())
	}
	if w = get(one, http.MethodGet, "/health", "Origin", "http://b.com:80"); w.Code != 200 ||
		w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("other origin: %d %v", w.Code, w.Header())
	}
}

func TestHosts(t *testing.T) {
	h := newWeb(&fakeMember{leader: 1}, func(c *Config) { c.HostWhitelist = []string{"localhost", "::1"} }).Client()
	for host, code := range map[string]int{
		"localhost": 200, "localhost:2379": 200, "[::1]:2379": 200, "evil.com": 421, "evil.com:2379": 421,
	} {
		if w := get(h, http.MethodGet, "/health", "Host", host); w.Code != code {
			t.Errorf("%s: %d, want %d", host, w.Code, code)
		}
	}
	none := newWeb(&fakeMember{leader: 1}, func(c *Config) { c.HostWhitelist = []string{""} }).Client()
	if w := get(none, http.MethodGet, "/health"); w.Code != 421 {
		t.Errorf("empty list: %d, want 421", w.Code)
	}
}

func TestOldPrefix(t *testing.T) {
	h := newWeb(&fakeMember{leader: 1}, func(c *Config) {
		c.Gateway = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })
	}).Client()
	for path, want := range map[string]string{
		"/v3/kv/put": "/v3/kv/put", "/v3beta/kv/put": "/v3/kv/put", "/v3alpha/kv/put": "404 page not found\n",
		"/v3beta": "404 page not found\n",
	} {
		if got := get(h, http.MethodPost, path).Body.String(); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if w := get(newWeb(&fakeMember{}, nil).Client(), http.MethodPost, "/v3/kv/put"); w.Code != 404 {
		t.Errorf("gateway off: %d, want 404", w.Code)
	}
}

func TestPeer(t *testing.T) {
	h := newWeb(&fakeMember{leader: 1, cluster: "3.7.0"}, nil).Peer(0xabc, func() []PeerMember {
		return []PeerMember{{ID: 7, Name: "a", PeerURLs: []string{"http://a:1"}, ClientURLs: []string{"http://a:2"}}}
	})
	w := get(h, http.MethodGet, "/members")
	if w.Body.String() != `[{"id":7,"peerURLs":["http://a:1"],"name":"a","clientURLs":["http://a:2"]}]`+"\n" ||
		w.Header().Get("X-Etcd-Cluster-ID") != "abc" {
		t.Errorf("members %s %v", w.Body, w.Header())
	}
	for path, code := range map[string]int{"/version": 200, "/health": 404, "/metrics": 404} {
		if w := get(h, http.MethodGet, path); w.Code != code {
			t.Errorf("%s: %d, want %d", path, w.Code, code)
		}
	}
}

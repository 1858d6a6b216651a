package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// http sends one request over HTTP/1.1 and returns status and body.
func (s *server) http(t *testing.T, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.Client+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v after %q", method, path, err, data)
	}
	return resp.StatusCode, string(data)
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func TestBC71(t *testing.T) {
	s := serve(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			path := []string{"/v3/watch", "/v3/lease/keepalive"}[i%2]
			body := []string{"{}", `{"create_request":`, "word", ""}[i/2%4]
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Client+path, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body) // an error, or open and idle until we leave
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	for _, path := range []string{"/v3/watch", "/v3/lease/keepalive"} {
		if code, body := s.http(t, http.MethodPost, path, "word"); code != http.StatusBadRequest || !strings.Contains(body, `"code":3`) {
			t.Errorf("%s with a plain word: %d %s", path, code, body)
		}
	}
	s.put(t, "k", "v")
}

func TestBC72(t *testing.T) {
	s := serve(t)
	post := func(path, body string) (int, string) { return s.http(t, http.MethodPost, path, body) }
	code, body := post("/v3/kv/put", fmt.Sprintf(`{"key":%q,"value":%q,"unknown":1}`, b64("foo"), b64("bar")))
	if code != 200 || !regexp.MustCompile(`"revision":\s*"2"`).MatchString(body) {
		t.Errorf("put: %d %s", code, body)
	}
	_, body = post("/v3/kv/range", fmt.Sprintf(`{"key":%q,"limit":"1","revision":2}`, b64("foo")))
	var r struct {
		Kvs []struct{ Key, Value, Version string } `json:"kvs"`
	}
	if err := json.Unmarshal([]byte(body), &r); err != nil || len(r.Kvs) != 1 || r.Kvs[0].Value != b64("bar") || r.Kvs[0].Version != "1" {
		t.Errorf("range: %s %v", body, err)
	}
	if strings.Contains(body, `"lease"`) || strings.Contains(body, `"more"`) {
		t.Errorf("zero fields are shown: %s", body)
	}
	if code, body = post("/v3/kv/range", `{"key":"$$$"}`); code != 400 || !strings.Contains(body, `"code":3`) {
		t.Errorf("bad base64: %d %s", code, body)
	}
	if code, body = s.http(t, http.MethodGet, "/v3/kv/range", ""); code != 501 || !strings.Contains(body, `"code":12`) {
		t.Errorf("GET: %d %s", code, body)
	}
	if code, body = post("/v3/nothing", "{}"); code != 404 || !strings.Contains(body, `"code":5`) {
		t.Errorf("unknown path: %d %s", code, body)
	}
	if code, body = post("/v3/lease/keepalive", `{"ID":"99"}`); code != 200 || !strings.Contains(body, `"result"`) || strings.Contains(body, "TTL") {
		t.Errorf("keepalive of a dead lease: %d %s", code, body)
	}
	s.grant(t, 7, 100)
	if _, body = post("/v3/lease/keepalive", `{"ID":"7"}{"ID":8}{"ID":"7"}`); strings.Count(body, `"result"`) != 3 || strings.Count(body, `"TTL":"100"`) != 2 {
		t.Errorf("three keepalives in one request: %s", body)
	}
	for range 5 {
		s.put(t, "foo", "x")
	}
	if _, err := s.c.Compact(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	lines := s.lines(t, "/v3/watch", fmt.Sprintf(`{"create_request":{"key":%q,"start_revision":"2"}}`, b64("foo")), 2)
	if !strings.Contains(lines[0], `"created":true`) || !strings.Contains(lines[1], `"canceled":true`) || !strings.Contains(lines[1], `"compact_revision":"5"`) {
		t.Errorf("compacted watch: %v", lines)
	}
	code, body = post("/v3/maintenance/hashkv", `{"revision":"99"}`)
	if code != 400 || !strings.Contains(body, `"code":11`) || !strings.Contains(body, "future revision") {
		t.Errorf("error: %d %s", code, body)
	}
}

// lines opens a stream and returns its first n messages, blanks removed.
func (s *server) lines(t *testing.T, path, body string, n int) []string {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t, 20*time.Second), http.MethodPost, s.Client+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var lines []string
	dec := json.NewDecoder(resp.Body)
	for range n {
		var m json.RawMessage
		if err := dec.Decode(&m); err != nil {
			t.Fatalf("after %v: %v", lines, err)
		}
		var b bytes.Buffer
		if err := json.Compact(&b, m); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, b.String())
	}
	return lines
}

func TestBC73(t *testing.T) {
	s := serve(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "client-api-version", "\xff\xfe")
	_, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte("k")})
	t.Logf("gRPC: %v", err) // refused here or by the client's own check: alive is what counts
	s.http(t, http.MethodPost, "/v3/kv/range", fmt.Sprintf(`{"key":%q}`, b64("k")), "Grpc-Metadata-client-api-version", "\xff\xfe")
	s.http(t, http.MethodPost, "/v3/kv/range", fmt.Sprintf(`{"key":%q}`, b64("k")), "X-Big", strings.Repeat("x", 10000))
	if code, body := s.http(t, http.MethodGet, "/metrics", ""); code != 200 || !strings.Contains(body, "etcd_server_has_leader 1") {
		t.Errorf("metrics: %d", code)
	}
	s.put(t, "k", "v")
}

func TestBC74(t *testing.T) {
	s := serve(t)
	expect := func(path string, code int, parts ...string) {
		t.Helper()
		got, body := s.http(t, http.MethodGet, path, "")
		if got != code {
			t.Errorf("%s: %d %s, want %d", path, got, body, code)
		}
		for _, p := range parts {
			if !strings.Contains(body, p) {
				t.Errorf("%s: %q lacks %q", path, body, p)
			}
		}
	}
	expect("/health", 200, `{"health":"true","reason":""}`)
	expect("/livez", 200, "ok")
	expect("/readyz", 200, "ok")
	expect("/readyz?verbose", 200, "[+]data_corruption ok", "[+]serializable_read ok", "[+]linearizable_read ok", "[+]non_learner ok")
	expect("/readyz/linearizable_read", 200, "ok")
	expect("/readyz/nothing", 404)
	expect("/health?serializable=true", 200)
	for _, member := range []uint64{1, 2} {
		if _, err := s.maint.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: member, Alarm: pb.AlarmType_NOSPACE}); err != nil {
			t.Fatal(err)
		}
		expect("/health", 503, `"health":"false"`, "ALARM NOSPACE")
		expect("/health?exclude=NOSPACE", 200)
		expect("/health?exclude=unknown", 503)
		expect("/health?exclude=nospace", 503)
		expect("/livez", 200)
		expect("/readyz", 200)
	}
	if _, err := s.maint.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 1, Alarm: pb.AlarmType_CORRUPT}); err != nil {
		t.Fatal(err)
	}
	expect("/health?exclude=NOSPACE", 503, "ALARM CORRUPT")
	expect("/readyz", 503, "[-]data_corruption failed: alarm activated: CORRUPT")
	expect("/livez", 200)
	for _, method := range []string{http.MethodPost, http.MethodHead} {
		if code, _ := s.http(t, method, "/health", ""); code != 405 {
			t.Errorf("%s /health: %d", method, code)
		}
	}
	expect("/version", 200, `"etcdserver":"3.7`, `"etcdcluster":"3.7.0"`, `"storage":"3.7.0"`)
	expect("/nothing", 404)
}

func TestBC75(t *testing.T) {
	s := serve(t)
	for _, c := range []struct {
		path, body string
		status     int
		text       string
	}{
		{"/v3/election/proclaim", ``, 500, `"leader\" field must be provided`},
		{"/v3/election/proclaim", `{}`, 500, `"leader\" field must be provided`},
		{"/v3/election/proclaim", `{"leader":null}`, 500, `"leader\" field must be provided`},
		{"/v3/election/proclaim", `{"leader":{}}`, 500, "etcdserver: key is not provided"},
		{"/v3/election/resign", ``, 500, `"leader\" field must be provided`},
		{"/v3/election/resign", `{}`, 500, `"leader\" field must be provided`},
		{"/v3/election/resign", `{"leader":{}}`, 500, "etcdserver: key is not provided"},
		{"/v3/auth/role/add", `{}`, 400, "etcdserver: role name is empty"},
		{"/v3/auth/user/add", `{}`, 400, "etcdserver: user name is empty"},
		{"/v3/auth/user/add", `{"name":"u"}`, 200, "header"},
		{"/v3/auth/enable", `{}`, 400, "etcdserver: root user does not exist"},
	} {
		code, body := s.http(t, http.MethodPost, c.path, c.body)
		if code != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s %s: %d %s, want %d %q", c.path, c.body, code, body, c.status, c.text)
		}
	}
	s.put(t, "k", "v")
}

func TestBC76(t *testing.T) {
	tools(t)
	s := serve(t)
	if out, err := s.Etcdctl(t.Context(), "", "endpoint", "health"); err != nil || !strings.Contains(out, "is healthy") {
		t.Fatalf("%s %v", out, err)
	}
	if _, err := s.maint.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Etcdctl(t.Context(), "", "endpoint", "health"); err == nil || !strings.Contains(out, "is unhealthy") {
		t.Errorf("with an alarm: %s %v", out, err)
	}
}

func TestBC77(t *testing.T) {
	d := sluice(t, "--quota-backend-bytes=2000000")
	start(t, d)
	s := attach(t, d)
	s.grant(t, 1, 100)
	var err error
	for i := 0; err == nil && i < 200; i++ {
		_, err = s.c.Put(t.Context(), fmt.Sprintf("k%d", i), strings.Repeat("x", 100000))
	}
	if err == nil {
		t.Fatal("no end of space")
	}
	s.get(t, "k0")
	if _, err := s.c.Delete(t.Context(), "k0"); err != nil {
		t.Errorf("delete under the alarm: %v", err)
	}
	if _, err := s.c.Grant(t.Context(), 100); err == nil {
		t.Error("a lease was granted under the alarm")
	}
	stopped(t, d)
	d.Extra = []string{"--quota-backend-bytes=20000000"}
	start(t, d)
	s = attach(t, d)
	if _, err := s.c.Put(t.Context(), "again", "v"); err == nil {
		t.Error("a put passed before the alarm was disarmed")
	}
	st, err := s.c.Status(t.Context(), s.c.Endpoints()[0])
	if err != nil || st.DbSizeQuota != 20000000 {
		t.Errorf("status: %v %v", st, err)
	}
	if _, err := s.c.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	s.put(t, "again", "v")
}

func TestBC80(t *testing.T) {
	s := serve(t)
	semver := regexp.MustCompile(`^3\.(7|[89]|\d\d)\.\d+$`)
	st, err := s.c.Status(t.Context(), s.c.Endpoints()[0])
	if err != nil || !semver.MatchString(st.Version) || st.StorageVersion != "3.7.0" {
		t.Errorf("status: %v %v", st, err)
	}
	var v map[string]string
	_, body := s.http(t, http.MethodGet, "/version", "")
	if err := json.Unmarshal([]byte(body), &v); err != nil || v["etcdserver"] != st.Version || v["etcdcluster"] != "3.7.0" || v["storage"] != "3.7.0" {
		t.Errorf("/version: %s", body)
	}
}

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// answerOf is what a client sees of an HTTP answer, without what differs between two members.
type answerOf struct {
	code   int
	header string
	body   string
}

var (
	identity = regexp.MustCompile(`"(cluster_id|member_id|raft_term|etcdserver|ID)":\s*"[^"]*"`)
	blanks   = regexp.MustCompile(`([,:])[\s\x{a0}]+`) // protojson's texts have either, by build
)

func ask(t *testing.T, url, method, path, body string, headers ...string) answerOf {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	resp, err := client.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	resp.Header.Del("Date")
	resp.Header.Del("Content-Length")
	var header strings.Builder
	if err := resp.Header.Write(&header); err != nil {
		t.Fatal(err)
	}
	return answerOf{resp.StatusCode, header.String(),
		identity.ReplaceAllString(blanks.ReplaceAllString(string(text), "$1"), `"$1":X`)}
}

// TestHTTPAsEtcd asks etcd and the daemon the same and compares status, headers and body.
func TestHTTPAsEtcd(t *testing.T) {
	etcd := os.Getenv("SLUICE_ETCD")
	if etcd == "" {
		t.Skip("SLUICE_ETCD does not name an etcd 3.7 binary: the golden answers in server/web stand alone")
	}
	ports := freePorts(t, 2)
	url, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	reference := exec.Command(etcd, "--name=m", "--data-dir="+t.TempDir(),
		"--listen-client-urls="+url, "--advertise-client-urls="+url, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=m="+peer)
	log, err := reference.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reference.Start(); err != nil {
		t.Fatal(err)
	}
	ready, drained := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(drained)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if strings.Contains(lines.Text(), `"msg":"serving client traffic`) {
				close(ready)
			}
		}
	}()
	defer func() {
		_ = reference.Process.Kill()
		<-drained
		_ = reference.Wait() // killed
	}()
	p := launch(t, t.TempDir(), nil, "http")
	p.await("successfully notified init daemon")
	select {
	case <-ready:
	case <-drained:
		t.Fatal("the reference did not start")
	}
	origin := []string{"Origin", "http://a.com:80"}
	for _, c := range []struct {
		method, path, body string
		headers            []string
	}{
		{"GET", "/health", "", nil}, {"POST", "/health", "", nil}, {"HEAD", "/health", "", nil},
		{"GET", "/health", "", origin}, {"OPTIONS", "/health", "", origin}, {"OPTIONS", "/nothing", "", nil},
		{"GET", "/health?serializable=true", "", nil}, {"GET", "/health?exclude=NOSPACE", "", nil},
		{"GET", "/livez", "", nil}, {"GET", "/livez?verbose", "", nil}, {"GET", "/livez/serializable_read?verbose", "", nil},
		{"GET", "/livez/", "", nil}, {"GET", "/readyz", "", nil}, {"GET", "/readyz/linearizable_read?verbose", "", nil},
		{"GET", "/readyz?exclude=foo", "", nil}, {"PUT", "/readyz", "", nil}, {"GET", "/readyz/foo", "", nil},
		{"GET", "/version", "", nil}, {"POST", "/version", "", nil}, {"GET", "/", "", nil}, {"GET", "/healthz", "", nil},
		{"GET", "/v2/keys", "", nil}, {"GET", "/members", "", nil}, {"GET", "/debug/pprof/", "", nil},
		{"POST", "/debug/vars", "", nil},
		{"POST", "/v3/kv/put", `{"key":"YQ==","value":"Yg=="}`, nil},
		{"POST", "/v3/kv/put", `{"key":"YQ==","value":"Yw==","prev_kv":true}`, nil},
		{"POST", "/v3/kv/range", `{"key":"YQ=="}`, nil}, {"POST", "/v3/kv/range", `{"key":"YQ"}`, nil},
		{"POST", "/v3/kv/range", `{"key":"YQ==","sortOrder":"DESCEND","countOnly":true}`, nil},
		{"POST", "/v3/kv/range", `{"key":"YQ==","sort_order":9}`, nil},
		{"POST", "/v3/kv/range", `{"key":"YQ==","sort_order":"NOPE","x":[1]}`, nil},
		{"POST", "/v3/kv/range", `{"key":"$$"}`, nil}, {"POST", "/v3/kv/range", `{`, nil}, {"POST", "/v3/kv/range", ``, nil},
		{"POST", "/v3/kv/range", `{"key":"YQ==","revision":"99"}`, nil}, {"GET", "/v3/kv/range", "", nil},
		{"DELETE", "/v3/kv/range", "", nil}, {"POST", "/v3beta/kv/range", `{"key":"YQ=="}`, nil},
		{"POST", "/v3alpha/kv/range", `{}`, nil}, {"POST", "/v3/foo", `{}`, nil}, {"POST", "/v3", `{}`, nil},
		{"POST", "/v3/kv/txn", `{"compare":[{"key":"YQ==","target":"VERSION","version":"2"}],` +
			`"success":[{"requestRange":{"key":"YQ=="}}],"failure":[{"request_delete_range":{"key":"YQ=="}}]}`, nil},
		{"POST", "/v3/kv/deleterange", `{"key":"YQ==","prev_kv":true}`, nil},
		{"POST", "/v3/kv/compaction", `{"revision":"2"}`, nil}, {"POST", "/v3/kv/compaction", `{"revision":2}`, nil},
		{"POST", "/v3/lease/grant", `{"ID":"7","TTL":100}`, nil}, {"POST", "/v3/lease/grant", `{"ID":"7","TTL":100}`, nil},
		{"POST", "/v3/lease/timetolive", `{"ID":"8","keys":true}`, nil}, {"POST", "/v3/kv/lease/leases", `{}`, nil},
		{"POST", "/v3/lease/keepalive", `{"ID":"9"}`, nil}, {"POST", "/v3/lease/keepalive", `{"ID":"7"}{"ID":"9"}`, nil},
		{"POST", "/v3/lease/revoke", `{"ID":"7"}`, nil}, {"POST", "/v3/lease/revoke", `{"ID":"7"}`, nil},
		{"POST", "/v3/maintenance/alarm", `{}`, nil}, {"POST", "/v3/maintenance/hashkv", `{"revision":"99"}`, nil},
		{"POST", "/v3/auth/status", `{}`, nil}, {"POST", "/v3/auth/enable", `{}`, nil},
		{"POST", "/v3/auth/user/add", `{}`, nil}, {"POST", "/v3/auth/role/add", `{}`, nil},
		{"POST", "/v3/auth/authenticate", `{"name":"a","password":"b"}`, nil},
	} {
		want := ask(t, url, c.method, c.path, c.body, c.headers...)
		got := ask(t, p.client, c.method, c.path, c.body, c.headers...)
		if got != want {
			t.Errorf("%s %s %s\n got %d %s%q\nwant %d %s%q", c.method, c.path, c.body,
				got.code, got.header, got.body, want.code, want.header, want.body)
		}
	}
	sameFamilies(t, ask(t, p.client, "GET", "/metrics", "").body, ask(t, url, "GET", "/metrics", "").body)
	p.stop(syscall.SIGTERM)
}

// sameFamilies compares names, types and help texts after the same requests.
func sameFamilies(t *testing.T, got, want string) {
	t.Helper()
	families := func(text string) map[string]bool {
		set := make(map[string]bool)
		for _, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(line, "# ") {
				set[line] = true
			}
		}
		return set
	}
	ours, theirs := families(got), families(want)
	for line := range theirs {
		if !ours[line] {
			t.Errorf("etcd has %q", line)
		}
	}
	for line := range ours {
		if !theirs[line] && !strings.Contains(line, " sluice_") {
			t.Errorf("etcd does not have %q", line)
		}
	}
}

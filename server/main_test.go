package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// asDaemon makes the test binary the daemon, so that exit codes and signals are those of a real process.
const asDaemon = "SLUICE_TEST_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		if rule := os.Getenv(breakOnSignal); rule != "" {
			go awaitBreak(rule)
		}
		main()
	}
	os.Exit(m.Run())
}

// process is a daemon that a test started.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	dir    string
	client string // URL of the first client listener
	stdout bytes.Buffer

	mu    sync.Mutex // guards lines: written by the reader of stderr
	lines []map[string]any
	raw   []string
	seen  *sync.Cond
	eof   bool
	ended chan struct{}
}

func command(t *testing.T, dir string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Dir = dir
	cmd.Env = append([]string{asDaemon + "=1", "PATH=" + os.Getenv("PATH")}, env...)
	return cmd
}

// freePorts returns n ports of the loopback that were free a moment ago.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		if tries == 1000 {
			t.Fatal("no free ports on loopback")
		}
		// Below those that the kernel gives to outgoing connections, one of which could be faster.
		port := 10000 + rand.IntN(22000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close()
		ports = append(ports, port)
	}
	return ports
}

// launch starts a daemon in dir with URLs of its own; args come last and so override them.
func launch(t *testing.T, dir string, env []string, scheme string, args ...string) *process {
	t.Helper()
	ports := freePorts(t, 2)
	client, peer := fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	p := &process{t: t, dir: dir, client: client, ended: make(chan struct{})}
	p.seen = sync.NewCond(&p.mu)
	p.cmd = command(t, dir, env, append([]string{
		"--name=m", "--data-dir=data", "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
	}, args...)...)
	p.cmd.Stdout = &p.stdout
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(stderr)
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", strings.Join(p.raw, "\n"))
		}
	})
	return p
}

func (p *process) read(stderr io.Reader) {
	defer close(p.ended)
	in := bufio.NewScanner(stderr)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		entry := map[string]any{}
		err := json.Unmarshal(in.Bytes(), &entry)
		p.mu.Lock()
		p.raw = append(p.raw, in.Text())
		if err == nil {
			p.lines = append(p.lines, entry)
		}
		p.seen.Broadcast()
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // its result is in ProcessState
	p.mu.Lock()
	p.eof = true
	p.seen.Broadcast()
	p.mu.Unlock()
}

// await returns the first log entry with this message.
func (p *process) await(message string) map[string]any {
	p.t.Helper()
	timer := time.AfterFunc(30*time.Second, func() { p.cmd.Process.Kill() })
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for _, entry := range p.lines {
			if entry["msg"] == message {
				return entry
			}
		}
		if p.eof {
			p.t.Fatalf("the daemon ended without %q", message)
		}
		p.seen.Wait()
	}
}

// stop sends a signal and returns the status that the process ended with.
func (p *process) stop(s syscall.Signal) syscall.WaitStatus {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	return p.status()
}

func (p *process) status() syscall.WaitStatus {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(40 * time.Second):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines join the log
		<-p.ended
		p.t.Fatal("the daemon does not end")
	}
	return p.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func (p *process) get(client *http.Client, method, path, body string) (int, string) {
	p.t.Helper()
	return fetch(p.t, client, method, p.client+path, body)
}

func fetch(t *testing.T, client *http.Client, method, url, body string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// A whole life: ready, served, stopped by a signal that shows in the exit status, started again with its data.
func TestLife(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	metrics := fmt.Sprintf("http://127.0.0.1:%d", freePorts(t, 1)[0])
	p := launch(t, dir, []string{"NOTIFY_SOCKET=" + socket, "ETCD_LISTEN_METRICS_URLS=" + metrics}, "http")
	p.await("successfully notified init daemon")
	message := make([]byte, 64)
	if n, err := systemd.Read(message); err != nil || string(message[:n]) != "READY=1" {
		t.Errorf("systemd got %q, %v", message[:n], err)
	}
	if e := p.await("serving client traffic insecurely; this is strongly discouraged!"); e["traffic"] != "grpc+http" {
		t.Errorf("traffic %v", e)
	}
	if code, body := p.get(http.DefaultClient, "POST", "/v3/kv/put", `{"key":"YQ==","value":"Yg=="}`); code != 200 {
		t.Errorf("put: %d %s", code, body)
	}
	for url, want := range map[string]string{
		p.client + "/health": `{"health":"true","reason":""}`, metrics + "/readyz": "ok\n",
		p.client + "/version": `{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}`,
	} {
		if code, body := fetch(t, http.DefaultClient, "GET", url, ""); code != 200 || body != want {
			t.Errorf("%s: %d %s", url, code, body)
		}
	}
	if st := p.stop(syscall.SIGTERM); !st.Signaled() || st.Signal() != syscall.SIGTERM {
		t.Errorf("status after SIGTERM: %v, want death by it", p.cmd.ProcessState)
	}
	if p.stdout.Len() != 0 {
		t.Errorf("stdout %q, want nothing", p.stdout.String())
	}
	for _, m := range []string{"received signal; shutting down", "closing etcd server", "closed etcd server"} {
		p.await(m)
	}

	again := launch(t, dir, nil, "http")
	again.await("ready to serve client requests")
	again.await("restarting local member")
	if code, body := again.get(http.DefaultClient, "POST", "/v3/kv/range", `{"key":"YQ=="}`); code != 200 ||
		!strings.Contains(body, "Yg==") {
		t.Errorf("range after the restart: %d %s", code, body)
	}
	if st := again.stop(syscall.SIGINT); !st.Signaled() || st.Signal() != syscall.SIGINT {
		t.Errorf("status after SIGINT: %v", again.cmd.ProcessState)
	}
}

// The order and the keys of the first lines, which support tools read.
func TestFirstLines(t *testing.T) {
	p := launch(t, t.TempDir(), []string{"ETCD_ON_K8S=yes"}, "http", "--snapshot-catchup-entries=1000")
	p.await("ready to serve client requests")
	p.mu.Lock()
	var messages []string
	for _, e := range p.lines {
		messages = append(messages, e["msg"].(string))
	}
	text := strings.Join(p.raw, "\n")
	p.mu.Unlock()
	at := -1
	for _, m := range []string{
		"unrecognized environment variable",
		"Running http and grpc server on single port. This is not recommended for production.", "Running: ",
		"Initialize and start etcd server", "configuring peer listeners", "configuring client listeners",
		"starting an etcd server", "starting local member", "now serving peer/client/metrics", "serving peer traffic",
		"published local member to cluster through raft", "ready to serve client requests",
	} {
		i := slices.Index(messages, m)
		if i <= at {
			t.Errorf("%q stands at %d, want behind %d: %q", m, i, at, messages)
		}
		at = max(at, i)
	}
	if !strings.Contains(text, `"snapshot-catchup-entries":1000`) {
		t.Error("the start line lacks an effective setting")
	}
	p.stop(syscall.SIGTERM)
}

// Starts that end at once, with what scripts read of them.
func TestExitCodes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ports := freePorts(t, 2)
	free := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := []string{
		fmt.Sprintf("--listen-peer-urls=http://127.0.0.1:%d", ports[1]), "--advertise-client-urls=" + free,
	}
	for _, c := range []struct {
		name string
		args []string
		env  []string
		code int
		out  string // prefix of stdout
		err  string // part of stderr
	}{
		{"version", []string{"--version"}, nil, 0, "etcd Version: 3.7.3\n", ""},
		{"help", []string{"--help"}, nil, 0, "Member:\n  --name 'default'\n", "Usage:\n"},
		{"unknown flag", []string{"--nope"}, nil, 2, "", "flag provided but not defined: -nope\nUsage:\n"},
		{"bad level", []string{"--log-level=trace"}, nil, 2, "", "panic: unrecognized level: \"trace\"\n"},
		{"bad value", []string{"--heartbeat-interval=0"}, nil, 1, "",
			`"msg":"failed to verify flags","error":"--heartbeat-interval`},
		{"conflict", []string{"--name=b"}, []string{"ETCD_NAME=a"}, 1, "", `"level":"fatal"`},
		{"bad output", []string{"--log-outputs=/nodir/x"}, nil, 1, "",
			`"msg":"failed to verify flags","error":"open sink \"/nodir/x\"`},
		{"journal", []string{"--log-outputs=systemd/journal"}, nil, 1, "", "can't find journal (dial unixgram"},
		{"no certificate", append(peer, "--listen-client-urls=https://127.0.0.1:0"), nil, 1, "",
			`"msg":"discovery failed","error":"TLS key/cert`},
		{"missing certificate", append(peer, "--listen-client-urls=https://127.0.0.1:0", "--cert-file=/x", "--key-file=/y"),
			nil, 1, "", `"msg":"listener failed"`},
		{"port in use", append(peer, "--listen-client-urls=http://"+taken.Addr().String()), nil, 1, "",
			`"msg":"discovery failed","error":"listen tcp ` + taken.Addr().String() + `: bind: address already in use"`},
		{"name not in cluster", append(peer, "--listen-client-urls="+free, "--name=x", "--initial-cluster=y="+free),
			nil, 1, "",
			`"msg":"discovery failed","error":"couldn't find local name \"x\" in the initial cluster configuration"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := command(t, t.TempDir(), c.env, c.args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			var exit *exec.ExitError
			if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.HasPrefix(stdout.String(), c.out) ||
				!strings.Contains(stderr.String(), c.err) || c.out == "" && stdout.Len() > 0 {
				t.Errorf("code %d, want %d\nstdout %s\nstderr %s", code, c.code, stdout.String(), stderr.String())
			}
		})
	}
}

// One port with a certificate of its own: gRPC, HTTP/1.1 and HTTP/2 share it.
func TestAutoTLS(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, nil, "https", "--auto-tls", "--listen-metrics-urls=https://127.0.0.1:0")
	p.await("serving client traffic securely")
	fixtures := filepath.Join(dir, "data", "fixtures", "client")
	info, err := os.Stat(filepath.Join(fixtures, "key.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("key file %v %v", info, err)
	}
	text, err := os.ReadFile(filepath.Join(fixtures, "cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		t.Fatal("no certificate in cert.pem")
	}
	for _, h2 := range []bool{false, true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: h2}
		client := &http.Client{Transport: transport}
		if code, body := p.get(client, "POST", "/v3/kv/put", `{"key":"YQ==","value":"Yg=="}`); code != 200 {
			t.Errorf("h2 %t: %d %s", h2, code, body)
		}
		transport.CloseIdleConnections()
	}
	conn, err := grpc.NewClient(strings.TrimPrefix(p.client, "https://"),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if r, err := pb.NewKVClient(conn).Range(t.Context(), &pb.RangeRequest{Key: []byte("a")}); err != nil || r.Count != 1 {
		t.Errorf("gRPC: %v %v", r, err)
	}
	p.stop(syscall.SIGTERM)

	again := launch(t, dir, nil, "https", "--auto-tls")
	again.await("ready to serve client requests")
	if now, err := os.ReadFile(filepath.Join(fixtures, "cert.pem")); err != nil || !bytes.Equal(now, text) {
		t.Errorf("the certificate was made again: %v", err)
	}
	again.await("found invalid file under data directory")
	again.stop(syscall.SIGTERM)
}

// A unix socket serves gRPC and HTTP; a file that a killed process left is replaced, and goes away with the
// listener.
func TestUnixSocket(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, dir, nil, "http", "--listen-client-urls=unix://"+socket)
	p.await("ready to serve client requests")
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	if code, body := fetch(t, client, "GET", "http://localhost/health", ""); code != 200 {
		t.Errorf("http: %d %s", code, body)
	}
	client.CloseIdleConnections()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pb.NewMaintenanceClient(conn).Status(t.Context(), &pb.StatusRequest{}); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	conn.Close()
	p.stop(syscall.SIGTERM)
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// With URLs for HTTP the client URLs are for gRPC alone; the gateway can be off; pprof can be on.
func TestSeparateHTTP(t *testing.T) {
	web := fmt.Sprintf("http://127.0.0.1:%d", freePorts(t, 1)[0])
	p := launch(t, t.TempDir(), nil, "http", "--listen-client-http-urls="+web,
		"--enable-grpc-gateway=false", "--enable-pprof")
	p.await("successfully notified init daemon")
	for path, code := range map[string]int{
		"/health": 200, "/v3/kv/range": 404, "/debug/pprof/heap": 200, "/debug/vars": 200,
	} {
		if got, body := fetch(t, http.DefaultClient, "GET", web+path, ""); got != code {
			t.Errorf("%s: %d %s", path, got, body)
		}
	}
	if resp, err := http.Get(p.client + "/health"); err == nil {
		resp.Body.Close()
		t.Errorf("the gRPC port answers HTTP/1.1: %s", resp.Status)
	}
	p.await("serving client traffic insecurely; this is strongly discouraged!")
	p.stop(syscall.SIGTERM)
}

// A live scrape holds every family that a scrape of etcd 3.7.3 holds, with the same type.
func TestScrapeAsEtcd(t *testing.T) {
	p := launch(t, t.TempDir(), nil, "http")
	p.await("successfully notified init daemon")
	p.get(http.DefaultClient, "POST", "/v3/kv/put", `{"key":"YQ==","value":"Yg=="}`)
	_, text := p.get(http.DefaultClient, "GET", "/metrics", "")
	golden, err := os.ReadFile("../tracing/testdata/etcd-3.7.3-families.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(golden)), "\n") {
		parts := strings.SplitN(line, " ", 3)
		if !strings.Contains(text, "# TYPE "+parts[0]+" "+parts[1]+"\n") {
			t.Errorf("%s %s is not in the scrape", parts[0], parts[1])
		}
	}
	for _, want := range []string{
		`etcd_cluster_version{cluster_version="3.7"} 1`, `etcd_server_version{server_version="3.7.3"} 1`,
		"etcd_server_has_leader 1", "etcd_server_is_leader 1", "etcd_server_leader_changes_seen_total 1",
		"etcd_server_quota_backend_bytes 2.147483648e+09", "etcd_debugging_mvcc_compact_revision -1",
		"etcd_debugging_mvcc_keys_total 1", "etcd_debugging_mvcc_current_revision 2", "etcd_mvcc_put_total 1",
		`etcd_server_feature_enabled{name="FastLeaseKeepAlive",stage="BETA"} 1`,
		`grpc_server_handled_total{grpc_code="OK",grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1`,
		`sluice_mailbox_capacity{mailbox="propose"} 4096`, "sluice_log_dropped_total 0",
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			name, _, _ := strings.Cut(want, " ")
			t.Errorf("%s is not in the scrape; there is %q", want, grep(text, name))
		}
	}
	if n := strings.Count(text, "\ngrpc_server_handled_total{"); n < 765 {
		t.Errorf("%d series of grpc_server_handled_total, want 17 codes of 45 methods", n)
	}
	p.stop(syscall.SIGTERM)
}

func grep(text, part string) string {
	var out []string
	for _, line := range strings.Split(text, "\n") {
		if strings.Contains(line, part) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "|")
}

// With every mailbox at capacity 1 the daemon does the same.
func TestCapacityOne(t *testing.T) {
	args := []string{}
	for _, stage := range []string{"propose", "system", "replicate", "persist", "apply", "watch", "expire", "backend"} {
		args = append(args, "--mailbox-"+stage+"=1")
	}
	p := launch(t, t.TempDir(), nil, "http", args...)
	p.await("successfully notified init daemon")
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			body := fmt.Sprintf(`{"key":%q,"value":"Yg=="}`, base64.StdEncoding.EncodeToString([]byte{byte(i)}))
			if code, text := p.get(http.DefaultClient, "POST", "/v3/kv/put", body); code != 200 {
				t.Errorf("put: %d %s", code, text)
			}
		})
	}
	all.Wait()
	_, text := p.get(http.DefaultClient, "POST", "/v3/kv/range", `{"key":"AA==","range_end":"AA==","count_only":true}`)
	var counted struct{ Count string }
	if err := json.Unmarshal([]byte(text), &counted); err != nil || counted.Count != "50" {
		t.Errorf("range: %s %v", text, err)
	}
	p.stop(syscall.SIGTERM)
}

// Auto-compaction by revision is slow (five minutes), by time it can be watched.
func TestAutoCompaction(t *testing.T) {
	p := launch(t, t.TempDir(), nil, "http", "--auto-compaction-retention=1s")
	p.await("successfully notified init daemon")
	p.get(http.DefaultClient, "POST", "/v3/kv/put", `{"key":"YQ==","value":"Yg=="}`)
	p.get(http.DefaultClient, "POST", "/v3/kv/put", `{"key":"YQ==","value":"Yw=="}`)
	p.await("completed auto periodic compaction")
	p.stop(syscall.SIGTERM)
}

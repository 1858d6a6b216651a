package process

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Daemon is one running member, of either kind.
type Daemon struct {
	Program string
	Dir     string   // data directory
	Client  string   // client URL
	Peer    string   // peer URL
	Extra   []string // further flags
	Env     []string // further environment
	// TLS is how clients connect if Client is an https URL, which the caller sets together with the flags.
	TLS *tls.Config
	// Pages is the URL of /health and /metrics if flags have moved them away from Client.
	Pages string

	cmd    *exec.Cmd
	log    *logBuffer
	exited chan struct{}
	state  error // of Wait; read after exited
}

// ErrNotReady is returned by Start when the daemon ended or did not answer in time.
var ErrNotReady = errors.New("daemon is not ready")

// New describes a member on free loopback ports with its data below dir.
func New(program, dir string, extra ...string) (*Daemon, error) {
	client, err := freePort()
	if err != nil {
		return nil, err
	}
	peer, err := freePort()
	if err != nil {
		return nil, err
	}
	return &Daemon{
		Program: program, Dir: filepath.Join(dir, "data"), Extra: extra,
		Client: "http://" + client, Peer: "http://" + peer,
	}, nil
}

// ports hands out each port once per process.
var ports sync.Map

// freePort finds a port of loopback that nobody listens on now. It lies below those that the kernel gives to
// outgoing connections, one of which would otherwise take it before the daemon does.
func freePort() (string, error) {
	for range 1000 {
		port := 10000 + rand.IntN(22000)
		if _, taken := ports.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String(), nil
	}
	return "", errors.New("no free port on loopback")
}

// Start runs the daemon and returns when /health says true, or ErrNotReady with the end of its log.
func (d *Daemon) Start(ctx context.Context) error {
	if err := d.Spawn(); err != nil {
		return err
	}
	return d.awaitReady(ctx)
}

// Spawn runs the daemon and returns at once.
func (d *Daemon) Spawn() error {
	args := []string{
		"--name=m1", "--data-dir=" + d.Dir,
		"--listen-client-urls=" + d.Client, "--advertise-client-urls=" + d.Client,
		"--listen-peer-urls=" + d.Peer, "--initial-advertise-peer-urls=" + d.Peer, "--initial-cluster=m1=" + d.Peer,
	}
	d.cmd = exec.Command(d.Program, append(args, d.Extra...)...)
	d.cmd.Env = append(os.Environ(), d.Env...)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.log = &logBuffer{}
	d.cmd.Stderr, d.cmd.Stdout = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", d.Program, err)
	}
	d.exited = make(chan struct{})
	go func() { d.state = d.cmd.Wait(); close(d.exited) }()
	return nil
}

func (d *Daemon) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	client := d.HTTP()
	defer client.CloseIdleConnections()
	for {
		if healthy(ctx, client, d.PagesURL()) {
			return nil
		}
		select {
		case <-d.exited:
			return fmt.Errorf("%w: %s ended: %v\n%s", ErrNotReady, d.Program, d.state, d.Log())
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w\n%s", ErrNotReady, d.Program, ctx.Err(), d.Log())
		case <-tick.C:
		}
	}
}

// PagesURL is where the daemon's pages are.
func (d *Daemon) PagesURL() string {
	if d.Pages != "" {
		return d.Pages
	}
	return d.Client
}

// HTTP returns a client for the daemon's pages, with connections of its own.
func (d *Daemon) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: d.TLS}}
}

func healthy(ctx context.Context, client *http.Client, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health?exclude=NOSPACE&exclude=CORRUPT", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Kill ends the daemon at once, as kill -9 does, and waits for its end.
func (d *Daemon) Kill() {
	if d.cmd == nil || d.cmd.Process == nil {
		return
	}
	_ = d.cmd.Process.Kill()
	<-d.exited
}

// Stop ends the daemon by SIGTERM and waits for its end, at most 30 s; then it is killed and an error returned.
func (d *Daemon) Stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("signal %s: %w", d.Program, err)
	}
	select {
	case <-d.exited:
		return nil
	case <-time.After(30 * time.Second):
		d.Kill()
		return fmt.Errorf("%s did not stop in 30 s\n%s", d.Program, d.Log())
	}
}

// Exited is closed once the process has ended.
func (d *Daemon) Exited() <-chan struct{} { return d.exited }

// State is how the process ended; valid after Exited.
func (d *Daemon) State() *os.ProcessState { return d.cmd.ProcessState }

// PID returns the process id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Signal sends sig to the process.
func (d *Daemon) Signal(sig os.Signal) error { return d.cmd.Process.Signal(sig) }

// Log returns the last lines that the daemon wrote.
func (d *Daemon) Log() string { return d.log.tail() }

// Connect returns a stock client of the daemon.
func (d *Daemon) Connect() (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{d.Client}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(), TLS: d.TLS,
		MaxCallRecvMsgSize: 1 << 30, MaxCallSendMsgSize: 16 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", d.Client, err)
	}
	return c, nil
}

// Etcdctl runs the stock command-line client against the daemon and returns what it printed.
func (d *Daemon) Etcdctl(ctx context.Context, stdin string, args ...string) (string, error) {
	t, err := Oracle()
	if err != nil {
		return "", err
	}
	endpoint := "--endpoints=" + strings.TrimPrefix(d.Client, "http://")
	cmd := exec.CommandContext(ctx, t.Etcdctl, append([]string{endpoint}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("etcdctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// logBuffer keeps the end of what a daemon wrote.
type logBuffer struct {
	mu  sync.Mutex // guards buf: written by the process's copier, read by tests
	buf []byte
}

const logBytesMax = 1 << 20

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if len(l.buf) > logBytesMax {
		l.buf = append(l.buf[:0], l.buf[len(l.buf)-logBytesMax/2:]...)
	}
	return len(p), nil
}

func (l *logBuffer) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.buf))
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// breakOnSignal names what a daemon of these tests loses at SIGUSR1: "file=device" puts the device in the place
// of every descriptor of the file, so that the kernel fails what is done with it.
const breakOnSignal = "SLUICE_TEST_BREAK"

// awaitBreak waits for the signal. It runs in the daemon.
func awaitBreak(rule string) {
	pattern, device, _ := strings.Cut(rule, "=")
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	<-signals
	with, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil {
			continue
		}
		if ok, _ := filepath.Match(pattern, filepath.Base(target)); !ok {
			continue
		}
		if n, _ := strconv.Atoi(fd.Name()); n != int(with.Fd()) {
			if err := unix.Dup3(int(with.Fd()), n, unix.O_CLOEXEC); err != nil {
				panic(err)
			}
		}
	}
}

// load is clients of a daemon: four that put growing numbers until they are refused, a watch, a lease that is
// kept alive, and a listing that nobody reads.
type load struct {
	t          *testing.T
	conn       *grpc.ClientConn
	kv         pb.KVClient
	writers    sync.WaitGroup
	others     sync.WaitGroup
	cancel     context.CancelFunc
	sent, sure [4]int
}

func startLoad(t *testing.T, p *process) *load {
	t.Helper()
	const window = 64 << 10
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(p.client, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, conn: conn, kv: pb.NewKVClient(conn), cancel: cancel}
	t.Cleanup(l.end)
	value := make([]byte, 100<<10)
	for i := range 30 {
		if _, err := l.kv.Put(ctx, &pb.PutRequest{Key: fmt.Appendf(nil, "big%d", i), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	l.watch(ctx)
	l.keepAlive(ctx)
	list, err := l.kv.RangeStream(ctx, &pb.RangeRequest{Key: []byte("big"), RangeEnd: []byte("bih")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := list.Recv(); err != nil { // and no more
		t.Fatal(err)
	}
	for w := range l.sent {
		l.writers.Go(func() { l.write(ctx, w) })
	}
	return l
}

func (l *load) watch(ctx context.Context) {
	stream, err := pb.NewWatchClient(l.conn).Watch(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	create := &pb.WatchCreateRequest{Key: []byte("w"), RangeEnd: []byte("x")}
	err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		l.t.Fatal(err)
	}
	l.others.Go(func() {
		for err == nil {
			_, err = stream.Recv()
		}
	})
}

func (l *load) keepAlive(ctx context.Context) {
	leases := pb.NewLeaseClient(l.conn)
	lease, err := leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 60})
	if err != nil {
		l.t.Fatal(err)
	}
	stream, err := leases.LeaseKeepAlive(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: lease.ID}); err != nil {
		l.t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || r.TTL != 60 {
		l.t.Fatal(r, err)
	}
	l.others.Go(func() { _, _ = stream.Recv() })
}

func (l *load) write(ctx context.Context, w int) {
	for {
		l.sent[w]++
		_, err := l.kv.Put(ctx, &pb.PutRequest{Key: fmt.Append(nil, "w", w), Value: fmt.Append(nil, l.sent[w])})
		if err != nil {
			return
		}
		l.sure[w] = l.sent[w]
	}
}

// busy returns when every writer has been acknowledged some puts.
func (l *load) busy() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 30*time.Second)
	defer cancel()
	for w := range l.sent {
		for version := int64(0); version < 20; {
			r, err := l.kv.Range(ctx, &pb.RangeRequest{Key: fmt.Append(nil, "w", w)})
			if err != nil {
				l.t.Fatal(err)
			}
			for _, kv := range r.Kvs {
				version = kv.Version
			}
		}
	}
}

func (l *load) end() {
	l.cancel()
	l.writers.Wait()
	l.conn.Close()
	l.others.Wait()
}

// check starts the daemon again and finds in it what was acknowledged.
func (l *load) check(dir string) {
	l.t.Helper()
	again := launch(l.t, dir, nil, "http")
	again.await("ready to serve client requests")
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(again.client, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close()
	for w := range l.sent {
		r, err := pb.NewKVClient(conn).Range(l.t.Context(), &pb.RangeRequest{Key: fmt.Append(nil, "w", w)})
		if err != nil || len(r.Kvs) != 1 {
			l.t.Errorf("writer %d: %v %v", w, r, err)
			continue
		}
		have, _ := strconv.Atoi(string(r.Kvs[0].Value))
		if have < l.sure[w] || have > l.sent[w] {
			l.t.Errorf("writer %d: found %d, acknowledged %d, sent %d", w, have, l.sure[w], l.sent[w])
		}
	}
	if bad := again.severe(); len(bad) != 0 {
		l.t.Errorf("the next start logs %v", bad)
	}
}

// severe are the messages at error level and above, and the lines that are no entries.
func (p *process) severe() (messages []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.lines {
		if level, _ := e["level"].(string); slices.Contains([]string{"error", "dpanic", "panic", "fatal"}, level) {
			messages = append(messages, fmt.Sprint(e["level"], ": ", e["msg"], ": ", e["error"]))
		}
	}
	for _, line := range p.raw {
		if !strings.HasPrefix(line, "{") {
			messages = append(messages, line)
		}
	}
	return messages
}

func tinyMailboxes() (args []string) {
	for _, name := range []string{"propose", "system", "replicate", "persist", "apply", "watch", "expire", "backend"} {
		args = append(args, "--mailbox-"+name+"=1")
	}
	return args
}

// SIGTERM with puts under way, and streams open that never end by themselves: the process ends in time and by
// the signal, a second signal changes nothing, what was acknowledged is there, and the next start is clean.
func TestSignalUnderLoad(t *testing.T) {
	for name, args := range map[string][]string{"default": nil, "size 1": tinyMailboxes()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := launch(t, dir, nil, "http", args...)
			p.await("ready to serve client requests")
			l := startLoad(t, p)
			l.busy()
			begun := time.Now()
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.await("received signal; shutting down")
			st := p.stop(syscall.SIGTERM)
			if !st.Signaled() || st.Signal() != syscall.SIGTERM {
				t.Errorf("status %v, want death by SIGTERM", p.cmd.ProcessState)
			}
			if took := time.Since(begun); took > 20*time.Second { // 7 s for the streams, 1 s more, and a busy machine
				t.Errorf("the stop took %v", took)
			}
			if bad := p.severe(); len(bad) != 0 {
				t.Errorf("the stop logs %v", bad)
			}
			l.writers.Wait() // every put has its outcome
			l.end()
			l.check(dir)
		})
	}
}

// A disk that fails: the process ends soon, with exit code 1 and one line that says what failed, whatever
// streams are open; what was acknowledged is there at the next start.
func TestBrokenDiskEndsTheProcess(t *testing.T) {
	for name, c := range map[string]struct{ rule, text string }{
		"sync of the log":       {"*.wal=/dev/null", "stage persist: write log: sync segment "},
		"commit of the backend": {"db=/dev/full", "stage backend: commit to "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := launch(t, dir, []string{breakOnSignal + "=" + c.rule}, "http")
			p.await("ready to serve client requests")
			l := startLoad(t, p)
			l.busy()
			begun := time.Now()
			if st := p.stop(syscall.SIGUSR1); !st.Exited() || st.ExitStatus() != 1 {
				t.Errorf("status %v, want exit code 1", p.cmd.ProcessState)
			}
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("the end took %v", took)
			}
			bad := p.severe()
			if len(bad) != 1 || !strings.HasPrefix(bad[0], "fatal: member failed: "+c.text) || strings.Contains(bad[0], "\n") {
				t.Errorf("the end logs %q", bad)
			}
			l.writers.Wait()
			l.end()
			l.check(dir)
		})
	}
}

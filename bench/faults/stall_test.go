package faults

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"sluice/runtime"
	"sluice/server/rpc"
)

const valueBytes = 100 << 10

// store is what the test has put: the newest value of each key says its number.
type store struct {
	kv  etcdserverpb.KVClient
	n   int
	rev int64
}

// value is different in every write and every place, so that bytes from elsewhere show.
func value(n int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%09d,", n), valueBytes/10) }

// put writes the next key among keys.
func (s *store) put(t *testing.T, keys int) {
	t.Helper()
	r, err := s.kv.Put(within(t), &etcdserverpb.PutRequest{Key: fmt.Appendf(nil, "k%04d", s.n%keys), Value: value(s.n)})
	if err != nil {
		t.Fatalf("put %d: %v", s.n, err)
	}
	s.n++
	s.rev = r.Header.Revision
}

// checkList compares a listing with the first n puts, which went to keys of their own.
func checkList(t *testing.T, what string, kvs []*mvccpb.KeyValue, n int) {
	t.Helper()
	if len(kvs) != n {
		t.Errorf("%s: %d keys, want %d", what, len(kvs), n)
		return
	}
	for i, kv := range kvs {
		if string(kv.Key) != fmt.Sprintf("k%04d", i) || !bytes.Equal(kv.Value, value(i)) {
			t.Errorf("%s: wrong content at %s: %.20q", what, kv.Key, kv.Value)
			return
		}
	}
}

var all = &etcdserverpb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}

// stalledClients are clients that have stopped reading half-way: a LIST, a RangeStream, a watch of the history,
// and a download of the database if asked for. finish lets them go on and checks what they got.
type stalledClients struct {
	finish []func(db *store)
}

func stall(t *testing.T, s *served, n int, snapshot bool) *stalledClients {
	t.Helper()
	c := &stalledClients{}
	c.list(t, s, n)
	c.stream(t, s, n)
	c.watch(t, s)
	if snapshot {
		c.snapshot(t, s)
	}
	return c
}

func (c *stalledClients) list(t *testing.T, s *served, n int) {
	conn, stalled, open := s.dialValve(t, n*valueBytes/2)
	type answer struct {
		r   *etcdserverpb.RangeResponse
		err error
	}
	got := make(chan answer, 1)
	ctx := within(t)
	go func() {
		r, err := etcdserverpb.NewKVClient(conn).Range(ctx, all)
		got <- answer{r, err}
	}()
	<-stalled
	c.finish = append(c.finish, func(db *store) {
		open()
		a := <-got
		if a.err != nil {
			t.Errorf("LIST: %v", a.err)
			return
		}
		checkList(t, "LIST", a.r.Kvs, n)
	})
}

func (c *stalledClients) stream(t *testing.T, s *served, n int) {
	stream, err := etcdserverpb.NewKVClient(s.dial(t)).RangeStream(within(t), all)
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv() // and no more: the window fills
	if err != nil {
		t.Fatal(err)
	}
	c.finish = append(c.finish, func(db *store) {
		kvs := first.RangeResponse.Kvs
		for {
			r, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Errorf("RangeStream: %v", err)
				return
			}
			kvs = append(kvs, r.RangeResponse.Kvs...)
		}
		checkList(t, "RangeStream", kvs, n)
	})
}

func (c *stalledClients) watch(t *testing.T, s *served) {
	ctx, cancel := context.WithCancel(within(t))
	stream, err := etcdserverpb.NewWatchClient(s.dial(t)).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	create := &etcdserverpb.WatchCreateRequest{Key: all.Key, RangeEnd: all.RangeEnd, StartRevision: 1}
	if err := stream.Send(&etcdserverpb.WatchRequest{
		RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // created
		t.Fatal(err)
	}
	c.finish = append(c.finish, func(db *store) {
		defer cancel()
		for seen := 0; seen < db.n; { // to the end, since what is under way at the cancel is never freed
			r, err := stream.Recv()
			if err != nil {
				t.Errorf("watch: %v", err)
				return
			}
			for _, ev := range r.Events {
				if !bytes.Equal(ev.Kv.Value, value(seen)) {
					t.Errorf("watch: event %d has %.20q", seen, ev.Kv.Value)
					return
				}
				seen++
			}
		}
	})
}

func (c *stalledClients) snapshot(t *testing.T, s *served) {
	stream, err := etcdserverpb.NewMaintenanceClient(s.dial(t)).Snapshot(within(t), &etcdserverpb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	c.finish = append(c.finish, func(db *store) {
		sum := sha256.New()
		want := int64(len(first.Blob)) + int64(first.RemainingBytes)
		var got int64
		for r := first; ; {
			if r.RemainingBytes == 0 && got == want {
				if !bytes.Equal(r.Blob, sum.Sum(nil)) {
					t.Error("Snapshot: wrong checksum")
				}
				break
			}
			sum.Write(r.Blob)
			got += int64(len(r.Blob))
			if r, err = stream.Recv(); err != nil {
				t.Errorf("Snapshot: %v after %d of %d bytes", err, got, want)
				return
			}
		}
	})
}

func (c *stalledClients) goOn(db *store) {
	for _, f := range c.finish {
		f(db)
	}
}

// mapped is how much of the database's file this process has mapped.
func mapped(t *testing.T, path string) (total int64) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if strings.Contains(line, path) {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				t.Fatal(err)
			}
			total += to - from
		}
	}
	return total
}

// descriptors counts this process's open files whose name begins with path.
func descriptors(t *testing.T, path string) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(target, path) {
			n++
		}
	}
	return n
}

func newStore(t *testing.T, s *served, n int) *store {
	t.Helper()
	wide := s.dial(t, grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(4<<20))
	db := &store{kv: etcdserverpb.NewKVClient(wide)}
	for range n {
		db.put(t, n)
	}
	return db
}

// The trap of bbolt: a file that outgrows its mapping waits for every read transaction, and blocks new ones.
// Clients that stop reading half-way through their answers must not hold one: writes and reads go on through
// several remaps, and the clients get their whole answers in the end.
func TestGrowthWhileClientsStall(t *testing.T) {
	const keys, more = 60, 200 // 6 MB, then 20 MB
	for name, boxes := range sizes {
		t.Run(name, func(t *testing.T) {
			s := serve(t, boxes, func(c *runtime.Config, _ *rpc.Config) {
				c.MappingBytes, c.ValueCacheBytes, c.WindowBytes = 1<<20, 1<<10, 1<<20 // values are read from the file
			})
			db := newStore(t, s, keys)
			clients := stall(t, s, keys, false)
			before := mapped(t, s.path())
			for i := range more {
				db.put(t, keys)
				if i%10 != 0 {
					continue
				}
				at := (db.n - 1) % keys
				r, err := db.kv.Range(within(t), &etcdserverpb.RangeRequest{Key: fmt.Appendf(nil, "k%04d", at)})
				if err != nil || len(r.Kvs) != 1 || !bytes.Equal(r.Kvs[0].Value, value(db.n-1)) {
					t.Fatalf("read during the stall: %v", err)
				}
			}
			if _, err := s.Hash(within(t)); err != nil { // everything is in the file
				t.Fatal(err)
			}
			if after := mapped(t, s.path()); after < 3*before {
				t.Errorf("mapping of %d bytes before, %d after: this test tests nothing", before, after)
			}
			clients.goOn(db)
			s.stop(t)
		})
	}
}

// A defragmentation replaces the file beneath clients that have stopped reading half-way, a download of the
// database among them: it finishes, writes go on, and the clients get what they began with. The old file is
// closed with the last of them.
func TestDefragmentationWhileClientsStall(t *testing.T) {
	const keys, more = 60, 100
	for name, boxes := range sizes {
		t.Run(name, func(t *testing.T) {
			s := serve(t, boxes, func(c *runtime.Config, _ *rpc.Config) { c.ValueCacheBytes, c.WindowBytes = 1<<10, 1<<20 })
			db := newStore(t, s, keys)
			clients := stall(t, s, keys, true)
			maintenance := etcdserverpb.NewMaintenanceClient(s.dial(t))
			for range 2 { // the second finds the first one's old file still in use
				done := make(chan error, 1)
				ctx := within(t)
				go func() {
					_, err := maintenance.Defragment(ctx, &etcdserverpb.DefragmentRequest{})
					done <- err
				}()
				for finished, n := false, 0; !finished || n < more/2; n++ {
					select {
					case err := <-done:
						if err != nil {
							t.Fatal(err)
						}
						finished = true
					default:
					}
					db.put(t, keys)
				}
			}
			for i := range keys {
				r, err := db.kv.Range(within(t), &etcdserverpb.RangeRequest{Key: fmt.Appendf(nil, "k%04d", i)})
				if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value[:10]) == fmt.Sprintf("%09d,", i) {
					t.Fatalf("read after the defragmentation: %v", err)
				}
			}
			clients.goOn(db)
			if err := s.Defragment(within(t)); err != nil { // a flush, after which nothing old is published
				t.Fatal(err)
			}
			s.stop(t)
			if n := descriptors(t, s.path()); n != 0 {
				t.Errorf("%d descriptors of the database are still open", n)
			}
		})
	}
}

// A download of the database pins a state of the file. One that makes no progress is cut off after a while, so
// that it cannot hold up a file that must grow; writes that came meanwhile are all there.
func TestGrowthWhileDownloadStalls(t *testing.T) {
	const keys, more = 60, 200
	s := serve(t, runtime.Mailboxes{}, func(c *runtime.Config, r *rpc.Config) {
		c.MappingBytes, c.ValueCacheBytes = 1<<20, 1<<10
		r.ReadStall = 200 * time.Millisecond
	})
	db := newStore(t, s, keys)
	stream, err := etcdserverpb.NewMaintenanceClient(s.dial(t)).Snapshot(within(t), &etcdserverpb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	before := mapped(t, s.path())
	for range more {
		db.put(t, keys)
	}
	if _, err := s.Hash(within(t)); err != nil { // everything is in the file
		t.Fatal(err)
	}
	if after := mapped(t, s.path()); after < 3*before {
		t.Errorf("mapping of %d bytes before, %d after", before, after)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if err == io.EOF {
		t.Error("the download was not cut off")
	}
	s.cut = true
	s.stop(t)
}

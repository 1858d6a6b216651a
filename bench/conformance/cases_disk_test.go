package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/bench/process"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestBC61(t *testing.T) {
	s := serve(t, "--snapshot-count=5")
	restart := func() {
		s.Kill()
		start(t, s.Daemon)
		s = attach(t, s.Daemon)
	}
	s.put(t, "k", "v")
	for range 7 {
		if _, err := s.c.AlarmList(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	if _, err := s.maint.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 7, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
	for range 7 {
		if _, err := s.c.AlarmList(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	if a, err := s.c.AlarmList(t.Context()); err != nil || len(a.Alarms) != 1 || a.Alarms[0].MemberID != 7 {
		t.Errorf("alarms after the restart: %v %v", a, err)
	}
	if r := s.get(t, "k"); r.Count != 1 {
		t.Error("data lost")
	}
}

func TestBC62(t *testing.T) {
	s := serve(t)
	s.put(t, "foo", "v")
	d, err := s.c.Delete(t.Context(), "foo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Compact(t.Context(), d.Header.Revision); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	start(t, s.Daemon)
	s = attach(t, s.Daemon)
	if r := s.get(t, "foo"); r.Header.Revision != d.Header.Revision || r.Count != 0 {
		t.Errorf("after the restart: %v", r)
	}
	if rev := s.put(t, "foo", "v"); rev != d.Header.Revision+1 {
		t.Errorf("next put at %d, want %d", rev, d.Header.Revision+1)
	}
}

// The variation of BC-62: kill -9 at random moments of compactions over many tombstones.
func TestBC62Tombstones(t *testing.T) {
	s := serve(t, "--compaction-batch-limit=100", "--compaction-sleep-interval=5ms")
	g := rand.New(rand.NewPCG(seed(t), 5))
	for round := range 4 {
		for range 20 {
			var puts, deletes []clientv3.Op
			for i := range 100 {
				key := fmt.Sprintf("k%d/%d", round, g.IntN(4000)*100+i)
				puts, deletes = append(puts, clientv3.OpPut(key, "v")), append(deletes, clientv3.OpDelete(key))
			}
			if _, err := s.c.Txn(t.Context()).Then(puts...).Commit(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.c.Txn(t.Context()).Then(deletes...).Commit(); err != nil {
				t.Fatal(err)
			}
		}
		rev := s.put(t, "mark", fmt.Sprint(round))
		if _, err := s.c.Compact(t.Context(), rev); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(g.IntN(150)) * time.Millisecond) // when the kill strikes
		s.Kill()
		start(t, s.Daemon)
		s = attach(t, s.Daemon)
		if r := s.get(t, "mark"); r.Header.Revision != rev || r.Count != 1 {
			t.Fatalf("revision %d, want %d", r.Header.Revision, rev)
		}
	}
	sameInReference(t, s.Daemon)
}

func TestBC63(t *testing.T) {
	s := serve(t, "--snapshot-count=5")
	for i := range 20 {
		s.put(t, fmt.Sprintf("k%d", i), "v")
	}
	s.Kill()
	for name, plant := range map[string]func(t *testing.T, dir string){
		"newest .snap truncated": func(t *testing.T, dir string) {
			snaps, _ := filepath.Glob(filepath.Join(dir, "member", "snap", "*.snap"))
			if len(snaps) == 0 {
				t.Fatal("no .snap file")
			}
			truncate(t, snaps[len(snaps)-1], 0)
		},
		"empty next segment": func(t *testing.T, dir string) {
			wals, _ := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
			last := filepath.Base(wals[len(wals)-1])
			var seq, index uint64
			if _, err := fmt.Sscanf(last, "%016x-%016x.wal", &seq, &index); err != nil {
				t.Fatal(err)
			}
			touch(t, filepath.Join(dir, "member", "wal", fmt.Sprintf("%016x-%016x.wal", seq+1, index+1000)))
		},
		"leftovers": func(t *testing.T, dir string) {
			touch(t, filepath.Join(dir, "member", "snap", "db.tmp.123"))
			touch(t, filepath.Join(dir, "member", "snap", "tmp456"))
			touch(t, filepath.Join(dir, "member", "wal", "0.tmp"))
		},
		"empty .snap.db": func(t *testing.T, dir string) {
			touch(t, filepath.Join(dir, "member", "snap", "0000000000000003.snap.db"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := sluice(t)
			d.Peer = s.Peer
			copyTree(t, s.Dir, d.Dir)
			plant(t, d.Dir)
			t.Cleanup(d.Kill)
			if err := d.Start(t.Context()); err != nil {
				if name == "empty next segment" && strings.Contains(d.Log(), ".wal") {
					return // refused with the file's name
				}
				t.Fatal(err)
			}
			if r := attach(t, d).get(t, "k", clientv3.WithPrefix()); r.Count != 20 {
				t.Errorf("%d keys, want 20", r.Count)
			}
			for _, left := range []string{"snap/db.tmp.123", "snap/tmp456"} {
				if _, err := os.Stat(filepath.Join(d.Dir, "member", left)); err == nil {
					t.Errorf("%s is still there", left)
				}
			}
		})
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// lastSegment returns the newest segment and the offset of its first zero length word.
func lastSegment(t *testing.T, dir string) (path string, end int64) {
	t.Helper()
	wals, _ := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	path = wals[len(wals)-1]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for end+8 <= int64(len(data)) {
		var word uint64
		for i := range 8 {
			word |= uint64(data[end+int64(i)]) << (8 * i)
		}
		if word == 0 {
			break
		}
		n := int64(word & (1<<56 - 1))
		end += 8 + (n+7)/8*8
	}
	return path, end
}

// A torn tail is repaired, and nothing that stands before it is lost; corruption elsewhere stops the start
// with the file's name. Never is something lost in silence.
func TestLogTails(t *testing.T) {
	s := serve(t)
	for i := range 50 {
		s.put(t, fmt.Sprintf("k%02d", i), strings.Repeat("v", 2000))
	}
	s.Kill()
	_, end := lastSegment(t, s.Dir)
	try := func(t *testing.T, plant func(path string)) (int64, error) {
		d := sluice(t)
		d.Peer = s.Peer
		copyTree(t, s.Dir, d.Dir)
		os.Remove(filepath.Join(d.Dir, "member", "snap", "db")) // all from the log
		path, _ := lastSegment(t, d.Dir)
		plant(path)
		t.Cleanup(d.Kill)
		if err := d.Start(t.Context()); err != nil {
			return 0, err
		}
		return attach(t, d).get(t, "k", clientv3.WithPrefix(), clientv3.WithCountOnly()).Count, nil
	}
	t.Run("whole", func(t *testing.T) {
		if n, err := try(t, func(string) {}); err != nil || n != 50 {
			t.Fatalf("%d keys, %v", n, err)
		}
	})
	t.Run("cut in the last record", func(t *testing.T) {
		n, err := try(t, func(path string) { truncate(t, path, end-700) })
		if err != nil || n != 49 && n != 50 {
			t.Fatalf("%d keys, %v", n, err)
		}
	})
	t.Run("flipped byte in the middle", func(t *testing.T) {
		_, err := try(t, func(path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte{0xff}, end/2); err != nil {
				t.Fatal(err)
			}
		})
		if err == nil || !strings.Contains(err.Error(), "crc mismatch") || !strings.Contains(err.Error(), ".wal") {
			t.Fatalf("started or did not say why: %v", err)
		}
	})
}

// volume mounts a small memory file system; the test is skipped where that is not allowed.
func volume(t *testing.T, mib int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Skipf("a small volume needs the right to mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func TestBC65(t *testing.T) {
	dir := volume(t, 220)
	d := sluice(t)
	d.Dir = filepath.Join(dir, "data")
	start(t, d)
	s := attach(t, d)
	value := strings.Repeat("v", 1<<20)
	var sure []string
	for i := range 400 {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := s.c.Put(ctx, fmt.Sprintf("k%03d", i), value)
		cancel()
		if err != nil {
			break
		}
		sure = append(sure, fmt.Sprintf("k%03d", i))
	}
	if len(sure) == 400 {
		t.Fatal("the volume did not fill")
	}
	d.Kill()
	if err := d.Start(t.Context()); err != nil && !errors.Is(err, process.ErrNotReady) {
		t.Fatal(err)
	}
	d.Kill()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=2000m"); err != nil {
		t.Fatal(err)
	}
	start(t, d)
	s = attach(t, d)
	for _, key := range sure {
		if r := s.get(t, key); len(r.Kvs) != 1 || string(r.Kvs[0].Value) != value {
			t.Errorf("%s was acknowledged and is not there", key)
		}
	}
	t.Logf("%d of %d acknowledged keys are there", len(sure), len(sure))
	sameInReference(t, d)
}

func TestBC66(t *testing.T) {
	s := serve(t, "--quota-backend-bytes=4000000000")
	g := rand.New(rand.NewPCG(seed(t), 6))
	value := strings.Repeat("v", 10000)
	for i := range 60 {
		var ops []clientv3.Op
		for j := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("k%05d", i*100+j), value))
		}
		if _, err := s.c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	d, err := s.c.Delete(t.Context(), "k0", clientv3.WithRange("k03000"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Compact(t.Context(), d.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		want := read(t, s.Daemon)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.c.Defragment(t.Context(), s.c.Endpoints()[0])
		}()
		time.Sleep(time.Duration(g.IntN(60)) * time.Millisecond) // when the kill strikes
		s.Kill()
		<-done
		start(t, s.Daemon)
		s = attach(t, s.Daemon)
		if got := read(t, s.Daemon); got != want {
			t.Fatalf("revision %d hash %d, want %d %d", got.revision, got.hash, want.revision, want.hash)
		}
		left, _ := filepath.Glob(filepath.Join(s.Dir, "member", "snap", "db.tmp*"))
		if len(left) != 0 {
			t.Errorf("leftovers %v", left)
		}
	}
	before, err := s.c.Status(t.Context(), s.c.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	w := s.c.Watch(within(t, time.Minute), "after")
	if _, err := s.c.Defragment(t.Context(), s.c.Endpoints()[0]); err != nil {
		t.Fatal(err)
	}
	after, err := s.c.Status(t.Context(), s.c.Endpoints()[0])
	if err != nil || after.DbSize >= before.DbSize {
		t.Errorf("size %d before, %d after: %v", before.DbSize, after.DbSize, err)
	}
	s.put(t, "after", "v")
	if r := <-w; len(r.Events) != 1 {
		t.Errorf("watch after a defragmentation: %v", r)
	}
	sameInReference(t, s.Daemon)
}

func TestBC67(t *testing.T) {
	d, ref := sluice(t), etcd(t)
	start(t, d)
	start(t, ref)
	var got [2][]string
	for i, s := range []*server{attach(t, d), attach(t, ref)} {
		for n := range 20 {
			s.put(t, "a", fmt.Sprint(n))
			s.put(t, "b", fmt.Sprint(n))
		}
		r, err := s.c.Delete(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		rev := r.Header.Revision
		s.put(t, "b", "x")
		s.put(t, "a", "y")
		if _, err := s.c.Compact(t.Context(), rev, clientv3.WithCompactPhysical()); err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{rev - 1, rev, rev + 1, 0, rev + 100} {
			h, err := s.maint.HashKV(t.Context(), &pb.HashKVRequest{Revision: at})
			got[i] = append(got[i], fmt.Sprintf("at %d: %d %d %d %v", at, h.GetHash(), h.GetCompactRevision(), h.GetHashRevision(), err))
		}
	}
	for n := range got[0] {
		if got[0][n] != got[1][n] {
			t.Errorf("sluice    %s\nreference %s", got[0][n], got[1][n])
		}
	}
}

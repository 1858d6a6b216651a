package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// kubeLeases follows events and the leases that many of them share, one lease per bucket of time.
type kubeLeases struct {
	mu      sync.Mutex // guards all: written by the client and by the events' cache
	buckets []*kubeBucket
	of      map[string]*kubeBucket
}

// kubeBucket is one lease.
type kubeBucket struct {
	id      clientv3.LeaseID
	asked   time.Time // before the grant was sent
	ttl     time.Duration
	keys    int
	deleted map[string]int64 // revision of each deletion
	last    time.Time        // when the cache saw it
	gone    chan struct{}    // closed when complete and all are deleted

	complete bool
}

const bucketKeys = 40

// bucket grants leases and creates events under them, as kube-apiserver's lease manager does, until load ends.
func (k *kubeTraffic) bucket(ctx, load context.Context, t *testing.T) {
	for n := 0; load.Err() == nil && n < 5; n++ {
		b := &kubeBucket{asked: time.Now(), deleted: map[string]int64{}, gone: make(chan struct{})}
		l, err := k.c.Grant(ctx, 3)
		if err != nil {
			t.Errorf("grant: %v", err)
			return
		}
		b.id, b.ttl = l.ID, time.Duration(l.TTL)*time.Second
		k.leases.add(b)
		for i := range bucketKeys {
			key := fmt.Sprintf("%sdefault/%d-%d", kubeEvents, n, i)
			k.leases.attach(b, key, 1)
			r, err := k.kube.OptimisticPut(ctx, key, []byte("event"), 0, kubernetes.PutOptions{LeaseID: l.ID})
			if errors.Is(err, rpctypes.ErrLeaseNotFound) && time.Since(b.asked) >= b.ttl {
				k.leases.attach(b, key, -1) // a slow machine: the lease has run out meanwhile
				break
			}
			if err != nil || !r.Succeeded {
				t.Errorf("create event %s: %+v %v", key, r, err)
				return
			}
		}
		k.leases.complete(b)
	}
}

func (l *kubeLeases) add(b *kubeBucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buckets = append(l.buckets, b)
}

// attach counts key to the bucket before it is written, since its end may be seen at once; by -1, takes it back.
func (l *kubeLeases) attach(b *kubeBucket, key string, by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]*kubeBucket{}
	}
	l.of[key] = b
	b.keys += by
}

// complete says that no key will be added.
func (l *kubeLeases) complete(b *kubeBucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.complete = true
	b.settle()
}

// deleted is told by the cache of events; nobody deletes events but their lease.
func (l *kubeLeases) deleted(key string, revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.of[key]
	b.deleted[key], b.last = revision, time.Now()
	b.settle()
}

func (b *kubeBucket) settle() {
	if b.complete && len(b.deleted) == b.keys {
		close(b.gone)
	}
}

// await returns when all leases have run out, and fails where one did so too early, or piece by piece.
func (l *kubeLeases) await(ctx context.Context, t *testing.T) {
	t.Helper()
	l.mu.Lock()
	buckets := l.buckets
	l.mu.Unlock()
	if len(buckets) == 0 {
		t.Error("no event was created")
	}
	for _, b := range buckets {
		select {
		case <-b.gone:
		case <-ctx.Done():
			t.Fatalf("the events of lease %x never went", b.id)
		}
		l.mu.Lock()
		revisions := map[int64]bool{}
		for _, rev := range b.deleted {
			revisions[rev] = true
		}
		keys, lasted := b.keys, b.last.Sub(b.asked)
		l.mu.Unlock()
		if lasted < b.ttl || len(revisions) != 1 || keys == 0 {
			t.Errorf("lease %x of %v: %d events went after %v in %d revisions", b.id, b.ttl, keys, lasted, len(revisions))
		}
		t.Logf("lease of %v: %d events went after %v", b.ttl, keys, lasted.Round(time.Millisecond))
	}
}

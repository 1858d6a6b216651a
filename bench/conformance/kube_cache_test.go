package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// kubeCache is a watch cache as kube-apiserver keeps one per resource: filled by a streamed list, kept by a
// watch, and asked for its content at the revision that progress notifications say it has reached.
type kubeCache struct {
	prefix   string
	breaks   bool // cut the watch again and again: resumed at once, or only after a compaction
	state    map[string]*mvccpb.KeyValue
	revision int64       // all events up to it are in state
	progress int64       // the last revision that a list or a notification closed
	events   []kubeWrite // all that were seen, where keep
	keep     bool
	onDelete func(key string, revision int64)

	progressed chan struct{} // filled after each comparison

	checked, skipped, resumed, expired int
}

var errCacheDone = errors.New("the cache has reached the end")

// run fills and keeps the cache until it holds the state of k.end, which is set once the writers have stopped.
func (k *kubeTraffic) run(ctx context.Context, c *kubeCache) error {
	for round := 0; ctx.Err() == nil; round++ {
		if c.revision == 0 {
			if err := k.fill(ctx, c); err != nil {
				return err
			}
		}
		err := k.follow(ctx, c, round)
		var compacted *compactedError
		switch {
		case errors.Is(err, errCacheDone):
			return nil
		case errors.As(err, &compacted):
			if compacted.revision <= c.revision+1 {
				return fmt.Errorf("watch from %d refused: compacted at %d", c.revision+1, compacted.revision)
			}
			c.expired++
			c.revision, c.events = 0, nil // what was seen ends here; it begins anew with the next list
		case err != nil:
			return fmt.Errorf("cache of %s at %d: %w", c.prefix, c.revision, err)
		default:
			c.resumed++
		}
		if c.breaks && round%2 == 1 && c.revision > 0 && k.end.Load() == 0 {
			k.awaitCompaction(ctx, c.revision+1)
		}
	}
	return ctx.Err()
}

type compactedError struct{ revision int64 }

func (e *compactedError) Error() string { return fmt.Sprintf("compacted at %d", e.revision) }

// fill reads the whole prefix as one stream, which carries its revision in the last chunk only.
func (k *kubeTraffic) fill(ctx context.Context, c *kubeCache) error {
	l, _, err := k.stream(ctx, c.prefix, 0, 0)
	if err != nil {
		return fmt.Errorf("fill the cache of %s: %w", c.prefix, err)
	}
	c.state = map[string]*mvccpb.KeyValue{}
	for _, kv := range l.kvs {
		c.state[string(kv.Key)] = kv
	}
	c.revision, c.progress = l.revision, l.revision
	return k.compare(ctx, c)
}

// follow watches from the cache's revision until the watch is cut, refused, or the end is reached.
func (k *kubeTraffic) follow(ctx context.Context, c *kubeCache, round int) error {
	if c.breaks && k.end.Load() == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(100+50*(round%3))*time.Millisecond)
		defer cancel()
	}
	opts := []clientv3.OpOption{
		clientv3.WithPrefix(), clientv3.WithRev(c.revision + 1), clientv3.WithPrevKV(), clientv3.WithProgressNotify(),
	}
	for r := range k.c.Watch(clientv3.WithRequireLeader(ctx), c.prefix, opts...) {
		switch {
		case r.CompactRevision != 0:
			return &compactedError{r.CompactRevision}
		case r.Err() != nil && ctx.Err() == nil:
			return r.Err()
		case r.IsProgressNotify():
			if r.Header.Revision < c.revision {
				return fmt.Errorf("progress back to %d", r.Header.Revision)
			}
			c.revision, c.progress = r.Header.Revision, r.Header.Revision
			if err := k.compare(ctx, c); err != nil {
				return err
			}
			select {
			case c.progressed <- struct{}{}:
			default:
			}
		default:
			for _, ev := range r.Events {
				if err := c.apply(ev, k.compacted.Load()); err != nil {
					return err
				}
			}
		}
		if end := k.end.Load(); end != 0 && c.revision >= end {
			return errors.Join(k.compare(ctx, c), errCacheDone)
		}
	}
	return nil
}

// apply changes the cache by one event, whose previous value must be what the cache holds; only where the
// compaction came first may it be missing.
func (c *kubeCache) apply(ev *clientv3.Event, compacted int64) error {
	key, rev := string(ev.Kv.Key), ev.Kv.ModRevision
	if rev < c.revision || rev <= c.progress || !strings.HasPrefix(key, c.prefix) {
		return fmt.Errorf("event %s at %d after %d, progress %d", key, rev, c.revision, c.progress)
	}
	old := c.state[key]
	lost := ev.PrevKv == nil && rev-1 < compacted
	if !sameKV(ev.PrevKv, old) && !lost || old != nil && old.ModRevision >= rev {
		return fmt.Errorf("event %s at %d: previous value %s, the cache has %s", key, rev, brief(ev.PrevKv), brief(old))
	}
	c.revision = rev
	if c.keep {
		c.events = append(c.events, kubeWrite{key, string(ev.Kv.Value), rev, ev.Type == clientv3.EventTypeDelete})
	}
	if ev.Type == clientv3.EventTypeDelete {
		delete(c.state, key)
		if c.onDelete != nil {
			c.onDelete(key, rev)
		}
		return nil
	}
	c.state[key] = ev.Kv
	return nil
}

// compare holds the cache against a list at the same revision: a consistent list from cache may answer from
// it. Where a compaction has overtaken the revision there is nothing to compare with.
func (k *kubeTraffic) compare(ctx context.Context, c *kubeCache) error {
	r, err := k.c.Get(ctx, c.prefix, clientv3.WithPrefix(), clientv3.WithRev(c.revision))
	if errors.Is(err, rpctypes.ErrCompacted) && c.revision < k.compacted.Load() {
		c.skipped++
		return nil
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil // the watch was cut meanwhile
		}
		return fmt.Errorf("compare: %w", err)
	}
	if len(r.Kvs) != len(c.state) || r.Count != int64(len(c.state)) {
		return fmt.Errorf("the cache has %d keys, the store %d (count %d)", len(c.state), len(r.Kvs), r.Count)
	}
	differs := func(kv *mvccpb.KeyValue) bool { return !sameKV(kv, c.state[string(kv.Key)]) }
	if i := slices.IndexFunc(r.Kvs, differs); i >= 0 {
		return fmt.Errorf("the store has %s, the cache %s", brief(r.Kvs[i]), brief(c.state[string(r.Kvs[i].Key)]))
	}
	c.checked++
	return nil
}

//go:build !race

// With the race detector sync.Pool forgets at random, and there is nothing to count.

package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// What a put and a get allocate in the daemon, with 64 stock clients on 8 connections, everything included:
// transport, pipeline, background. More than 50 of each are grpc-go's own transport. 100 and 69 were counted
// here before the intake gathered what comes at once.
func TestAllocationsPerRequest(t *testing.T) {
	p := launch(t, t.TempDir(), nil, "http")
	p.await("successfully notified init daemon")
	var clients [8]*clientv3.Client
	for i := range clients {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{p.client}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients[i] = c
	}
	value := strings.Repeat("v", 256)
	put := func(ctx context.Context, c *clientv3.Client, key string) error {
		_, err := c.Put(ctx, key, value)
		return err
	}
	get := func(ctx context.Context, c *clientv3.Client, key string) error {
		_, err := c.Get(ctx, key)
		return err
	}
	load := func(requests int64, do func(context.Context, *clientv3.Client, string) error) {
		t.Helper()
		var begun atomic.Int64
		var all sync.WaitGroup
		for worker := range 64 {
			all.Go(func() {
				for n := begun.Add(1); n <= requests; n = begun.Add(1) {
					key := fmt.Sprintf("/registry/things/%08d", n*7919%5000)
					if err := do(t.Context(), clients[worker%len(clients)], key); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	load(5000, put) // fills the store, and the daemon's pools
	for _, c := range []struct {
		name string
		do   func(context.Context, *clientv3.Client, string) error
		most float64
	}{{"put", put, 88}, {"get", get, 63}} {
		load(1000, c.do)
		const requests = 10_000
		first := p.mallocs()
		before := p.mallocs() // the difference is a scrape's own
		load(requests, c.do)
		got := (p.mallocs() - before - (before - first)) / requests
		t.Logf("%s: %.1f allocations", c.name, got)
		if got > c.most {
			t.Errorf("%.1f allocations per %s, at most %.0f are due", got, c.name, c.most)
		}
	}
}

// mallocs is how many objects the daemon has allocated.
func (p *process) mallocs() float64 {
	p.t.Helper()
	_, text := p.get(http.DefaultClient, "GET", "/metrics", "")
	_, rest, _ := strings.Cut(text, "\ngo_memstats_mallocs_total ")
	number, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		p.t.Fatalf("the scrape has no count of allocations: %v", err)
	}
	return n
}

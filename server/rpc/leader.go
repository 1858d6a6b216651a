package rpc

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// leaderMisses is how many looks in a row must find no leader before the streams that insist on one end.
const leaderMisses = 3

// leaderMonitor ends the streams that insist on a leader once there has been none for a while: their clients
// then try another member, which a silent stream would never make them do.
type leaderMonitor struct {
	m     Member        // fixed
	every time.Duration // fixed: the election timeout

	mu      sync.Mutex // guards below: stream handlers and run
	streams map[*followedStream]struct{}
	missed  int
}

type followedStream struct{ cancel context.CancelCauseFunc }

func newLeaderMonitor(m Member, every time.Duration) *leaderMonitor {
	return &leaderMonitor{m: m, every: every, streams: make(map[*followedStream]struct{})}
}

// follow returns a context that ends with ErrGRPCNoLeader when the leader has been lost. done must be called.
func (l *leaderMonitor) follow(ctx context.Context) (followed context.Context, done func()) {
	followed, cancel := context.WithCancelCause(ctx)
	st := &followedStream{cancel}
	l.mu.Lock()
	l.streams[st] = struct{}{}
	l.mu.Unlock()
	return followed, func() {
		l.mu.Lock()
		delete(l.streams, st)
		l.mu.Unlock()
		cancel(nil)
	}
}

// run looks for the leader once per election timeout.
func (l *leaderMonitor) run(ctx context.Context) {
	ticker := time.NewTicker(l.every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.look()
		case <-ctx.Done():
			return
		}
	}
}

func (l *leaderMonitor) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m.Leader() != 0 {
		l.missed = 0
		return
	}
	if l.missed++; l.missed < leaderMisses {
		return
	}
	for st := range l.streams {
		st.cancel(rpctypes.ErrGRPCNoLeader)
	}
}

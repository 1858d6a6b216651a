package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/mailbox"
	"sluice/stages/propose"
	"sluice/stages/watch"
	"sluice/stages/wire"
)

// sizes are the capacities that every trap is tried with.
var sizes = map[string]Mailboxes{"default": {}, "size 1": tiny}

// everySize runs a test with mailboxes of each size, on a disk of its own that can fail.
func everySize(t *testing.T, test func(t *testing.T, cfg Config, disk *faultyDisk)) {
	t.Helper()
	for name, boxes := range sizes {
		t.Run(name, func(t *testing.T) {
			disk := &faultyDisk{}
			cfg := testConfig(t, filepath.Join(t.TempDir(), "data"), boxes)
			cfg.Disk, cfg.SegmentBytes = disk, 1<<20
			test(t, cfg, disk)
		})
	}
}

// request is a put of value under key.
func request(key, value string) *wire.Request {
	return &wire.Request{Put: &wire.PutRequest{Key: []byte(key), Value: []byte(value)}}
}

// get reads key from the published view.
func get(m *Member, key string) string {
	view := m.View()
	defer view.Release()
	encoded, ok := view.KV.Get([]byte(key), view.KV.Revision())
	if !ok {
		return ""
	}
	var kv wire.KeyValue
	if err := kv.Decode(encoded); err != nil {
		panic(err)
	}
	return string(kv.Value)
}

// Whatever order the life of a member is ended in, it ends once, and leaves the directory to the next.
func TestStops(t *testing.T) {
	everySize(t, func(t *testing.T, cfg Config, _ *faultyDisk) {
		for name, life := range map[string]func(t *testing.T, m *Member){
			"never started": func(t *testing.T, m *Member) { stop(t, m) },
			"at once": func(t *testing.T, m *Member) {
				m.Start(context.Background())
				stop(t, m)
				select {
				case <-m.Done():
				default:
					t.Error("Done is open after Stop")
				}
			},
			"twice": func(t *testing.T, m *Member) {
				m.Start(context.Background())
				<-m.Ready()
				stop(t, m)
				stop(t, m)
			},
			"by many": func(t *testing.T, m *Member) {
				m.Start(context.Background())
				<-m.Ready()
				var stops sync.WaitGroup
				for range 8 {
					stops.Go(func() { stop(t, m) })
				}
				stops.Wait()
			},
			"its context first": func(t *testing.T, m *Member) {
				ctx, cancel := context.WithCancel(context.Background())
				m.Start(ctx)
				<-m.Ready()
				cancel()
				<-m.Done()
				if err := m.Stop(context.Background()); !errors.Is(err, context.Canceled) {
					t.Errorf("Stop: %v", err)
				}
			},
			"with an ended context": func(t *testing.T, m *Member) {
				m.Start(context.Background())
				<-m.Ready()
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				if err := m.Stop(ctx); err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("Stop: %v", err)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				m, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				life(t, m)
				if _, err := m.Propose(t.Context(), request("late", "v"), propose.Client); !errors.Is(err, propose.ErrStopped) {
					t.Errorf("a put after the stop: %v", err)
				}
				if err := m.Barrier(t.Context()); !errors.Is(err, propose.ErrStopped) {
					t.Errorf("a barrier after the stop: %v", err)
				}
			})
		}
	})
}

// A stop beside running writers, readers and watchers: what was acknowledged is there in the next life, twenty
// times over, and nobody is left waiting.
func TestRestarts(t *testing.T) {
	everySize(t, func(t *testing.T, cfg Config, _ *faultyDisk) {
		const lives, writers = 20, 4
		var sure, sent [writers]int
		for life := range lives {
			m := run(t, cfg)
			for w := range writers {
				var have int
				if v := get(m, fmt.Sprint("w", w)); v != "" {
					fmt.Sscan(v, &have)
				}
				if have < sure[w] || have > sent[w] {
					t.Fatalf("life %d: writer %d finds %d, acknowledged %d, sent %d", life, w, have, sure[w], sent[w])
				}
			}
			stream := m.OpenWatch(watch.StreamConfig{})
			if err := stream.Create(t.Context(), watch.CreateRequest{Key: []byte("w"), End: []byte("x")}); err != nil {
				t.Fatal(err)
			}
			var clients sync.WaitGroup
			busy := make(chan struct{}, writers)
			for w := range writers {
				clients.Go(func() {
					for {
						sent[w]++
						r, err := m.Propose(context.Background(), request(fmt.Sprint("w", w), fmt.Sprint(sent[w])), propose.Client)
						if err != nil || r.Err != nil {
							if !errors.Is(err, propose.ErrStopped) {
								t.Errorf("put: %v %v", err, r.Err)
							}
							return
						}
						sure[w] = sent[w]
						select {
						case busy <- struct{}{}:
						default:
						}
					}
				})
			}
			clients.Go(func() {
				for m.Barrier(context.Background()) == nil {
				}
			})
			clients.Go(func() {
				for {
					if _, err := stream.Next(context.Background()); err != nil {
						return
					}
				}
			})
			for range writers {
				<-busy
			}
			if life%2 == 0 {
				stop(t, m)
			} else { // cut off in the middle of the drain
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				if err := m.Stop(ctx); err != nil && !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
			}
			stream.Close()
			clients.Wait()
		}
	})
}

// A stop while the disk does not answer: Stop returns once its context has ended and says who is stuck; the
// waiters are let go; what the disk took in the end is there in the next life.
func TestStopWhileDiskStalls(t *testing.T) {
	everySize(t, func(t *testing.T, cfg Config, disk *faultyDisk) {
		m := run(t, cfg)
		m.patience = 100 * time.Millisecond
		put(t, m, "before", "v")
		reached, release := disk.stall(t)
		waiting := make(chan error, 1)
		go func() {
			_, err := m.Propose(context.Background(), request("during", "v"), propose.Client)
			waiting <- err
		}()
		<-reached
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err := m.Stop(ctx)
		var stage *StageError
		if !errors.Is(err, ErrStuck) || !errors.As(err, &stage) || !strings.Contains(err.Error(), "persist") {
			t.Errorf("Stop: %v", err)
		}
		if err := <-waiting; !errors.Is(err, propose.ErrStopped) {
			t.Errorf("the waiting put: %v", err)
		}
		release()
		m.loops.loops.Wait()
		m = run(t, cfg)
		if get(m, "before") != "v" {
			t.Error("an acknowledged key is lost")
		}
		stop(t, m)
	})
}

// A member whose disk does not answer from the start is never ready; it can be stopped all the same.
func TestStopBeforeReady(t *testing.T) {
	everySize(t, func(t *testing.T, cfg Config, disk *faultyDisk) {
		m, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		m.patience = 100 * time.Millisecond
		reached, release := disk.stall(t)
		m.Start(context.Background())
		<-reached
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := m.Stop(ctx); err == nil {
			t.Error("Stop says that all has ended")
		}
		select {
		case <-m.Ready():
			t.Error("ready without a disk")
		default:
		}
		release()
		m.loops.loops.Wait()
		m = run(t, cfg)
		put(t, m, "k", "v")
		stop(t, m)
	})
}

// A mailbox that fails to close in order would leave its stage behind: each closes before the stop ends.
func TestStopClosesEveryMailbox(t *testing.T) {
	m := run(t, testConfig(t, filepath.Join(t.TempDir(), "data"), Mailboxes{}))
	stop(t, m)
	for name, send := range map[string]func() error{
		"watch":     func() error { return m.watch.Events(t.Context(), wire.EventBatch{}) },
		"revoker":   func() error { return m.revoking.Sender(mailbox.Wait).Send(t.Context(), revocation{}) },
		"replicate": func() error { return m.replicate.ReadIndex(t.Context(), 1) },
	} {
		if err := send(); !errors.Is(err, mailbox.ErrClosed) {
			t.Errorf("%s after the stop: %v", name, err)
		}
	}
}

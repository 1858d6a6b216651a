package backend

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"sluice/mailbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a backend whose writer runs. The test's goroutine is apply.
type running struct {
	*Backend
	t    testing.TB
	run  chan error
	stop context.CancelFunc
}

func start(t testing.TB, cfg Config) *running {
	t.Helper()
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return startOpened(t, b)
}

func startOpened(t testing.TB, b *Backend) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Backend: b, t: t, run: make(chan error, 1), stop: cancel}
	go func() { r.run <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		b.Close()
	})
	return r
}

func (r *running) seal(index uint64) {
	r.t.Helper()
	if err := r.Seal(context.Background(), Seal{Index: index, Term: max(1, r.last.Term)}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) flush() {
	r.t.Helper()
	if err := r.Flush(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// commit seals and flushes.
func (r *running) commit(index uint64) {
	r.t.Helper()
	r.seal(index)
	r.flush()
}

// shut closes in order and returns what Run said.
func (r *running) shut() error {
	r.t.Helper()
	if err := r.Close(); err != nil {
		r.t.Fatal(err)
	}
	return <-r.run
}

func (r *running) shutInOrder() {
	r.t.Helper()
	if err := r.shut(); !errors.Is(err, mailbox.ErrClosed) {
		r.t.Fatalf("Run ended with %v, want ErrClosed", err)
	}
}

// serve does what an idle apply does, until the returned function is called: it seals when asked, and keeps
// a fresh view.
func (r *running) serve(index uint64) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		view := r.Acquire()
		defer func() { view.Release() }()
		for {
			select {
			case <-r.Wanted():
				if r.SealWanted() {
					if err := r.Seal(context.Background(), Seal{Index: index, Term: max(1, r.last.Term)}); err != nil {
						return
					}
				}
				fresh := r.Acquire()
				view.Release()
				view = fresh
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}

func dbPath(t testing.TB) string { return filepath.Join(t.TempDir(), "db") }

// revKey is the key of revision main.sub in bucket key.
func revKey(main, sub int64) []byte {
	k := make([]byte, 17)
	for i := range 8 {
		k[7-i] = byte(main >> (8 * i))
		k[16-i] = byte(sub >> (8 * i))
	}
	k[8] = '_'
	return k
}

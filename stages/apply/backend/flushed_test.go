package backend

import (
	"context"
	"sync"
	"testing"
)

// Apply, ending, and its flusher wait for the same commit: both are told. With a token for one of them the
// other waited for ever, and the member could not stop.
func TestFlushTellsEveryWaiter(t *testing.T) {
	r := start(t, Config{Path: dbPath(t)})
	for i := uint64(1); i <= 200; i++ {
		entry(r.Writer(), i)
		r.seal(i)
		var others sync.WaitGroup
		for range 3 {
			others.Go(func() {
				if err := r.Flushed(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		r.flush()
		others.Wait()
	}
	r.shutInOrder()
}

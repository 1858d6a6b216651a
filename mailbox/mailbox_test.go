package mailbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func receive(t *testing.T, r Receiver[int]) []int {
	t.Helper()
	got, err := r.TryReceive(nil)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A sender that waits enters as soon as there is room, in the order in which it began to wait.
func TestWaitingSendersKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New[int](Config{Name: "t", Capacity: 1})
		s := m.Sender(Wait)
		for i := range 5 {
			go func() {
				if err := s.Send(t.Context(), i); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		if d := m.Stats(); d.Depth != 1 || d.Waited != 4 {
			t.Fatalf("depth %d, waited %d, want 1 and 4", d.Depth, d.Waited)
		}
		var got []int
		for len(got) < 5 {
			batch, err := m.Receiver().Receive(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, batch...)
		}
		if !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
			t.Fatalf("order %v", got)
		}
	})
}

// The limit is inclusive: capacity messages enter, the next one meets the policy.
func TestPoliciesAtTheLimit(t *testing.T) {
	for _, capacity := range []int{1, 3} {
		m := New[int](Config{Capacity: capacity})
		for i := range capacity {
			if err := m.Sender(Refuse).Send(t.Context(), i); err != nil {
				t.Fatalf("message %d of %d: %v", i, capacity, err)
			}
		}
		if err := m.Sender(Refuse).Send(t.Context(), 9); !errors.Is(err, ErrFull) {
			t.Fatalf("refuse: %v", err)
		}
		if err := m.Sender(Drop).Send(t.Context(), 9); err != nil {
			t.Fatalf("drop: %v", err)
		}
		if err := m.Sender(Latest).Send(t.Context(), 7); err != nil {
			t.Fatalf("latest: %v", err)
		}
		want := make([]int, capacity)
		for i := range want {
			want[i] = i
		}
		want[capacity-1] = 7
		if got := receive(t, m.Receiver()); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if st := m.Stats(); st.Rejected != 3 {
			t.Fatalf("rejected %d, want 3", st.Rejected)
		}
	}
}

// A message larger than the byte limit passes an empty mailbox, and only an empty one.
func TestBytes(t *testing.T) {
	m := NewSized[int](Config{Capacity: 10, BytesMax: 10}, func(n int) int { return n })
	s := m.Sender(Refuse)
	for _, c := range []struct {
		size int
		err  error
	}{{100, nil}, {1, ErrFull}} {
		if err := s.Send(t.Context(), c.size); !errors.Is(err, c.err) {
			t.Fatalf("size %d: %v, want %v", c.size, err, c.err)
		}
	}
	receive(t, m.Receiver())
	for _, c := range []struct {
		size int
		err  error
	}{{6, nil}, {4, nil}, {1, ErrFull}} {
		if err := s.Send(t.Context(), c.size); !errors.Is(err, c.err) {
			t.Fatalf("size %d: %v, want %v", c.size, err, c.err)
		}
	}
}

// After Close nothing enters, what waits is received, then ErrClosed for ever.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New[int](Config{Capacity: 1})
		s := m.Sender(Wait)
		if err := s.Send(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- s.Send(t.Context(), 2) }()
		synctest.Wait()
		m.Close()
		m.Close()
		if err := <-waiting; !errors.Is(err, ErrClosed) {
			t.Fatalf("waiting sender: %v", err)
		}
		if err := s.Send(t.Context(), 3); !errors.Is(err, ErrClosed) {
			t.Fatalf("late sender: %v", err)
		}
		got, err := m.Receiver().Receive(t.Context(), nil)
		if err != nil || !slices.Equal(got, []int{1}) {
			t.Fatalf("rest: %v %v", got, err)
		}
		for range 2 {
			if _, err := m.Receiver().Receive(t.Context(), nil); !errors.Is(err, ErrClosed) {
				t.Fatalf("end: %v", err)
			}
		}
	})
}

// A context that ends frees its place in the line; the room goes to the next one.
func TestCancelledSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New[int](Config{Capacity: 1})
		s := m.Sender(Wait)
		_ = s.Send(t.Context(), 1)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- s.Send(ctx, 2) }()
		synctest.Wait()
		go func() { second <- s.Send(t.Context(), 3) }()
		synctest.Wait()
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled sender: %v", err)
		}
		receive(t, m.Receiver())
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		if got := receive(t, m.Receiver()); !slices.Equal(got, []int{3}) {
			t.Fatalf("got %v", got)
		}
	})
}

// A receiver's context ends its waiting.
func TestCancelledReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		m := New[int](Config{Capacity: 1})
		if _, err := m.Receiver().Receive(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	})
}

// A reserved place counts as taken, and its message always finds room.
func TestReserve(t *testing.T) {
	m := New[int](Config{Capacity: 1})
	slot, err := m.Sender(Refuse).Reserve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Sender(Refuse).Send(t.Context(), 1); !errors.Is(err, ErrFull) {
		t.Fatalf("beside a reserved place: %v", err)
	}
	if err := slot.Put(5); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, m.Receiver()); !slices.Equal(got, []int{5}) {
		t.Fatalf("got %v", got)
	}
	slot, _ = m.Sender(Refuse).Reserve(t.Context())
	slot.Cancel()
	if err := m.Sender(Refuse).Send(t.Context(), 1); err != nil {
		t.Fatalf("after Cancel: %v", err)
	}
	receive(t, m.Receiver())
	slot, _ = m.Sender(Refuse).Reserve(t.Context())
	m.Close()
	if err := slot.Put(1); !errors.Is(err, ErrClosed) {
		t.Fatalf("after Close: %v", err)
	}
	if _, err := m.Receiver().TryReceive(nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("a reserved place keeps a closed mailbox open: %v", err)
	}
}

// The limits may change while running; the batch limit bounds one Receive.
func TestLimitsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New[int](Config{Capacity: 1})
		done := make(chan error, 3)
		for i := range 3 {
			go func() { done <- m.Sender(Wait).Send(t.Context(), i) }()
		}
		synctest.Wait()
		m.SetCapacity(3)
		for range 3 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		m.SetBatchMax(2)
		if got := receive(t, m.Receiver()); len(got) != 2 {
			t.Fatalf("batch of %d, want 2", len(got))
		}
		<-m.Receiver().Ready() // the rest is announced
		if got := receive(t, m.Receiver()); len(got) != 1 {
			t.Fatalf("rest of %d, want 1", len(got))
		}
	})
}

// Many senders and one receiver lose, repeat and reorder nothing, at any capacity.
func TestConcurrent(t *testing.T) {
	const senders, each = 8, 2000
	for _, capacity := range []int{1, 2, 1000} {
		m := NewSized[[2]int](Config{Capacity: capacity, BytesMax: 64}, func([2]int) int { return 8 })
		var wg sync.WaitGroup
		for s := range senders {
			wg.Go(func() {
				for i := range each {
					ctx, cancel := context.WithCancel(t.Context())
					if rand.IntN(10) == 0 {
						cancel() // an ended context must not lose a place that was granted
					}
					for m.Sender(Wait).Send(ctx, [2]int{s, i}) != nil {
						ctx = t.Context()
					}
					cancel()
				}
			})
		}
		go func() { wg.Wait(); m.Close() }()
		var next [senders]int
		for {
			batch, err := m.Receiver().Receive(t.Context(), nil)
			for _, msg := range batch {
				if msg[1] != next[msg[0]] {
					t.Fatalf("capacity %d: sender %d: got %d, want %d", capacity, msg[0], msg[1], next[msg[0]])
				}
				next[msg[0]]++
			}
			if err != nil {
				break
			}
		}
		for s, n := range next {
			if n != each {
				t.Fatalf("capacity %d: sender %d: %d of %d", capacity, s, n, each)
			}
		}
		if st := m.Stats(); st.Enqueued != senders*each || st.Received != senders*each || st.Bytes != 0 {
			t.Fatalf("meters: %+v", st)
		}
	}
}

// Sending and receiving allocate nothing once the ring has grown.
func TestAllocations(t *testing.T) {
	m := New[int](Config{Capacity: 64})
	s, r := m.Sender(Wait), m.Receiver()
	buf := make([]int, 0, 64)
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		for i := range 64 {
			_ = s.Send(ctx, i)
		}
		buf, _ = r.TryReceive(buf[:0])
	}); n != 0 {
		t.Fatalf("%v allocations per 64 messages", n)
	}
}

func BenchmarkSendReceive(b *testing.B) {
	m := New[int](Config{Capacity: 128})
	s, r := m.Sender(Wait), m.Receiver()
	go func() {
		var buf []int
		for {
			var err error
			if buf, err = r.Receive(b.Context(), buf[:0]); err != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		_ = s.Send(b.Context(), 1)
	}
	m.Close()
}

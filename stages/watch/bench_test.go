package watch

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"sluice/mailbox"
	"sluice/stages/wire"
)

// bare is a stage that does not run: the benchmark steps it.
func bare(views Views, revision int64) *Stage {
	box := mailbox.NewSized(mailbox.Config{Capacity: 1000}, InboundBytes)
	return New(Config{In: box.Receiver(), Self: box.Sender(mailbox.Wait), Views: views, Revision: revision})
}

func ask(st *Stream, req CreateRequest) {
	st.answers <- struct{}{}
	st.stage.core.step(createMsg{st, req}, st.opened)
}

func drain(sts []*Stream) (responses int) {
	for _, st := range sts {
		for {
			it, ok, drained := st.out.pop()
			if !ok {
				break
			}
			responses++
			if it.control {
				st.release()
			}
			if drained {
				st.stage.core.step(drainedMsg{st}, st.opened)
			}
		}
	}
	return responses
}

func bigEvent(rev int64, size int) wire.Event {
	key := []byte("/registry/pods/x")
	kv := wire.KeyValue{Key: key, Value: make([]byte, size), CreateRevision: 2, ModRevision: rev, Version: rev}
	b := kv.Append(nil)
	return wire.Event{Type: wire.EventPut, Key: kv.Key, Rev: rev, KV: b, Prev: b}
}

// One put, seen by many watchers of one prefix, each on its own stream.
func BenchmarkFanOut(b *testing.B) {
	for _, watchers := range []int{0, 1, 1000} {
		b.Run(fmt.Sprintf("%d watchers", watchers), func(b *testing.B) {
			s := bare(nil, 1)
			var sts []*Stream
			for range watchers {
				st := s.Open(StreamConfig{})
				ask(st, CreateRequest{Key: []byte("/registry/pods/"), End: []byte("/registry/pods0"), PrevKV: true})
				sts = append(sts, st)
			}
			drain(sts)
			rev := int64(1)
			b.ReportAllocs()
			for b.Loop() {
				rev++
				batch := wire.EventBatch{Events: []wire.Event{bigEvent(rev, 1024)}, Revision: rev}
				s.core.step(eventsMsg{batch: batch}, s.cfg.Now())
				if rev%200 == 0 {
					b.StopTimer()
					drain(sts)
					b.StartTimer()
				}
			}
		})
	}
}

// One put among ten thousand different ranges and keys.
func BenchmarkMatch(b *testing.B) {
	s := bare(nil, 1)
	st := s.Open(StreamConfig{MessagesMax: 1 << 20})
	for i := range 10_000 {
		ask(st, CreateRequest{Key: fmt.Appendf(nil, "/r/%05d/", i), End: fmt.Appendf(nil, "/r/%05d0", i)})
		ask(st, CreateRequest{Key: fmt.Appendf(nil, "/r/%05d/a", i)})
		drain([]*Stream{st})
	}
	key := []byte("/r/07777/a")
	kv := (&wire.KeyValue{Key: key, Value: make([]byte, 100), CreateRevision: 2, ModRevision: 2, Version: 1}).Append(nil)
	rev := int64(1)
	b.ReportAllocs()
	for b.Loop() {
		rev++
		ev := wire.Event{Key: key, Rev: rev, KV: kv}
		s.core.step(eventsMsg{batch: wire.EventBatch{Events: []wire.Event{ev}, Revision: rev}}, s.cfg.Now())
		if rev%100 == 0 {
			b.StopTimer()
			drain([]*Stream{st})
			b.StartTimer()
		}
	}
}

// A thousand watchers from 50 000 revisions back (W9), with streams that are read at once.
func BenchmarkCatchUp(b *testing.B) {
	const revisions, watchers = 50_000, 1000
	m := newModel()
	for range revisions {
		m.txn(op{"k/1", make([]byte, 100)})
	}
	b.ReportAllocs()
	for b.Loop() {
		s := bare(m, m.rev)
		var sts []*Stream
		for range watchers {
			st := s.Open(StreamConfig{})
			ask(st, CreateRequest{Key: []byte("k/"), End: []byte("k0"), Start: 2})
			sts = append(sts, st)
		}
		drain(sts)
		for s.core.counts[live] < watchers {
			j := s.core.nextJob()
			if j == nil {
				b.Fatalf("%d of %d watchers live", s.core.counts[live], watchers)
			}
			r, err := scan(j, m)
			if err != nil {
				b.Fatal(err)
			}
			s.core.step(r, s.cfg.Now())
			drain(sts)
		}
	}
}

// Through the whole stage: mailbox, loop and a goroutine per stream that takes the responses.
func BenchmarkDelivered(b *testing.B) {
	const watchers = 1000
	w := newWorld(b, 1000, nil)
	var wg sync.WaitGroup
	var sts []*Stream
	got := make(chan struct{}, watchers)
	for range watchers {
		st := w.stage.Open(StreamConfig{})
		w.create(st, CreateRequest{Key: []byte("/registry/pods/"), End: []byte("/registry/pods0"), PrevKV: true})
		if _, err := st.Next(b.Context()); err != nil {
			b.Fatal(err)
		}
		sts = append(sts, st)
		wg.Go(func() {
			for {
				m, err := st.Next(b.Context())
				if err != nil {
					return
				}
				for range m.Events {
					got <- struct{}{}
				}
			}
		})
	}
	rev := int64(1)
	b.ReportAllocs()
	for b.Loop() {
		rev++
		batch := wire.EventBatch{Events: []wire.Event{bigEvent(rev, 1024)}, Revision: rev}
		if err := w.stage.Events(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
		for range watchers {
			<-got
		}
	}
	w.box.Close()
	wg.Wait()
	for _, st := range sts {
		st.Close()
	}
	w.stop()
	w.wg.Wait()
}

// performance.md 3.4: about 1 KB for an idle stream with a watcher, beside its goroutine.
func TestIdleStreamIsSmall(t *testing.T) {
	const streams = 10_000
	s := bare(nil, 1)
	sts := make([]*Stream, 0, streams)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range streams {
		st := s.Open(StreamConfig{})
		ask(st, CreateRequest{Key: []byte("/registry/pods/"), End: []byte("/registry/pods0"), PrevKV: true})
		drain([]*Stream{st})
		sts = append(sts, st)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	per := (after.HeapAlloc - before.HeapAlloc) / streams
	t.Logf("%d bytes per stream with one watcher", per)
	if per > 1500 {
		t.Errorf("%d bytes per idle stream", per)
	}
	runtime.KeepAlive(sts)
}

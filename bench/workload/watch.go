package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"sluice/bench/lean"
	"sluice/bench/stats"

	"google.golang.org/protobuf/encoding/protowire"
)

// watching is one lean connection with watch streams. Its goroutine reads until the connection is closed.
type watching struct {
	conn    *lean.Conn
	crowd   *crowd
	latency stats.Histogram // of events whose values carry the time when they were sent
	timed   bool
}

// crowd is all watchers of a run.
type crowd struct {
	conns   []*watching
	created atomic.Int64 // watchers, by all connections; read by the owner
	events  atomic.Int64 // likewise
	closing atomic.Bool  // by the owner, before connections are closed
	wg      sync.WaitGroup
	mu      sync.Mutex // guards failed, written by connections
	failed  error
}

// watch is what a crowd watches: each watcher i the range that of returns.
type watch struct {
	conns, streams, perStream int
	of                        func(i int) (key, end string)
	revision                  int64 // where to begin; 0 is now
	timed                     bool  // values begin with the time when they were sent
}

// join opens a crowd and returns once all watchers exist.
func (m *Member) join(ctx context.Context, w watch) (*crowd, error) {
	c := &crowd{}
	conns, err := m.lean(ctx, min(w.conns, w.streams), nil)
	if err != nil {
		return nil, err
	}
	for n, conn := range conns {
		l := &watching{conn: conn, crowd: c, timed: w.timed}
		conn.Handle(l)
		c.conns = append(c.conns, l)
		first := 0
		for before := range n {
			first += share(w.streams, len(conns), before)
		}
		c.wg.Go(func() { l.run(w, first, share(w.streams, len(conns), n)) })
	}
	if err := c.wait(ctx, &c.created, int64(w.streams*w.perStream)); err != nil {
		c.leave()
		return nil, fmt.Errorf("open %d watchers: %w", w.streams*w.perStream, err)
	}
	return c, nil
}

// run opens n streams, the first of which is the given one, and reads.
func (l *watching) run(w watch, first, n int) {
	var msg []byte
	err := func() error {
		for stream := first; stream < first+n; stream++ {
			s := l.conn.Open(methodWatch)
			for i := range w.perStream {
				key, end := w.of(stream*w.perStream + i)
				msg = appendWatch(msg[:0], key, end, w.revision)
				for !l.conn.CanOpen(len(msg)) {
					if err := l.conn.Poll(time.Time{}); err != nil {
						return err
					}
				}
				if err := l.conn.Send(s, msg, false); err != nil {
					return err
				}
			}
			if err := l.conn.Flush(); err != nil {
				return err
			}
		}
		for {
			if err := l.conn.Poll(time.Time{}); err != nil && !errors.Is(err, lean.ErrStalled) {
				return err
			}
		}
	}()
	if !l.crowd.closing.Load() {
		l.crowd.fail(err)
	}
}

// Message counts the events of a watch's message.
func (l *watching) Message(_ *lean.Stream, msg []byte) error {
	events, now := int64(0), time.Now().UnixNano()
	err := fields(msg, func(field protowire.Number, v uint64, b []byte) error {
		switch field {
		case 3: // created
			l.crowd.created.Add(int64(v))
		case 4: // cancelled
			return errors.New("the server cancelled a watcher")
		case 11:
			events++
			if l.timed {
				return l.record(now, b)
			}
		}
		return nil
	})
	l.crowd.events.Add(events)
	return err
}

// record takes the time of sending from the value of an event.
func (l *watching) record(now int64, event []byte) error {
	return fields(event, func(field protowire.Number, _ uint64, kv []byte) error {
		if field != 2 {
			return nil
		}
		return fields(kv, func(field protowire.Number, _ uint64, value []byte) error {
			if field == 5 && len(value) >= 8 {
				l.latency.Record(now - int64(binary.LittleEndian.Uint64(value)))
			}
			return nil
		})
	})
}

// Ended says that a stream is over, which no watch stream should be.
func (l *watching) Ended(_ *lean.Stream, err error) error {
	return fmt.Errorf("a watch stream ended: %w", err)
}

func (c *crowd) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
}

func (c *crowd) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// errSlow is returned when watchers do not receive what they should.
var errSlow = errors.New("nothing arrived for a minute")

// wait returns once a counter has reached n.
func (c *crowd) wait(ctx context.Context, counter *atomic.Int64, n int64) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	last, since := int64(-1), time.Now()
	for {
		now := counter.Load()
		if now >= n {
			return nil
		}
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > time.Minute {
			return fmt.Errorf("%w: %d of %d", errSlow, now, n)
		}
		if err := c.failure(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// leave closes all connections and returns the latencies of all events.
func (c *crowd) leave() *stats.Histogram {
	c.closing.Store(true)
	for _, l := range c.conns {
		_ = l.conn.Close() // nothing is left to be said over it
	}
	c.wg.Wait()
	all := &stats.Histogram{}
	for _, l := range c.conns {
		all.Add(&l.latency)
	}
	return all
}

// stampedPuts writes values that begin with the time when they are due.
func stampedPuts(rate float64, size int) traffic {
	return traffic{conns: 1, rate: rate, lean: func(_ int, g *rand.Rand) caller {
		var key []byte
		value := noise(size)
		return calls(func(due time.Time, dst []byte) (string, []byte) {
			key = appendKey(key[:0], g.IntN(1000))
			binary.LittleEndian.PutUint64(value, uint64(due.UnixNano()))
			return methodPut, appendPut(dst, key, value, 0)
		})
	}}
}

func everything(int) (key, end string) { return prefix, prefixEnd(prefix) }

// fan is a fan-out: puts at a rate, each delivered to all watchers.
type fan struct {
	watchers, perStream, size int
	rate                      float64
	slow                      int // connections of ten that do not read
}

// sample runs the puts alone, for the writer's quiet latency, then with the watchers.
func (f fan) sample(ctx context.Context, m *Member, s Settings) (Sample, error) {
	puts := stampedPuts(f.rate, f.size)
	writer, err := m.lean(ctx, 1, nil)
	if err != nil {
		return nil, err
	}
	defer closeAll(writer)
	alone, err := puts.driveLean(ctx, s, writer)
	if err != nil {
		return nil, err
	}
	w := watch{conns: 10, streams: max(1, f.watchers/f.perStream), perStream: f.perStream, of: everything, timed: true}
	readers := w
	slowStreams := w.streams * f.slow / 10
	readers.streams -= slowStreams
	crowd, err := m.join(ctx, readers)
	if err != nil {
		return nil, err
	}
	closeSlow, err := m.joinDeaf(ctx, w, slowStreams)
	if err != nil {
		crowd.leave()
		return nil, err
	}
	var writes Work
	sample, err := m.measure(ctx, func() (Work, error) {
		var err error
		if writes, err = puts.driveLean(ctx, s, writer); err != nil {
			return Work{}, err
		}
		want := int64(writes.Ops) * int64(readers.streams*w.perStream)
		return Work{Ops: int(want)}, crowd.wait(ctx, &crowd.events, want)
	})
	closeSlow()
	latency := crowd.leave()
	if err != nil {
		return nil, err
	}
	sample[P50], sample[P99], sample[P999] = quantile(latency, 0.5), quantile(latency, 0.99), quantile(latency, 0.999)
	sample[Writer], sample[Quiet] = quantile(writes.Latency, 0.99), quantile(alone.Latency, 0.99)
	sample[Slowdown] = sample[Writer] / sample[Quiet]
	return sample, nil
}

// joinDeaf opens watch streams whose client never reads.
func (m *Member) joinDeaf(ctx context.Context, w watch, streams int) (leave func(), err error) {
	if streams == 0 {
		return func() {}, nil
	}
	conns, err := m.lean(ctx, 1, nil)
	if err != nil {
		return nil, err
	}
	c := conns[0]
	for range streams {
		s := c.Open(methodWatch)
		for i := range w.perStream {
			key, end := w.of(i)
			if err := c.Send(s, appendWatch(nil, key, end, 0), false); err != nil {
				closeAll(conns)
				return nil, err
			}
		}
	}
	if err := c.Flush(); err != nil {
		closeAll(conns)
		return nil, err
	}
	return func() { closeAll(conns) }, nil
}

func (f fan) cell(s Settings, gates ...Gate) Cell {
	name := fmt.Sprintf("%d watchers, %d per stream, %d B, %.0f puts/s, lean client",
		f.watchers, f.perStream, f.size, f.rate)
	if f.slow > 0 {
		name += fmt.Sprintf(", %d %% never read", f.slow*10)
	}
	return Cell{Name: name, Op: "event", Gates: gates, Run: func(ctx context.Context, m *Member) (Sample, error) {
		return f.sample(ctx, m, s)
	}}
}

// W8: one event, many watchers.
func fanOut(s Settings) Family {
	n := func(watchers int) int { return s.Size(watchers) }
	cpu, writer := Gate{Metric: CPU, Limit: 4}, Gate{Metric: Slowdown, Limit: 1.3, Absolute: true}
	return Family{ID: "W8", Title: "watch fan-out", Groups: []Group{{Cells: []Cell{
		fan{watchers: n(100), perStream: 1, size: 256, rate: 500}.cell(s),
		fan{watchers: n(100), perStream: 1, size: 1024, rate: 20}.cell(s).long(),
		fan{watchers: n(1000), perStream: min(10, n(1000)), size: 1024, rate: 20}.cell(s, cpu, writer),
		fan{watchers: n(1000), perStream: min(10, n(1000)), size: 1024, rate: 20, slow: 1}.cell(s),
		fan{watchers: n(1000), perStream: 1, size: 256, rate: 20}.cell(s).long(),
		fan{watchers: n(10000), perStream: min(100, n(10000)), size: 256, rate: 5}.cell(s).long(),
	}}}}
}

// amongWatches is a traffic beside watch streams that have nothing to say.
type amongWatches struct {
	traffic traffic
	s       Settings
	streams int
}

func (t traffic) amongWatches(s Settings, streams int) amongWatches {
	return amongWatches{t, s, streams}
}

func (a amongWatches) cell(what, op string, gates ...Gate) Cell {
	idle := watch{conns: 20, streams: a.streams, perStream: 1, of: func(i int) (string, string) {
		return fmt.Sprintf("/idle/%d", i), ""
	}}
	name := a.traffic.name(fmt.Sprintf("%s, %d idle watches", what, a.streams))
	return Cell{Name: name, Op: op, Gates: gates, Run: func(ctx context.Context, m *Member) (Sample, error) {
		crowd, err := m.join(ctx, idle)
		if err != nil {
			return nil, err
		}
		defer crowd.leave()
		return a.traffic.sample(ctx, m, a.s)
	}}
}

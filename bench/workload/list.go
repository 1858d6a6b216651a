package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// listTraffic repeats one range and checks how many keys the answers have in all.
func listTraffic(readers int, q rangeQuery, stream bool, keys int) traffic {
	method := methodRange
	if stream {
		method = methodRangeStream
	}
	return traffic{conns: readers, clients: readers, lean: func(int, *rand.Rand) caller {
		return &lister{method: method, msg: q.append(nil), stream: stream, want: keys}
	}}
}

// lister is one reader with one call at a time.
type lister struct {
	method string
	msg    []byte
	stream bool
	want   int // keys of an answer
	seen   int // keys of the answer so far
	calls  int
	wrong  error // about an answer whose end only the next call shows
}

func (l *lister) next(_ int, _ time.Time, dst []byte) (string, []byte) {
	l.calls++
	if l.calls > 1 && l.seen != l.want {
		l.wrong = fmt.Errorf("an answer had %d keys, want %d", l.seen, l.want)
	}
	l.seen = 0
	return l.method, append(dst, l.msg...)
}

// answer counts the keys of a message: its fields of number 2.
func (l *lister) answer(_ int, msg []byte) error {
	if l.wrong != nil {
		return l.wrong
	}
	count := func(field protowire.Number, _ uint64, _ []byte) error {
		if field == 2 {
			l.seen++
		}
		return nil
	}
	if !l.stream {
		return fields(msg, count)
	}
	return fields(msg, func(field protowire.Number, _ uint64, b []byte) error {
		if field != 1 {
			return nil
		}
		return fields(b, count)
	})
}

// pager reads pages 2, 3, ... at the revision of the first, as a client that lists in pages does, and
// begins again after the last.
type pager struct {
	keys, limit int
	at          int
	revision    int64
}

func (p *pager) next(_ int, _ time.Time, dst []byte) (string, []byte) {
	if p.at >= p.keys {
		p.at, p.revision = 0, 0
	}
	q := rangeQuery{key: key(p.at), end: key(p.keys), limit: p.limit, revision: p.revision}
	p.at += p.limit
	return methodRange, q.append(dst)
}

func (p *pager) answer(_ int, msg []byte) error {
	if p.revision > 0 {
		return nil
	}
	var err error
	p.revision, err = dig(msg, 1, 3)
	return err
}

func stockListTraffic(q rangeQuery, stream bool) traffic {
	return traffic{conns: 1, clients: 1, stock: func(ctx context.Context, c *clientv3.Client, _ *rand.Rand) error {
		if !stream {
			_, err := c.Get(ctx, q.key, clientv3.WithRange(q.end))
			return err
		}
		got, err := c.GetStream(ctx, q.key, clientv3.WithRange(q.end))
		if err != nil {
			return err
		}
		for chunk := range got {
			if err := chunk.Err(); err != nil {
				return err
			}
		}
		return nil
	}}
}

// putsBeside writes keys behind those that are listed, at a rate, until ctx ends.
func putsBeside(s Settings, rate float64, first int) func(ctx context.Context, m *Member) error {
	value := noise(1024)
	t := traffic{conns: 1, rate: rate, lean: func(_ int, g *rand.Rand) caller {
		var key []byte
		return calls(func(_ time.Time, dst []byte) (string, []byte) {
			key = appendKey(key[:0], first+g.IntN(1000))
			return methodPut, appendPut(dst, key, value, 0)
		})
	}}
	s.Duration, s.Ops = time.Hour, 0
	return func(ctx context.Context, m *Member) error {
		conns, err := m.lean(ctx, 1, nil)
		if err != nil {
			return ended(ctx, err)
		}
		defer closeAll(conns)
		_, err = t.driveLean(ctx, s, conns)
		return ended(ctx, err)
	}
}

// thousands writes n as people say it: 10k.
func thousands(n int) string {
	if n >= 1000 && n%1000 == 0 {
		return strconv.Itoa(n/1000) + "k"
	}
	return strconv.Itoa(n)
}

// W7: ranges.
func lists(s Settings) Family {
	return Family{ID: "W7", Title: "LIST", Groups: []Group{largeValues(s, Plain), manyKeys(s)}}
}

func largeValues(s Settings, security Security) Group {
	few, some, all := s.Size(1000), s.Size(10_000), s.Size(100_000)
	q := func(n int) rangeQuery { return rangeQuery{key: key(0), end: key(n)} }
	name := func(n int, what string) string { return "LIST " + thousands(n) + " x 1 KB, " + what }
	cpu := Gate{Metric: CPU, Limit: 3}
	if security != Plain {
		return Group{Security: security, Fill: filled(some, 1024), Cells: []Cell{
			listTraffic(1, q(some), false, some).cell(s, name(some, "unary"), "list"),
			listTraffic(1, q(some), true, some).cell(s, name(some, "stream"), "list"),
		}}
	}
	page := rangeQuery{key: key(0), end: key(all), limit: min(all, 500)}
	large := rangeQuery{key: key(0), end: key(all), limit: min(all, 10_000)}
	count := rangeQuery{key: key(0), end: key(all), countOnly: true}
	bare := q(some)
	bare.keysOnly = true
	pages := traffic{conns: 1, clients: 1, beside: putsBeside(s, 1000, all), lean: func(int, *rand.Rand) caller {
		return &pager{keys: all, limit: 500}
	}}
	limited := Gate{Metric: CPU, Limit: 15}
	return Group{Fill: filled(all, 1024), Cells: []Cell{
		listTraffic(1, q(few), false, few).cell(s, name(few, "unary"), "list"),
		listTraffic(1, q(some), false, some).cell(s, name(some, "unary"), "list", cpu),
		listTraffic(1, q(some), true, some).cell(s, name(some, "stream"), "list", cpu),
		listTraffic(8, q(some), false, some).cell(s, name(some, "unary"), "list", cpu).long(),
		stockListTraffic(q(some), false).cell(s, name(some, "unary"), "list", cpu),
		stockListTraffic(q(some), true).cell(s, name(some, "stream"), "list", cpu).long(),
		listTraffic(1, bare, false, some).cell(s, "LIST "+thousands(some)+" keys only", "list"),
		listTraffic(1, q(all), false, all).cell(s, name(all, "unary"), "list").long(),
		listTraffic(1, q(all), true, all).cell(s, name(all, "stream"), "list").long(),
		listTraffic(1, page, false, page.limit).cell(s, "first page of 500 of "+thousands(all), "page", limited),
		listTraffic(1, large, false, large.limit).cell(s, "first page of 10k of "+thousands(all), "page").long(),
		pages.cell(s, "pages of 500 at the first one's revision, 1000 puts/s beside", "page", limited),
		listTraffic(1, count, false, 0).cell(s, "count only, "+thousands(all), "count", Gate{Metric: CPU, Limit: 50}),
	}}
}

func manyKeys(s Settings) Group {
	n := s.Size(300_000)
	q := rangeQuery{key: key(0), end: key(n)}
	cpu := Gate{Metric: CPU, Limit: 4}
	name := "LIST " + thousands(n) + " x 256 B, "
	return Group{Fill: filled(n, 256), Cells: []Cell{
		listTraffic(1, q, true, n).cell(s, name+"stream", "list", cpu),
		listTraffic(1, q, false, n).cell(s, name+"unary", "list", cpu),
		firstList(name+"stream", listTraffic(1, q, true, n), Gate{Metric: Extra, Limit: 0.1}),
		firstList(name+"unary", listTraffic(1, q, false, n), Gate{Metric: Extra, Limit: 0.3}),
	}}
}

// firstList makes one call to a member that has just been filled: memory that an earlier list has left
// behind would hide what this one takes.
func firstList(name string, t traffic, gates ...Gate) Cell {
	run := func(ctx context.Context, m *Member) (Sample, error) {
		if err := m.Reset(ctx); err != nil {
			return nil, err
		}
		if _, err := m.resident(ctx); err != nil { // waits
			return nil, err
		}
		return t.sample(ctx, m, Settings{Duration: time.Minute, Ops: 1})
	}
	return Cell{Name: name + ", the first after a start, lean client", Op: "list", Gates: gates, Alone: true, Run: run}
}

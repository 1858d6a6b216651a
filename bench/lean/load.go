package lean

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/bench/stats"
)

// Load is a run of unary calls on one connection. With an Interval it is an open loop: call n is due at Start
// plus n intervals, whatever happened to the calls before it, and its latency counts from then. Without one
// it is a closed loop: InFlight calls are under way at any time.
type Load struct {
	InFlight int // most calls under way; each has a slot 0..InFlight-1 of its own
	// Next appends the message of the slot's next call, due then, to dst.
	Next func(slot int, due time.Time, dst []byte) (method string, msg []byte)
	// Answer looks at an answer; nil if the status says enough. msg is valid during the call only.
	Answer   func(slot int, msg []byte) error
	Ops      int       // calls at most; 0 is no limit
	Until    time.Time // no call begins, or is due, later; zero is no limit
	Start    time.Time
	Interval time.Duration
	Latency  *stats.Histogram
	Done     <-chan struct{} // no call begins once it is closed; may be nil
}

// ErrNoAnswer is reported for a call that ended well without a message.
var ErrNoAnswer = errors.New("the call ended without a message")

// run is a Load being worked off.
type run struct {
	Load
	conn     *Conn
	began    int // calls
	ended    int
	free     []int // slots
	answered []bool
	// The next call, while the server's window has no room for it.
	held   bool
	slot   int
	method string
	msg    []byte
}

// Run works off l and returns how many calls were answered, all with status OK: any other ends it with an
// error. It ends early when ctx does.
func (c *Conn) Run(ctx context.Context, l Load) (int, error) {
	stop := context.AfterFunc(ctx, func() { c.socket.Close() })
	defer stop()
	r := &run{Load: l, conn: c, answered: make([]bool, l.InFlight)}
	for slot := range l.InFlight {
		r.free = append(r.free, l.InFlight-1-slot)
	}
	before := c.handler
	c.handler = r
	defer func() { c.handler = before }()
	for {
		next, err := r.begin()
		if err != nil {
			return r.ended, err
		}
		if r.began == r.ended && next.IsZero() {
			return r.ended, c.Flush()
		}
		if err := c.Poll(next); err != nil {
			return r.ended, errors.Join(err, context.Cause(ctx))
		}
	}
}

// begin starts the calls that are due, and returns when the next one is: zero if only an answer can allow
// one, or if none is to come.
func (r *run) begin() (next time.Time, err error) {
	select {
	case <-r.Done:
		return time.Time{}, nil
	default:
	}
	now := time.Now()
	for (r.held || len(r.free) > 0) && (r.Ops == 0 || r.began < r.Ops) {
		due := now
		if r.Interval > 0 {
			due = r.Start.Add(time.Duration(r.began) * r.Interval)
		}
		if !r.Until.IsZero() && !due.Before(r.Until) {
			return time.Time{}, nil
		}
		if due.After(now) {
			return due, nil
		}
		if !r.held {
			r.slot, r.held = r.free[len(r.free)-1], true
			r.free = r.free[:len(r.free)-1]
			r.method, r.msg = r.Next(r.slot, due, r.msg[:0])
		}
		if !r.conn.CanOpen(len(r.msg)) {
			if r.began == r.ended {
				return now.Add(time.Millisecond), nil // the server's window is still to come
			}
			return time.Time{}, nil
		}
		s := r.conn.Open(r.method)
		s.Tag, s.Since = r.slot, due.UnixNano()
		if err := r.conn.Send(s, r.msg, true); err != nil {
			return time.Time{}, err
		}
		r.answered[r.slot] = false
		r.held = false
		r.began++
		if r.conn.Buffered() > readBytes {
			if err := r.conn.Flush(); err != nil {
				return time.Time{}, err
			}
		}
	}
	return time.Time{}, nil
}

func (r *run) Message(s *Stream, msg []byte) error {
	r.answered[s.Tag] = true
	if r.Answer == nil {
		return nil
	}
	return r.Answer(s.Tag, msg)
}

func (r *run) Ended(s *Stream, err error) error {
	if err == nil && !r.answered[s.Tag] {
		err = ErrNoAnswer
	}
	if err != nil {
		return fmt.Errorf("call %d: %w", r.ended, err)
	}
	if r.Latency != nil {
		r.Latency.Record(time.Now().UnixNano() - s.Since)
	}
	r.ended++
	r.free = append(r.free, s.Tag)
	return nil
}

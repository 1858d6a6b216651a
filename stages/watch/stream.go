package watch

import (
	"context"
	"errors"
	"time"

	"sluice/mailbox"
)

// ErrStopped is returned by Next once the stage has ended and everything it had sent was taken.
var ErrStopped = errors.New("watch: stopped")

// answersMax is how many requests of one stream may be without a taken answer: the place of each answer is
// reserved before the request is sent.
const answersMax = 16

// StreamConfig sets the limits of one stream's outbox; zero fields mean the stage's.
type StreamConfig struct {
	MessagesMax int // or the number of its watchers, if that is more
	BytesMax    int64
}

// Stream is one Watch RPC: any number of watchers and one outbox. One goroutine calls Create, Cancel and
// Progress, another one Next; Close may be called by any, once both will stop.
type Stream struct {
	// Fixed at Open.
	stage   *Stage
	period  time.Duration // of progress notifications
	opened  time.Time
	answers chan struct{} // a token per reserved answer

	// Published: the stage pushes, Next pops.
	out outbox

	msg Message // owned by Next's caller until its next call

	// Owned by the stage's loop.
	watchers map[int64]*watcher
	nextID   int64
	counts   [states]int // watchers by state
	behind   []*watcher  // cursors that wait for room in the outbox; may hold dead ones
	blocked  bool        // the outbox has refused something since it was last drained
	asked    bool        // a progress request waits until no watcher is catching up
	due      time.Time   // of the next progress notification
	timer    int         // place in the stage's heap of timers plus 1; 0 without a timer
	notify   int         // watchers that asked for progress notifications
	closed   bool
}

// Open starts a stream. Any goroutine; never waits.
func (s *Stage) Open(cfg StreamConfig) *Stream {
	st := &Stream{
		stage: s, opened: s.cfg.Now(), answers: make(chan struct{}, answersMax),
		period: s.cfg.ProgressInterval + time.Duration(s.cfg.Jitter()*0.1*float64(s.cfg.ProgressInterval)),
	}
	st.out.wake, st.out.pending = make(chan struct{}, 1), &s.pending
	st.out.messagesMax, st.out.bytesMax = cfg.MessagesMax, cfg.BytesMax
	if cfg.MessagesMax == 0 {
		st.out.messagesMax = s.cfg.StreamMessagesMax
	}
	if cfg.BytesMax == 0 {
		st.out.bytesMax = s.cfg.StreamBytesMax
	}
	s.cfg.Metrics.Streams.Set(float64(s.streams.Add(1)))
	return st
}

// Create adds a watcher; exactly one answer with created set comes out of Next. It waits while answersMax
// answers wait to be taken, and while the stage's mailbox is full.
func (st *Stream) Create(ctx context.Context, req CreateRequest) error {
	return st.request(ctx, createMsg{st, req})
}

// Cancel ends a watcher; an answer comes when the id was known.
func (st *Stream) Cancel(ctx context.Context, id int64) error {
	return st.request(ctx, cancelMsg{st, id})
}

// Progress asks up to where the stream's watchers have seen everything. See the package comment for when an
// answer comes.
func (st *Stream) Progress(ctx context.Context) error {
	return st.request(ctx, progressMsg{st})
}

func (st *Stream) request(ctx context.Context, m Inbound) error {
	select {
	case st.answers <- struct{}{}:
	case <-st.stage.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := st.stage.send(ctx, m); err != nil {
		st.release()
		return err
	}
	return nil
}

// release gives the reserved place of an answer back.
func (st *Stream) release() { <-st.answers }

// Next waits for the stream's next response. The message is valid until the next call; its bytes for ever.
func (st *Stream) Next(ctx context.Context) (*Message, error) {
	for {
		it, ok, drained := st.out.pop()
		if !ok {
			if err := st.await(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if it.control {
			st.release()
		}
		if drained {
			err := st.stage.send(ctx, drainedMsg{st})
			if err != nil && !errors.Is(err, ErrStopped) && !errors.Is(err, mailbox.ErrClosed) {
				return nil, err
			}
		}
		st.msg = it.Message
		return &st.msg, nil
	}
}

func (st *Stream) await(ctx context.Context) error {
	select {
	case <-st.out.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-st.stage.stopped:
	}
	select {
	case <-st.out.wake: // pushed before the end
		return nil
	default:
		return ErrStopped
	}
}

// Close ends the stream and all its watchers. It never waits; what was not taken is discarded.
func (st *Stream) Close() {
	if !st.out.close() {
		return
	}
	st.stage.cfg.Metrics.Streams.Set(float64(st.stage.streams.Add(-1)))
	st.stage.retire(st)
}

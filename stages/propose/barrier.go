package propose

import "time"

// barrier is the state of all read barriers: no goroutine, channel or clock.
//
// Reads that wait join the newest round. A round is asked of raft with a number; numbers grow, and the
// read index that raft confirms for a number is good for every round up to it, since those began earlier.
// So one answer finishes all that wait, several rounds may be on their way at once, and asking again
// needs no new number. Without a leader rounds pile up unasked, one per tick, so that each read has its
// own whole timeout; the first leader is asked once for all of them.
//
// Example: reads A and B join round 1, which is asked; C joins round 2, asked while 1 is on its way. The
// answer (2, index 40) comes first: A, B and C read once a view of at least 40 is published.
type barrier struct {
	timeout   time.Duration
	rounds    []*round // oldest first; only the last may still be joined
	joinable  bool
	onTheWay  int    // numbers asked and not confirmed
	asked     uint64 // newest number asked
	askedAt   int64  // when, or asked again
	published uint64
	standing  Standing

	slow, failed int // rounds asked again or timed out; rounds that ended with an error; since last taken
}

// round is one batch of reads. done is closed by the shell when the core hands the round back; err is set
// before.
type round struct {
	number    uint64 // 0 until asked
	reads     int
	leader    uint64 // who was asked
	deadline  int64
	index     uint64
	confirmed bool
	done      chan struct{}
	err       error
}

const (
	roundsMax  = 8                      // numbers on their way
	roundRetry = 500 * time.Millisecond // after which raft is asked again
)

// join returns the round for a read that begins now. first says that the round is new: raft must be asked.
// done makes the channel of a new round.
func (b *barrier) join(now int64, done func() chan struct{}) (r *round, first bool) {
	if b.joinable {
		r = b.rounds[len(b.rounds)-1]
		r.reads++
		return r, false
	}
	r = &round{reads: 1, deadline: now + int64(b.timeout), done: done()}
	b.rounds, b.joinable = append(b.rounds, r), true
	return r, true
}

// ask returns the number to ask raft for all rounds that were not asked yet, 0 for none, and how many reads
// are in them. number makes it.
func (b *barrier) ask(now int64, number func() uint64) (round uint64, reads int) {
	n := len(b.rounds)
	if n == 0 || b.rounds[n-1].number != 0 || b.onTheWay >= roundsMax || b.standing.Leader == 0 {
		return 0, 0
	}
	b.joinable = false
	b.asked, b.askedAt = number(), now
	b.onTheWay++
	for i := n - 1; i >= 0 && b.rounds[i].number == 0; i-- {
		b.rounds[i].number, b.rounds[i].leader = b.asked, b.standing.Leader
		reads += b.rounds[i].reads
	}
	return b.asked, reads
}

// confirm takes raft's read index for all rounds up to number, and appends those that are finished to out.
func (b *barrier) confirm(number, index uint64, out []*round) []*round {
	for _, r := range b.rounds {
		if r.number == 0 || r.number > number {
			break
		}
		if !r.confirmed {
			r.confirmed, r.index = true, index
		}
	}
	return b.finished(out)
}

// publish takes the index of a published view.
func (b *barrier) publish(index uint64, out []*round) []*round {
	b.published = max(b.published, index)
	return b.finished(out)
}

func (b *barrier) finished(out []*round) []*round {
	return b.remove(out, func(r *round) bool { return r.confirmed && r.index <= b.published })
}

// stand takes a new standing. again: raft must be asked again, since the leader is only now able to answer.
// Rounds that another leader was asked for fail, as etcd's do: clients try again.
func (b *barrier) stand(st Standing, out []*round) (failed []*round, again uint64) {
	was := b.standing
	b.standing = st
	if st.Leader != 0 {
		out = b.fail(out, ErrLeaderChanged, func(r *round) bool {
			return r.number != 0 && !r.confirmed && r.leader != st.Leader
		})
	}
	if st.CommittedTerm == st.Term && (was.CommittedTerm != st.Term || was.Leader != st.Leader) && b.onTheWay > 0 {
		again = b.asked
	}
	return out, again
}

// tick fails the rounds that are out of time and says whether raft must be asked again.
func (b *barrier) tick(now int64, out []*round) (failed []*round, again uint64) {
	before := len(out)
	out = b.fail(out, ErrTimeout, func(r *round) bool { return r.deadline <= now })
	b.slow += len(out) - before
	if n := len(b.rounds); n > 0 && b.rounds[n-1].number == 0 {
		b.joinable = false // who comes after the tick has a later deadline
	}
	if b.onTheWay > 0 && b.standing.Leader != 0 && now-b.askedAt >= int64(roundRetry) {
		b.askedAt = now
		b.slow++
		again = b.asked
	}
	return out, again
}

// stop fails all rounds.
func (b *barrier) stop(out []*round) []*round {
	return b.fail(out, ErrStopped, func(*round) bool { return true })
}

func (b *barrier) fail(out []*round, err error, which func(*round) bool) []*round {
	before := len(out)
	out = b.remove(out, which)
	for _, r := range out[before:] {
		r.err = err
	}
	b.failed += len(out) - before
	return out
}

// remove takes the rounds out that which names, and counts anew what is on its way.
func (b *barrier) remove(out []*round, which func(*round) bool) []*round {
	if len(b.rounds) == 0 {
		return out
	}
	open := b.rounds[len(b.rounds)-1]
	rest := b.rounds[:0]
	b.onTheWay = 0
	last := uint64(0)
	for _, r := range b.rounds {
		if which(r) {
			out = append(out, r)
			if r == open {
				b.joinable = false
			}
			continue
		}
		if r.number != 0 && r.number != last && !r.confirmed {
			last = r.number
			b.onTheWay++
		}
		rest = append(rest, r)
	}
	clear(b.rounds[len(rest):])
	b.rounds = rest
	return out
}

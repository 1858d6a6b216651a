package propose

import (
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// request is one message of a lane.
type request struct {
	id    uint64
	entry *raftpb.Entry
	waits bool // somebody waits for the result: propose it only as long as that is so
}

func (r request) bytes() int { return len(r.entry.GetData()) }

func (r request) conf() bool { return r.entry.GetType() == raftpb.EntryConfChange }

const (
	batchBytesMax = 1 << 20 // of one batch; a larger request travels alone
	batchCountMax = 4096
)

// core decides what is handed to raft next: no goroutine, channel or clock.
type core struct {
	limit    int64 // bytes appended but not applied, above which the client lane stays closed
	standing Standing
	backlog  int64
	elected  int64 // clock when the present leader was first seen, 0 for none

	queues [2]queue // by lane: taken from the mailbox, not yet handed over

	// conf waits for the one outstanding conf change, which confID names; it is given up when its outcome
	// can no longer arrive or is past waiting for.
	conf      queue
	confID    uint64
	confSince int64
}

// queue is a FIFO that keeps its array.
type queue struct {
	items []request
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) front() *request { return &q.items[q.head] }

func (q *queue) pop() request {
	r := q.items[q.head]
	q.items[q.head] = request{}
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return r
}

// limitOf is the backlog up to which a lane is drained; the system lane has an eighth of its own on top.
func (c *core) limitOf(l Lane) int64 {
	if l == System {
		return c.limit + c.limit/8
	}
	return c.limit
}

// open says whether a lane may be drained now.
func (c *core) open(l Lane) bool { return c.standing.Leader != 0 && c.backlog <= c.limitOf(l) }

// stand takes a new standing. A conf change whose term has passed is forgotten once the new term has
// committed: all that could still bring its outcome is committed by then.
func (c *core) stand(st Standing, now int64) {
	if st.Leader != 0 && (st.Leader != c.standing.Leader || st.Term != c.standing.Term) {
		c.elected = now
	}
	if st.CommittedTerm != c.standing.CommittedTerm && st.CommittedTerm == st.Term && c.standing.CommittedTerm != 0 {
		c.confID = 0
	}
	c.standing = st
}

// add queues what was taken from a lane's mailbox.
func (c *core) add(l Lane, taken []request) {
	for _, r := range taken {
		q := &c.queues[l]
		if r.conf() {
			q = &c.conf
		}
		q.items = append(q.items, r)
	}
}

// next cuts the next batch of a lane; nil when there is none or the lane is closed. hand says whether a
// request is still waited for, and that it leaves now.
func (c *core) next(l Lane, hand func(id uint64) bool) (entries []*raftpb.Entry, bytes int64) {
	q := &c.queues[l]
	for q.len() > 0 && c.open(l) {
		n := int64(q.front().bytes())
		if len(entries) > 0 && (bytes+n > batchBytesMax || len(entries) == batchCountMax) {
			break
		}
		r := q.pop()
		if r.waits && !hand(r.id) {
			continue
		}
		if entries == nil {
			entries = make([]*raftpb.Entry, 0, min(q.len()+1, batchCountMax))
		}
		entries = append(entries, r.entry)
		bytes += n
	}
	return entries, bytes
}

// nextConf returns the next conf change when none is outstanding, as a batch of its own.
func (c *core) nextConf(now int64, hand func(id uint64) bool) []*raftpb.Entry {
	for c.conf.len() > 0 && c.confID == 0 && c.open(System) {
		r := c.conf.pop()
		if r.waits && !hand(r.id) {
			continue
		}
		c.confID, c.confSince = r.id, now
		return []*raftpb.Entry{r.entry}
	}
	return nil
}

// again puts back a conf change that raft would not take yet, as the next one.
func (c *core) again(r request) {
	if c.confID == r.id {
		c.confID = 0
	}
	c.conf.items = append([]request{r}, c.conf.items[c.conf.head:]...)
	c.conf.head = 0
}

// confExpired gives up waiting for the outstanding conf change after the request timeout: its entry may be
// lost with a leader, and the next one must not wait for it for ever.
func (c *core) confExpired(now int64, timeout time.Duration) {
	if c.confID != 0 && now-c.confSince > int64(timeout) {
		c.confID = 0
	}
}

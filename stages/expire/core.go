package expire

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

const (
	second  = int64(1e9)
	forever = int64(math.MaxInt64)
)

// phase is where a lease stands on the leader.
type phase uint8

const (
	alive phase = iota
	due         // its time has run out
	left        // and a revocation is on its way
)

// lease is one lease. Times are nanoseconds of the member's monotonic clock.
type lease struct {
	id       int64
	ttl      int64 // granted, seconds
	recorded int64 // remaining seconds at the last checkpoint applied; 0: the whole TTL
	expiry   int64 // forever while this member does not lead
	since    int64 // last renewal or checkpoint
	sentAt   int64 // when the revocation left
	slots    [orders]slot
	phase    phase
	dead     bool // revoked: lists may still hold it

	inFlight bool     // a checkpoint has left, and may still be applied
	clearing bool     // checkpoints are being taken back for a renewal
	clearAt  int64    // when that was asked for; 0: not yet
	renewals []*reply // that wait for clearing
	waiters  []*reply // renewals that wait for the end
}

// settings are the core's fixed limits; times in nanoseconds.
type settings struct {
	electionTimeout    int64
	requestTimeout     int64 // after which what has not come back is sent again
	revokeRate         int64 // leases per second, at least 1
	checkpoint         bool
	checkpointInterval int64
}

// core is the state machine of the stage: no goroutine, channel or clock. Answers are appended to out.
type core struct {
	settings
	leases  map[int64]*lease
	leading bool
	term    uint64 // in which it leads

	expiries    heap
	checkpoints heap
	due         []*lease   // FIFO; may hold dead ones
	left        []*lease   // by sentAt; may hold dead ones and ones that left again later
	clears      []*lease   // that want their checkpoints taken back, FIFO; may hold dead ones
	parked      []renewMsg // that wait for a read barrier
	overdue     int        // leases that have run out and exist
	look        bool       // due may hold what has not been offered since the last Tick

	ticked    int64 // the last Tick
	credit    int64 // nanoseconds of the revocation rate saved up, at most a second's worth
	confirmed int64 // when the last read barrier that succeeded began
	confirm   bool  // a read barrier is wanted

	out outputs
}

// outputs is what the core has decided since the shell last took it.
type outputs struct {
	answers []answered
	renewed int
	expired int
}

type answered struct {
	reply *reply
	answer
}

func newCore(s settings, now int64) *core {
	return &core{
		settings: s, leases: make(map[int64]*lease), ticked: now, credit: second, confirmed: math.MinInt64 / 2,
		expiries: heap{order: byExpiry}, checkpoints: heap{order: byCheckpoint},
	}
}

// step applies one message received at now. fresh says whether replicate's last tick is.
func (c *core) step(now int64, fresh bool, m Inbound) {
	switch m := m.(type) {
	case changesMsg:
		for i := range m.changes {
			c.change(now, &m.changes[i])
		}
	case renewMsg:
		c.renew(now, fresh, m)
	case timeToLiveMsg:
		c.timeToLive(now, m)
	case listMsg:
		c.list(m)
	case confirmedMsg:
		c.barrier(now, fresh, m)
	default:
		panic(fmt.Sprintf("expire: unknown message %T", m))
	}
}

func (c *core) answer(r *reply, a answer) { c.out.answers = append(c.out.answers, answered{r, a}) }

func (c *core) answerAll(rs []*reply, a answer) {
	for _, r := range rs {
		c.answer(r, a)
	}
}

// change applies one change of the replicated state.
func (c *core) change(now int64, ch *Change) {
	switch ch.Kind {
	case Reset:
		c.reset()
	case Granted:
		c.granted(now, ch)
	case Revoked:
		c.revoked(ch.ID)
	case Checkpointed:
		c.checkpointed(now, ch.ID, ch.Remaining)
	case Leading:
		if ch.Leads {
			c.promote(now, ch.Term)
		} else {
			c.demote()
		}
	default:
		panic(fmt.Sprintf("expire: unknown change %d of lease %d", ch.Kind, ch.ID))
	}
}

// reset forgets all leases: another list follows. Whether those that somebody waits for are in it, this
// member cannot say.
func (c *core) reset() {
	for _, id := range c.sorted() {
		c.forget(c.leases[id], ErrNotPrimary)
	}
	c.due, c.left, c.clears = nil, nil, nil
}

// sorted lists the ids: what the stage does must not depend on the order of a map.
func (c *core) sorted() []int64 {
	ids := make([]int64, 0, len(c.leases))
	for id := range c.leases {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (c *core) granted(now int64, ch *Change) {
	if old := c.leases[ch.ID]; old != nil {
		panic(fmt.Sprintf("expire: lease %d granted with TTL %d exists with TTL %d", ch.ID, ch.TTL, old.ttl))
	}
	l := &lease{id: ch.ID, ttl: ch.TTL, recorded: ch.Remaining, expiry: forever}
	c.leases[l.id] = l
	if c.leading {
		c.extend(l, now, later(now, l.fromRecord()))
	}
}

// fromRecord is the remaining seconds that a new leader knows of.
func (l *lease) fromRecord() int64 {
	if l.recorded > 0 {
		return l.recorded
	}
	return l.ttl
}

// later is t plus seconds; the sum stops at forever, which the largest TTL comes near to.
func later(t, seconds int64) int64 {
	if seconds > (forever-1-max(t, 0))/second { // a clock may begin anywhere
		return forever - 1
	}
	return t + seconds*second
}

// extend sets a lease's expiry, as of now.
func (c *core) extend(l *lease, now, expiry int64) {
	l.expiry, l.since = expiry, now
	if s := &l.slots[byExpiry]; s.pos == 0 || expiry < s.key {
		c.expiries.push(l, expiry)
	}
	if c.checkpoint && l.slots[byCheckpoint].pos == 0 && expiry-now > c.checkpointInterval {
		c.checkpoints.push(l, now+c.checkpointInterval)
	}
}

func (c *core) revoked(id int64) {
	if l := c.leases[id]; l != nil {
		c.forget(l, ErrNotFound)
	}
}

// forget removes a lease; who waits for it gets err.
func (c *core) forget(l *lease, err error) {
	delete(c.leases, l.id)
	if l.phase != alive {
		c.overdue--
	}
	l.dead = true
	c.expiries.remove(l)
	c.checkpoints.remove(l)
	c.answerAll(l.renewals, answer{err: err})
	c.answerAll(l.waiters, answer{err: err})
	l.renewals, l.waiters = nil, nil
}

// promote makes this member the one that decides. Every lease gets what is left of it as the replicated state
// knows, and two election timeouts: one is not enough when followers may forget a dead leader at once. A lease
// that has run out under this member's own leadership stays due when the member follows itself: nobody else
// can have renewed it in between.
func (c *core) promote(now int64, term uint64) {
	again := c.leading
	c.leading, c.term = true, term
	ls := make([]*lease, 0, len(c.leases))
	for _, l := range c.leases {
		if again && l.phase != alive {
			continue
		}
		l.expiry = later(now, l.fromRecord())
		l.expiry = min(l.expiry, forever-1-2*c.electionTimeout) + 2*c.electionTimeout
		ls = append(ls, l)
	}
	slices.SortFunc(ls, func(a, b *lease) int {
		return cmp.Or(cmp.Compare(a.expiry, b.expiry), cmp.Compare(a.id, b.id))
	})
	// In no second more than three quarters of the revocation rate: the rest is for renewed leases.
	perSecond := int(max(c.revokeRate*3/4, 1))
	for i, l := range ls {
		if i >= perSecond {
			l.expiry = max(l.expiry, later(ls[i-perSecond].expiry, 1))
		}
		c.extend(l, now, l.expiry)
	}
}

// demote: somebody else decides now.
func (c *core) demote() {
	if !c.leading {
		return
	}
	c.leading = false
	c.expiries.clear()
	c.checkpoints.clear()
	for _, id := range c.sorted() {
		l := c.leases[id]
		c.answerAll(l.renewals, answer{err: ErrNotPrimary})
		c.answerAll(l.waiters, answer{err: ErrNotPrimary})
		*l = lease{id: l.id, ttl: l.ttl, recorded: l.recorded, expiry: forever}
	}
	for _, m := range c.parked {
		c.answer(m.reply, answer{err: ErrNotPrimary})
	}
	c.due, c.left, c.clears, c.parked, c.confirm = nil, nil, nil, nil, false
	c.overdue = 0
}

func (c *core) timeToLive(now int64, m timeToLiveMsg) {
	l := c.leases[m.id]
	switch {
	case !c.leading:
		c.answer(m.reply, answer{err: ErrNotPrimary})
	case l == nil:
		c.answer(m.reply, answer{err: ErrNotFound})
	default:
		left := l.expiry - now
		seconds := left / second
		if left < 0 && left%second != 0 {
			seconds-- // rounded down, also below zero
		}
		c.answer(m.reply, answer{granted: l.ttl, remaining: seconds})
	}
}

// list answers with all leases, unsorted: the asker sorts, on its own time.
func (c *core) list(m listMsg) {
	ls := make([]remaining, 0, len(c.leases))
	for _, l := range c.leases {
		ls = append(ls, remaining{l.id, l.expiry})
	}
	c.answer(m.reply, answer{leases: ls})
}

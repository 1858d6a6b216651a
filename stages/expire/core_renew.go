package expire

// trusted says whether this member may act as the leader at now: replicate's tick is fresh, or a read barrier
// that began at most an election timeout ago has succeeded.
func (c *core) trusted(now int64, fresh bool) bool {
	return fresh || now-c.confirmed <= c.electionTimeout
}

// renew answers a renewal, or keeps it: until the leadership is confirmed, until the lease's end has come
// back, or until a checkpoint is taken back.
func (c *core) renew(now int64, fresh bool, m renewMsg) {
	if !c.leading {
		c.answer(m.reply, answer{err: ErrNotPrimary})
		return
	}
	if !c.trusted(now, fresh) {
		c.parked = append(c.parked, m)
		c.confirm = true
		return
	}
	l := c.leases[m.id]
	switch {
	case l == nil:
		c.answer(m.reply, answer{err: ErrNotFound})
	case l.phase != alive || now >= l.expiry:
		l.waiters = keep(l.waiters, m.reply)
	default:
		c.out.renewed++
		c.extend(l, now, later(now, l.ttl))
		if l.recorded == 0 && !l.inFlight && !l.clearing {
			c.answer(m.reply, answer{granted: l.ttl})
			return
		}
		// A later leader must not find the old remaining time: the answer waits until it is taken back.
		l.renewals = keep(l.renewals, m.reply)
		if !l.clearing {
			l.clearing, l.clearAt = true, 0
			c.clears = append(c.clears, l)
		}
	}
}

// keep appends r, and forgets callers that no longer wait before the list grows.
func keep(rs []*reply, r *reply) []*reply {
	if len(rs) == cap(rs) {
		kept := rs[:0]
		for _, x := range rs {
			if !x.gone.Load() {
				kept = append(kept, x)
			}
		}
		clear(rs[len(kept):])
		rs = kept
	}
	return append(rs, r)
}

// checkpointed: a checkpoint of the lease was applied, or taken back.
func (c *core) checkpointed(now, id, seconds int64) {
	l := c.leases[id]
	if l == nil {
		return
	}
	l.recorded = seconds
	if seconds > 0 {
		if c.leading && !l.inFlight && !l.clearing {
			// Sent under an earlier leadership: what was renewed since must not be cut short by it.
			l.clearing, l.clearAt = true, 0
			c.clears = append(c.clears, l)
		}
		l.inFlight = false
		return
	}
	if !l.clearing {
		return
	}
	l.clearing, l.inFlight = false, false
	if l.phase == alive && now < l.expiry {
		c.extend(l, now, later(now, l.ttl)) // the client counts from the answer
		c.answerAll(l.renewals, answer{granted: l.ttl})
	} else {
		l.waiters = append(l.waiters, l.renewals...)
	}
	l.renewals = nil
}

// barrier takes the outcome of a read barrier. What waits for it goes on; if the barrier took so long that
// it says nothing any more, the next one is wanted.
func (c *core) barrier(now int64, fresh bool, m confirmedMsg) {
	if m.ok {
		c.confirmed = max(c.confirmed, m.began)
		c.tick(now, fresh)
		return
	}
	for _, p := range c.parked {
		c.answer(p.reply, answer{err: ErrNotPrimary})
	}
	c.parked = nil
}

// takeConfirm says whether a read barrier is wanted, once.
func (c *core) takeConfirm() bool {
	wanted := c.confirm
	c.confirm = false
	return wanted
}

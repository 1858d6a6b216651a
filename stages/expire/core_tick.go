package expire

// checkpointsMax is how many checkpoints leave together.
const checkpointsMax = 1000

// tick moves leases that have run out to due, and revocations that have not come back in time as well.
func (c *core) tick(now int64, fresh bool) {
	c.credit = min(c.credit+(now-c.ticked), second)
	c.ticked = now
	if !c.leading {
		return
	}
	if !c.trusted(now, fresh) {
		c.confirm = c.confirm || len(c.parked) > 0 || len(c.due) > 0 || c.expiries.top(now) != nil
		return
	}
	parked := c.parked
	c.parked = nil
	for _, p := range parked {
		c.renew(now, fresh, p)
	}
	for l := c.expiries.top(now); l != nil; l = c.expiries.top(now) {
		if l.expiry > now { // renewed since
			c.expiries.push(l, l.expiry)
			continue
		}
		c.expiries.remove(l)
		c.checkpoints.remove(l)
		l.phase = due
		c.due = append(c.due, l)
		c.overdue++
		c.out.expired++
	}
	for len(c.left) > 0 {
		l := c.left[0]
		if !l.dead && now-l.sentAt < c.requestTimeout {
			break
		}
		if !l.dead {
			l.phase = due
			c.due = append(c.due, l)
		}
		c.left[0] = nil
		c.left = c.left[1:]
	}
	c.look = true
}

// revocations returns the leases to revoke now, as far as the rate allows, oldest first, appended to ids.
// They stay due until sent says that they have left; what has not is offered again after the next Tick.
func (c *core) revocations(now int64, fresh bool, ids []int64) []int64 {
	if !c.look || !c.leading || len(c.due) == 0 || !c.trusted(now, fresh) {
		return ids
	}
	c.look = false
	want := int(min(int64(len(c.due)), c.credit*c.revokeRate/second))
	end := 0 // of the part of c.due that leaves, dead ones included
	for ; end < len(c.due) && want > 0; end++ {
		if l := c.due[end]; !l.dead {
			ids = append(ids, l.id)
			want--
		}
	}
	start := end
	for i := end - 1; i >= 0; i-- { // drop the dead ones, which sent must not count
		if l := c.due[i]; !l.dead {
			start--
			c.due[start] = l
		}
	}
	c.due = c.due[start:]
	return ids
}

// sent says that the first n of the last revocations have left.
func (c *core) sent(now int64, n int) {
	for i, l := range c.due[:n] {
		l.phase, l.sentAt = left, now
		c.left = append(c.left, l)
		c.due[i] = nil
	}
	c.due = c.due[n:]
	c.credit -= int64(n) * second / c.revokeRate
}

// records returns the checkpoints to send now, those to take back first, appended to cps. They stay wanted
// until recordsSent.
func (c *core) records(now int64, fresh bool, cps []Checkpoint) []Checkpoint {
	if !c.leading || !c.trusted(now, fresh) {
		return cps
	}
	kept := c.clears[:0]
	for _, l := range c.clears {
		if l.dead || !l.clearing {
			continue
		}
		kept = append(kept, l)
		if len(cps) < checkpointsMax && (l.clearAt == 0 || now-l.clearAt >= c.requestTimeout) {
			cps = append(cps, Checkpoint{ID: l.id})
		}
	}
	clear(c.clears[len(kept):])
	c.clears = kept
	for l := c.checkpoints.top(now); l != nil && len(cps) < checkpointsMax; l = c.checkpoints.top(now) {
		if at := l.since + c.checkpointInterval; at > now || l.clearing { // renewed since, or just now
			c.checkpoints.push(l, max(at, now+1))
			continue
		}
		c.checkpoints.remove(l)
		seconds := (l.expiry - now + second - 1) / second
		if seconds > 0 && seconds < l.ttl {
			cps = append(cps, Checkpoint{ID: l.id, Remaining: seconds})
		} else {
			c.again(l, now, now)
		}
	}
	return cps
}

// recordsSent says that cps, from the last call of records, have left, or that they were refused.
func (c *core) recordsSent(now int64, cps []Checkpoint, accepted bool) {
	for _, cp := range cps {
		l := c.leases[cp.ID]
		switch {
		case cp.Remaining == 0 && accepted:
			l.clearAt = max(now, 1)
		case cp.Remaining > 0 && accepted:
			l.inFlight = true
			c.again(l, now, now)
		case cp.Remaining > 0:
			c.checkpoints.push(l, now+second)
		}
	}
}

// again plans a lease's next checkpoint, an interval after since, if enough of it will be left then.
func (c *core) again(l *lease, now, since int64) {
	l.since = since
	if l.expiry-now > c.checkpointInterval {
		c.checkpoints.push(l, now+c.checkpointInterval)
	}
}

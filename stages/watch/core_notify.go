package watch

import "time"

// timers is the streams that have watchers with progress notifications, as a heap by the time of their next
// one: a Tick costs nothing while none is due.
type timers []*Stream

// start puts st in at its next whole period since it was opened, unless it is in.
func (h *timers) start(st *Stream, now time.Time) {
	if st.timer != 0 {
		return
	}
	st.due = st.opened.Add((now.Sub(st.opened)/st.period + 1) * st.period)
	*h = append(*h, st)
	st.timer = len(*h)
	h.up(st.timer - 1)
}

// stop takes st out, if it is in.
func (h *timers) stop(st *Stream) {
	if st.timer == 0 {
		return
	}
	i, last := st.timer-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	st.timer = 0
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h timers) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer, h[j].timer = i+1, j+1
}

func (h timers) up(i int) {
	for i > 0 && h[i].due.Before(h[(i-1)/2].due) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h timers) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].due.Before(h[least].due) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

// tick sends the progress notifications that are due at now.
func (c *core) tick(now time.Time) {
	for len(c.timers) > 0 && !c.timers[0].due.After(now) {
		st := c.timers[0]
		missed := now.Sub(st.due) / st.period
		st.due = st.due.Add((missed + 1) * st.period)
		c.timers.down(0)
		for _, id := range st.ids() {
			w := st.watchers[id]
			if !w.notify {
				continue
			}
			// A watcher that got events needs no notification. One that is not caught up gets none, and
			// a stream without room finds out when its client has read what waits.
			if w.state == live && !w.received {
				c.items = append(c.items[:0], item{
					Message: Message{Revision: c.rev, Head: w.head, Bytes: len(w.head)},
				})
				st.out.push(c.items)
			}
			w.received = false
		}
	}
}

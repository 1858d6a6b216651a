package expire

// heap is a 4-ary min-heap of leases. Its keys may lag behind the truth: a renewal moves only the lease's
// expiry, and whoever takes a lease from the top puts it back when its time has not come. So a renewal costs
// no comparison, however many leases there are.
type heap struct {
	order  order
	leases []*lease
}

// order says which of a lease's two keys and places a heap uses.
type order uint8

const (
	byExpiry order = iota
	byCheckpoint
	orders = iota
)

// slot is a lease's key and place in one heap.
type slot struct {
	key int64
	pos int // plus 1; 0 when it is not in the heap
}

func (h *heap) less(a, b *lease) bool {
	if ka, kb := a.slots[h.order].key, b.slots[h.order].key; ka != kb {
		return ka < kb
	}
	return a.id < b.id
}

func (h *heap) set(i int, l *lease) {
	h.leases[i] = l
	l.slots[h.order].pos = i + 1
}

// push adds l, or moves it to a new key.
func (h *heap) push(l *lease, key int64) {
	s := &l.slots[h.order]
	s.key = key
	if s.pos == 0 {
		h.leases = append(h.leases, l)
		s.pos = len(h.leases)
	}
	h.down(s.pos - 1)
	h.up(s.pos - 1)
}

// remove takes l out, if it is in.
func (h *heap) remove(l *lease) {
	s := &l.slots[h.order]
	if s.pos == 0 {
		return
	}
	i, last := s.pos-1, len(h.leases)-1
	moved := h.leases[last]
	h.leases[last] = nil
	h.leases = h.leases[:last]
	s.pos = 0
	if i < last {
		h.set(i, moved)
		h.down(i)
		h.up(moved.slots[h.order].pos - 1)
	}
}

// top returns the lease with the lowest key if that is at most now.
func (h *heap) top(now int64) *lease {
	if len(h.leases) == 0 || h.leases[0].slots[h.order].key > now {
		return nil
	}
	return h.leases[0]
}

func (h *heap) clear() {
	for _, l := range h.leases {
		l.slots[h.order].pos = 0
	}
	h.leases = nil
}

func (h *heap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 4
		if !h.less(h.leases[i], h.leases[parent]) {
			return
		}
		a, b := h.leases[i], h.leases[parent]
		h.set(i, b)
		h.set(parent, a)
		i = parent
	}
}

func (h *heap) down(i int) {
	for {
		least := i
		for child := 4*i + 1; child <= 4*i+4 && child < len(h.leases); child++ {
			if h.less(h.leases[child], h.leases[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		a, b := h.leases[i], h.leases[least]
		h.set(i, b)
		h.set(least, a)
		i = least
	}
}

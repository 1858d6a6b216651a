package fault

import (
	"errors"
	"math/rand/v2"
)

// sectorBytes is what a disk writes whole or not at all.
const sectorBytes = 512

func asShort(err error, s *Short) bool { return errors.As(err, s) }

// write changes what processes see, and remembers it for the next Sync.
func (n *node) write(p []byte, off int64) {
	c := change{off: off, data: append([]byte{}, p...), size: -1}
	n.data = c.apply(n.data)
	n.changes = append(n.changes, c)
}

func (n *node) resize(size int64) {
	c := change{size: size}
	n.data = c.apply(n.data)
	n.changes = append(n.changes, c)
}

// apply returns data as c leaves it.
func (c change) apply(data []byte) []byte {
	if c.size >= 0 {
		return sized(data, c.size)
	}
	if end := c.off + int64(len(c.data)); end > int64(len(data)) {
		data = sized(data, end)
	}
	copy(data[c.off:], c.data)
	return data
}

// sized cuts data, or extends it with zeros.
func sized(data []byte, size int64) []byte {
	if size <= int64(len(data)) {
		return data[:size]
	}
	if size <= int64(cap(data)) {
		old := len(data)
		data = data[:size]
		clear(data[old:])
		return data
	}
	grown := make([]byte, size, size+size/4)
	copy(grown, data)
	return grown
}

// Crash returns a disk with what a power failure now would leave: what was synced, and of the rest whatever
// rng keeps - name changes up to some moment, each sector of each write or not. Locks are gone. The old
// disk stays as it is.
func (d *Disk) Crash(rng *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	after := New()
	for dir := range d.dirs {
		after.dirs[dir] = true
	}
	names := map[string]*node{}
	for path, n := range d.durable {
		names[path] = n
	}
	for _, op := range d.pending[:rng.IntN(len(d.pending)+1)] {
		op.apply(names)
	}
	for _, path := range below(names, "") {
		n := names[path]
		data := n.survivors(rng)
		kept := &node{data: data, stable: append([]byte{}, data...)}
		after.nodes[path], after.durable[path] = kept, kept
	}
	return after
}

// Kill returns a disk as the next process sees it after a kill: nothing is lost but locks; what was not
// synced still is not.
func (d *Disk) Kill() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	after := &Disk{nodes: map[string]*node{}, durable: map[string]*node{}, dirs: map[string]bool{}}
	copies := map[*node]*node{}
	clone := func(n *node) *node {
		if n != nil && copies[n] == nil {
			copies[n] = &node{
				data: append([]byte{}, n.data...), stable: append([]byte{}, n.stable...),
				changes: append([]change{}, n.changes...),
			}
		}
		return copies[n]
	}
	for path, n := range d.nodes {
		after.nodes[path] = clone(n)
	}
	for path, n := range d.durable {
		after.durable[path] = clone(n)
	}
	for _, op := range d.pending {
		op.n = clone(op.n)
		after.pending = append(after.pending, op)
	}
	for dir := range d.dirs {
		after.dirs[dir] = true
	}
	return after
}

// survivors returns the file's content after a power failure.
func (n *node) survivors(rng *rand.Rand) []byte {
	data := append([]byte{}, n.stable...)
	sizes := true // size changes survive up to some moment
	for _, c := range n.changes {
		if c.size >= 0 {
			if sizes = sizes && rng.IntN(2) == 0; sizes {
				data = c.apply(data)
			}
			continue
		}
		if c.off+int64(len(c.data)) > int64(len(data)) && rng.IntN(2) == 0 {
			data = sized(data, c.off+int64(len(c.data)))
		}
		for from := 0; from < len(c.data); {
			off := c.off + int64(from)
			to := min(len(c.data), from+int(sectorBytes-off%sectorBytes))
			if rng.IntN(2) == 0 && off+int64(to-from) <= int64(len(data)) {
				copy(data[off:], c.data[from:to])
			}
			from = to
		}
	}
	return data
}

// Corrupt sets a byte of a file, durably, as a bad disk would.
func (d *Disk) Corrupt(path string, off int64, to byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[path]
	n.data[off] = to
	if off < int64(len(n.stable)) {
		n.stable[off] = to
	}
}

// Content returns a copy of a file as processes see it, nil when there is none.
func (d *Disk) Content(path string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[path]
	if n == nil {
		return nil
	}
	return append([]byte{}, n.data...)
}

// Put makes a durable file.
func (d *Disk) Put(path string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := &node{data: append([]byte{}, data...), stable: append([]byte{}, data...)}
	d.nodes[path], d.durable[path] = n, n
}

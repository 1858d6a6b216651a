package watch

import (
	"hash/fnv"
	"maps"
	"slices"
)

// span is what a watcher watches: one key, or [key, end), or everything from key on.
type span struct {
	key, end string
	kind     spanKind
}

type spanKind uint8

const (
	single spanKind = iota
	bounded
	open
)

// endsAfter says whether key is before the span's end.
func (s *span) endsAfter(key []byte) bool { return s.kind == open || s.end > string(key) }

// holds says whether the span holds key.
func (s *span) holds(key []byte) bool {
	if s.kind == single {
		return s.key == string(key)
	}
	return s.key <= string(key) && s.endsAfter(key)
}

// index finds the spans that hold a key: a hash map for single keys, an interval tree for ranges. Watchers of
// equal spans share one entry, so a thousand watchers of one prefix cost one step.
//
// The tree is a treap ordered by (key, end); each node knows the farthest end below it, so that a search
// leaves out every subtree that ends at or before the key. Priorities come from a hash of the span: the shape
// depends on the set of spans alone, not on the order of insertion.
type index[T any] struct {
	exact  map[string]T
	root   *node[T]
	ranges int
}

type node[T any] struct {
	span        span
	value       T
	priority    uint64
	left, right *node[T]
	farEnd      string // the farthest end in the subtree, unless farOpen
	farOpen     bool   // the subtree holds a span without an end
}

// get returns the value of exactly s.
func (x *index[T]) get(s span) (v T, ok bool) {
	if s.kind == single {
		v, ok = x.exact[s.key]
		return v, ok
	}
	for n := x.root; n != nil; {
		switch order := compareSpans(&s, &n.span); {
		case order < 0:
			n = n.left
		case order > 0:
			n = n.right
		default:
			return n.value, true
		}
	}
	return v, false
}

// put adds s, which must not be there.
func (x *index[T]) put(s span, v T) {
	if s.kind == single {
		if x.exact == nil {
			x.exact = make(map[string]T)
		}
		x.exact[s.key] = v
		return
	}
	n := &node[T]{span: s, value: v, priority: priority(&s)}
	n.update()
	x.root = insert(x.root, n)
	x.ranges++
}

// remove takes s out, which must be there.
func (x *index[T]) remove(s span) {
	if s.kind == single {
		delete(x.exact, s.key)
		return
	}
	x.root = remove(x.root, &s)
	x.ranges--
}

// match appends the values of all spans that hold key.
func (x *index[T]) match(key []byte, to []T) []T {
	if v, ok := x.exact[string(key)]; ok {
		to = append(to, v)
	}
	return stab(x.root, key, to)
}

// all returns every value, in an order that depends on the spans alone.
func (x *index[T]) all() []T {
	vs := make([]T, 0, len(x.exact)+x.ranges)
	for _, key := range slices.Sorted(maps.Keys(x.exact)) {
		vs = append(vs, x.exact[key])
	}
	return walk(x.root, vs)
}

func walk[T any](n *node[T], to []T) []T {
	if n == nil {
		return to
	}
	return walk(n.right, append(walk(n.left, to), n.value))
}

func stab[T any](n *node[T], key []byte, to []T) []T {
	for n != nil && (n.farOpen || n.farEnd > string(key)) {
		to = stab(n.left, key, to)
		if n.span.key > string(key) {
			return to // and so are all on the right
		}
		if n.span.endsAfter(key) {
			to = append(to, n.value)
		}
		n = n.right
	}
	return to
}

func compareSpans(a, b *span) int {
	switch {
	case a.key != b.key:
		return compareStrings(a.key, b.key)
	case a.kind != b.kind:
		return int(a.kind) - int(b.kind)
	}
	return compareStrings(a.end, b.end)
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func priority(s *span) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s.key))
	h.Write([]byte{0, byte(s.kind)})
	h.Write([]byte(s.end))
	x := h.Sum64() * 0x9e3779b97f4a7c15 // FNV's upper bits move little on short keys
	return x ^ x>>32
}

func (n *node[T]) update() {
	n.farEnd, n.farOpen = n.span.end, n.span.kind == open
	for _, child := range [2]*node[T]{n.left, n.right} {
		if child != nil {
			n.farOpen = n.farOpen || child.farOpen
			n.farEnd = max(n.farEnd, child.farEnd)
		}
	}
}

func insert[T any](n, add *node[T]) *node[T] {
	if n == nil {
		return add
	}
	if add.priority > n.priority {
		add.left, add.right = split(n, &add.span)
		add.update()
		return add
	}
	if compareSpans(&add.span, &n.span) < 0 {
		n.left = insert(n.left, add)
	} else {
		n.right = insert(n.right, add)
	}
	n.update()
	return n
}

// split parts n into the nodes before and behind s.
func split[T any](n *node[T], s *span) (before, behind *node[T]) {
	if n == nil {
		return nil, nil
	}
	if compareSpans(&n.span, s) < 0 {
		n.right, behind = split(n.right, s)
		n.update()
		return n, behind
	}
	before, n.left = split(n.left, s)
	n.update()
	return before, n
}

// join is the inverse of split.
func join[T any](before, behind *node[T]) *node[T] {
	switch {
	case before == nil:
		return behind
	case behind == nil:
		return before
	case before.priority > behind.priority:
		before.right = join(before.right, behind)
		before.update()
		return before
	}
	behind.left = join(before, behind.left)
	behind.update()
	return behind
}

func remove[T any](n *node[T], s *span) *node[T] {
	if n == nil {
		panic("watch: removed a span that is not in the index: " + s.key + " to " + s.end)
	}
	switch order := compareSpans(s, &n.span); {
	case order < 0:
		n.left = remove(n.left, s)
	case order > 0:
		n.right = remove(n.right, s)
	default:
		return join(n.left, n.right)
	}
	n.update()
	return n
}

package backend

import (
	"bytes"
	"slices"

	"github.com/google/btree"
)

// A buffer holds the changes between two seals. Bucket key is nearly all of the traffic and arrives in
// revision order, so its puts are a plain run of pairs: appending is the whole cost, the run is sorted by
// construction, and a reader's prefix of it is a slice that nobody writes to again. Everything else (other
// buckets, the deletes of a compaction, a put out of order) goes to a small copy-on-write tree in which the
// last write wins.
//
// What must hold: where run and rest name the same key, rest is the later one. A put joins the run only
// when its key is above every key of the run and above every key of bucket key in rest.
type buffer struct {
	run     []pair
	rest    *btree.BTreeG[change] // nil until needed
	shown   *btree.BTreeG[change] // a clone of rest as readers see it; nil when rest has changed since
	restMax []byte                // the largest key of bucket key in rest
	ops     int                   // changes taken, overwritten ones included
	bytes   int64                 // their keys and values and changeBytes each
	seal    Seal                  // set when sealed
}

type pair struct{ key, value []byte }

// change is a put, or a delete when value is nil.
type change struct {
	bucket     Bucket
	key, value []byte
}

const (
	changeBytes = 64 // about what a change costs in memory besides its key and value
	restDegree  = 32
)

func (c change) less(d change) bool {
	if c.bucket != d.bucket {
		return c.bucket < d.bucket
	}
	return bytes.Compare(c.key, d.key) < 0
}

// newBuffer returns an empty buffer with room for pairs puts to bucket key.
func newBuffer(pairs int) *buffer { return &buffer{run: make([]pair, 0, pairs)} }

// add takes a change; value nil deletes.
func (b *buffer) add(bucket Bucket, key, value []byte) {
	b.ops++
	b.bytes += int64(len(key)+len(value)) + changeBytes
	if bucket == Key && value != nil && b.extends(key) {
		b.run = append(b.run, pair{key, value})
		return
	}
	if b.rest == nil {
		b.rest = btree.NewG(restDegree, change.less)
	}
	b.shown = nil
	b.rest.ReplaceOrInsert(change{bucket, key, value})
	if bucket == Key && bytes.Compare(key, b.restMax) > 0 {
		b.restMax = key
	}
}

func (b *buffer) extends(key []byte) bool {
	if n := len(b.run); n > 0 && bytes.Compare(key, b.run[n-1].key) <= 0 {
		return false
	}
	return b.restMax == nil || bytes.Compare(key, b.restMax) > 0
}

// layer returns what has been added so far. It does not change when the buffer does.
func (b *buffer) layer() layer {
	if b.rest != nil && b.shown == nil {
		b.shown = b.rest.Clone()
	}
	return layer{run: b.run[:len(b.run):len(b.run)], rest: b.shown}
}

// changes calls fn for every change that is left, each key once per bucket, bucket key first. The seal's
// own entries of bucket meta come last.
func (b *buffer) changes(fn func(c change) error) error {
	for _, p := range b.run {
		if err := fn(change{Key, p.key, p.value}); err != nil {
			return err
		}
	}
	if b.rest != nil {
		var err error
		b.rest.Ascend(func(c change) bool {
			err = fn(c)
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	for _, p := range b.seal.pairs() {
		if err := fn(change{Meta, p.key, p.value}); err != nil {
			return err
		}
	}
	return nil
}

// layer is an immutable prefix of a buffer. Any number of goroutines may read it.
type layer struct {
	run  []pair
	rest *btree.BTreeG[change]
}

func (l layer) empty() bool { return len(l.run) == 0 && l.rest == nil }

// get returns the layer's word on a key: found with a nil value means deleted.
func (l layer) get(bucket Bucket, key []byte) (value []byte, found bool) {
	if l.rest != nil {
		if c, ok := l.rest.Get(change{bucket: bucket, key: key}); ok {
			return c.value, true
		}
	}
	if bucket != Key || len(l.run) == 0 || bytes.Compare(key, l.run[0].key) < 0 {
		return nil, false
	}
	if i, ok := searchRun(l.run, key); ok {
		return l.run[i].value, true
	}
	return nil, false
}

// searchRun returns the position of the first pair whose key is not below key, and whether it is key.
func searchRun(run []pair, key []byte) (int, bool) {
	return slices.BinarySearchFunc(run, key, func(p pair, key []byte) int { return bytes.Compare(p.key, key) })
}

package backend

import (
	"bytes"

	"github.com/google/btree"
	bolt "go.etcd.io/bbolt"
)

// A Scan merges the file with the layers above it. Every source yields its keys in ascending order; where
// several hold the same key the newest speaks, and a nil value means that the key is gone.
type source interface {
	head() (key, value []byte) // a nil key at the end
	next()
}

// merge calls fn for the keys below to, in ascending order, until fn returns false. sources stand newest
// first. A nil to does not end.
func merge(sources []source, to []byte, fn func(key, value []byte) bool) {
	for {
		var key, value []byte
		at := -1
		for i, s := range sources {
			if k, v := s.head(); k != nil && (at < 0 || bytes.Compare(k, key) < 0) {
				key, value, at = k, v, i
			}
		}
		if at < 0 || to != nil && bytes.Compare(key, to) >= 0 {
			return
		}
		if value != nil && !fn(key, value) {
			return
		}
		for _, s := range sources[at:] {
			if k, _ := s.head(); k != nil && bytes.Equal(k, key) {
				s.next()
			}
		}
	}
}

// fileSource walks a bucket of the file.
type fileSource struct {
	cursor     *bolt.Cursor
	key, value []byte
}

func newFileSource(b *bolt.Bucket, from []byte) *fileSource {
	s := &fileSource{cursor: b.Cursor()}
	if from == nil {
		s.key, s.value = s.cursor.First()
	} else {
		s.key, s.value = s.cursor.Seek(from)
	}
	return s
}

func (s *fileSource) head() (key, value []byte) { return s.key, s.value }
func (s *fileSource) next()                     { s.key, s.value = s.cursor.Next() }

// runSource walks a run.
type runSource struct{ run []pair }

func newRunSource(run []pair, from []byte) *runSource {
	i, _ := searchRun(run, from)
	return &runSource{run[i:]}
}

func (s *runSource) head() (key, value []byte) {
	if len(s.run) == 0 {
		return nil, nil
	}
	return s.run[0].key, s.run[0].value
}

func (s *runSource) next() { s.run = s.run[1:] }

// restSource walks one bucket of a tree. The tree only iterates by callback, so a few changes are taken
// at a time.
type restSource struct {
	tree   *btree.BTreeG[change]
	bucket Bucket
	chunk  []change
	at     int
	last   bool // the tree holds nothing behind chunk
}

const restChunk = 32

func newRestSource(tree *btree.BTreeG[change], bucket Bucket, from []byte) *restSource {
	s := &restSource{tree: tree, bucket: bucket}
	s.fill(from, nil)
	return s
}

// fill takes the next changes from key on, without the one at after.
func (s *restSource) fill(from, after []byte) {
	s.chunk, s.at, s.last = s.chunk[:0], 0, true
	s.tree.AscendGreaterOrEqual(change{bucket: s.bucket, key: from}, func(c change) bool {
		if c.bucket != s.bucket {
			return false
		}
		if after != nil && bytes.Equal(c.key, after) {
			return true
		}
		if len(s.chunk) == restChunk {
			s.last = false
			return false
		}
		s.chunk = append(s.chunk, c)
		return true
	})
}

func (s *restSource) head() (key, value []byte) {
	if s.at == len(s.chunk) {
		return nil, nil
	}
	return s.chunk[s.at].key, s.chunk[s.at].value
}

func (s *restSource) next() {
	s.at++
	if s.at == len(s.chunk) && !s.last {
		after := s.chunk[s.at-1].key
		s.fill(after, after)
	}
}

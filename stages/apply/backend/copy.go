package backend

import (
	"bytes"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// A copier rebuilds the database in a new file while the old one goes on changing. It never needs one long
// read transaction: that would keep every page alive that is freed meanwhile, and for a big database hold up
// a remap for minutes. Instead it goes in rounds. Each round begins with the state of the last commit, S,
// and with the buffers that were committed since the round before. First it repeats, in the new file, those
// of their changes that lie in the part that is copied already; the part is then exactly as in S. Then it
// copies the next part from S.
//
// What must hold after each round: up to and including the position (bucket, key), the new file equals the
// round's state; behind it, the new file is empty. So when the position has reached the end, repeating what
// was committed since the last round, every change of it, makes the new file equal to the old one.
//
// It ends, because the writer holds apply back while the journal is full, and a round copies twice as much
// as the journal before it held.
type copier struct {
	dst    *file
	bucket []byte // being copied; nil before the first
	key    []byte // the last one copied in bucket; nil before the first
	done   bool   // everything is copied
}

const (
	copyKeysMax  = 10000    // in one transaction
	copyBytesMax = 16 << 20 // in one transaction
	copyFill     = 0.9
)

// covers reports whether the change lies in the part that is copied already.
func (c *copier) covers(ch change) bool {
	if c.done {
		return true
	}
	if c.bucket == nil {
		return false
	}
	if order := bytes.Compare([]byte(ch.bucket.String()), c.bucket); order != 0 {
		return order < 0
	}
	return c.key != nil && bytes.Compare(ch.key, c.key) <= 0
}

// replay repeats what was committed since the last round.
func (c *copier) replay(set []*buffer) error {
	if len(set) == 0 || c.bucket == nil {
		return nil
	}
	_, err := c.dst.commit(set, c.covers)
	return err
}

// copy copies from src until it has copied keys keys or size bytes, or all.
func (c *copier) copy(src *bolt.Tx, keys int, size int64) error {
	for keys > 0 && size > 0 && !c.done {
		var p portion
		_, err := c.dst.update(func(tx *bolt.Tx) (err error) {
			p = portion{keys: min(keys, copyKeysMax), bytes: min(size, copyBytesMax)}
			err = c.step(src, tx, &p)
			return err
		})
		if err != nil {
			return err
		}
		keys -= p.copied
		size -= p.copiedBytes
	}
	return nil
}

// portion is how much one transaction may copy, the last key in full, and how much it has copied.
type portion struct {
	keys        int
	bytes       int64
	copied      int
	copiedBytes int64
}

func (p *portion) full() bool { return p.copied >= p.keys || p.copiedBytes >= p.bytes }

// step copies one portion from src to dst.
func (c *copier) step(src, dst *bolt.Tx, p *portion) error {
	names := src.Cursor()
	name, _ := names.Seek(c.bucket)
	for ; name != nil; name, _ = names.Next() {
		if !bytes.Equal(name, c.bucket) {
			c.bucket, c.key = bytes.Clone(name), nil
		}
		from := src.Bucket(name)
		to, err := dst.CreateBucketIfNotExists(name)
		if err != nil {
			return fmt.Errorf("create bucket %q: %w", name, err)
		}
		to.FillPercent = copyFill
		if err := c.stepBucket(from, to, p); err != nil {
			return fmt.Errorf("copy bucket %q: %w", name, err)
		}
		if p.full() {
			return nil
		}
	}
	c.done = true
	return nil
}

var errNested = errors.New("nested bucket: not etcd's schema")

func (c *copier) stepBucket(from, to *bolt.Bucket, p *portion) error {
	cursor := from.Cursor()
	var k, v []byte
	if c.key == nil {
		k, v = cursor.First()
	} else if k, v = cursor.Seek(c.key); bytes.Equal(k, c.key) {
		k, v = cursor.Next()
	}
	var last []byte
	for ; k != nil && !p.full(); k, v = cursor.Next() {
		if v == nil {
			return errNested
		}
		if err := to.Put(k, v); err != nil {
			return err
		}
		last = k
		p.copied++
		p.copiedBytes += int64(len(k) + len(v))
	}
	if last != nil {
		c.key = bytes.Clone(last) // src's memory ends with its transaction
	}
	return nil
}

// journal is what the writer has committed since the last round.
type journal struct {
	set   []*buffer
	ops   int
	bytes int64
}

const journalBytesMax = 64 << 20 // from here on apply is held back

func (j *journal) add(set []*buffer) {
	j.set = append(j.set, set...)
	for _, b := range set {
		j.ops += b.ops
		j.bytes += b.bytes
	}
}

func (j *journal) take() journal {
	taken := *j
	*j = journal{}
	return taken
}

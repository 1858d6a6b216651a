package workload

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// The methods that are called over lean connections.
const (
	methodPut         = "/etcdserverpb.KV/Put"
	methodRange       = "/etcdserverpb.KV/Range"
	methodRangeStream = "/etcdserverpb.KV/RangeStream"
	methodTxn         = "/etcdserverpb.KV/Txn"
	methodWatch       = "/etcdserverpb.Watch/Watch"
	methodKeepAlive   = "/etcdserverpb.Lease/LeaseKeepAlive"
	methodGrant       = "/etcdserverpb.Lease/LeaseGrant"
)

const prefix = "/registry/things/"

// appendKey appends the n-th key. Keys sort by n: the first m keys are the range [key 0, key m).
func appendKey(dst []byte, n int) []byte {
	dst = append(dst, prefix+"namespace-"...)
	dst = appendPadded(dst, n/100, 6)
	dst = append(dst, "/thing-"...)
	return appendPadded(dst, n, 8)
}

func key(n int) string { return string(appendKey(nil, n)) }

func appendPadded(dst []byte, n, width int) []byte {
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], int64(n), 10)
	for range width - len(text) {
		dst = append(dst, '0')
	}
	return append(dst, text...)
}

// prefixEnd is the end of the range of all keys that begin with p.
func prefixEnd(p string) string {
	b := []byte(p)
	b[len(b)-1]++
	return string(b)
}

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

func appendBytes(dst []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(dst, field, protowire.BytesType), v)
}

func appendInt(dst []byte, field protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), uint64(v))
}

// appendPut appends a PutRequest.
func appendPut(dst, key, value []byte, lease int64) []byte {
	dst = appendBytes(appendBytes(dst, 1, key), 2, value)
	if lease != 0 {
		dst = appendInt(dst, 3, lease)
	}
	return dst
}

// rangeQuery is a RangeRequest.
type rangeQuery struct {
	key, end     string
	limit        int
	revision     int64
	serializable bool
	keysOnly     bool
	countOnly    bool
}

func (q rangeQuery) append(dst []byte) []byte {
	dst = appendBytes(dst, 1, []byte(q.key))
	if q.end != "" {
		dst = appendBytes(dst, 2, []byte(q.end))
	}
	for field, v := range [...]int64{
		3: int64(q.limit), 4: q.revision, 7: one(q.serializable), 8: one(q.keysOnly), 9: one(q.countOnly),
	} {
		if v != 0 {
			dst = appendInt(dst, protowire.Number(field), v)
		}
	}
	return dst
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// appendGet appends a RangeRequest for one key.
func appendGet(dst, key []byte, serializable bool) []byte {
	dst = appendBytes(dst, 1, key)
	if serializable {
		dst = appendInt(dst, 7, 1)
	}
	return dst
}

// appendGuardedPut appends the transaction that Kubernetes updates with: if the key was last modified at
// revision, put, else get.
func appendGuardedPut(dst, key, value []byte, revision int64) []byte {
	compare := appendInt(nil, 2, 2) // equal is 0, the target is the modification revision
	compare = appendInt(appendBytes(compare, 3, key), 6, revision)
	dst = appendBytes(dst, 1, compare)
	dst = appendBytes(dst, 2, appendBytes(nil, 2, appendPut(nil, key, value, 0)))
	return appendBytes(dst, 3, appendBytes(nil, 1, appendGet(nil, key, false)))
}

// appendPuts appends a transaction of n puts, beginning with the key first.
func appendPuts(dst []byte, first, n int, value []byte) []byte {
	var put, key []byte
	for i := range n {
		key = appendKey(key[:0], first+i)
		put = appendPut(put[:0], key, value, 0)
		dst = appendBytes(dst, 2, appendBytes(nil, 2, put))
	}
	return dst
}

// appendWatch appends a WatchRequest that creates a watcher.
func appendWatch(dst []byte, key, end string, revision int64) []byte {
	create := appendBytes(nil, 1, []byte(key))
	if end != "" {
		create = appendBytes(create, 2, []byte(end))
	}
	if revision != 0 {
		create = appendInt(create, 3, revision)
	}
	return appendBytes(dst, 1, create)
}

// fields calls fn for each field of a message: v is a number, b the bytes of a length-delimited one.
func fields(msg []byte, fn func(field protowire.Number, v uint64, b []byte) error) error {
	for len(msg) > 0 {
		field, kind, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return fmt.Errorf("decode an answer: %w", protowire.ParseError(n))
		}
		msg = msg[n:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(msg)
		case protowire.BytesType:
			b, n = protowire.ConsumeBytes(msg)
		default:
			n = protowire.ConsumeFieldValue(field, kind, msg)
		}
		if n < 0 {
			return fmt.Errorf("decode an answer: %w", protowire.ParseError(n))
		}
		msg = msg[n:]
		if err := fn(field, v, b); err != nil {
			return err
		}
	}
	return nil
}

// dig returns the number at the end of a path of fields, 0 if there is none.
func dig(msg []byte, path ...protowire.Number) (found int64, err error) {
	err = fields(msg, func(field protowire.Number, v uint64, b []byte) error {
		if field != path[0] {
			return nil
		}
		if len(path) == 1 {
			found = int64(v)
			return nil
		}
		var err error
		found, err = dig(b, path[1:]...)
		return err
	})
	return found, err
}

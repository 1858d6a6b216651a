package mvcc

import (
	"errors"
	"math"

	"sluice/tracing"
)

// Why an operation had no effect, or a read no answer. The texts are those of etcd's apply log.
var (
	ErrCompacted     = errors.New("mvcc: required revision has been compacted")
	ErrFutureRev     = errors.New("mvcc: required revision is a future revision")
	ErrKeyNotFound   = errors.New("etcdserver: key not found")
	ErrLeaseNotFound = errors.New("lease not found")
)

// ErrAnswerTooLarge stands for an answer that nobody could be sent. A read has none; a change was made, on
// every member alike, and only what it was asked to return is missing.
var ErrAnswerTooLarge = errors.New("mvcc: answer is too large")

// Bounds of an answer's bytes, inclusive.
const (
	// readBytesMax is what grpc sends at most.
	readBytesMax = math.MaxInt32
	// changeBytesMax bounds the answer of a change. It is less, for every member makes it while it applies the
	// entry, and again when it replays its log: an answer that does not fit its memory would end it each time.
	changeBytesMax = 256 << 20
)

// Leases is the lease table as the store needs it. It is called on apply's goroutine only.
type Leases interface {
	// Exists says whether lease id is granted.
	Exists(id int64) bool
	// Attach ties key to lease id, which exists.
	Attach(id int64, key string)
	// Detach unties key from lease id; nothing happens if either is unknown.
	Detach(id int64, key string)
}

// Config is what a Store is built with. The zero value is usable.
type Config struct {
	// ValueCacheBytes bounds the memory of the newest values; what does not fit is read from the
	// backend. 0 means DefaultValueCacheBytes, a negative number keeps no value.
	ValueCacheBytes int64
	Metrics         Metrics
}

// DefaultValueCacheBytes is the value budget when Config names none.
const DefaultValueCacheBytes = 1 << 30

// Metrics are the store's meters. Missing ones are discarded. The revisions are not among them: they are
// read from the published view at scrape.
type Metrics struct {
	Puts           tracing.Counter // etcd_mvcc_put_total
	Deletes        tracing.Counter // etcd_mvcc_delete_total, keys removed
	Txns           tracing.Counter // etcd_mvcc_txn_total, transactions of more than one operation
	Ranges         tracing.Counter // etcd_mvcc_range_total
	Keys           tracing.Gauge   // etcd_debugging_mvcc_keys_total, live keys
	PutBytes       tracing.Gauge   // etcd_debugging_mvcc_total_put_size_in_bytes, since start
	CompactionKeys tracing.Counter // etcd_debugging_mvcc_db_compaction_keys_total, records deleted
	CachedBytes    tracing.Gauge   // sluice_mvcc_value_cache_bytes, slabs in use
}

// Result is what one write gave.
type Result struct {
	Revision int64  // for the response header: of the change, or the current one if nothing changed
	Changed  bool   // a revision was consumed
	Body     []byte // the encoded response without its header field; belongs to the caller
}

// Sink takes the bytes of an answer.
type Sink interface {
	// Append copies p.
	Append(p []byte)
	// Reserve returns n contiguous bytes that stand next in the answer, for the caller to fill before
	// its next call. n is at most 32.
	Reserve(n int) []byte
}

// Cursor is the place of a RangeStream between two chunks. The zero value is its start.
type Cursor struct {
	from []byte // the smallest key not yet sent; nil at the start
	sent int64  // keys sent so far
}

// Sent returns the number of keys that the chunks so far held.
func (c *Cursor) Sent() int64 { return c.sent }

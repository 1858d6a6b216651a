package watch

import "sluice/stages/wire"

// Inbound is what the stage's mailbox carries. The methods of Stage and Stream make all of its kinds.
type Inbound interface{ inboundBytes() int }

// inboundOverhead is what a message is counted for beyond its events.
const inboundOverhead = 64

// InboundBytes is the size function of the stage's mailbox.
func InboundBytes(m Inbound) int { return inboundOverhead + m.inboundBytes() }

type eventsMsg struct {
	batch wire.EventBatch
	bytes int
}

type createMsg struct {
	st  *Stream
	req CreateRequest
}

type cancelMsg struct {
	st *Stream
	id int64
}

type progressMsg struct{ st *Stream }

// drainedMsg says that an outbox that had refused something is half empty again.
type drainedMsg struct{ st *Stream }

func (m eventsMsg) inboundBytes() int { return m.bytes }
func (m createMsg) inboundBytes() int { return len(m.req.Key) + len(m.req.End) + len(m.req.Refuse) }
func (cancelMsg) inboundBytes() int   { return 0 }
func (progressMsg) inboundBytes() int { return 0 }
func (drainedMsg) inboundBytes() int  { return 0 }
func (*result) inboundBytes() int     { return 0 }

// CreateRequest is a WatchCreateRequest. Key and End belong to the stage once it is sent.
type CreateRequest struct {
	ID       int64  // 0: the stage chooses
	Key, End []byte // as on the wire: an empty key means 0x00, an End of 0x00 means no end
	Start    int64  // 0: from now on
	PrevKV   bool
	Fragment bool
	// ProgressNotify asks for a response without events at every interval in which none were sent.
	ProgressNotify bool
	NoPut          bool
	NoDelete       bool
	// Refuse, when not empty, is the cancel reason of a create that the caller has found not to be permitted:
	// it is answered as a failure, in its turn.
	Refuse string
}

// Cancel reasons of creates that fail (contract/client-api.md 7.2).
const (
	reasonCompacted = "etcdserver: mvcc: required revision has been compacted"
	reasonEmpty     = "mvcc: watcher range is empty"
	reasonDuplicate = "mvcc: duplicate watch ID provided on the WatchStream"
)

// HistoryView is one immutable state of the store.
type HistoryView interface {
	Revision() int64
	CompactRevision() int64
	// History calls fn for all records with from <= main revision <= to, in order, until fn returns false.
	// The event is valid during the call only; its Prev is not filled.
	History(from, to int64, fn func(ev *wire.Event) bool) error
	// Get returns the encoded mvccpb.KeyValue of key at rev; false when there was none.
	Get(key []byte, rev int64) ([]byte, bool)
	Release()
}

// Views is where the workers read history. A view is held for one chunk.
type Views interface{ Acquire() HistoryView }

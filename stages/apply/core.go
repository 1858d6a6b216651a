package apply

import (
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/alarms"
	"sluice/stages/apply/auth"
	"sluice/stages/apply/lease"
	"sluice/stages/apply/members"
	"sluice/stages/apply/mvcc"
	"sluice/stages/wire"
)

// Why apply itself refuses a request.
var (
	ErrCorrupt = errors.New("etcdserver: corrupt cluster")
	ErrNoSpace = errors.New("etcdserver: no space")
)

// store is the key-value store as entries use it: *mvcc.Store.
type store interface {
	Put(r *wire.PutRequest) (mvcc.Result, error)
	DeleteRange(r *wire.DeleteRangeRequest) (mvcc.Result, error)
	Txn(r *wire.TxnRequest) (mvcc.Result, error)
	DeleteKeys(keys []string) mvcc.Result
	Compact(rev int64) error
	Revision() int64
	CompactRevision() int64
}

// core turns committed entries into changes of the state and results. It has no clock, goroutine or disk: what
// it decides follows from the entries before, but for the local parts: the quota, whether this member leads,
// and the random-looking tokens, which are issued and not stored.
type core struct {
	store   store
	leases  *lease.Set
	members *members.Set
	auth    *auth.Store
	alarms  *alarms.Set
	storage *storage

	local      uint64
	server     members.Version
	leaderTerm func() uint64
	size       func() int64 // of the backend as of its last commit
	quota      int64        // 0 or less: none

	index, term uint64 // of the last applied entry
	ledTerm     uint64 // of the last first entry of a term
	confState   bool   // raft's configuration has changed since the last seal
}

// outcome is what a run of entries led to, for the shell to send. Step appends to it.
type outcome struct {
	results      []wire.Result
	verdicts     []Verdict
	leases       []LeaseChange
	alarms       []alarmChange
	physical     []physicalWaiter
	raiseNoSpace bool
	removed      bool // this member is no longer one
	compacted    bool // a compaction was recorded
	checkpoint   bool // a disk snapshot is due whatever the number of entries
	migrated     []string
}

type alarmChange struct {
	alarm  alarms.Alarm
	raised bool
}

// physicalWaiter is closed once the compaction to rev has been committed.
type physicalWaiter struct {
	rev  int64
	done chan struct{}
}

// reset empties o and keeps its buffers. What was sent in messages is not reused.
func (o *outcome) reset() {
	clear(o.results)
	*o = outcome{results: o.results[:0]}
}

// step applies one entry. req is what a normal entry held, nil for others and for entries that were applied
// before, which change nothing and have no result.
func (c *core) step(e *raftpb.Entry, req *wire.Request, o *outcome) (kind Kind, err error) {
	index := e.GetIndex()
	if index <= c.index {
		c.storage.observe(e)
		return KindNone, nil
	}
	if c.index != 0 && index != c.index+1 {
		panic(fmt.Sprintf("apply: entry %d after %d, want %d", index, c.index, c.index+1))
	}
	c.index, c.term = index, e.GetTerm()
	switch e.GetType() {
	case raftpb.EntryConfChange:
		return KindConfChange, c.confChange(e, o)
	case raftpb.EntryNormal:
	default:
		panic(fmt.Sprintf("apply: entry %d of type %s: unknown entry type; must be either EntryNormal or "+
			"EntryConfChange", index, e.GetType()))
	}
	if len(e.Data) == 0 {
		c.firstOfTerm(o)
		return KindNone, nil
	}
	if err := req.Decode(e.Data); err != nil {
		panic(fmt.Sprintf("apply: entry %d of term %d does not decode: %v", index, c.term, err))
	}
	if req.ID == 0 {
		panic(fmt.Sprintf("apply: entry %d of term %d: could not find a header", index, c.term))
	}
	res := wire.Result{ID: req.ID, Index: index, Term: c.term}
	kind = c.request(req, &res, o)
	o.results = append(o.results, res)
	return kind, res.Err
}

// firstOfTerm is an empty entry: the first that a leader proposes, and what raft leaves of a conf change that
// it refused. Only the former counts.
func (c *core) firstOfTerm(o *outcome) {
	if c.term <= c.ledTerm {
		return
	}
	c.ledTerm = c.term
	o.leases = append(o.leases, LeaseChange{
		Kind: LeaseLeading, Leading: c.leaderTerm() == c.term, Term: c.term,
	})
}

func (c *core) confChange(e *raftpb.Entry, o *outcome) error {
	cc := &raftpb.ConfChange{}
	if err := proto.Unmarshal(e.Data, cc); err != nil {
		panic(fmt.Sprintf("apply: conf change %d of term %d does not decode: %v", c.index, c.term, err))
	}
	id := cc.GetNodeId()
	err := c.members.Apply(cc)
	if err != nil {
		cc.NodeId = new(uint64) // refused: raft counts it as done and changes nothing
	} else {
		c.confState = true
		o.removed = o.removed || (cc.GetType() == raftpb.ConfChangeRemoveNode && id == c.local)
	}
	o.verdicts = append(o.verdicts, Verdict{
		Change: cc, Result: wire.Result{ID: cc.GetId(), Index: c.index, Term: c.term, Err: err},
	})
	return err
}

// request executes r and completes res. Whatever r is, the revision of the answer's header is the store's after
// it, or the one that r made.
func (c *core) request(r *wire.Request, res *wire.Result, o *outcome) Kind {
	var kv mvcc.Result
	var kind Kind
	who := auth.Identity{User: r.Username, Revision: r.AuthRevision}
	switch {
	case r.Put != nil:
		kind = KindPut
		kv, res.Err = c.put(r.Put, who, o)
	case r.Txn != nil:
		kind = KindTxn
		kv, res.Err = c.txn(r.Txn, who, o)
	case r.DeleteRange != nil:
		kind = KindDeleteRange
		kv, res.Err = c.deleteRange(r.DeleteRange, who)
	case r.Compaction != nil:
		res.Physical, res.Err = c.compact(r.Compaction, o)
		res.Revision = c.store.Revision()
		return KindCompaction
	case r.Other != nil:
		kind, res.Message, res.Err = c.other(r.Other, who, o)
		res.Revision = c.store.Revision()
		return kind
	default:
		panic(fmt.Sprintf("apply: entry %d of term %d: not implemented apply: no known request", c.index, c.term))
	}
	res.Revision, res.Body = kv.Revision, kv.Body
	if res.Err != nil {
		res.Revision = c.store.Revision()
	}
	return kind
}

func (c *core) put(r *wire.PutRequest, who auth.Identity, o *outcome) (mvcc.Result, error) {
	if err := c.writable(true); err != nil {
		return mvcc.Result{}, err
	}
	if c.auth.Table().Enabled() {
		if err := c.mayPut(r, who); err != nil {
			return mvcc.Result{}, err
		}
	}
	over := c.overQuota(putCost(r))
	res, err := c.store.Put(r)
	return res, c.afterQuota(over, err, o)
}

func (c *core) txn(r *wire.TxnRequest, who auth.Identity, o *outcome) (mvcc.Result, error) {
	if err := c.writable(hasPut(r)); err != nil {
		return mvcc.Result{}, err
	}
	if c.auth.Table().Enabled() {
		if err := c.mayTxn(r, who); err != nil {
			return mvcc.Result{}, err
		}
	}
	over := c.overQuota(txnCost(r))
	res, err := c.store.Txn(r)
	return res, c.afterQuota(over, err, o)
}

func (c *core) deleteRange(r *wire.DeleteRangeRequest, who auth.Identity) (mvcc.Result, error) {
	if err := c.writable(false); err != nil {
		return mvcc.Result{}, err
	}
	if err := c.mayDelete(r, who); err != nil {
		return mvcc.Result{}, err
	}
	return c.store.DeleteRange(r)
}

func (c *core) compact(r *wire.CompactionRequest, o *outcome) (<-chan struct{}, error) {
	if err := c.writable(false); err != nil {
		return nil, err
	}
	if err := c.store.Compact(r.Revision); err != nil {
		return nil, err
	}
	o.compacted = true
	if !r.Physical {
		return nil, nil
	}
	done := make(chan struct{})
	o.physical = append(o.physical, physicalWaiter{r.Revision, done})
	return done, nil
}

// writable says whether the alarms let a request pass: CORRUPT stops every change of keys and leases, NOSPACE
// what needs room.
func (c *core) writable(needsRoom bool) error {
	if len(c.alarms.Alarms()) == 0 {
		return nil
	}
	if c.alarms.Any(pb.AlarmType_CORRUPT) {
		return ErrCorrupt
	}
	if needsRoom && c.alarms.Any(pb.AlarmType_NOSPACE) {
		return ErrNoSpace
	}
	return nil
}

// afterQuota completes a change that was made although it went over the quota: only this member sees its own
// size, so refusing it would make the members differ. The caller hears what is true, that the change was made
// (case BC-15; the reference reports it as failed), and the alarm, an entry, will stop the next one everywhere.
func (c *core) afterQuota(over bool, err error, o *outcome) error {
	if err != nil || !over {
		return err
	}
	if !c.alarms.Has(alarms.Alarm{Member: c.local, Type: pb.AlarmType_NOSPACE}) {
		o.raiseNoSpace = true
	}
	return nil
}

func (c *core) overQuota(cost int64) bool { return c.quota > 0 && cost > 0 && c.size()+cost >= c.quota }

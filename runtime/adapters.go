package runtime

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/mailbox"
	"sluice/stages/apply"
	"sluice/stages/expire"
	"sluice/stages/persist"
	"sluice/stages/propose"
	"sluice/stages/replicate"
	"sluice/stages/watch"
	"sluice/stages/wire"
)

// The few lines that translate one stage's words into another's, edge by edge.

// replicatePersist is replicate's edge to persist; credits keep room in its mailbox.
type replicatePersist struct{ m *Member }

func (e replicatePersist) Append(a replicate.Append) error {
	return e.m.persistIn.Sender(mailbox.Refuse).Send(e.m.loops.ctx, persist.Append(a))
}

func (e replicatePersist) Checkpoint(c replicate.Checkpoint) error {
	return e.m.persistIn.Sender(mailbox.Refuse).Send(e.m.loops.ctx, persist.Checkpoint(c))
}

// persistOut is persist's way back.
type persistOut struct{ m *Member }

func (e persistOut) Acknowledge(a persist.Ack) error {
	e.m.replicate.Persisted(replicate.PersistAck(a))
	return nil
}

// replicateApply is replicate's edge to apply; credits keep room in its mailbox.
type replicateApply struct{ m *Member }

func (e replicateApply) Apply(b replicate.Batch) error {
	return e.m.applyIn.Sender(mailbox.Refuse).Send(e.m.loops.ctx, apply.Batch(b))
}

func (e replicateApply) Install(i replicate.Install) error {
	return e.m.applyIn.Sender(mailbox.Refuse).Send(e.m.loops.ctx, apply.Install(i))
}

// WantSnapshot is asked for by followers that are too far behind: a cluster of one has none.
func (e replicateApply) WantSnapshot() {
	panic("runtime: a follower wants a snapshot in a cluster of one member")
}

// noPeers is the edge to the other members of a cluster of one.
type noPeers struct{}

func (noPeers) Send(_ uint64, msgs []*raftpb.Message) []*raftpb.Message { return msgs }

// replicatePropose is replicate's way back to propose.
type replicatePropose struct{ m *Member }

func (e replicatePropose) Refuse(entries []*raftpb.Entry, why replicate.Refusal) {
	e.m.propose.Refuse(entries, propose.Refusal(why))
}
func (e replicatePropose) ReadIndexed(round, index uint64) { e.m.propose.ReadIndexed(round, index) }
func (e replicatePropose) Standing(s replicate.Standing)   { e.m.propose.Standing(propose.Standing(s)) }
func (e replicatePropose) Backlog(bytes int64)             { e.m.propose.Backlog(bytes) }
func (e replicatePropose) Complete(results []wire.Result)  { e.m.propose.Complete(results) }

// applyOut is everything that apply emits.
type applyOut struct{ m *Member }

func (e applyOut) Events(ctx context.Context, b wire.EventBatch) error {
	return e.m.watch.Events(ctx, b)
}

func (e applyOut) Leases(ctx context.Context, changes []apply.LeaseChange) error {
	out := make([]expire.Change, len(changes))
	for i, c := range changes {
		out[i] = expire.Change{
			Kind: changeKinds[c.Kind], ID: c.ID, TTL: c.TTL, Remaining: c.Remaining, Leads: c.Leading, Term: c.Term,
		}
	}
	return e.m.expire.Changes(ctx, out)
}

var changeKinds = map[apply.LeaseChangeKind]expire.ChangeKind{
	apply.LeasesReset: expire.Reset, apply.LeaseGranted: expire.Granted, apply.LeaseRevoked: expire.Revoked,
	apply.LeaseCheckpointed: expire.Checkpointed, apply.LeaseLeading: expire.Leading,
}

func (e applyOut) Complete(results []wire.Result) { e.m.propose.Complete(results) }

func (e applyOut) Published(index uint64) {
	e.m.applied.set(index)
	e.m.propose.Published(index)
}

func (e applyOut) Acknowledge(a apply.Ack) {
	ack := replicate.ApplyAck{Batches: a.Batches, Index: a.Index, Responses: a.Responses, Checkpoint: a.Checkpoint}
	for _, v := range a.Verdicts {
		ack.Verdicts = append(ack.Verdicts, replicate.Verdict(v))
	}
	e.m.replicate.Applied(ack)
}

func (e applyOut) RaiseNoSpace() {
	select {
	case e.m.noSpace <- struct{}{}:
	default:
	}
}

// progress is what propose's overload gate compares.
type progress struct{ m *Member }

func (p progress) Committed() uint64 { return p.m.replicate.Committed() }
func (p progress) Applied() uint64   { return p.m.applied.get() }

// history is where watch reads what its window no longer holds.
type history struct{ m *Member }

func (h history) Acquire() watch.HistoryView { return historyView{h.m.apply.View()} }

type historyView struct{ v *apply.View }

func (h historyView) Revision() int64        { return h.v.KV.Revision() }
func (h historyView) CompactRevision() int64 { return h.v.KV.CompactRevision() }
func (h historyView) Release()               { h.v.Release() }
func (h historyView) History(from, to int64, fn func(ev *wire.Event) bool) error {
	return h.v.KV.History(from, to, fn)
}
func (h historyView) Get(key []byte, rev int64) ([]byte, bool) { return h.v.KV.Get(key, rev) }

// expireOut is where expire's decisions go: the revoker, which may wait for propose in its place.
type expireOut struct{ m *Member }

// standing is what expire asks before it renews or revokes: a leader that has stepped down without hearing of
// a successor may not, however fresh its clock.
type standing struct{ m *Member }

func (s standing) Fresh() bool { return s.m.leaderTerm() != 0 && s.m.replicate.Fresh() }

// revocation is one order to the revoker: leases to revoke, or checkpoints.
type revocation struct {
	term        uint64
	leases      []int64
	checkpoints []expire.Checkpoint
}

// Revoke takes all or nothing: one message, so that the pace does not hang on the mailbox's size.
func (e expireOut) Revoke(term uint64, ids []int64) int {
	order := revocation{term: term, leases: slices.Clone(ids)}
	if e.m.revoking.Sender(mailbox.Refuse).Send(e.m.loops.ctx, order) != nil {
		return 0
	}
	return len(ids)
}

func (e expireOut) Checkpoint(term uint64, cps []expire.Checkpoint) bool {
	return e.m.revoking.Sender(mailbox.Refuse).Send(e.m.loops.ctx, revocation{term: term, checkpoints: cps}) == nil
}

func (e expireOut) Barrier(ctx context.Context) error {
	if err := e.m.propose.Barrier(ctx); err != nil {
		return fmt.Errorf("read barrier: %w", err)
	}
	return nil
}

package rpc

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.uber.org/zap"

	"sluice/stages/propose"
	"sluice/stages/watch"
	"sluice/stages/wire"
)

// sessionTTL is that of the lease that a caller without one gets, in seconds.
const sessionTTL = 60

// Operators and targets of etcdserverpb.Compare, and a sort target of its RangeRequest.
const (
	compareEqual   = 0
	compareCreate  = 1
	sortByCreation = 2
)

// place is a key in the queue of those who want one name: its lock, or its leadership. The queue is the keys
// below the name by their create revisions; whose key is the oldest has the turn. A place ends when its key is
// deleted, by its owner or with its lease, and the next oldest key has the turn without a word.
//
// Nobody keeps a place while it waits: what the queue is stands in the store alone, so that any member can
// serve any of its calls, and a wait that a crash cuts off costs no more than its key's lease.
type place struct {
	prefix   []byte // of all keys of the queue
	key      []byte
	revision int64 // create revision of key
	lease    int64
	value    []byte             // of key, as it was found; nil if the call made it
	made     bool               // by this call; else the lease had this place before
	first    bool               // it had the turn at once
	header   *pb.ResponseHeader // of the transaction that made or found it
}

// queuePrefix is what the keys of a name begin with.
func queuePrefix(name []byte) []byte { return append(slices.Clip(name), '/') }

// prefixEnd is the end of the interval of the keys with a prefix that ends with a slash.
func prefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	end[len(end)-1]++
	return end
}

// oldest reads the key that has the turn.
func oldest(prefix []byte) *wire.RangeRequest {
	return &wire.RangeRequest{
		Key: prefix, RangeEnd: prefixEnd(prefix), Limit: 1, SortTarget: sortByCreation, SortOrder: sortAscend,
	}
}

// unchangedSince compares a key's create revision; 0 is that of a key that does not exist.
func unchangedSince(key []byte, revision int64) []wire.Compare {
	return []wire.Compare{{
		Key: key, Result: compareEqual, Target: compareCreate, Operand: wire.OperandCreate, Int: revision,
	}}
}

// session returns the lease to use, a fresh one if the caller has none. Nobody keeps that one alive.
func (s *Server) session(ctx context.Context, lease int64) (int64, error) {
	if lease != 0 {
		return lease, nil
	}
	r, err := (&leaseServer{Server: s}).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: sessionTTL})
	return r.GetID(), err
}

// enqueue takes the place of a lease in the queue of a name, or finds the one that it has there.
func (s *Server) enqueue(ctx context.Context, name []byte, lease int64, value []byte) (*place, error) {
	lease, err := s.session(ctx, lease)
	if err != nil {
		return nil, err
	}
	if _, err := s.identity(ctx); err != nil { // its wait for a token may last as long as the call
		return nil, err
	}
	p := &place{prefix: queuePrefix(name), lease: lease}
	p.key = strconv.AppendInt(bytes.Clone(p.prefix), lease, 16)
	owner := oldest(p.prefix)
	owner.KeysOnly = true
	// The outcome is awaited even if the caller leaves: a key that nobody has heard of would hold up the
	// others. Propose's own limit ends the wait.
	r, err := s.ownTxn(context.WithoutCancel(ctx), &wire.TxnRequest{
		Compare: unchangedSince(p.key, 0),
		Success: []wire.RequestOp{
			{Put: &wire.PutRequest{Key: p.key, Value: value, Lease: lease}}, {Range: owner},
		},
		Failure: []wire.RequestOp{{Range: &wire.RangeRequest{Key: p.key}}, {Range: owner}},
	})
	if err != nil {
		return nil, err
	}
	p.header, p.made, p.revision = r.Header, r.Succeeded, r.Header.GetRevision()
	if !p.made {
		own := r.Responses[0].GetResponseRange().Kvs[0]
		p.revision, p.value = own.CreateRevision, own.Value
	}
	p.first = r.Responses[1].GetResponseRange().Kvs[0].CreateRevision == p.revision
	if ctx.Err() != nil && (p.made || !p.first) {
		s.leave(ctx, p)
	}
	return p, ctx.Err()
}

// await returns when no key is older than the place, which by then may be lost: see held.
func (s *Server) await(ctx context.Context, p *place) error {
	for !p.first {
		// The youngest of the older keys: each wait is for one key, so that the end of one wakes one.
		r, err := s.ownRange(ctx, &wire.RangeRequest{
			Key: p.prefix, RangeEnd: prefixEnd(p.prefix), Limit: 1, KeysOnly: true, MaxCreateRevision: p.revision - 1,
			SortTarget: sortByCreation, SortOrder: sortDescend,
		})
		if err != nil {
			return err
		}
		if len(r.Kvs) == 0 {
			return nil
		}
		// A compaction may pass the read before the watch begins: then this looks again.
		err = s.awaitDelete(ctx, r.Kvs[0].Key, r.Header.Revision)
		if err != nil && !errors.Is(err, errWatchEnded) {
			return err
		}
	}
	return nil
}

// awaitDelete returns when a key that existed at a revision has been deleted since.
func (s *Server) awaitDelete(ctx context.Context, key []byte, revision int64) error {
	w, err := s.ownWatch(ctx, watch.CreateRequest{Key: key, Start: revision + 1, NoPut: true})
	if err != nil {
		return err
	}
	defer w.Close()
	_, _, err = w.next(ctx)
	return err
}

// held reads a place's key after a wait: nil if it is gone. A key of the same name that was made anew is
// another place, at the queue's end.
func (s *Server) held(ctx context.Context, p *place) (*pb.ResponseHeader, *mvccpb.KeyValue, error) {
	r, err := s.ownRange(ctx, &wire.RangeRequest{Key: p.key})
	if err != nil || len(r.Kvs) == 0 || r.Kvs[0].CreateRevision != p.revision {
		return r.Header, nil, err
	}
	return r.Header, r.Kvs[0], nil
}

// leave gives a place up whose caller has left, or has been told of an error: what it does not know to hold it
// will not give back. The caller's token may have run out while it waited, so the member does this with root's
// rights; all that it can do is to take back the key that the caller was allowed to put.
func (s *Server) leave(ctx context.Context, p *place) {
	v := s.m.View()
	root := v.Auth.Root()
	v.Release()
	res, err := s.m.Propose(context.WithoutCancel(ctx), &wire.Request{
		Username: root.User, AuthRevision: root.Revision,
		Txn: &wire.TxnRequest{
			Compare: unchangedSince(p.key, p.revision),
			Success: []wire.RequestOp{{Delete: &wire.DeleteRangeRequest{Key: p.key}}},
		},
	}, propose.Client)
	if err == nil {
		err = res.Err
	}
	if err != nil && !errors.Is(err, propose.ErrStopped) {
		s.logger.Warn("the key of a wait that was given up remains until its lease ends",
			zap.ByteString("key", p.key), zap.Error(err))
	}
}

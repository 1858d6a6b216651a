package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/runtime"
	"sluice/server/web"
	"sluice/stages/apply/mvcc"
	"sluice/stages/propose"
	"sluice/stages/wire"
)

// webMember shows a member to the HTTP endpoints.
type webMember struct{ *runtime.Member }

// Alarms are the names of the raised alarms.
func (m webMember) Alarms() []string {
	view := m.View()
	defer view.Release()
	names := make([]string, 0, len(view.Alarms))
	for _, a := range view.Alarms {
		switch a.Alarm {
		case pb.AlarmType_NONE:
		case pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT:
			names = append(names, a.Alarm.String())
		default:
			names = append(names, "UNKNOWN")
		}
	}
	return names
}

// Read reads the first key, as /health has always done.
func (m webMember) Read(ctx context.Context, serializable bool) error {
	if !serializable {
		if err := m.Barrier(ctx); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				return propose.ErrTimeout // the member's own limit, in the words that probes know
			}
			return err
		}
	}
	view := m.View()
	defer view.Release()
	// Keys from 0 to 0 are all keys.
	return view.KV.Range(&wire.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Limit: 1, KeysOnly: true}, &discard{})
}

func (m webMember) ClusterVersion() string {
	view := m.View()
	defer view.Release()
	return view.Members.ClusterVersion()
}

func (m webMember) StorageVersion() string {
	view := m.View()
	defer view.Release()
	return view.StorageVersion
}

// AuthEnabled says whether users are checked.
func (m webMember) AuthEnabled() bool {
	view := m.View()
	defer view.Release()
	return view.Auth.Enabled()
}

// PeerMembers lists the members as the peer URLs show them.
func (m webMember) PeerMembers() []web.PeerMember {
	view := m.View()
	defer view.Release()
	list := make([]web.PeerMember, 0, len(view.Members.List()))
	for _, x := range view.Members.List() {
		list = append(list, web.PeerMember{
			ID: x.ID, PeerURLs: x.PeerURLs, IsLearner: x.IsLearner, Name: x.Name, ClientURLs: x.ClientURLs,
		})
	}
	return list
}

// RaftStatus is raft's state as of its last tick.
func (m webMember) RaftStatus() web.RaftStatus {
	st := m.Member.RaftStatus()
	out := web.RaftStatus{
		ID: hex(st.ID), Term: st.GetTerm(), Vote: hex(st.GetVote()), Commit: st.GetCommit(), Lead: hex(st.Lead),
		RaftState: st.RaftState.String(), Applied: st.Applied, Progress: map[string]web.Progress{},
		LeadTransferee: hex(st.LeadTransferee),
	}
	for id, p := range st.Progress {
		out.Progress[hex(id)] = web.Progress{Match: p.Match, Next: p.Next, State: p.State.String()}
	}
	return out
}

func hex(id uint64) string { return strconv.FormatUint(id, 16) }

// Revision is the store's current revision.
func (m webMember) Revision() int64 {
	view := m.View()
	defer view.Release()
	return view.KV.Revision()
}

// Compact proposes a compaction, for auto-compaction. What is compacted already is done.
func (m webMember) Compact(ctx context.Context, revision int64) error {
	result, err := m.Propose(ctx, &wire.Request{Compaction: &wire.CompactionRequest{Revision: revision}}, propose.Client)
	if err == nil {
		err = result.Err
	}
	if err == nil || errors.Is(err, mvcc.ErrCompacted) {
		return nil
	}
	return fmt.Errorf("compact up to revision %d: %w", revision, err)
}

// discard is a sink of nothing.
type discard struct{ scratch []byte }

func (*discard) Append([]byte) {}

func (d *discard) Reserve(n int) []byte {
	if cap(d.scratch) < n {
		d.scratch = make([]byte, n)
	}
	return d.scratch[:n]
}

package members

import (
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
)

// Why a conf change is refused.
var (
	ErrIDRemoved       = errors.New("membership: ID removed")
	ErrIDExists        = errors.New("membership: ID exists")
	ErrIDNotFound      = errors.New("membership: ID not found")
	ErrPeerURLExists   = errors.New("membership: peerURL exists")
	ErrNotLearner      = errors.New("membership: can only promote a learner member")
	ErrTooManyLearners = errors.New("membership: too many learner members in cluster")
)

// change is the context of a conf change.
type change struct {
	Member
	IsPromote bool `json:"isPromote,omitempty"`
}

// Add is the conf change that adds m, as a learner if m says so. Its Id is the proposer's to fill.
func Add(m Member) *raftpb.ConfChange {
	typ := raftpb.ConfChangeAddNode
	if m.IsLearner {
		typ = raftpb.ConfChangeAddLearnerNode
	}
	return newChange(typ, change{Member: m})
}

// Promote is the conf change that makes the learner id a voter.
func Promote(id uint64) *raftpb.ConfChange {
	return newChange(raftpb.ConfChangeAddNode, change{Member: Member{ID: id}, IsPromote: true})
}

// Update is the conf change that replaces the peer URLs of the member id.
func Update(id uint64, peerURLs []string) *raftpb.ConfChange {
	return newChange(raftpb.ConfChangeUpdateNode, change{Member: Member{ID: id, PeerURLs: peerURLs}})
}

// Remove is the conf change that removes the member id for ever.
func Remove(id uint64) *raftpb.ConfChange {
	typ := raftpb.ConfChangeRemoveNode
	return &raftpb.ConfChange{Type: &typ, NodeId: &id}
}

func newChange(typ raftpb.ConfChangeType, c change) *raftpb.ConfChange {
	b, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("members: context of a conf change of %x: %v", c.ID, err))
	}
	return &raftpb.ConfChange{Type: &typ, NodeId: &c.ID, Context: b}
}

// decodeContext reads the context of cc. Such an entry is written by members only, so that one that does not
// fit means a broken log: going on would make members diverge.
func decodeContext(cc *raftpb.ConfChange) change {
	var c change
	if err := json.Unmarshal(cc.GetContext(), &c); err != nil {
		panic(fmt.Sprintf("members: context %q of conf change %s of %x: %v",
			cc.GetContext(), cc.GetType(), cc.GetNodeId(), err))
	}
	if c.ID != cc.GetNodeId() {
		panic(fmt.Sprintf("members: conf change %s of %x has the context of %x", cc.GetType(), cc.GetNodeId(), c.ID))
	}
	return c
}

// Validate says why cc may not be applied to these members, nil if it may. learnersMax is the highest number of
// learners, inclusive.
func (t *Table) Validate(cc *raftpb.ConfChange, learnersMax int) error {
	id := cc.GetNodeId()
	if t.Removed(id) {
		return ErrIDRemoved
	}
	m, exists := t.Get(id)
	switch cc.GetType() {
	case raftpb.ConfChangeAddNode, raftpb.ConfChangeAddLearnerNode:
		c := decodeContext(cc)
		if c.IsPromote {
			if !exists {
				return ErrIDNotFound
			}
			if !m.IsLearner {
				return ErrNotLearner
			}
			return nil
		}
		return t.validateAdd(c.Member, exists, learnersMax)
	case raftpb.ConfChangeRemoveNode:
		if !exists {
			return ErrIDNotFound
		}
	case raftpb.ConfChangeUpdateNode:
		if !exists {
			return ErrIDNotFound
		}
		if t.urlsUsed(decodeContext(cc).PeerURLs, id) {
			return ErrPeerURLExists
		}
	default:
		panic(fmt.Sprintf("members: unknown conf change type %d of %x", cc.GetType(), id))
	}
	return nil
}

func (t *Table) validateAdd(m Member, exists bool, learnersMax int) error {
	if exists {
		return ErrIDExists
	}
	if t.urlsUsed(m.PeerURLs, m.ID) {
		return ErrPeerURLExists
	}
	if m.IsLearner && len(t.list)-len(t.Voters())+1 > learnersMax {
		return ErrTooManyLearners
	}
	return nil
}

// urlsUsed says whether a member other than id has one of urls.
func (t *Table) urlsUsed(urls []string, id uint64) bool {
	used := map[string]struct{}{}
	for _, m := range t.list {
		if m.ID == id {
			continue
		}
		for _, u := range m.PeerURLs {
			used[u] = struct{}{}
		}
	}
	for _, u := range urls {
		if _, ok := used[u]; ok {
			return true
		}
	}
	return false
}

// with returns the members after cc, which Validate has let pass.
func (t *Table) with(cc *raftpb.ConfChange) *Table {
	n, id := t.clone(), cc.GetNodeId()
	i, exists := n.find(id)
	switch cc.GetType() {
	case raftpb.ConfChangeAddNode, raftpb.ConfChangeAddLearnerNode:
		c := decodeContext(cc)
		if c.IsPromote {
			n.list[i].IsLearner = false
			return n
		}
		n.list = append(n.list[:i], append([]Member{c.Member}, n.list[i:]...)...)
	case raftpb.ConfChangeUpdateNode:
		n.list[i].PeerURLs = decodeContext(cc).PeerURLs
	case raftpb.ConfChangeRemoveNode:
		if exists {
			n.list = append(n.list[:i], n.list[i+1:]...)
		}
		n.removed = make(map[uint64]struct{}, len(t.removed)+1)
		for r := range t.removed {
			n.removed[r] = struct{}{}
		}
		n.removed[id] = struct{}{}
	}
	return n
}

package members

import (
	"encoding/json"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
)

// Member is one member, in the JSON form of bucket members and of conf changes.
type Member struct {
	ID         uint64   `json:"id"`
	PeerURLs   []string `json:"peerURLs"`
	IsLearner  bool     `json:"isLearner,omitempty"`
	Name       string   `json:"name,omitempty"`
	ClientURLs []string `json:"clientURLs,omitempty"`
}

// Started says whether the member has ever published itself.
func (m Member) Started() bool { return m.Name != "" }

// Downgrade is the state of a downgrade job, in the JSON form of bucket cluster.
type Downgrade struct {
	TargetVersion string `json:"target-version"`
	Enabled       bool   `json:"enabled"`
}

// Table is one immutable state of the membership. Any goroutine may read it; what it returns must not be
// changed.
type Table struct {
	local     uint64
	list      []Member // ascending by ID
	removed   map[uint64]struct{}
	version   string
	downgrade Downgrade
}

// Local is the id of the member whose table this is.
func (t *Table) Local() uint64 { return t.local }

// List returns all members in ascending order of their ids.
func (t *Table) List() []Member { return t.list }

// Get returns the member id.
func (t *Table) Get(id uint64) (Member, bool) {
	i, ok := t.find(id)
	if !ok {
		return Member{}, false
	}
	return t.list[i], true
}

func (t *Table) find(id uint64) (int, bool) {
	return slices.BinarySearchFunc(t.list, id, func(m Member, id uint64) int {
		switch {
		case m.ID < id:
			return -1
		case m.ID > id:
			return 1
		}
		return 0
	})
}

// Removed says whether id was a member once and may never return.
func (t *Table) Removed(id uint64) bool {
	_, ok := t.removed[id]
	return ok
}

// RemovedIDs returns the ids of all removed members, ascending.
func (t *Table) RemovedIDs() []uint64 {
	ids := make([]uint64, 0, len(t.removed))
	for id := range t.removed {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// IsLearner says whether the local member is a learner.
func (t *Table) IsLearner() bool {
	m, ok := t.Get(t.local)
	return ok && m.IsLearner
}

// Voters returns the voting members, ascending.
func (t *Table) Voters() []Member {
	var out []Member
	for _, m := range t.list {
		if !m.IsLearner {
			out = append(out, m)
		}
	}
	return out
}

// ClusterVersion is the version that all members agreed on, such as "3.7.0"; empty while undecided.
func (t *Table) ClusterVersion() string { return t.version }

// Downgrade is the state of the downgrade job.
func (t *Table) Downgrade() Downgrade { return t.downgrade }

// ConfState is the raft configuration that these members make.
func (t *Table) ConfState() *raftpb.ConfState {
	cs := &raftpb.ConfState{AutoLeave: new(bool)}
	for _, m := range t.list {
		if m.IsLearner {
			cs.Learners = append(cs.Learners, m.ID)
		} else {
			cs.Voters = append(cs.Voters, m.ID)
		}
	}
	return cs
}

// ConfStateJSON is ConfState as meta/confState holds it.
func (t *Table) ConfStateJSON() []byte {
	cs := t.ConfState()
	b, err := json.Marshal(struct {
		Voters    []uint64 `json:"voters,omitempty"`
		Learners  []uint64 `json:"learners,omitempty"`
		AutoLeave bool     `json:"auto_leave"`
	}{cs.Voters, cs.Learners, false})
	if err != nil {
		panic(fmt.Sprintf("members: conf state of %d members: %v", len(t.list), err))
	}
	return b
}

// clone returns a copy whose list may be changed; removed is still shared.
func (t *Table) clone() *Table {
	c := *t
	c.list = slices.Clone(t.list)
	return &c
}

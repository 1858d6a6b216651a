package members

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/apply/backend"
)

var (
	keyClusterVersion = []byte("clusterVersion")
	keyDowngrade      = []byte("downgrade")
	removedMark       = []byte("removed")
)

// Set is the live membership. Apply's goroutine alone uses it; what others see is its Table.
type Set struct {
	table       *Table
	w           backend.Writer
	learnersMax int
}

// Load reads the membership from r. Changes go to w. learnersMax is --max-learners, inclusive.
func Load(r backend.Reader, w backend.Writer, local uint64, learnersMax int) (*Set, error) {
	t := &Table{local: local, removed: map[uint64]struct{}{}}
	var errs []error
	r.Scan(backend.Members, nil, nil, func(k, v []byte) bool {
		var m Member
		id, err := strconv.ParseUint(string(k), 16, 64)
		if err == nil {
			err = json.Unmarshal(v, &m)
		}
		if err == nil && m.ID != id {
			err = fmt.Errorf("value is that of %x", m.ID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read bucket members, key %q: %w", k, err))
			return false
		}
		t.list = append(t.list, m)
		return true
	})
	slices.SortFunc(t.list, func(a, b Member) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	r.Scan(backend.MembersRemoved, nil, nil, func(k, _ []byte) bool {
		id, err := strconv.ParseUint(string(k), 16, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("read bucket members_removed, key %q: %w", k, err))
			return false
		}
		t.removed[id] = struct{}{}
		return true
	})
	t.version = string(r.Get(backend.Cluster, keyClusterVersion))
	if t.version != "" {
		if _, err := ParseVersion(t.version); err != nil {
			errs = append(errs, fmt.Errorf("read bucket cluster, key clusterVersion: %w", err))
		}
	}
	if v := r.Get(backend.Cluster, keyDowngrade); v != nil {
		if err := json.Unmarshal(v, &t.downgrade); err != nil {
			errs = append(errs, fmt.Errorf("read bucket cluster, key downgrade: %w", err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &Set{table: t, w: w, learnersMax: learnersMax}, nil
}

// CheckLearners refuses a membership with more learners than --max-learners allows, with ErrTooManyLearners: it
// was lowered between two starts.
func (s *Set) CheckLearners() error {
	if len(s.table.list)-len(s.table.Voters()) > s.learnersMax {
		return ErrTooManyLearners
	}
	return nil
}

// Table is the membership of now.
func (s *Set) Table() *Table { return s.table }

// Apply validates cc and, unless it is refused with one of the sentinels, makes it so.
func (s *Set) Apply(cc *raftpb.ConfChange) error {
	if err := s.table.Validate(cc, s.learnersMax); err != nil {
		return err
	}
	s.table = s.table.with(cc)
	id := cc.GetNodeId()
	if cc.GetType() == raftpb.ConfChangeRemoveNode {
		s.w.Delete(backend.Members, []byte(Hex(id)))
		s.w.Put(backend.MembersRemoved, []byte(Hex(id)), removedMark)
		return nil
	}
	s.store(id)
	return nil
}

// Publish records the name and the client URLs that the member id publishes at its start. A removed member is
// ignored; one that never was is impossible, because a member publishes itself through a log that has added
// it before.
func (s *Set) Publish(id uint64, name string, clientURLs []string) {
	i, ok := s.table.find(id)
	if !ok {
		if s.table.Removed(id) {
			return
		}
		panic(fmt.Sprintf("members: attributes of %x: failed to update; member unknown", id))
	}
	s.table = s.table.clone()
	s.table.list[i].Name, s.table.list[i].ClientURLs = name, slices.Clone(clientURLs)
	s.store(id)
}

// SetClusterVersion records the version that the leader determined, and says whether it is lower than the one
// before. local is the version of this binary: a cluster ahead of it cannot be served.
func (s *Set) SetClusterVersion(ver string, local Version) (lowered bool) {
	v, err := ParseVersion(ver)
	if err != nil {
		panic(fmt.Sprintf("members: cluster version: %v", err))
	}
	if err := CheckServes(local, ver); err != nil {
		panic(err.Error())
	}
	if s.table.version != "" {
		before, err := ParseVersion(s.table.version)
		lowered = err == nil && v.Less(before)
	}
	s.table = s.table.clone()
	s.table.version = ver
	s.w.Put(backend.Cluster, keyClusterVersion, []byte(ver))
	return lowered
}

// CheckServes says why a binary of version local may not serve a cluster of version cluster.
func CheckServes(local Version, cluster string) error {
	v, err := ParseVersion(cluster)
	if err == nil && local.Release().Less(v.Release()) {
		return fmt.Errorf("invalid downgrade; server version is lower than determined cluster version: %s, %s",
			local, cluster)
	}
	return nil
}

// SetDowngrade records the state of the downgrade job.
func (s *Set) SetDowngrade(d Downgrade) {
	if !d.Enabled {
		d = Downgrade{} // a cancelled job has no target: this is how it stands in the bucket
	}
	s.table = s.table.clone()
	s.table.downgrade = d
	b, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Sprintf("members: downgrade %+v: %v", d, err))
	}
	s.w.Put(backend.Cluster, keyDowngrade, b)
}

func (s *Set) store(id uint64) {
	m, ok := s.table.Get(id)
	if !ok {
		panic(fmt.Sprintf("members: store of %x, which is none of %d members", id, len(s.table.list)))
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("members: store of %x: %v", id, err))
	}
	s.w.Put(backend.Members, []byte(Hex(id)), b)
}

package apply

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/apply/backend"
	"sluice/stages/apply/members"
	"sluice/stages/wire"
)

var keyStorageVersion = []byte("storageVersion")

// storage is the version of the schema in which the local database is kept. No entry sets it: each member
// follows the cluster version by itself. Upwards at once; downwards only after a disk snapshot at or behind the
// entry that lowered the cluster version, so that an older binary never meets a log that it cannot read.
//
// Rule: contract/disk-and-peer.md section 6.3.
type storage struct {
	w       backend.Writer
	version string // as stored, empty in the format of 3.5 and before a cluster version is known

	// The newest DowngradeVersionTest seen: an entry that pretends to need a version. No request that is
	// really written needs more than 3.6, the lowest version this binary can be lowered to.
	testVersion members.Version
	testIndex   uint64
}

// loadStorage reads the version. That it is none of a later release was seen when the backend was opened.
func loadStorage(r backend.Reader, w backend.Writer) (*storage, error) {
	s := &storage{w: w, version: string(r.Get(backend.Meta, keyStorageVersion))}
	if s.version == "" {
		return s, nil
	}
	if _, err := members.ParseVersion(s.version); err != nil {
		return nil, fmt.Errorf("read bucket meta, key storageVersion: %w", err)
	}
	return s, nil
}

// current is the version of the schema: without a key it is 3.5's as soon as a term is stored, and unknown
// before.
func (s *storage) current(term uint64) (members.Version, bool) {
	if s.version == "" {
		return members.Version{Major: 3, Minor: 5}, term > 0
	}
	v, err := members.ParseVersion(s.version)
	return v, err == nil
}

// raise follows a cluster version upwards, one release at a time, and returns the versions passed.
func (s *storage) raise(cluster string, term uint64) []string {
	target, ok := s.target(cluster)
	cur, known := s.current(term)
	if !ok || !known || !cur.Less(target) || cur.Major != target.Major {
		return nil
	}
	var steps []string
	for cur.Less(target) {
		cur.Minor++
		steps = append(steps, cur.String())
	}
	s.set(cur)
	return steps
}

// lower follows a cluster version downwards, once a disk snapshot at checkpoint is durable.
func (s *storage) lower(cluster string, term, checkpoint uint64) (step string, err error) {
	target, ok := s.target(cluster)
	cur, known := s.current(term)
	if !ok || !known || !target.Less(cur) {
		return "", nil
	}
	if s.testIndex > checkpoint && target.Less(s.testVersion.Release()) {
		return "", fmt.Errorf("cannot downgrade storage, WAL contains newer entries, as the target version (%s) is "+
			"lower than the version (%s) detected from WAL logs", target, s.testVersion)
	}
	s.set(target)
	return target.String(), nil
}

func (s *storage) target(cluster string) (members.Version, bool) {
	v, err := members.ParseVersion(cluster)
	v = v.Release()
	return v, err == nil && v != members.Version{Major: 3}
}

func (s *storage) set(v members.Version) {
	if v.Less(members.Version{Major: 3, Minor: 6}) {
		s.version = ""
		s.w.Delete(backend.Meta, keyStorageVersion)
		return
	}
	s.version = v.String()
	s.w.Put(backend.Meta, keyStorageVersion, []byte(s.version))
}

func (s *storage) tested(ver string, index uint64) {
	if v, err := members.ParseVersion(ver); err == nil {
		s.testVersion, s.testIndex = v, index
	}
}

// observe looks at an entry that was applied before: it is still in the log.
func (s *storage) observe(e *raftpb.Entry) {
	var r wire.Request
	if e.GetType() != raftpb.EntryNormal || len(e.Data) == 0 || r.Decode(e.Data) != nil {
		return
	}
	if t := r.Other.GetDowngradeVersionTest(); t != nil {
		s.tested(t.Ver, e.GetIndex())
	}
}

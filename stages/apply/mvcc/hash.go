package mvcc

import (
	"hash/crc32"
	"slices"

	"sluice/stages/apply/backend"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// compactionHashes is how many compactions keep their hash.
const compactionHashes = 10

// compactionHash is the hash that a compaction took of what it was about to compact.
type compactionHash struct {
	hash      uint32
	prev, rev int64
}

// keepHash adds h to the newest hashes. Views share the old slice.
func (s *Store) keepHash(h compactionHash) {
	all := append(slices.Clone(s.hashes), h)
	s.hashes = all[max(0, len(all)-compactionHashes):]
}

// hashed says whether record rev goes into a hash for compaction revision compactRev. kept says that the
// record is in the keep set, or that the keep set is empty, which excludes nothing.
func hashed(rev revision, compactRev int64, kept bool) bool {
	if rev.main <= compactRev && !kept {
		return false
	}
	return rev.main != compactRev || !rev.deleted()
}

// HashKV returns the hash of the key space at main revision rev, 0 for the current one, the compaction
// revision that it depends on and the revision it is of. At a revision with a cached compaction hash it is
// that one, with the compaction before. Equal histories give equal hashes for equal compaction revisions,
// whether or not a compaction has finished its deletions.
//
// ErrCompacted: rev is below the last compaction. ErrFutureRev: rev is above the current revision.
//
// Rule: contract/disk-and-peer.md 10.
func (v *View) HashKV(rev int64) (hash uint32, compactRev, hashRev int64, err error) {
	for _, h := range v.hashes {
		if h.rev == rev && rev != 0 {
			return h.hash, h.prev, h.rev, nil
		}
	}
	switch {
	case rev == 0:
		rev = v.rev
	case rev > 0 && rev < v.compactRev:
		return 0, 0, 0, ErrCompacted
	case rev > v.rev:
		return 0, 0, 0, ErrFutureRev
	}
	keep, empty := v.keepAt(rev)
	met := 0
	hash = crc32.Update(0, castagnoli, []byte(backend.Key.String()))
	end := revision{main: max(rev+1, 0)}.append(nil)
	v.reader.Scan(backend.Key, nil, end, func(key, value []byte) bool {
		r := parseRevision(key)
		for met < len(keep) && keep[met].compare(r) < 0 {
			met++
		}
		kept := empty || met < len(keep) && keep[met].compare(r) == 0
		if hashed(r, v.compactRev, kept) {
			hash = crc32.Update(hash, castagnoli, key)
			hash = crc32.Update(hash, castagnoli, value)
		}
		return true
	})
	return hash, v.compactRev, rev, nil
}

// keepAt returns those records up to the compaction revision that are alive at rev, in order: the others
// up to there are skipped. empty says that nothing at all is alive at rev. A key that was deleted in rev
// itself counts as dead, even when a later change of the same revision wrote it again: so the reference
// reckons (seen on 3.7.3), and equal stores must have equal hashes.
func (v *View) keepAt(rev int64) (keep []revision, empty bool) {
	empty = true
	var deleted []revision
	v.tree.Ascend(func(it item) bool {
		for i := range it.page.ents {
			if deleted = it.page.tombstonesOf(i, rev, deleted[:0]); len(deleted) > 0 {
				continue
			}
			if r, _, ok := it.page.at(i, rev); ok {
				empty = false
				if r.main <= v.compactRev {
					keep = append(keep, r.revision())
				}
			}
		}
		return true
	})
	slices.SortFunc(keep, revision.compare)
	return keep, empty
}

package propose

import "sync/atomic"

// idGenerator makes request ids: the low 16 bits of the member id, then 48 bits that begin with the
// milliseconds of the start (40 bits) and a counter (8 bits) and grow by one per id, so that the counter
// may run into the time part: a member would have to give out 256,000 ids a second for its whole life to
// meet the ids of its next one.
//
// Rule: contract/disk-and-peer.md 8.2.
type idGenerator struct {
	prefix uint64
	count  atomic.Uint64
}

func newIDGenerator(memberID uint64, startMillis int64) *idGenerator {
	g := &idGenerator{prefix: memberID << 48}
	g.count.Store(uint64(startMillis) & (1<<40 - 1) << 8)
	return g
}

func (g *idGenerator) next() uint64 { return g.prefix | g.count.Add(1)&(1<<48-1) }

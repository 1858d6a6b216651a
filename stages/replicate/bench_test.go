package replicate

import (
	"fmt"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// What a batch of 256-byte requests costs in the loop of a single member, disk and state machine aside.
func BenchmarkCoreProposals(b *testing.B) {
	for _, n := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, err := newCore(Settings{ID: 1}, Boot{Peers: []raft.Peer{{ID: 1}}}, newLogger(zap.NewNop()))
			if err != nil {
				b.Fatal(err)
			}
			turn := func() {
				for c.ready(); len(c.out.appends) > 0 || len(c.out.work) > 0; c.ready() {
					appends, work := c.out.appends, c.out.work
					c.out.appends, c.out.work = nil, nil
					for _, a := range appends {
						c.persisted(PersistAck{Appends: 1, Responses: a.Responses})
					}
					for _, w := range work {
						c.applied(ApplyAck{Batches: 1, Responses: w.batch.Responses})
					}
				}
				c.reset()
			}
			turn()
			data := make([]byte, 256)
			b.ReportAllocs()
			for b.Loop() {
				es := make([]*raftpb.Entry, n)
				for i := range es {
					es[i] = &raftpb.Entry{Data: data}
				}
				c.propose(es)
				turn()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/proposal")
		})
	}
}

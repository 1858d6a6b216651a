package apply

import (
	"fmt"
	"math/rand/v2"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/wire"
)

// BenchmarkPut is the way of a put through the whole stage, by the size of the batch it comes in: view, results
// and the backend's buffer included, its commits beside it.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprint("batch", size), func(b *testing.B) {
			m := start(b, b.TempDir(), nil)
			defer m.stop()
			rnd := rand.New(rand.NewPCG(1, 1))
			value := make([]byte, 256)
			var datas [][]byte
			for i := range 4096 {
				r := &pb.InternalRaftRequest{
					Header: &pb.RequestHeader{ID: uint64(i) + 1},
					Put:    &pb.PutRequest{Key: []byte(fmt.Sprintf("key%07d", rnd.IntN(100_000))), Value: value},
				}
				data, err := proto.Marshal(r)
				if err != nil {
					b.Fatal(err)
				}
				datas = append(datas, data)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n++; n%size != 0 {
					continue
				}
				batch := Batch{Entries: make([]*raftpb.Entry, size)}
				for i := range batch.Entries {
					m.index++
					batch.Entries[i] = wire.NewEntry(raftpb.EntryNormal, 1, m.index, datas[m.index%4096])
				}
				m.send(batch)
				m.ack(m.index)
				m.out.mu.Lock()
				m.out.results, m.out.order, m.out.events = m.out.results[:0], m.out.order[:0], m.out.events[:0]
				m.out.mu.Unlock()
			}
		})
	}
}

// BenchmarkRevoke is BC-41: one lease with 100 000 keys is revoked.
func BenchmarkRevoke(b *testing.B) {
	const keys = 100_000
	for b.Loop() {
		b.StopTimer()
		m := start(b, b.TempDir(), nil)
		m.do(&pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 1, TTL: 60}})
		for i := 0; i < keys; i += 1000 {
			rs := make([]*pb.InternalRaftRequest, 1000)
			for j := range rs {
				rs[j] = put(fmt.Sprintf("key%07d", i+j), "v")
				rs[j].Put.Lease = 1
			}
			m.do(rs...)
		}
		b.StartTimer()
		m.do(&pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: 1}})
		b.StopTimer()
		m.stop()
		b.StartTimer()
	}
}

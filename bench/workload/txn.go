package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// guarded updates keys as Kubernetes does: each call in flight owns some keys, so that every transaction
// but the first on a key finds it as it was left.
type guarded struct {
	g      *rand.Rand
	conn   int // of so many
	slots  int // per connection
	keys   int // per slot
	value  []byte
	last   [][]int64 // revision by slot and key
	chosen []int     // by slot
	key    []byte
}

func guardedTraffic(conns, clients, keys, size int) traffic {
	slots := (clients + conns - 1) / conns
	each := max(1, keys/(slots*conns))
	value := noise(size)
	return traffic{conns: conns, clients: clients, lean: func(n int, g *rand.Rand) caller {
		c := &guarded{g: g, conn: n, slots: slots, keys: each, value: value, chosen: make([]int, slots)}
		for range slots {
			c.last = append(c.last, make([]int64, each))
		}
		return c
	}}
}

func (c *guarded) next(slot int, _ time.Time, dst []byte) (string, []byte) {
	k := c.g.IntN(c.keys)
	c.chosen[slot] = k
	c.key = appendKey(c.key[:0], (c.conn*c.slots+slot)*c.keys+k)
	return methodTxn, appendGuardedPut(dst, c.key, c.value, c.last[slot][k])
}

// answer keeps the key's revision: that of the transaction if it put, else what the get says.
func (c *guarded) answer(slot int, msg []byte) error {
	succeeded, err := dig(msg, 2)
	if err != nil {
		return err
	}
	last := &c.last[slot][c.chosen[slot]]
	if succeeded == 1 {
		*last, err = dig(msg, 1, 3)
		return err
	}
	if *last > 0 {
		return fmt.Errorf("the guard of a key that nobody else writes failed at revision %d", *last)
	}
	*last, err = dig(msg, 3, 1, 2, 3) // the first response's range's first key's modification revision
	return err
}

// stockGuardedTraffic reads a random key and updates it as of what was read: two calls are one operation.
func stockGuardedTraffic(conns, clients, keys, size int) traffic {
	value := string(noise(size))
	call := func(ctx context.Context, c *clientv3.Client, g *rand.Rand) error {
		k := key(g.IntN(keys))
		got, err := c.Get(ctx, k)
		if err != nil {
			return err
		}
		last := int64(0)
		if len(got.Kvs) > 0 {
			last = got.Kvs[0].ModRevision
		}
		_, err = c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(k), "=", last)).
			Then(clientv3.OpPut(k, value)).Else(clientv3.OpGet(k)).Commit()
		return err
	}
	return traffic{conns: conns, clients: clients, stock: call}
}

// W4: the write of Kubernetes.
func txns(s Settings) Family {
	keys := s.Size(keySpace)
	cpu := Gate{Metric: CPU, Limit: 3}
	cells := []Cell{
		guardedTraffic(8, 64, keys, 1300).cell(s, "guarded put 1.3 KB", "transaction", cpu),
		stockGuardedTraffic(8, 64, keys, 1300).cell(s, "get, then guarded put 1.3 KB", "get and transaction", cpu),
	}
	return Family{ID: "W4", Title: "update as Kubernetes does", Groups: []Group{{Fill: filled(keys, 1300), Cells: cells}}}
}

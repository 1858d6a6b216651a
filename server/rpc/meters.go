package rpc

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/stages/wire"
	"sluice/tracing"
)

// meters are the histograms of requests by type, and the counter of slow ones.
type meters struct {
	ranges, readTxns outcome // etcd_server_request_duration_seconds{type, success}
	rangesOnly       outcome // etcd_server_range_duration_seconds{success}
	writes           [writeKinds]outcome
	slow             tracing.Counter // etcd_server_slow_apply_total
}

// writeKind numbers the types of consensus requests that are metered on the hot path.
type writeKind uint8

const (
	writePut writeKind = iota
	writeDelete
	writeTxn
	writeCompact
	writeGrant
	writeRevoke
	writeAlarm
	writeLogin
	writeAuth
	writeDowngrade
	writeUnknown
	writeKinds = iota
)

var writeNames = [writeKinds]string{
	"Put", "DeleteRange", "Txn", "Compaction", "LeaseGrant", "LeaseRevoke", "Alarm", "Authenticate", "Auth",
	"DowngradeInfoSet", "Unknown",
}

func kindOf(r *wire.Request) writeKind {
	switch {
	case r.Put != nil:
		return writePut
	case r.DeleteRange != nil:
		return writeDelete
	case r.Txn != nil:
		return writeTxn
	case r.Compaction != nil:
		return writeCompact
	case r.Other == nil:
		return writeUnknown
	}
	return otherKind(r.Other)
}

func otherKind(r *pb.InternalRaftRequest) writeKind {
	switch {
	case r.LeaseGrant != nil:
		return writeGrant
	case r.LeaseRevoke != nil:
		return writeRevoke
	case r.Alarm != nil:
		return writeAlarm
	case r.Authenticate != nil:
		return writeLogin
	case r.DowngradeInfoSet != nil:
		return writeDowngrade
	}
	return writeAuth
}

func newMeters(m *tracing.Metrics) *meters {
	out := &meters{
		ranges:     outcome{vec: m.RequestDuration, labels: []string{"Range"}},
		readTxns:   outcome{vec: m.RequestDuration, labels: []string{"ReadonlyTxn"}},
		rangesOnly: outcome{vec: m.RangeDuration},
		slow:       m.SlowApply,
	}
	for i, name := range writeNames {
		out.writes[i] = outcome{vec: m.RequestDuration, labels: []string{name}}
	}
	return out
}

// outcome is a pair of histograms, of successes and of failures. A series appears when it is first used, as
// in the reference; after that it costs one load to find.
type outcome struct {
	vec    *prometheus.HistogramVec
	labels []string // before the label success
	found  [2]atomic.Pointer[prometheus.Observer]
}

func (o *outcome) observe(took time.Duration, err error) {
	i := 0
	if err != nil {
		i = 1
	}
	h := o.found[i].Load()
	if h == nil {
		labels := append(slices.Clip(o.labels), strconv.FormatBool(err == nil))
		fresh := o.vec.WithLabelValues(labels...)
		h = &fresh
		o.found[i].Store(h)
	}
	(*h).Observe(took.Seconds())
}

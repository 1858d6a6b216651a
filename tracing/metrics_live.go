package tracing

import (
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Live are the values that are read at the moment of a scrape. Each function may be called from any
// goroutine and must not block; a nil one reads as its family's value before the member has started.
type Live struct {
	AuthRevision         func() int64 // etcd_debugging_auth_revision
	CurrentRevision      func() int64 // etcd_debugging_mvcc_current_revision
	CompactRevision      func() int64 // etcd_debugging_mvcc_compact_revision; -1 before any compaction
	Keys                 func() int64 // etcd_debugging_mvcc_keys_total
	DBSize               func() int64 // etcd_mvcc_db_total_size_in_bytes
	DBSizeInUse          func() int64 // etcd_mvcc_db_total_size_in_use_in_bytes
	OpenReadTransactions func() int64 // etcd_mvcc_db_open_read_transactions
	OldestViewSeconds    func() float64
	ClusterVersion       func() string // such as "3.7.0"; empty while undecided
}

// SetLive hands over where to read the values from. It may be called again.
func (m *Metrics) SetLive(l Live) { m.live.Store(&l) }

// SetLogDropped hands over the count of log lines that a blocked output did not take. Once, before a scrape.
func (m *Metrics) SetLogDropped(read func() uint64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sluice_log_dropped_total", Help: "Log lines dropped because an output was blocked.",
	}, func() float64 { return float64(read()) }))
}

func (m *Metrics) newLive(b builder) {
	level := func(name, help string, before float64, pick func(*Live) func() int64) {
		b.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 {
				if read := pick(m.live.Load()); read != nil {
					return float64(read())
				}
				return before
			}))
	}
	level("etcd_debugging_auth_revision", "The current revision of auth store.",
		0, func(l *Live) func() int64 { return l.AuthRevision })
	level("etcd_debugging_mvcc_current_revision", "The current revision of store.",
		0, func(l *Live) func() int64 { return l.CurrentRevision })
	level("etcd_debugging_mvcc_compact_revision", "The revision of the last compaction in store.",
		-1, func(l *Live) func() int64 { return l.CompactRevision })
	level("etcd_debugging_mvcc_keys_total", "Total number of keys.",
		0, func(l *Live) func() int64 { return l.Keys })
	level("etcd_mvcc_db_total_size_in_bytes",
		"Total size of the underlying database physically allocated in bytes.",
		0, func(l *Live) func() int64 { return l.DBSize })
	level("etcd_mvcc_db_total_size_in_use_in_bytes",
		"Total size of the underlying database logically in use in bytes.",
		0, func(l *Live) func() int64 { return l.DBSizeInUse })
	level("etcd_mvcc_db_open_read_transactions", "The number of currently open read transactions",
		0, func(l *Live) func() int64 { return l.OpenReadTransactions })
	b.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_view_oldest_seconds", Help: "Age of the oldest view that a reader still holds.",
	}, func() float64 {
		if read := m.live.Load().OldestViewSeconds; read != nil {
			return read()
		}
		return 0
	}))
}

// clusterVersion shows etcd_cluster_version once the version is decided.
type clusterVersion struct {
	live *atomic.Pointer[Live]
	desc *prometheus.Desc
}

func newClusterVersion(live *atomic.Pointer[Live]) clusterVersion {
	return clusterVersion{live, prometheus.NewDesc("etcd_cluster_version",
		"Which version is running. 1 for 'cluster_version' label with current cluster version",
		[]string{"cluster_version"}, nil)}
}

// Describe implements prometheus.Collector.
func (c clusterVersion) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect implements prometheus.Collector. The label is the minor version: "3.7".
func (c clusterVersion) Collect(out chan<- prometheus.Metric) {
	read := c.live.Load().ClusterVersion
	if read == nil {
		return
	}
	if parts := strings.SplitN(read(), ".", 3); len(parts) == 3 {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, 1, parts[0]+"."+parts[1])
	}
}

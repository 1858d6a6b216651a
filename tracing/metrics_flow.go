package tracing

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/mailbox"
)

// flow collects the meters of the pipeline itself: its mailboxes and stages, read at the scrape, so that the
// stages pay nothing for it.
type flow struct {
	parts atomic.Pointer[flowParts] // written by SetFlow; read at a scrape
}

type flowParts struct {
	mailboxes []mailbox.Metered
	stages    []*Stage
}

// SetFlow hands over the mailboxes and stages to show as sluice_mailbox_* and sluice_stage_*. Names must be
// unique among each.
func (m *Metrics) SetFlow(mailboxes []mailbox.Metered, stages []*Stage) {
	m.flow.parts.Store(&flowParts{mailboxes, stages})
}

type flowFamily struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(mailbox.Stats) float64
}

func mailboxFamilies() []flowFamily {
	family := func(name, help string, kind prometheus.ValueType, value func(mailbox.Stats) float64) flowFamily {
		return flowFamily{prometheus.NewDesc("sluice_mailbox_"+name, help, []string{"mailbox"}, nil), kind, value}
	}
	count := func(v uint64) float64 { return float64(v) }
	const level, counter = prometheus.GaugeValue, prometheus.CounterValue
	return []flowFamily{
		family("depth", "Messages that wait now.", level,
			func(s mailbox.Stats) float64 { return float64(s.Depth) }),
		family("bytes", "Bytes that wait now.", level,
			func(s mailbox.Stats) float64 { return float64(s.Bytes) }),
		family("capacity", "Messages that may wait.", level,
			func(s mailbox.Stats) float64 { return float64(s.Capacity) }),
		family("high_water", "Largest depth seen since the meter was last reset.", level,
			func(s mailbox.Stats) float64 { return float64(s.HighWater) }),
		family("enqueued_total", "Messages accepted.", counter,
			func(s mailbox.Stats) float64 { return count(s.Enqueued) }),
		family("received_total", "Messages handed to the receiver.", counter,
			func(s mailbox.Stats) float64 { return count(s.Received) }),
		family("batches_total", "Batches handed to the receiver.", counter,
			func(s mailbox.Stats) float64 { return count(s.Batches) }),
		family("rejected_total", "Messages refused, dropped or replaced.", counter,
			func(s mailbox.Stats) float64 { return count(s.Rejected) }),
		family("blocked_sends_total", "Sends that had to wait for room.", counter,
			func(s mailbox.Stats) float64 { return count(s.Waited) }),
	}
}

var (
	families    = mailboxFamilies() // never changes
	mailboxWait = prometheus.NewDesc("sluice_mailbox_wait_seconds",
		"Time that received messages waited in the mailbox.", []string{"mailbox"}, nil)
	stageService = prometheus.NewDesc("sluice_stage_service_seconds",
		"Time that a stage worked on a batch.", []string{"stage"}, nil)
	stageBatch = prometheus.NewDesc("sluice_stage_batch_size",
		"Requests or entries in a batch.", []string{"stage"}, nil)
	stageBytes = prometheus.NewDesc("sluice_stage_bytes_total",
		"Bytes that a stage worked on.", []string{"stage"}, nil)
)

// Describe implements prometheus.Collector.
func (f *flow) Describe(out chan<- *prometheus.Desc) {
	for _, fam := range families {
		out <- fam.desc
	}
	out <- mailboxWait
	out <- stageService
	out <- stageBatch
	out <- stageBytes
}

// Collect implements prometheus.Collector.
func (f *flow) Collect(out chan<- prometheus.Metric) {
	p := f.parts.Load()
	if p == nil {
		return
	}
	for _, box := range p.mailboxes {
		s := box.Stats()
		for _, fam := range families {
			out <- prometheus.MustNewConstMetric(fam.desc, fam.kind, fam.value(s), s.Name)
		}
		out <- durations(mailboxWait, s.WaitBuckets[:], s.WaitTotal.Seconds(), s.Name)
	}
	for _, st := range p.stages {
		r := st.Read()
		out <- durations(stageService, r.Service[:], r.Busy.Seconds(), r.Name)
		out <- sizes(r)
		out <- prometheus.MustNewConstMetric(stageBytes, prometheus.CounterValue, float64(r.Bytes), r.Name)
	}
}

// durations turns buckets "below 1us<<i" into a histogram; the last bucket is the rest. The count is the sum
// of the buckets, not a counter read a moment earlier or later: a histogram must agree with itself.
func durations(desc *prometheus.Desc, buckets []uint64, sum float64, name string) prometheus.Metric {
	cumulative, total := make(map[float64]uint64, len(buckets)), uint64(0)
	for i, n := range buckets {
		total += n
		if i < len(buckets)-1 {
			cumulative[float64(uint64(1)<<i)*1e-6] = total
		}
	}
	return prometheus.MustNewConstHistogram(desc, total, sum, cumulative, name)
}

// sizes turns buckets "fewer than 1<<i items" into a histogram with inclusive bounds 0, 1, 3, 7 ...
func sizes(r Reading) prometheus.Metric {
	cumulative, total := make(map[float64]uint64, Buckets), uint64(0)
	for i, n := range r.Sizes {
		total += n
		if i < Buckets-1 {
			cumulative[float64(uint64(1)<<i)-1] = total
		}
	}
	return prometheus.MustNewConstHistogram(stageBatch, total, float64(r.Items), cumulative, r.Name)
}

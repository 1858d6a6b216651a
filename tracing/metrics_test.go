package tracing

import (
	"bufio"
	"context"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"

	"sluice/mailbox"
)

// touched returns all families of a fresh Metrics, each vector given one series.
func touched(t *testing.T, extensive bool) (*Metrics, map[string]*dto.MetricFamily) {
	t.Helper()
	m := NewMetrics(extensive)
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		if v.Field(i).IsNil() {
			t.Errorf("field %s was not made", v.Type().Field(i).Name)
		}
		switch f := v.Field(i).Interface().(type) {
		case *prometheus.CounterVec:
			f.WithLabelValues(labels(f)...).Add(1)
		case *prometheus.GaugeVec:
			f.WithLabelValues(labels(f)...).Set(1)
		case *prometheus.HistogramVec:
			f.WithLabelValues(labels(f)...).Observe(1)
		}
	}
	m.RPC("unary", "etcdserverpb.KV", "Put")
	m.SetLive(Live{ClusterVersion: func() string { return "3.7.0" }})
	return m, gather(t, m)
}

// labels makes as many label values as the vector's description lists variable labels.
func labels(c prometheus.Collector) []string {
	descs := make(chan *prometheus.Desc, 1)
	c.Describe(descs)
	text := (<-descs).String()
	list := text[strings.Index(text, "variableLabels: {")+len("variableLabels: {"):]
	return slices.Repeat([]string{"x"}, strings.Count(list, ",")+1)
}

func gather(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	list, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	families := make(map[string]*dto.MetricFamily)
	for _, f := range list {
		families[f.GetName()] = f
	}
	return families
}

// TestFamiliesAsEtcd compares names, types and help texts with those of a scrape of etcd 3.7.3.
// The promhttp families come from the scrape handler, in server/web.
func TestFamiliesAsEtcd(t *testing.T) {
	_, families := touched(t, false)
	file, err := os.Open("testdata/etcd-3.7.3-families.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	seen := 0
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), " ", 3)
		name, kind, help := parts[0], parts[1], parts[2]
		if strings.HasPrefix(name, "promhttp_") {
			continue
		}
		seen++
		f, ok := families[name]
		if !ok {
			t.Errorf("%s is missing", name)
			continue
		}
		if got := strings.ToLower(f.GetType().String()); got != kind {
			t.Errorf("%s is a %s, want %s", name, got, kind)
		}
		if f.GetHelp() != help {
			t.Errorf("%s help %q, want %q", name, f.GetHelp(), help)
		}
	}
	if seen < 120 {
		t.Fatalf("only %d families in the golden file", seen)
	}
}

// TestBuckets holds the first and last bound and the number of buckets of contract/operations.md section 4.
func TestBuckets(t *testing.T) {
	_, families := touched(t, true)
	for _, c := range []struct {
		name        string
		first, last float64
		n           int
	}{
		{"etcd_disk_wal_fsync_duration_seconds", 0.001, 8.192, 14},
		{"etcd_disk_backend_defrag_duration_seconds", 0.1, 409.6, 13},
		{"etcd_disk_backend_snapshot_duration_seconds", 0.01, 655.36, 17},
		{"etcd_server_apply_duration_seconds", 0.0001, 52.4288, 20},
		{"etcd_server_request_duration_seconds", 0.001, 8.192, 14},
		{"etcd_server_range_duration_seconds", 0.0001, 52.4288, 20},
		{"etcd_mvcc_hash_rev_duration_seconds", 0.01, 163.84, 15},
		{"etcd_snap_db_save_total_duration_seconds", 0.1, 51.2, 10},
		{"etcd_debugging_lease_ttl_total", 1, 8388608, 24},
		{"etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds", 0.5, 4096, 14},
		{"etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds", 1, 4096, 13},
		{"etcd_debugging_mvcc_db_compaction_total_duration_milliseconds", 100, 819200, 14},
		{"grpc_server_handling_seconds", 0.005, 10, 11},
	} {
		f := families[c.name]
		if f == nil {
			t.Errorf("%s is missing", c.name)
			continue
		}
		b := f.GetMetric()[0].GetHistogram().GetBucket()
		first, last := b[0].GetUpperBound(), b[len(b)-1].GetUpperBound()
		if len(b) != c.n || first != c.first || math.Abs(last-c.last) > 1e-9*c.last {
			t.Errorf("%s: %d buckets from %g to %g, want %d from %g to %g",
				c.name, len(b), first, last, c.n, c.first, c.last)
		}
	}
	if _, basic := touched(t, false); basic["grpc_server_handling_seconds"] != nil {
		t.Error("grpc_server_handling_seconds is shown without --metrics=extensive")
	}
}

func TestRPCPresetsEveryCode(t *testing.T) {
	m := NewMetrics(false)
	put := m.RPC("unary", "etcdserverpb.KV", "Put")
	put.Handled(codes.NotFound)
	put.Handled(codes.Code(99))
	handled := gather(t, m)["grpc_server_handled_total"].GetMetric()
	if len(handled) != 17 {
		t.Fatalf("%d series, want one per code: 17", len(handled))
	}
	got := make(map[string]float64)
	for _, s := range handled {
		for _, l := range s.GetLabel() {
			if l.GetName() == "grpc_code" && s.GetCounter().GetValue() != 0 {
				got[l.GetValue()] = s.GetCounter().GetValue()
			}
		}
	}
	if want := map[string]float64{"NotFound": 1, "Unknown": 1}; !reflect.DeepEqual(got, want) {
		t.Errorf("handled %v, want %v", got, want)
	}
}

func TestLiveValues(t *testing.T) {
	m := NewMetrics(false)
	value := func(name string) float64 { return gather(t, m)[name].GetMetric()[0].GetGauge().GetValue() }
	if got := value("etcd_debugging_mvcc_compact_revision"); got != -1 {
		t.Errorf("compact revision before the start is %g, want -1", got)
	}
	m.SetLive(Live{CompactRevision: func() int64 { return 7 }, DBSize: func() int64 { return 4096 }})
	if got := value("etcd_debugging_mvcc_compact_revision"); got != 7 {
		t.Errorf("compact revision %g, want 7", got)
	}
	if _, shown := gather(t, m)["etcd_cluster_version"]; shown {
		t.Error("a cluster version is shown before it is decided")
	}
	if got := value("etcd_mvcc_db_total_size_in_bytes"); got != 4096 {
		t.Errorf("db size %g, want 4096", got)
	}
}

// TestFlow shows one mailbox and one stage: counts agree with the sum of the buckets, sizes are inclusive.
func TestFlow(t *testing.T) {
	box := mailbox.New[int](mailbox.Config{Name: "propose", Capacity: 2})
	send, receive := box.Sender(mailbox.Refuse), box.Receiver()
	for i := range 3 {
		err := send.Send(context.Background(), i)
		if full := i == 2; full != (err != nil) {
			t.Fatalf("send %d: %v", i, err)
		}
	}
	if _, err := receive.Receive(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	stage := NewStage("propose")
	stage.Record(Stamp{In: 1000, Out: 4000, Count: 3, Bytes: 10})
	stage.Record(Stamp{In: 1000, Out: 1500, Count: 1, Bytes: 1})

	m := NewMetrics(false)
	m.SetFlow([]mailbox.Metered{box}, []*Stage{stage})
	families := gather(t, m)
	for name, want := range map[string]float64{
		"sluice_mailbox_depth": 0, "sluice_mailbox_capacity": 2, "sluice_mailbox_high_water": 2,
		"sluice_mailbox_enqueued_total": 2, "sluice_mailbox_received_total": 2,
		"sluice_mailbox_batches_total": 1, "sluice_mailbox_rejected_total": 1, "sluice_stage_bytes_total": 11,
	} {
		s := families[name].GetMetric()[0]
		if got := s.GetGauge().GetValue() + s.GetCounter().GetValue(); got != want {
			t.Errorf("%s %g, want %g", name, got, want)
		}
	}
	wait := families["sluice_mailbox_wait_seconds"].GetMetric()[0].GetHistogram()
	if wait.GetSampleCount() != 2 {
		t.Errorf("wait counts %d messages, want 2", wait.GetSampleCount())
	}
	service := families["sluice_stage_service_seconds"].GetMetric()[0].GetHistogram()
	if got := service.GetSampleSum(); math.Abs(got-3.5e-6) > 1e-12 || service.GetSampleCount() != 2 {
		t.Errorf("service sum %g count %d, want 3.5us and 2", got, service.GetSampleCount())
	}
	batch := families["sluice_stage_batch_size"].GetMetric()[0].GetHistogram()
	for _, b := range batch.GetBucket() {
		want := map[float64]uint64{0: 0, 1: 1}
		if w, ok := want[b.GetUpperBound()]; !ok {
			w = 2
			if b.GetCumulativeCount() != w {
				t.Errorf("batches up to %g: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), w)
			}
		} else if b.GetCumulativeCount() != w {
			t.Errorf("batches up to %g: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), w)
		}
	}
}

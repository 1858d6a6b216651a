package tracing

import "github.com/prometheus/client_golang/prometheus"

// builder makes a family and registers it in one step. A family that cannot be registered is a bug of the
// tables in this package, so it panics.
type builder struct{ registry *prometheus.Registry }

func (b builder) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	b.registry.MustRegister(c)
	return c
}

func (b builder) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	b.registry.MustRegister(g)
	return g
}

// histogram has n buckets: start, start*factor ...
func (b builder) histogram(name, help string, start, factor float64, n int) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(start, factor, n),
	})
	b.registry.MustRegister(h)
	return h
}

func (b builder) counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	b.registry.MustRegister(v)
	return v
}

func (b builder) gaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	b.registry.MustRegister(v)
	return v
}

func (b builder) histogramVec(
	name, help string, start, factor float64, n int, labels ...string,
) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(start, factor, n),
	}, labels)
	b.registry.MustRegister(v)
	return v
}

// unused registers the families that etcd shows at 0 although a plain server never touches them: those of
// its v2 store and of its gRPC proxy. Dashboards that list names expect them.
func (b builder) unused() {
	b.counter("etcd_debugging_store_expires_total", "Total number of expired keys.")
	b.counter("etcd_debugging_store_watch_requests_total",
		"Total number of incoming watch requests (new or reestablished).")
	b.gauge("etcd_debugging_store_watchers", "Count of currently active watchers.")
	b.gauge("etcd_grpc_proxy_cache_hits_total", "Total number of cache hits")
	b.gauge("etcd_grpc_proxy_cache_misses_total", "Total number of cache misses")
	b.gauge("etcd_grpc_proxy_cache_keys_total", "Total number of keys/ranges cached")
	b.gauge("etcd_grpc_proxy_watchers_coalescing_total", "Total number of current watchers coalescing")
	b.counter("etcd_grpc_proxy_events_coalescing_total", "Total number of events coalescing")
}

package web

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"sluice/tracing"
)

// Member is what the endpoints need of the member. Every method may be called from any goroutine.
type Member interface {
	// Leader is the leader that this member knows, 0 for none.
	Leader() uint64
	Learner() bool
	// Alarms are the names of the raised alarms, such as "NOSPACE", one for each member that raised it.
	Alarms() []string
	// Read reads one key, after a barrier unless serializable. An error's text is what clients are shown.
	Read(ctx context.Context, serializable bool) error
	// ClusterVersion and StorageVersion are such as "3.7.0", empty while undecided.
	ClusterVersion() string
	StorageVersion() string
	// RaftStatus is shown under /debug/vars.
	RaftStatus() RaftStatus
}

// RaftStatus is raft's state as /debug/vars has it; ids are hex.
type RaftStatus struct {
	ID             string              `json:"id"`
	Term           uint64              `json:"term"`
	Vote           string              `json:"vote"`
	Commit         uint64              `json:"commit"`
	Lead           string              `json:"lead"`
	RaftState      string              `json:"raftState"`
	Applied        uint64              `json:"applied"`
	Progress       map[string]Progress `json:"progress"`
	LeadTransferee string              `json:"leadtransferee"`
}

// Progress is how far a member is, as the leader knows it.
type Progress struct {
	Match uint64 `json:"match"`
	Next  uint64 `json:"next"`
	State string `json:"state"`
}

// Config of the handlers. Member, Metrics and Logger are needed.
type Config struct {
	Member         Member
	Metrics        *tracing.Metrics
	Logger         *zap.Logger
	Version        string        // such as "3.7.3"
	RequestTimeout time.Duration // of a probe's read
	Gateway        http.Handler  // serves /v3/; nil: none
	Pprof          bool
	CORS           []string // origins; "*" is all
	HostWhitelist  []string // hosts of plain HTTP; "*" is all
}

// Web makes the handlers of a member.
type Web struct {
	cfg     Config
	metrics http.Handler
}

// New registers the scrape handler's own families: once per Metrics.
func New(cfg Config) *Web {
	registry := cfg.Metrics.Registry()
	return &Web{cfg: cfg, metrics: promhttp.InstrumentMetricHandler(registry,
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))}
}

// Client is the handler of the client URLs.
func (w *Web) Client() http.Handler {
	mux := http.NewServeMux()
	w.probes(mux)
	mux.HandleFunc("/version", w.version)
	mux.HandleFunc("/debug/vars", w.vars)
	if w.cfg.Pprof {
		profiles(mux)
	}
	if w.cfg.Gateway != nil {
		mux.Handle("/v3/", w.cfg.Gateway)
	}
	return w.access(betaPath(mux))
}

// Metrics is the handler of the metrics URLs: metrics and probes, without the access rules of browsers.
func (w *Web) Metrics() http.Handler {
	mux := http.NewServeMux()
	w.probes(mux)
	return mux
}

func (w *Web) probes(mux *http.ServeMux) {
	mux.Handle("/metrics", w.metrics)
	mux.HandleFunc("/health", w.health)
	w.checkRoutes(mux, "livez", serializableRead)
	w.checkRoutes(mux, "readyz", dataCorruption, serializableRead, linearizableRead, nonLearner)
}

// onlyGet answers anything but GET, HEAD included.
func onlyGet(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet {
		return true
	}
	w.Header().Set("Allow", http.MethodGet)
	http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
	return false
}

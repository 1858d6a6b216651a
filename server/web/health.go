package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"go.uber.org/zap"
)

// health serves /health: alarms, then the leader, then a read.
func (w *Web) health(rw http.ResponseWriter, r *http.Request) {
	if !onlyGet(rw, r) {
		w.cfg.Logger.Warn("/health error", zap.Int("status-code", http.StatusMethodNotAllowed))
		return
	}
	serializable := r.URL.Query().Get("serializable") == "true"
	reason := w.unhealthy(r.Context(), serializable, r.URL.Query()["exclude"])
	if reason != "" {
		w.cfg.Metrics.HealthFailures.Inc()
		w.cfg.Logger.Warn("/health error", zap.String("output", healthBody(false, reason)),
			zap.Int("status-code", http.StatusServiceUnavailable))
		http.Error(rw, healthBody(false, reason), http.StatusServiceUnavailable)
		return
	}
	w.cfg.Metrics.HealthSuccess.Inc()
	w.cfg.Logger.Debug("/health OK", zap.Int("status-code", http.StatusOK))
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprint(rw, healthBody(true, "")) // a prober that has left needs no answer
}

// healthBody has strings where one would expect a boolean: scripts compare the text.
func healthBody(healthy bool, reason string) string {
	return fmt.Sprintf(`{"health":"%t","reason":%q}`, healthy, reason)
}

// unhealthy returns why the member is not healthy, empty when it is.
func (w *Web) unhealthy(ctx context.Context, serializable bool, exclude []string) string {
	for _, alarm := range w.cfg.Member.Alarms() {
		if slices.Contains(exclude, alarm) {
			continue
		}
		w.cfg.Logger.Warn("serving /health false due to an alarm", zap.String("alarm", alarm))
		return "ALARM " + alarm
	}
	if !serializable && w.cfg.Member.Leader() == 0 {
		w.cfg.Logger.Warn("serving /health false; no leader")
		return "RAFT NO LEADER"
	}
	if err := w.read(ctx, serializable); err != nil {
		w.cfg.Logger.Warn("serving /health false; Range fails", zap.Error(err))
		return "RANGE ERROR:" + err.Error()
	}
	return ""
}

func (w *Web) read(ctx context.Context, serializable bool) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.RequestTimeout)
	defer cancel()
	return w.cfg.Member.Read(ctx, serializable)
}

// check is one condition of /livez or /readyz.
type check struct {
	name string
	run  func(*Web, context.Context) error
}

var (
	errCorrupt = errors.New("alarm activated: CORRUPT")
	errLearner = errors.New("not supported for learner")
)

// The checks, by the names that probes use. They never change.
var (
	dataCorruption = check{"data_corruption", func(w *Web, _ context.Context) error {
		if slices.Contains(w.cfg.Member.Alarms(), "CORRUPT") {
			return errCorrupt
		}
		return nil
	}}
	serializableRead = check{"serializable_read", func(w *Web, ctx context.Context) error {
		return w.read(ctx, true)
	}}
	linearizableRead = check{"linearizable_read", func(w *Web, ctx context.Context) error {
		return w.read(ctx, false)
	}}
	nonLearner = check{"non_learner", func(w *Web, _ context.Context) error {
		if w.cfg.Member.Learner() {
			return errLearner
		}
		return nil
	}}
)

// checkRoutes serves /kind, which runs all checks, and /kind/name for each.
func (w *Web) checkRoutes(mux *http.ServeMux, kind string, checks ...check) {
	serve := func(checks []check) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) { w.serveChecks(rw, r, kind, checks) }
	}
	mux.HandleFunc("/"+kind, serve(checks))
	for _, c := range checks {
		mux.HandleFunc("/"+kind+"/"+c.name, serve([]check{c}))
	}
	for _, c := range checks { // the series exist before the first probe
		for _, status := range []string{"success", "error"} {
			w.cfg.Metrics.HealthChecks.WithLabelValues(kind, c.name, status)
		}
	}
}

func (w *Web) serveChecks(rw http.ResponseWriter, r *http.Request, kind string, checks []check) {
	if !onlyGet(rw, r) {
		w.cfg.Logger.Warn("Health request error", zap.String("path", r.URL.Path),
			zap.Int("status-code", http.StatusMethodNotAllowed))
		return
	}
	exclude := r.URL.Query()["exclude"]
	if missing := unknown(exclude, checks); len(missing) > 0 {
		w.cfg.Logger.Warn("some health checks cannot be excluded", zap.String("path", r.URL.Path),
			zap.Strings("missing-health-checks", missing))
	}
	var lines, failed strings.Builder
	for _, c := range checks {
		if slices.Contains(exclude, c.name) {
			continue
		}
		if err := c.run(w, r.Context()); err != nil {
			w.meter(kind, c.name, "error", 0)
			fmt.Fprintf(&lines, "[-]%s failed: %v\n", c.name, err)
			fmt.Fprintf(&failed, "[-]%s failed: %v\n", c.name, err)
			continue
		}
		w.meter(kind, c.name, "success", 1)
		fmt.Fprintf(&lines, "[+]%s ok\n", c.name)
	}
	rw.Header().Set("X-Content-Type-Options", "nosniff")
	if failed.Len() > 0 {
		w.cfg.Logger.Error("Health check error", zap.String("path", r.URL.Path),
			zap.String("reason", failed.String()), zap.Int("status-code", http.StatusServiceUnavailable))
		http.Error(rw, lines.String(), http.StatusServiceUnavailable)
		return
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if r.URL.Query().Has("verbose") {
		_, _ = fmt.Fprint(rw, lines.String())
	}
	_, _ = fmt.Fprint(rw, "ok\n")
}

func (w *Web) meter(kind, name, status string, result float64) {
	w.cfg.Metrics.HealthCheck.WithLabelValues(kind, name).Set(result)
	w.cfg.Metrics.HealthChecks.WithLabelValues(kind, name, status).Inc()
}

// unknown lists the exclusions that name no check.
func unknown(exclude []string, checks []check) []string {
	var missing []string
	for _, name := range exclude {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.name == name }) {
			missing = append(missing, name)
		}
	}
	return missing
}

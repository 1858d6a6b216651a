package web

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"go.uber.org/zap"
)

// access applies what protects browsers' users: the rules for foreign pages (CORS), and the check of the
// Host header, which a page that rebinds its DNS name to this server cannot fake.
func (w *Web) access(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.TLS == nil && !w.hostAllowed(r.Host) {
			w.cfg.Logger.Warn("rejecting HTTP request to prevent DNS rebinding attacks", zap.String("host", r.Host))
			http.Error(rw, fmt.Sprintf("the host %q is not among those of --host-whitelist", r.Host),
				http.StatusMisdirectedRequest)
			return
		}
		switch origin := r.Header.Get("Origin"); {
		case slices.Contains(w.cfg.CORS, "*"):
			allowOrigin(rw.Header(), "*")
		case slices.Contains(w.cfg.CORS, origin):
			allowOrigin(rw.Header(), origin)
		}
		if r.Method == http.MethodOptions {
			rw.WriteHeader(http.StatusOK)
			return
		}
		next.ServeHTTP(rw, r)
	})
}

func allowOrigin(h http.Header, origin string) {
	h.Add("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE")
	h.Add("Access-Control-Allow-Origin", origin)
	h.Add("Access-Control-Allow-Headers", "accept, content-type, authorization")
}

// hostAllowed compares the host without its port.
func (w *Web) hostAllowed(host string) bool {
	if slices.Contains(w.cfg.HostWhitelist, "*") {
		return true
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return slices.Contains(w.cfg.HostWhitelist, strings.Trim(host, "[]"))
}

// betaPath serves the old prefix of the gateway.
func betaPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path, old := strings.CutPrefix(r.URL.Path, "/v3beta/"); old {
			r = r.Clone(r.Context())
			r.URL.Path = "/v3/" + path
		}
		next.ServeHTTP(w, r)
	})
}

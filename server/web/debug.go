package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"os"
	goruntime "runtime"
	"syscall"
)

// version serves /version.
func (w *Web) version(rw http.ResponseWriter, r *http.Request) {
	if !onlyGet(rw, r) {
		return
	}
	v := struct {
		Server  string `json:"etcdserver"`
		Cluster string `json:"etcdcluster"`
		Storage string `json:"storage"`
	}{w.cfg.Version, or(w.cfg.Member.ClusterVersion(), "not_decided"), or(w.cfg.Member.StorageVersion(), "unknown")}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // three strings always encode
	}
	rw.Header().Set("Content-Type", "application/json")
	_, _ = rw.Write(text)
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// vars serves /debug/vars in the form of package expvar, without its registry, which is the process's.
func (w *Web) vars(rw http.ResponseWriter, r *http.Request) {
	if !onlyGet(rw, r) {
		return
	}
	var memory goruntime.MemStats
	goruntime.ReadMemStats(&memory)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 0
	}
	rw.Header().Set("Content-Type", "application/json; charset=utf-8")
	separator := "{\n"
	for _, v := range []struct {
		name  string
		value any
	}{
		{"cmdline", os.Args}, {"file_descriptor_limit", limit.Cur}, {"memstats", memory},
		{"raft.status", w.cfg.Member.RaftStatus()},
	} {
		text, err := json.Marshal(v.value)
		if err != nil {
			panic(err) // plain values always encode
		}
		fmt.Fprintf(rw, "%s%q: %s", separator, v.name, text)
		separator = ",\n"
	}
	fmt.Fprint(rw, "\n}\n")
}

// profiles serves /debug/pprof. The sampling of mutexes is main's to switch on: it is the process's.
func profiles(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	for _, name := range []string{"heap", "goroutine", "threadcreate", "block", "mutex"} {
		mux.Handle("/debug/pprof/"+name, pprof.Handler(name))
	}
}

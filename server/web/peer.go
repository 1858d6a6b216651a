package web

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// PeerMember is one member as the peer URLs list it.
type PeerMember struct {
	ID         uint64   `json:"id"`
	PeerURLs   []string `json:"peerURLs"`
	IsLearner  bool     `json:"isLearner,omitempty"`
	Name       string   `json:"name,omitempty"`
	ClientURLs []string `json:"clientURLs,omitempty"`
}

// Peer is the handler of the peer URLs: who is in the cluster, and which version this member has. members
// are listed by id.
func (w *Web) Peer(clusterID uint64, members func() []PeerMember) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/version", w.version)
	mux.HandleFunc("/members", func(rw http.ResponseWriter, r *http.Request) {
		if !onlyGet(rw, r) {
			return
		}
		rw.Header().Set("X-Etcd-Cluster-ID", strconv.FormatUint(clusterID, 16))
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(members()) // a client that has left needs no answer
	})
	return mux
}

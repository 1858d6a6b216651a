// Package wire is the vocabulary that all stages share: the hot requests, results and events as plain
// types, and small hand-written encoders and decoders for them over protowire.
//
// The bytes are those of go.etcd.io/etcd/api/v3 (etcdserverpb, mvccpb) and go.etcd.io/raft/v3 (raftpb):
// every codec here is fuzzed against the generated one. Decoders alias their input: a decoded message is
// valid as long as the bytes it was read from, and whatever outlives them is copied by the caller.
// Encoders append to a slice and never fail. Unknown fields are skipped.
//
// Rule: design.md section 3, "Bytes"; contract/disk-and-peer.md section 8.1.
package wire

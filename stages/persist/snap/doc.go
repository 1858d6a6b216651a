// Package snap writes and reads raft snapshot files, and knows the other files of the snapshot directory.
//
// A .snap file holds an encoded raftpb.Snapshot and its checksum. This member never boots from one - the
// log's snapshot record and the database say more - but an etcd 3.6 does, so each disk snapshot leaves one,
// with the JSON image of the old v2 store (V2Image) that such a member looks into.
//
// Rules: contract/disk-and-peer.md sections 1.3, 1.4 and 3.
package snap

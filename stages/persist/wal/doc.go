// Package wal is the write-ahead log: segments of framed, checksummed records in etcd's format.
//
// A log is a directory of segments, each named by its sequence number and the first entry index expected in
// it. A segment is a row of frames, and behind the last frame there is nothing but zeros:
//
//	u64le length word | record {1 type, 2 crc, 3 data} | 0-7 pad bytes
//
// One WAL belongs to one goroutine, which encodes records into its buffer and hands the buffer to the disk
// in one write, followed by at most one fdatasync. The only other goroutine is Prepare, which keeps the next
// segment ready and writes zeros ahead of the tail, because overwriting a written block is a quarter cheaper
// to sync than filling a reserved one; the two meet in zeroing.
//
// Rules: contract/disk-and-peer.md sections 1 and 2.
package wal

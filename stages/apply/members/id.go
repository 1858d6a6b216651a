package members

import (
	"crypto/sha1"
	"encoding/binary"
	"slices"
	"strconv"
)

// MemberID is the id of a member of a statically bootstrapped cluster: the first eight bytes of the SHA-1 of
// its sorted peer URLs and the cluster token. URLs are taken as configured.
//
// Rule: contract/disk-and-peer.md section 7.1.
func MemberID(peerURLs []string, token string) uint64 {
	sorted := slices.Sorted(slices.Values(peerURLs))
	h := sha1.New()
	for _, u := range sorted {
		h.Write([]byte(u))
	}
	h.Write([]byte(token))
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// AddedID is the id of a member that the API adds at the given Unix time: the same members added twice get
// different ids, so that a removed id never returns.
func AddedID(peerURLs []string, unixSeconds int64) uint64 {
	return MemberID(peerURLs, strconv.FormatInt(unixSeconds, 10))
}

// ClusterID is the id of the cluster that the members with these ids bootstrap: the first eight bytes of the
// SHA-1 of the ids in ascending order.
func ClusterID(ids []uint64) uint64 {
	sorted := slices.Sorted(slices.Values(ids))
	h := sha1.New()
	for _, id := range sorted {
		h.Write(binary.BigEndian.AppendUint64(nil, id))
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// Hex is an id as file names, URLs and bucket keys spell it: hexadecimal without leading zeros.
func Hex(id uint64) string { return strconv.FormatUint(id, 16) }

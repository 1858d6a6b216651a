package backend

import bolt "go.etcd.io/bbolt"

// KeyBytesMax is the longest key that can be stored. Writer panics above it: who takes keys from clients checks.
const KeyBytesMax = bolt.MaxKeySize

// Bucket names one of the ten buckets of etcd's schema (contract/disk-and-peer.md section 4.1), in name
// order, the order in which Hash walks them.
type Bucket uint8

const (
	Alarm Bucket = iota
	Auth
	AuthRoles
	AuthUsers
	Cluster
	Key
	Lease
	Members
	MembersRemoved
	Meta
	buckets = iota
)

var bucketNames = [buckets]string{
	"alarm", "auth", "authRoles", "authUsers", "cluster", "key", "lease", "members", "members_removed", "meta",
}

// String returns the bucket's name in the file.
func (b Bucket) String() string { return bucketNames[b] }

// Writer takes changes, in order. Apply alone calls it. Key and value are kept, not copied: they must not
// be changed afterwards.
type Writer interface {
	Put(b Bucket, key, value []byte)
	Delete(b Bucket, key []byte)
}

// Reader sees one consistent state of the backend: the file as a read transaction shows it, overlaid with
// the changes that are not yet in it. Any number of goroutines may use it until it is released.
type Reader interface {
	// Get returns the value of key, nil when absent. It stays valid as long as the Reader.
	Get(b Bucket, key []byte) []byte
	// Scan calls fn for every key in [from, to) in ascending byte order until fn returns false. A nil
	// from starts at the first key, a nil to ends behind the last. Slices stay valid as long as the Reader.
	Scan(b Bucket, from, to []byte, fn func(key, value []byte) bool)
}

// Package lease keeps which leases exist and which keys hang on them.
//
// Set is apply's own: it grants, revokes, checkpoints, and is told by the store which keys come and go. It
// writes bucket lease; what hangs on a lease is not stored but rebuilt from the keys at boot. When a lease
// runs out is no business of this package: expiry times are not replicated, stage expire owns them.
//
// Table is one immutable state of it for readers. Publishing it is cheap whatever the number of leases and
// keys, because both levels are copy-on-write trees: a lease with 100 000 keys that gains one more copies a
// path of pages, not the keys.
//
// Rule: contract/disk-and-peer.md sections 4.4 and 9.2; contract/client-api.md section 8.
package lease

// Package members is the membership of the cluster as apply keeps it: who is a voter, who a learner, who was
// removed for ever, and the version that the whole cluster agreed on.
//
// A Table is one immutable state of it. Set, apply's own, replaces its Table with every change and writes the
// buckets members, members_removed and cluster. Validation of a conf change asks nothing but the Table, so
// every member refuses the same changes; and because everything a change does is stored in the transaction
// that carries its log index, an entry that is handed out again after a restart has already had its outcome,
// be it effect or refusal, and is skipped.
//
// Rule: contract/disk-and-peer.md sections 4.4, 5.3, 6.1, 7.1 and 8.3.
package members

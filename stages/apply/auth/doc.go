// Package auth keeps users, roles and their permissions, and answers who may do what.
//
// Store is apply's own: it executes the auth requests of the log and writes the buckets auth, authUsers and
// authRoles. Table is one immutable state of it, which apply asks when it applies an entry and the RPCs ask
// when they read: the same code decides in both places.
//
// Tokens is the one exception to "readers get immutable values": a token is issued by apply and renewed by
// whoever uses it, so the table of simple tokens is shared and sharded. Tokens are not replicated state: each
// member counts their lifetime for itself, and forgets them when it stops.
//
// Passwords reach this package only as bcrypt hashes, made before the request was proposed.
//
// Rule: contract/client-api.md section 9; contract/disk-and-peer.md sections 4.4 and 9.4.
package auth

// Command bench measures a member: throughput, latency, server CPU per operation and the time that requests
// spend in each stage and its mailbox, under a closed-loop load of stock Go clients.
//
//	go run ./bench                       puts, 64 clients, with the stage table
//	go run ./bench -workload get         linearizable gets; also "serializable" and "mixed"
//	go run ./bench -compare              the same load on real etcd 3.7.3, in turn, with paired ratios
//	go run ./bench -cpuprofile put.pprof where the daemon's CPU went
//	go run ./bench -mailbox-persist 1    any --mailbox-* size of the daemon, to see throughput answer
//
// Both daemons run with default flags and full durability on the same disk, one loaded at a time, in ABBA
// order; a ratio is the median over pairs. On a shared machine server CPU per operation is the figure to
// trust: throughput with a client on the same cores says as much about the client.
//
// Rule: performance.md section 4.
package main

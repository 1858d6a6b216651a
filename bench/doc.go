// Command bench measures a member: where its requests spend their time, and how it compares with real etcd.
//
//	go run ./bench                        stages: puts of 64 stock clients, with the stage table
//	go run ./bench -workload get          linearizable gets; also "serializable" and "mixed"
//	go run ./bench -cpuprofile put.pprof  where the daemon's CPU went
//	go run ./bench -mailbox-persist 1     any --mailbox-* size of the daemon, to see throughput answer
//
//	go run ./bench compare                all workloads beside etcd 3.7.3, an hour and a half
//	go run ./bench compare -quick         the same in small, about five minutes
//	go run ./bench compare -only W2,W5    some workloads; -match lean for some of their cells
//	go run ./bench compare -json new.json -against old.json
//	go run ./bench compare -etcd-env GOGC=300 -etcd-flags "--listen-client-http-urls=http://127.0.0.1:9379"
//
// Compare starts both daemons with default flags and full durability on the same disk. One is loaded at a
// time, in ABBA order; a ratio is the median over the pairs of runs, with the interval that the bootstrap
// gives it at 95 %. For what an operation costs (CPU, allocations) it is etcd's value to Sluice's, for
// everything else Sluice's to etcd's. A gate is met if the whole interval is on its right side, unsure if
// only the median is.
//
// On a shared machine server CPU, allocations, system calls and fsyncs per operation are the figures to
// trust: throughput with a client on the same cores says as much about the client. So there are two
// clients, the stock one (what users see) and a lean one, of a tenth of its cost (what the server can do).
// Latency at a fixed rate counts from when a call was due. Disk bytes contain the zeros that are written
// ahead of the log, log bytes do not.
package main

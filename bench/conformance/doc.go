// Package conformance holds the end-to-end tests of the daemon: it runs Sluice and, as the oracle, real
// etcd 3.7.3 as processes, and compares their answers, errors, revisions, events, hashes and files.
//
// The short forms run with "go test ./..."; flags make the long ones, for instance
//
//	go test ./bench/conformance -run Differential -ops 100000 -seed 7
//
// A real kube-apiserver with Sluice as its only store, built on the first run (minutes), is one of them:
//
//	go test ./bench/conformance -run KubeAPIServer -kube -v
package conformance

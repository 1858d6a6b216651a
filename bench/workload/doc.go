// Package workload has the loads of the benchmark, one file per family: what is written, read, watched or
// restarted, what is measured meanwhile, and which gates the ratio to etcd has to pass.
//
// A Family (W1 ... W16) consists of groups of cells. The cells of a group share a pair of fresh members with
// the same data. A cell's Run loads one member and returns a Sample; who calls it, how often and in which
// order is the caller's affair, and so is the other member, which idles meanwhile.
//
// Latency in a closed loop says how long calls took. In an open loop, at a fixed rate, it counts from when a
// call was due, so that a stall is charged to every call that it delayed.
package workload

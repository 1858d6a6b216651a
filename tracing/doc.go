// Package tracing is how a request is seen on its way: the stamps that stages take, the histograms made
// from them, and every metric that the daemon exports.
//
// A stage records one stamp per batch, keyed by the log indexes it worked on, never one per request: a few
// clock reads per batch and no allocation. From stamps come the sluice_stage_* histograms and, for a
// request that turns out slow, its breakdown. Stages are handed the small interfaces below by runtime;
// no stage knows Prometheus.
//
// Rule: design.md section 6; contract/operations.md section 4.
package tracing

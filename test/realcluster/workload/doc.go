// Package workload promises a web server with Services on a real cluster, and
// clients that use them: pods, nodes and clients outside, with new connections and
// with ones that stay open. A load counts every request that failed.
//
// It judges nothing: packages smoke and migrate say what must not fail when.
package workload

// Package suite runs Kubernetes' own tests of sig-network on a cluster: it makes
// the images that they ask for, leaves out what a cluster on one computer cannot
// run, and says how many tests passed, failed and were skipped, and why.
//
// It does not bring up the cluster, and it changes no test.
package suite

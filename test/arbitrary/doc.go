// Package arbitrary promises input that nobody would write, for fuzz targets and random
// tests: random choices that a fuzzer steers, tables as other programs may leave them, and
// a bound on the memory that one input may take.
//
// Apart from that bound, the package makes no assertion. It sends nothing to a kernel.
package arbitrary

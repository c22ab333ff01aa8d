// Package kernel carries batches to the kernel's nf_tables over netlink, and reads
// tables back into the form of an nft.Model.
//
// It needs Linux 5.6, for sets of intervals. Conn's methods say what they use of newer
// kernels.
//
// Small sets are dumped. Sets of 250,000 elements and more are looked up by keys, which is 290 lines more: a dump's
// time grows with the square of the number of elements, and anybody who may write Services can make a set large. With
// 330,000 elements a dump takes 1.9 s of CPU time and 3 s on two busy cores, and lookups take 1.2 s and 1.2 to 1.7 s.
// With 1,000,000 it would be 14 s and 3.4 s of CPU time. With 250,000 both take 0.9 s, below that a dump is faster
// (BenchmarkRead).
//
// The package does not decide what to write: package nft plans that. It never runs the nft command,
// and it changes only the tables that it is given.
package kernel

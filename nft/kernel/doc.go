// Package kernel carries batches to the kernel's nf_tables over netlink, and reads
// tables back into the form of an nft.Model.
//
// It needs Linux 5.6, for sets of intervals. Conn's methods say what they use of newer
// kernels.
//
// The package does not decide what to write: package nft plans that. It never runs the nft command,
// and it changes only the tables that it is given.
package kernel

// Package kernel carries batches to the kernel's nf_tables over netlink, each as
// one transaction, and reads tables back into the form of an nft.Model.
//
// It needs Linux 5.6, for sets of intervals; what it uses of newer kernels where
// they have it is said at Conn's methods.
//
// It decides nothing: what to write is planned in package nft. It never runs the
// nft command, and it touches no table but those it is given.
package kernel

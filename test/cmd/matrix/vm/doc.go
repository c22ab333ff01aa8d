// Package vm promises what a virtual machine boots from, and the words in which it and its host speak: the first root file
// system of a Linux kernel as one file (a cpio archive of the files that it is given), the kernel's modules in an order in
// which each can be loaded, the list of a machine's jobs, and the lines that frame the output of each.
//
// It runs no kernel and no job.
package vm

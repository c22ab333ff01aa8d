// Package initramfs promises the first root file system of a Linux kernel as one file: a cpio archive
// of the files that it is given, and the kernel's modules in an order in which each can be loaded.
//
// It runs no kernel.
package initramfs

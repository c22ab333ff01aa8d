// Package testnet builds small networks out of network namespaces and sends
// real packets through them, and takes away all that it made.
//
// It is what the kernel tests, the end-to-end tests and `nftproxy demo` run
// in: a node with pods, a client outside, servers that say who they are and
// whom they saw, and a sniffer on the wire that leaves the node.
//
// Namespaces are held by file descriptors and never by names in /run/netns, so
// the package needs no more than CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW
// over the user namespace it runs in (see package userns for how an ordinary
// user gets them), and the kernel removes everything if the process is killed.
//
// It does not know Services, nftables or Kubernetes, and it resolves no names:
// addresses are IP literals.
package testnet

// Package testnet promises small networks of network namespaces, with real packets, and
// removes all that it made.
//
// The kernel tests, the end-to-end tests and `nftproxy demo` run in such a network: a
// node with pods, a client outside, servers that answer with their id and the client's
// address, and a sniffer on the wire from the node to the LAN.
//
// File descriptors hold the namespaces, not names in /run/netns. So the package needs
// only CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW over its user namespace (Reexec
// gets them for an ordinary user), and the kernel removes everything if the
// process is killed.
//
// It does not know Services, nftables or Kubernetes, and it resolves no names:
// addresses are IP literals.
package testnet

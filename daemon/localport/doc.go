// Package localport serves node ports to clients on the node's loopback addresses, 127.0.0.1 and ::1, where
// --nodeport-addresses asks for that (KEP-6032). It listens on each node port that has endpoints and admits the node, for TCP
// and UDP, and connects for each client from another address of the node to the same port of the loopback address. The rules
// in the chain output translate that connection (ruleset.FindOnLoopback). So they alone choose the endpoint, remember the
// client and count.
//
// The snapshot alone decides where to listen (index). The Server has the sockets; connections, sessions and listeners
// are bounded. An address that another process has stays with that process. Connections do not outlive the process.
package localport

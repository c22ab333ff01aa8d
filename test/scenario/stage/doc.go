// Package stage promises the network that a scenario describes, built of network
// namespaces: the node, its pods, endpoints elsewhere, clients outside and all other
// addresses, with a real server wherever a flow may end. It sends the flows as real
// packets and returns their outcomes.
//
// The package loads no rules. The test loads them into the node's namespace.
//
// # The world
//
//	pods (a namespace for each address)
//	  | veth0, veth1... or ports of a bridge
//	node --- eth0 --- outside  the addresses of clients outside
//	  | \--- eth1 --- remote   endpoints that are not on the node
//	  |
//	 eth2 (default route)
//	  |
//	beyond   every other destination of a flow
//
// Each server's id is the address and port on which it listens, so an answer says where
// a flow went. If the flow's own destination answers, the proxy left the flow untouched.
// If a proxy fails to translate a flow, a server beyond answers, or the node itself where
// the destination is one of its addresses.
//
// Masqueraded packets do not have one of the node's ordinary addresses but a gateway's:
// 169.254.0.1 or fd00:fe::1, which every interface but eth0 has. So they differ from the
// packets of a process on the node.
//
// # Connection tracking
//
// No two questions of a stage have the same source port, unless a flow names one: the
// entry of one question must not decide about the next. If a flow of a step names a
// port, Enter removes all entries of the node first.
package stage

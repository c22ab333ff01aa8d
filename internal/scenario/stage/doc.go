// Package stage promises the world that a scenario plays in, out of network
// namespaces: the node, its pods, endpoints elsewhere, clients outside and
// everything beyond, with a real server wherever a flow may end. It sends the
// flows as real packets and says what became of them.
//
// It loads no rules: what stands between a client and the servers is up to
// others, who work in the node's namespace.
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
//	beyond   every other address that a flow is for
//
// Each server's id is the address and port where it listens. So an answer says
// where a flow went: one from the flow's own destination was left untouched,
// and what a proxy forgets to translate is answered from beyond, or by the node
// itself where the destination is an address of the node.
//
// Packets that the node masquerades do not have one of its addresses proper but
// a gateway's: 169.254.0.1 or fd00:fe::1, which every interface but eth0 has.
// That tells them from what a process of the node sends.
//
// # Connection tracking
//
// No two questions of a stage have the same source port, unless a flow names
// one, so that what conntrack remembers of one says nothing about the next.
// Where a flow does name one, Enter forgets all connections of the node first.
package stage

// Package scenario promises files that a person can read. Each is about one thing that
// a service proxy does: the objects, their program, and what happens to packets.
// Several tests run the same files: with the interpreter, in a kernel with real
// packets, from a real API server, and beside kube-proxy.
//
// The package reads the files and returns what they describe, and has a Stage that plays them with real packets.
//
// # The files
//
// A file is a txtar archive. Its comment says what the file is about. These sections
// follow:
//
//   - "proxy" (optional): flags of "nftproxy run", one in each line. Addresses in
//     10.0.0.0/8 and fd00:10::/32 are pods unless a flag says otherwise.
//   - "world" (optional), with lines of four kinds. "address A" gives the node one
//     more address, "network CIDR" a route to that network. "closed EP" says that no
//     process listens on an endpoint. "unchecked" says that an API server would refuse
//     the objects, so that tests write them past it.
//   - "objects.yaml": Service, EndpointSlice, Node and ServiceCIDR objects. Each file
//     also has namespace "ns", Node test-node and a ServiceCIDR (see Fixture).
//   - "flows": one connection attempt in each line, with its outcome. "#" begins a
//     comment.
//   - "packets" (optional): more flows, for a real kernel only: other tables change
//     them, or they do not begin a connection.
//   - "other.nft" (optional): other tables of the node.
//   - "kube-proxy" (optional): the flows whose outcome differs with kube-proxy. Behind
//     each stands "# " and the heading in docs/differences.md that gives the reason.
//     "one of A | B" is for an outcome that differs from run to run. Only such a flow
//     may at times have the same outcome as in "flows".
//   - "kube-proxy-1.36", "kube-proxy-1.38" (optional): the same for that release, where it is
//     not as with 1.37. It stands in place of "kube-proxy", and may be empty.
//   - "program.nft": the program, without the parts that the program of an empty
//     cluster has, too. Those are in empty.txtar.
//
// Changes follow as "2/objects.yaml" (objects that are new or replaced), "2/delete"
// (lines "KIND NAMESPACE/NAME"), "2/world" (also with "no-address A" and "no-network CIDR"), "2/flows" and
// so on.
//
// # Flows
//
//	pod 10.180.0.1 -> 172.30.0.41:80/tcp = 10.180.0.1:80 masqueraded | 10.180.1.2:80
//
// The first word says where the flow comes from: a pod of the node, the node itself or
// outside. The outcome is one or more endpoints, "refused", "dropped", "untouched", or "echoed" for a ping that the
// node answers. "masqueraded as A" says which address of the node an endpoint sees. After "sticky", a client keeps its
// endpoint as long as that is in the list.
//
//	outside 203.0.113.2 -> 192.168.0.2:30099/http = 200 ns/web weight 2
//
// This flow asks a Service's healthCheckNodePort. The outcome is the HTTP status, the
// Service and the number of ready endpoints on the node (in the body and in the header
// X-Load-Balancing-Endpoint-Weight), or "refused" where no process listens.
//
// # The stage
//
// A Stage is the network that a scenario describes, built of network namespaces: the node, its pods, endpoints
// elsewhere, clients outside and all other addresses, with a real server wherever a flow may end. It sends the flows as
// real packets and returns their outcomes. It loads no rules: the test loads them into the node's namespace.
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
package scenario

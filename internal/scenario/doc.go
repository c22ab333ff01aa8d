// Package scenario promises files that a person can read, each about one thing
// that a service proxy does: the objects, the program that they give, and what
// becomes of packets. Several tests run the same files: through the
// interpreter, in a kernel with real packets, from a real API server, and
// against kube-proxy.
//
// It reads the files and says what they mean; it builds no world around them
// and sends nothing.
//
// # The files
//
// A file is a txtar archive. Its comment says what it is about. Then:
//
//   - "proxy" (optional): flags of "nftproxy run", one a line. Pods are told by
//     the cluster CIDRs 10.0.0.0/8 and fd00:10::/32 unless a flag says otherwise.
//   - "world" (optional), one a line: "address A" gives the node one more
//     address; "closed EP" says that nobody listens on an endpoint; "unchecked"
//     that an API server would not take the objects, so that they have to get
//     past it.
//   - "objects.yaml": Service, EndpointSlice, Node and ServiceCIDR objects.
//     Namespace "ns", Node test-node and a ServiceCIDR are there without (see
//     Fixture).
//   - "flows": one connection attempt a line, with its outcome. "#" begins a
//     comment.
//   - "packets" (optional): more of them, for a real kernel only, since other
//     tables have a say in them or they are no first packets of a connection.
//   - "other.nft" (optional): other tables of the node.
//   - "kube-proxy" (optional): the flows whose outcome is another one with
//     kube-proxy, each followed by "# " and the heading in docs/differences.md
//     that says why. "one of A | B" is for what differs from run to run, and
//     may be as it is in the flows: only then may a difference not show.
//   - "program.nft": the program, without what an empty cluster's has too: see
//     empty.txtar for that.
//
// Changes follow as "2/objects.yaml" (objects new or replaced), "2/delete"
// (lines "KIND NAMESPACE/NAME"), "2/world" ("no-address A" too), "2/flows" and so on.
//
// # Flows
//
//	pod 10.180.0.1 -> 172.30.0.41:80/tcp = 10.180.0.1:80 masqueraded | 10.180.1.2:80
//
// The first word says where it comes from: a pod of the node, the node itself
// or outside. The outcome is one or more endpoints, "refused", "dropped", or
// "untouched". Endpoints after "sticky" stay what they are for a client as long
// as they are in the list.
//
//	outside 203.0.113.2 -> 192.168.0.2:30099/http = 200 ns/web weight 2
//
// This one asks a Service's healthCheckNodePort: the outcome is the HTTP status,
// the Service and the number of ready endpoints on the node (in the body and in
// the header X-Load-Balancing-Endpoint-Weight), or "refused" where nobody listens.
package scenario

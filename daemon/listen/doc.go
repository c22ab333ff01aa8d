// Package listen has the sockets that nftproxy itself opens for Services. HealthPorts answers on the
// healthCheckNodePort of each Service: whether this node has ready endpoints of its own for the Service. Load balancers
// ask for it on the node's present addresses; the answer has the form of kube-proxy. LocalPorts serves node ports to
// clients on the node's loopback addresses, 127.0.0.1 and ::1, where --nodeport-addresses asks for that (KEP-6032). It
// listens on each node port that has endpoints and admits the node, for TCP and UDP, and connects for each client from
// another address of the node to the same port of the loopback address. The rules in the chain output translate that
// connection (ruleset.FindOnLoopback). So they alone choose the endpoint, remember the client and count.
//
// The snapshot alone decides where to listen and what to answer (index). Both open and close their sockets in a
// goroutine of their own (listeners); connections, sessions and listeners are bounded. A failure of one port does not
// affect another's, and an address that another process has stays with that process. Connections do not outlive the
// process. The package does not say whether the proxy as a whole works (package health does).
package listen

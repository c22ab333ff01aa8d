// Package healthport answers on the healthCheckNodePort of each Service:
// whether this node has ready endpoints of its own for the Service. Load balancers ask
// for it on the node's present addresses; the answer has the form of kube-proxy. A
// failure of one Service's port does not affect another's.
//
// The snapshot alone decides the answers and their addresses (index). The Server opens
// and closes the sockets, in a goroutine of its own. The package does not say whether
// the proxy as a whole works (package health does).
package healthport

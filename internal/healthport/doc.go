// Package healthport promises what load balancers ask a Service's
// healthCheckNodePort: whether this node has ready endpoints of its own for the
// service, as kube-proxy answers it, on the node's addresses as they are now.
// What one service's port meets with does not concern another's.
//
// What ought to be answered where follows from the snapshot alone (index); the
// sockets are kept after that (Server), beside the loop. Whether the proxy as a
// whole works is package health's to say.
package healthport

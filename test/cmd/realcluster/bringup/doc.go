// Package bringup promises a whole Kubernetes cluster on one computer: a control
// plane, nodes that share a network with it, CoreDNS, and the service proxy that the
// caller has images and manifests of, as the only one. So for a pod network and a
// network policy engine.
//
// All of it is in namespaces and ends with the process; only files under
// Config.Dir and cgroups can stay, and Close and Remove remove them.
package bringup

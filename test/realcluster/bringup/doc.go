// Package bringup promises a whole Kubernetes cluster on one computer: a control
// plane, nodes that share a network with it, CoreDNS, and nftproxy from its image
// and manifests as the only service proxy.
//
// All of it is in namespaces and ends with the process; only files under
// Config.Dir and cgroups can stay, and Close and Remove remove them.
package bringup

// Package node promises nodes of a Kubernetes cluster on one computer: machines
// with containerd and a kubelet, pods with addresses of the node's ranges, and
// images without a registry.
//
// The caller gives the control plane and the network between the nodes. There is
// no service proxy on a node: that comes as a pod.
package node

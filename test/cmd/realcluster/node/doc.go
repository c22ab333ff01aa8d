// Package node promises nodes of a Kubernetes cluster on one computer: machines with containerd and a kubelet, pods with
// addresses of the node's ranges, and images without a registry or a container engine.
//
// A Machine has its own root file system, processes, host name and network, and runs services that are started again when
// they end. It shares the kernel, the devices and the cgroup hierarchies with this computer. It changes no file of this
// computer outside MachineConfig.Dir, and no sysctl outside its network namespace that MachineConfig.Sysctls covers.
//
// The caller gives the control plane and the network between the nodes. There is no service proxy on a node: that comes as a
// pod. The proxy's own image comes from `make image`.
package node

// Package cluster promises a whole Kubernetes cluster on one computer: a control plane, nodes that share a network with
// it, CoreDNS, and the service proxy that the caller has images and manifests of, as the only one. So for a pod network
// and a network policy engine.
//
// A node is a machine with containerd and a kubelet. It has its own root file system, processes, host name and network,
// and runs services that are started again when they end. It shares the kernel, the devices and the cgroup hierarchies
// with this computer. It changes no file of this computer outside Config.Dir, and no sysctl outside its network
// namespace that machineConfig.Sysctls covers. Its images come from files, without a registry or a container engine;
// the proxy's own image comes from `make image`.
//
// All of it is in namespaces and ends with the process; only files under Config.Dir and cgroups can stay, and Close and
// Remove remove them.
package cluster

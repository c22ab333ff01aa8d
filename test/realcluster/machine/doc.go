// Package machine promises computers on this computer: each has its own root
// file system, processes, host name and network, and runs services that are
// started again when they end. Programs that expect a computer of their own,
// such as containerd and the kubelet, work there.
//
// A machine shares the kernel, the devices and the cgroup hierarchies with this
// computer. It changes no file of this computer outside Config.Dir, and no
// sysctl outside its network namespace that Config.Sysctls covers.
package machine

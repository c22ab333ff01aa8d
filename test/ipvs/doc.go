// Package ipvs has the tests of a node that goes from kube-proxy's IPVS mode to nftproxy and back. They run the real
// kube-proxy, so they need a kernel with IPVS and the commands of a virtual machine (make test-kernels
// PACKAGES=test/ipvs); elsewhere they skip themselves. One is of a node without iptables (make test-no-iptables), and
// one, which runs only if -run names it, measures how both balance by least connections.
package ipvs

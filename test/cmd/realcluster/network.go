package main

import (
	_ "embed"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/test/cmd/realcluster/cluster"
)

// flannelChoice is how flannel makes the pods' network; the zero value is without flannel.
type flannelChoice struct {
	backend  string
	nftables bool
}

// networkNames are the values of --cni; "" is the cluster's own network.
func networkNames() []string {
	return []string{"", otherRanges, "flannel", "flannel-host-gw", "flannel-nftables", kubeRouter}
}

// otherRanges is the name of the cluster's own network with pods outside of the Nodes' podCIDRs.
const otherRanges = "other-ranges"

// networkOf is the network of a name.
func networkOf(name string) cluster.Network {
	switch name {
	case "":
		return cluster.NodeRanges
	case otherRanges:
		return cluster.OtherRanges
	}
	return cluster.ForeignNetwork
}

// flannelOf is how flannel makes the network of a name.
func flannelOf(name string) flannelChoice {
	switch name {
	case "flannel":
		return flannelChoice{backend: "vxlan"}
	case "flannel-host-gw":
		return flannelChoice{backend: "host-gw"}
	case "flannel-nftables":
		return flannelChoice{backend: "vxlan", nftables: true}
	}
	return flannelChoice{}
}

func (f flannelChoice) chosen() bool { return f.backend != "" }

//go:embed manifests/flannel.yaml
var flannelManifest string

// flannelImage has the name of no release: it is made here.
const flannelImage = "ghcr.io/flannel-io/flannel:cluster"

func (f flannelChoice) addition() addition {
	ranges := cluster.PodCIDRs()
	rules := "iptables" // of the CNI plugins
	if f.nftables {
		rules = "nftables"
	}
	return addition{
		daemonSet: "kube-flannel/kube-flannel-ds",
		manifest: strings.NewReplacer("IMAGE", flannelImage, "NET6", ranges[1].String(), "NET4", ranges[0].String(),
			"BACKEND", f.backend, "RULES", rules, "NFTABLES", strconv.FormatBool(f.nftables)).Replace(flannelManifest),
		programs: []program{{
			image: flannelImage, tool: "flannel", path: "opt/bin/flanneld",
			applets: []string{"sh", "cat", "mv", "sleep", "test"},
		}},
		plugins: bridgePlugins(),
	}
}

// kubeRouter is kube-router's name as a network and as a policy engine.
const kubeRouter = "kube-router"

//go:embed manifests/kube-router.yaml
var kubeRouterManifest string

// kubeRouterImage has the name of no release: it is made here.
const kubeRouterImage = "docker.io/cloudnativelabs/kube-router:cluster"

// kubeRouterAddition is kube-router as the pods' network, as the policy engine, or as both.
func kubeRouterAddition(network, policies bool) addition {
	a := addition{
		daemonSet: "kube-system/kube-router",
		manifest: strings.NewReplacer("IMAGE", kubeRouterImage, "NETWORK", strconv.FormatBool(network),
			"POLICIES", strconv.FormatBool(policies)).Replace(kubeRouterManifest),
		programs: []program{{
			image: kubeRouterImage, tool: "kube-router", path: "usr/local/bin/kube-router",
			packages: []string{"ipset", "iproute2"}, applets: []string{"sh", "cp", "grep", "mv", "test", "wc", "wget"},
		}},
	}
	if network {
		a.plugins = bridgePlugins()
	}
	if policies {
		a.policies = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	return a
}

package main

import (
	_ "embed"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/test/cmd/realcluster/cluster"
)

// netpol is the policy engine of the Kubernetes project.
const netpol = "kube-network-policies"

// policyEngines are the values of --policies; "" is none.
func policyEngines() []string { return []string{"", netpol, kubeRouter} }

//go:embed manifests/kube-network-policies.yaml
var netpolManifest string

// netpolImage has the name of no release: it is made here.
const netpolImage = "registry.k8s.io/networking/kube-network-policies:cluster"

func netpolAddition() addition {
	ranges := cluster.PodCIDRs()
	return addition{
		daemonSet: "kube-system/" + netpol,
		manifest: strings.NewReplacer("IMAGE", netpolImage, "NET4", ranges[0].String(), "NET6",
			ranges[1].String()).Replace(netpolManifest),
		programs: []program{{
			image: netpolImage, tool: netpol, path: "bin/netpol",
			applets: []string{"sh", "grep", "sleep", "test", "touch"},
		}},
		policies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
	}
}

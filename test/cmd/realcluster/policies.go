package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/test/cmd/realcluster/bringup"
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
	ranges := bringup.PodCIDRs()
	return addition{
		daemonSet: "kube-system/" + netpol,
		manifest:  strings.NewReplacer("IMAGE", netpolImage, "NET4", ranges[0].String(), "NET6", ranges[1].String()).Replace(netpolManifest),
		program: program{
			image: netpolImage, tool: netpol, path: "bin/netpol",
			applets: []string{"sh", "grep", "sleep", "test", "touch"},
		},
		policies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
	}
}

// hasPolicies asks the API server whether the cluster has a network policy engine: the manifests label it.
func hasPolicies(ctx context.Context, dir string) (bool, error) {
	cmd, err := outsideCommand(ctx, dir, []string{"kubectl", "--namespace=kube-system", "get", "daemonset", "--output=name", "--selector=network-policies=true"})
	if err != nil {
		return false, err
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return false, fmt.Errorf("look for the network policy engine: %w", err)
	}
	return len(out) > 0, nil
}

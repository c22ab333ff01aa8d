package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"strings"

	"nftproxy/test/cmd/realcluster/bringup"
	"nftproxy/test/cmd/realcluster/node"
)

// policiesDaemonSet is the name of the network policy engine in kube-system.
const policiesDaemonSet = "kube-network-policies"

//go:embed manifests/kube-network-policies.yaml
var policiesManifest string

// policiesImage has the name of no release: it is made here.
const policiesImage = "registry.k8s.io/networking/kube-network-policies:cluster"

func policiesObjects() string {
	ranges := bringup.PodCIDRs()
	return strings.NewReplacer("IMAGE", policiesImage, "NET4", ranges[0].String(), "NET6", ranges[1].String()).Replace(policiesManifest)
}

// providePolicies builds the engine and makes its image.
func providePolicies(ctx context.Context, software node.Software, dir string) error {
	return writeProgramImage(ctx, software, dir, policiesImage, "kube-network-policies", "bin/netpol", "sh", "grep", "sleep", "test", "touch")
}

// hasPolicies asks the API server whether the cluster has a network policy engine.
func hasPolicies(ctx context.Context, dir string) (bool, error) {
	cmd, err := outsideCommand(ctx, dir, []string{"kubectl", "--namespace=kube-system", "get", "daemonset", "--output=name", "--ignore-not-found", policiesDaemonSet})
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

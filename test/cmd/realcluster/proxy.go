package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"nftproxy/test/cmd/realcluster/cluster"
)

// proxyChoice is the service proxy that a cluster begins with.
type proxyChoice struct {
	name string
	// mode is kube-proxy's; "" is its default, as kubeadm leaves it.
	mode string
}

// The names of the proxies, which are those of their DaemonSets.
const (
	nftproxy  = "nftproxy"
	kubeProxy = "kube-proxy"
)

func (p proxyChoice) check() error {
	if p.name != nftproxy && p.name != kubeProxy {
		return fmt.Errorf("--proxy: %q: want %s or %s", p.name, nftproxy, kubeProxy)
	}
	return nil
}

// manifests are what a cluster of kubeadm's has: the ConfigMap kube-proxy, and
// either kube-proxy itself, or what an operator installs in its place: the Helm chart.
func (p proxyChoice) manifests(ctx context.Context, api netip.AddrPort) ([]string, error) {
	var ranges []string
	for _, r := range cluster.PodCIDRs() {
		ranges = append(ranges, r.String())
	}
	edits := strings.NewReplacer("SERVER", "https://"+api.String(), "CLUSTER_CIDR", strings.Join(ranges, ","), "MODE",
		p.mode)
	config := edits.Replace(kubeProxyConfig)
	if p.name == kubeProxy {
		return []string{config, strings.ReplaceAll(kubeProxyManifest, "IMAGE", kubeProxyImage)}, nil
	}
	cmd := exec.CommandContext(ctx, chartTool(), "template", filepath.Join("deploy", "helm"))
	cmd.Stderr = os.Stderr
	objects, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	return []string{config, string(objects)}, nil
}

//go:embed manifests/kube-proxy-config.yaml
var kubeProxyConfig string

//go:embed manifests/kube-proxy.yaml
var kubeProxyManifest string

// kubeProxyImage has the name of no release: it is made here.
const kubeProxyImage = "registry.k8s.io/kube-proxy:cluster"

// writeKubeProxyImage makes the image of kube-proxy: the program, and the commands
// that it runs.
func writeKubeProxyImage(ctx context.Context, software cluster.Software, dir string) error {
	return program{
		image: kubeProxyImage, tool: "kube-proxy", path: "usr/local/bin/kube-proxy",
		packages: []string{"ipset"}, // its IPVS mode runs it
	}.writeImage(ctx, software, dir)
}

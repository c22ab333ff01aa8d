package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"nftproxy/test/cluster"
	"nftproxy/test/realcluster/bringup"
	"nftproxy/test/realcluster/image"
	"nftproxy/test/realcluster/node"
)

// Where the repository has what is needed, from its root: the working directory.
func toolsDir() string   { return "hack/tools/bin" }
func proxyImage() string { return "bin/nftproxy-image.tar" } // of make image

// prepare builds and unpacks programs, and writes images: minutes from cold.
func prepare(ctx context.Context, dir string, out io.Writer) error {
	fmt.Fprintln(out, "building and unpacking what is missing; from cold this takes many minutes")
	software, err := node.Provide(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "coredns", "agnhost"} {
		if _, err := cluster.Tool(ctx, name); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(imagesDir(dir), 0o755); err != nil {
		return err
	}
	for _, i := range images(software) {
		if err := image.Write(filepath.Join(imagesDir(dir), i.file), i.Image); err != nil {
			return err
		}
	}
	return nil
}

func imagesDir(dir string) string { return filepath.Join(dir, "images") }

type archive struct {
	file string
	image.Image
}

// images are all that nodes have, but for the proxy's.
func images(software node.Software) []archive {
	tool := func(name string) string { return filepath.Join(software.Tools, name) }
	return []archive{
		{"pause.tar", image.Image{
			Names: []string{node.PauseImage},
			Files: map[string]string{"busybox": software.Busybox()}, Entrypoint: []string{"/busybox", "sleep", "2147483647"},
		}},
		{"coredns.tar", image.Image{
			Names: []string{"registry.k8s.io/coredns/coredns:cluster"},
			Files: map[string]string{"coredns": tool("coredns")}, Entrypoint: []string{"/coredns"},
		}},
		{"agnhost.tar", image.Image{
			Names:      []string{"registry.k8s.io/e2e-test-images/agnhost:cluster"},
			Dirs:       []string{"tmp"},
			Files:      map[string]string{"agnhost": tool("agnhost"), "bin/busybox": software.Busybox()},
			Links:      map[string]string{"bin/sh": "busybox", "bin/wget": "busybox", "bin/nc": "busybox", "bin/nslookup": "busybox"},
			Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{"PATH=/bin:/"},
		}},
	}
}

// clusterConfig describes the cluster with what prepare made.
func clusterConfig(dir string) (bringup.Config, error) {
	self, err := os.Executable()
	if err != nil {
		return bringup.Config{}, err
	}
	tools, err := filepath.Abs(toolsDir())
	if err != nil {
		return bringup.Config{}, err
	}
	archives, err := filepath.Glob(filepath.Join(imagesDir(dir), "*.tar"))
	if err != nil {
		return bringup.Config{}, err
	}
	proxy, err := filepath.Abs(proxyImage())
	if err != nil {
		return bringup.Config{}, err
	}
	return bringup.Config{
		Dir: dir, Init: []string{self, initCommand}, Images: append(archives, proxy), Manifests: proxyManifests,
		Software: node.Software{Tools: tools, Debian: filepath.Join(tools, "debian")},
	}, nil
}

// proxyManifests are what an operator of a cluster of kubeadm's applies: kubeadm's
// own ConfigMap kube-proxy, and the overlay kubeadm of deploy.
func proxyManifests(ctx context.Context, api netip.AddrPort) ([]string, error) {
	kubectl, err := cluster.Tool(ctx, "kubectl")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, kubectl, "kustomize", filepath.Join("deploy", "overlays", "kubeadm"))
	cmd.Stderr = os.Stderr
	objects, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	var ranges []string
	for _, p := range bringup.PodCIDRs() {
		ranges = append(ranges, p.String())
	}
	edits := strings.NewReplacer("SERVER", "https://"+api.String(), "CLUSTER_CIDR", strings.Join(ranges, ","))
	return []string{edits.Replace(kubeProxyConfig), string(objects)}, nil
}

//go:embed manifests/kube-proxy-config.yaml
var kubeProxyConfig string

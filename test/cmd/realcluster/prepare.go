package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/test/cmd/realcluster/cluster"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/controlplane"
)

// Where the repository has what is needed, from its root: the working directory.
func toolsDir() string {
	dir, _ := controlplane.ToolsDir()
	return dir
}
func proxyImage() string { return "bin/nftproxy-image.tar" } // of make image
func chartTool() string  { return "bin/helm" }

// prepare builds and unpacks programs, and writes images: minutes from cold.
func prepare(ctx context.Context, dir string, o upOptions, out io.Writer) error {
	fmt.Fprintln(out, "building and unpacking what is missing; from cold this takes many minutes")
	software, err := cluster.Provide(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl",
		"coredns", "agnhost"} {
		if _, err := controlplane.Tool(ctx, name); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(imagesDir(dir), 0o755); err != nil {
		return err
	}
	tree, err := curlTree(ctx, software)
	if err != nil {
		return err
	}
	for _, i := range images(software, tree) {
		if err := cluster.WriteImage(filepath.Join(imagesDir(dir), i.file), i.Image); err != nil {
			return err
		}
	}
	if o.proxy.name == kubeProxy {
		if err := writeKubeProxyImage(ctx, software, imagesDir(dir)); err != nil {
			return fmt.Errorf("make the image of kube-proxy: %w", err)
		}
	}
	added, err := additions(ctx, o)
	if err != nil {
		return err
	}
	for _, a := range added {
		if err := a.provide(ctx, software, imagesDir(dir)); err != nil {
			return fmt.Errorf("prepare %s: %w", a.daemonSet, err)
		}
	}
	if o.suite {
		if err := provideSuite(ctx, software, imagesDir(dir)); err != nil {
			return fmt.Errorf("prepare Kubernetes' tests: %w", err)
		}
	}
	return nil
}

func imagesDir(dir string) string { return filepath.Join(dir, "images") }

type archive struct {
	file string
	cluster.Image
}

// curlTree is a root file system with curl, as the image agnhost has it.
func curlTree(ctx context.Context, s cluster.Software) (string, error) {
	tree := filepath.Join(s.Tools, "debian-curl")
	return tree, aptget.UnpackRoot(ctx, tree, aptget.Release{Name: "bookworm"}, "curl")
}

// images are all that nodes have, but for the proxy's. curl is the folder of curlTree.
func images(software cluster.Software, curl string) []archive {
	tool := func(name string) string { return filepath.Join(software.Tools, name) }
	return []archive{
		{"pause.tar", cluster.Image{
			Names: []string{cluster.PauseImage},
			Files: map[string]string{"busybox": software.Busybox()}, Entrypoint: []string{"/busybox", "sleep", "2147483647"},
		}},
		{"coredns.tar", cluster.Image{
			Names: []string{"registry.k8s.io/coredns/coredns:cluster"},
			Files: map[string]string{"coredns": tool("coredns")}, Entrypoint: []string{"/coredns"},
		}},
		{"agnhost.tar", cluster.Image{
			Names: []string{"registry.k8s.io/e2e-test-images/agnhost:cluster"},
			Tree:  curl, Dirs: []string{"tmp"},
			Files: map[string]string{"agnhost": tool("agnhost"), "bin/busybox": software.Busybox()},
			Links: map[string]string{"bin/sh": "busybox", "bin/sleep": "busybox", "bin/wget": "busybox", "bin/nc": "busybox",
				"bin/nslookup": "busybox"},
			Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{"PATH=/usr/bin:/bin:/"},
		}},
	}
}

// clusterConfig describes the cluster with what prepare made.
func clusterConfig(ctx context.Context, dir string, o upOptions) (cluster.Config, error) {
	self, err := os.Executable()
	if err != nil {
		return cluster.Config{}, err
	}
	tools, err := filepath.Abs(toolsDir())
	if err != nil {
		return cluster.Config{}, err
	}
	archives, err := filepath.Glob(filepath.Join(imagesDir(dir), "*.tar"))
	if err != nil {
		return cluster.Config{}, err
	}
	proxy, err := filepath.Abs(proxyImage())
	if err != nil {
		return cluster.Config{}, err
	}
	added, err := additions(ctx, o)
	if err != nil {
		return cluster.Config{}, err
	}
	manifests := func(ctx context.Context, api netip.AddrPort) ([]string, error) {
		objects, err := o.proxy.manifests(ctx, api)
		for _, a := range added {
			objects = append(objects, a.manifest)
		}
		return objects, err
	}
	var others, deployments, settings []string
	var policies []corev1.IPFamily
	for _, a := range added {
		others = append(others, a.daemonSet)
		if a.deployment != "" {
			deployments = append(deployments, a.deployment)
		}
		settings = append(settings, a.settings)
		policies = append(policies, a.policies...)
	}
	return cluster.Config{
		Dir: dir, Nodes: o.nodes, Init: []string{self, initCommand}, Images: append(archives, proxy),
		Proxy: o.proxy.name, Network: networkOf(o.network), Policies: policies, DaemonSets: others, Deployments: deployments,
		Settings: settings, Manifests: manifests, ControllerFlags: o.controllerFlags,
		Software: cluster.Software{Tools: tools, Debian: filepath.Join(tools, "debian")},
	}, nil
}

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"nftproxy/test/cluster"
	"nftproxy/test/realcluster/bringup"
	"nftproxy/test/realcluster/image"
	"nftproxy/test/realcluster/node"
)

// Where the repository has what is needed, from its root: the working directory.
func toolsDir() string    { return "hack/tools/bin" }
func proxyBinary() string { return "bin/nftproxy" }

// prepare builds and unpacks programs, and writes images: minutes from cold.
func prepare(ctx context.Context, dir string, out io.Writer) error {
	fmt.Fprintln(out, "building and unpacking what is missing; from cold this takes many minutes")
	software, err := node.Provide(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns", "agnhost"} {
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

// images are all that nodes have.
func images(software node.Software) []archive {
	tool := func(name string) string { return filepath.Join(software.Tools, name) }
	return []archive{
		{"nftproxy.tar", image.Image{
			Names: []string{"docker.io/library/nftproxy:dev"},
			Files: map[string]string{"nftproxy": proxyBinary()}, Entrypoint: []string{"/nftproxy"}, Cmd: []string{"run"},
		}},
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
	return bringup.Config{
		Dir: dir, Init: []string{self, initCommand}, Images: archives, Manifests: proxyManifests,
		Software: node.Software{Tools: tools, Debian: filepath.Join(tools, "debian")},
	}, nil
}

// proxyManifests are those of deploy, with what an operator edits.
func proxyManifests(api netip.AddrPort) ([]string, error) {
	var manifests []string
	for _, name := range []string{"rbac.yaml", "config.yaml", "daemonset.yaml"} {
		b, err := os.ReadFile(filepath.Join("deploy", name))
		if err != nil {
			return nil, err
		}
		manifests = append(manifests, string(b))
	}
	var ranges []string
	for _, p := range bringup.PodCIDRs() {
		ranges = append(ranges, p.String())
	}
	edits := strings.NewReplacer(
		`"192.0.2.1"`, strconv.Quote(api.Addr().String()),
		`"6443"`, strconv.Quote(strconv.Itoa(int(api.Port()))),
		`"10.244.0.0/16"`, strconv.Quote(strings.Join(ranges, ",")))
	manifests[1] = edits.Replace(manifests[1])
	return manifests, nil
}

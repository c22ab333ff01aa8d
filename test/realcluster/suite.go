package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"nftproxy/test/aptget"
	"nftproxy/test/cluster"
	"nftproxy/test/realcluster/image"
	"nftproxy/test/realcluster/node"
)

// suiteTool is Kubernetes' own test suite.
const suiteTool = "e2e.test"

// suiteImages are the repositories of the images that the tests of sig-network
// use most; tests with other images fail or wait in vain.
const (
	agnhostRepository = "registry.k8s.io/e2e-test-images/agnhost:"
	dnsRepository     = "registry.k8s.io/e2e-test-images/glibc-dns-testing:" // dig, with the C library's resolver
	busyboxRepository = "registry.k8s.io/e2e-test-images/busybox:"
)

// prepareSuite builds Kubernetes' test suite, and writes its images under the names
// that it asks for.
func prepareSuite(ctx context.Context, dir string) error {
	suite, err := cluster.Tool(ctx, suiteTool)
	if err != nil {
		return err
	}
	list, err := exec.CommandContext(ctx, suite, "--list-images").Output()
	if err != nil {
		return fmt.Errorf("ask for the names of images: %w", err)
	}
	names := func(repository string) (names []string) {
		for line := range strings.Lines(string(list)) {
			if strings.HasPrefix(line, repository) {
				names = append(names, strings.TrimSpace(line))
			}
		}
		return names
	}
	software, err := node.Provide(ctx)
	if err != nil {
		return err
	}
	tree, err := debianTree(ctx, software.Tools)
	if err != nil {
		return err
	}
	applets, err := appletLinks(ctx, software.Busybox())
	if err != nil {
		return err
	}
	return errors.Join(
		image.Write(filepath.Join(imagesDir(dir), "suite-agnhost.tar"), image.Image{
			Names: append(names(agnhostRepository), names(dnsRepository)...), Tree: tree,
			Files: map[string]string{"agnhost": filepath.Join(software.Tools, "agnhost")}, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"},
		}),
		image.Write(filepath.Join(imagesDir(dir), "suite-busybox.tar"), image.Image{
			Names: names(busyboxRepository), Dirs: []string{"tmp"}, Links: applets,
			Files: map[string]string{"bin/busybox": software.Busybox()}, Cmd: []string{"sh"}, Env: []string{"PATH=/bin"},
		}),
	)
}

// debianTree makes the root file system of the image agnhost, once: a small Debian
// with the commands that tests run in pods.
func debianTree(ctx context.Context, tools string) (string, error) {
	tree := filepath.Join(tools, "debian-agnhost")
	if _, err := os.Stat(tree); err == nil {
		return tree, nil
	}
	bootstrap := filepath.Join(tools, "debootstrap")
	if err := aptget.Unpack(ctx, bootstrap, "debootstrap"); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bootstrap, "usr/sbin/debootstrap"), "--variant=minbase",
		"--include=curl,netcat-openbsd,bind9-dnsutils,iproute2,iputils-ping,jq", "bookworm", tree+".new")
	cmd.Env = append(os.Environ(), "DEBOOTSTRAP_DIR="+filepath.Join(bootstrap, "usr/share/debootstrap"))
	if err := os.RemoveAll(tree + ".new"); err != nil {
		return "", err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return tree, os.Rename(tree+".new", tree)
}

// appletLinks are the commands of busybox as links to it.
func appletLinks(ctx context.Context, busybox string) (map[string]string, error) {
	out, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("ask busybox for its commands: %w", err)
	}
	links := map[string]string{}
	for applet := range strings.FieldsSeq(string(out)) {
		if applet != "busybox" {
			links["bin/"+applet] = "busybox"
		}
	}
	return links, nil
}

// skipped are tests for which the cluster is not made: they break nodes, ask for
// features and clouds that are not there, or for the internet.
const skipped = `\[Disruptive\]|\[Serial\]|\[Feature:|\[Alpha\]|\[Beta\]|LoadBalancer|Internet|\[Slow\]`

// runSuite runs tests of Kubernetes one after the other, and shows what they write.
func runSuite(ctx context.Context, dir, focus string) error {
	suite, err := filepath.Abs(filepath.Join(toolsDir(), suiteTool))
	if err != nil {
		return err
	}
	reports := filepath.Join(dir, "e2e")
	return outside(ctx, dir, []string{
		suite, "--provider=skeleton", "--kubeconfig=" + filepath.Join(dir, "control-plane", "admin.kubeconfig"),
		"--report-dir=" + reports, "--ginkgo.no-color", "--ginkgo.succinct", "--ginkgo.silence-skips",
		"--ginkgo.focus=" + focus, "--ginkgo.skip=" + skipped,
	})
}

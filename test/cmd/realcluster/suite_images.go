package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"nftproxy/test/cmd/realcluster/cluster"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/controlplane"
)

// The commands of Kubernetes' own tests, as hack/build-tools.sh calls them: the
// suite, the command that runs it in several processes, and the server of one test.
const (
	suiteTool  = "e2e.test"
	ginkgoTool = "ginkgo"
	serverTool = "regression-issue-74839"
)

// The repositories of the images that tests of sig-network start as pods.
const (
	agnhostRepository  = "registry.k8s.io/e2e-test-images/agnhost:"
	dnsRepository      = "registry.k8s.io/e2e-test-images/glibc-dns-testing:" // dig, with the C library's resolver
	busyboxRepository  = "registry.k8s.io/e2e-test-images/busybox:"
	serverRepository   = "registry.k8s.io/e2e-test-images/" + serverTool + ":"
	iptablesRepository = "registry.k8s.io/build-image/distroless-iptables:" // commands that look at connection tracking
)

// provideSuite builds Kubernetes' test suite, and writes its images under the names that
// it asks for into a folder.
func provideSuite(ctx context.Context, software cluster.Software, images string) error {
	for _, name := range []string{suiteTool, ginkgoTool, serverTool} {
		if _, err := controlplane.Tool(ctx, name); err != nil {
			return err
		}
	}
	list, err := exec.CommandContext(ctx, filepath.Join(software.Tools, suiteTool), "--list-images").Output()
	if err != nil {
		return fmt.Errorf("ask for the names of images: %w", err)
	}
	names := func(repositories ...string) (names []string) {
		for line := range strings.Lines(string(list)) {
			for _, r := range repositories {
				if strings.HasPrefix(line, r) {
					names = append(names, strings.TrimSpace(line))
				}
			}
		}
		return names
	}
	tree, err := debianTree(ctx, software.Tools)
	if err != nil {
		return err
	}
	netfilter, err := cluster.NetfilterTree(ctx, software)
	if err != nil {
		return err
	}
	applets, err := appletLinks(ctx, software.Busybox())
	if err != nil {
		return err
	}
	agnhost, err := agnhostFiles(ctx, software, filepath.Join(images, "registry"))
	if err != nil {
		return err
	}
	write := func(name string, i cluster.Image) error {
		if len(i.Names) == 0 {
			return fmt.Errorf("%s asks for no image %s", suiteTool, name)
		}
		return cluster.WriteImage(filepath.Join(images, "suite-"+name+".tar"), i)
	}
	tool := func(name string) string { return filepath.Join(software.Tools, name) }
	return errors.Join(
		write("agnhost", cluster.Image{
			Names: names(agnhostRepository, dnsRepository), Tree: tree, Dirs: []string{"uploads"},
			Files: agnhost, Links: map[string]string{"agnhost-2": "agnhost"},
			Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"},
		}),
		write("busybox", cluster.Image{
			Names: names(busyboxRepository), Dirs: []string{"tmp"}, Links: applets,
			Files: map[string]string{"bin/busybox": software.Busybox()}, Cmd: []string{"sh"}, Env: []string{"PATH=/bin"},
		}),
		write("server", cluster.Image{
			Names: names(serverRepository),
			Files: map[string]string{serverTool: tool(serverTool)}, Entrypoint: []string{"/" + serverTool},
		}),
		write("iptables", cluster.Image{
			Names: names(iptablesRepository), Tree: netfilter, Links: applets,
			Files: map[string]string{"bin/busybox": software.Busybox()}, Cmd: []string{"sh"},
			Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		}),
	)
}

// agnhostFiles are what test/images/agnhost/Dockerfile of Kubernetes adds to a
// distribution: the program, CoreDNS, the certificate of its server porter, and the
// image pause:testing, which its registry serves and which is written into a folder.
func agnhostFiles(ctx context.Context, software cluster.Software, registry string) (map[string]string, error) {
	_, module := controlplane.ToolsDir()
	cmd := exec.CommandContext(ctx, "go", "-C", module, "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=auto") // as hack/build-tools.sh
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("find the module k8s.io/kubernetes: %w", err)
	}
	porter := filepath.Join(strings.TrimSpace(string(out)), "test", "images", "agnhost", "porter")
	program := filepath.Join(software.Tools, "agnhost")
	pause, err := cluster.WriteRegistry(registry, "testing", cluster.Image{
		Files: map[string]string{"agnhost": program}, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
	})
	if err != nil {
		return nil, fmt.Errorf("write the image that agnhost's registry serves: %w", err)
	}
	files := map[string]string{
		"agnhost":       program,
		"coredns":       filepath.Join(software.Tools, "coredns"),
		"localhost.crt": filepath.Join(porter, "localhost.crt"),
		"localhost.key": filepath.Join(porter, "localhost.key"),
	}
	for path, file := range pause {
		files[filepath.Join("var", "registry", "pause", path)] = file
	}
	return files, nil
}

// debianPackages are what tests run in pods of the image agnhost, beside what each
// Debian has.
const debianPackages = "curl,wget,netcat-openbsd,bind9-dnsutils,iproute2,iputils-ping,jq"

// debianTree makes the root file system of the image agnhost, once: a small Debian.
func debianTree(ctx context.Context, tools string) (string, error) {
	sum := sha256.Sum256([]byte(debianPackages))
	tree := filepath.Join(tools, "debian-agnhost-"+hex.EncodeToString(sum[:4]))
	if _, err := os.Stat(tree); err == nil {
		return tree, nil
	}
	bootstrap := filepath.Join(tools, "debootstrap")
	if err := aptget.Unpack(ctx, bootstrap, "debootstrap"); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bootstrap, "usr/sbin/debootstrap"), "--variant=minbase",
		"--include="+debianPackages, "bookworm", tree+".new")
	cmd.Env = append(os.Environ(), "DEBOOTSTRAP_DIR="+filepath.Join(bootstrap, "usr/share/debootstrap"))
	if err := os.RemoveAll(tree + ".new"); err != nil {
		return "", err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	// The packages themselves are a quarter of the image.
	if err := os.RemoveAll(filepath.Join(tree+".new", "var", "cache", "apt", "archives")); err != nil {
		return "", err
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

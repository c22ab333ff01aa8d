package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/test/cmd/realcluster/node"
	"nftproxy/test/lib/controlplane"
)

// addition is a DaemonSet that a cluster has beside its service proxy: the pods' network, an engine that enforces NetworkPolicies, or
// both in one.
type addition struct {
	// daemonSet is its namespace and name, and manifest has its objects.
	daemonSet, manifest string
	program             program
	// plugins are the CNI plugins that it needs on nodes, of hack/build-tools.sh.
	plugins []string
	// policies are the families that NetworkPolicies are enforced for.
	policies []corev1.IPFamily
}

// additions are those that the options ask for.
func additions(o upOptions) ([]addition, error) {
	var all []addition
	if !slices.Contains(networkNames(), o.network) {
		return nil, fmt.Errorf("--cni: %q: want one of %s", o.network, strings.Join(networkNames()[1:], ", "))
	}
	if !slices.Contains(policyEngines(), o.policies) {
		return nil, fmt.Errorf("--policies: %q: want one of %s", o.policies, strings.Join(policyEngines()[1:], ", "))
	}
	if f := flannelOf(o.network); f.chosen() {
		all = append(all, f.addition())
	}
	if o.policies == netpol {
		all = append(all, netpolAddition())
	}
	if o.network == kubeRouter || o.policies == kubeRouter {
		all = append(all, kubeRouterAddition(o.network == kubeRouter, o.policies == kubeRouter))
	}
	return all, nil
}

// provide builds what the addition needs, and makes its image.
func (a addition) provide(ctx context.Context, software node.Software, dir string) error {
	for _, plugin := range a.plugins {
		if _, err := controlplane.Tool(ctx, plugin); err != nil {
			return err
		}
	}
	return a.program.writeImage(ctx, software, dir)
}

// bridgePlugins are the CNI plugins that a network of bridges needs.
func bridgePlugins() []string { return []string{"bridge", "host-local", "loopback", "portmap"} }

// program is a program of hack/build-tools.sh as it is in an image.
type program struct {
	// image is the name of the image, tool that of the program, and path its place in the image.
	image, tool, path string
	// packages are those of Debian that it needs beside those of netfilter.
	packages []string
	// applets are commands of busybox.
	applets []string
}

// writeImage makes the image: the program, with the commands of netfilter, which it may run, and the applets.
func (p program) writeImage(ctx context.Context, software node.Software, dir string) error {
	path, err := controlplane.Tool(ctx, p.tool)
	if err != nil {
		return err
	}
	tree, err := node.NetfilterTree(ctx, software, p.packages...)
	if err != nil {
		return err
	}
	links := map[string]string{}
	for _, a := range p.applets {
		links["bin/"+a] = "busybox"
	}
	return node.WriteImage(filepath.Join(dir, p.tool+".tar"), node.Image{
		Names: []string{p.image}, Tree: tree, Dirs: []string{"tmp"}, Links: links,
		Files: map[string]string{p.path: path, "bin/busybox": software.Busybox()},
		Env:   []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	})
}

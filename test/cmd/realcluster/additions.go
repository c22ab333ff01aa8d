package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/test/cmd/realcluster/cluster"
	"nftproxy/test/lib/controlplane"
)

// addition is a DaemonSet that a cluster has beside its service proxy: the pods' network, an engine that enforces
// NetworkPolicies, both in one, or an announcer of load balancers.
type addition struct {
	// daemonSet is its namespace and name, and deployment that of its other part, if it has one.
	daemonSet, deployment string
	// manifest has its objects, and settings those that it takes once it runs.
	manifest, settings string
	programs           []program
	// plugins are the CNI plugins that it needs on nodes, of hack/build-tools.sh.
	plugins []string
	// policies are the families that NetworkPolicies are enforced for.
	policies []corev1.IPFamily
}

// additions are those that the options ask for.
func additions(ctx context.Context, o upOptions) ([]addition, error) {
	var all []addition
	if !slices.Contains(networkNames(), o.network) {
		return nil, fmt.Errorf("--cni: %q: want one of %s", o.network, strings.Join(networkNames()[1:], ", "))
	}
	if !slices.Contains(policyEngines(), o.policies) {
		return nil, fmt.Errorf("--policies: %q: want one of %s", o.policies, strings.Join(policyEngines()[1:], ", "))
	}
	if !slices.Contains(announcers(), o.announcer) {
		return nil, fmt.Errorf("--announcer: %q: want %s", o.announcer, strings.Join(announcers()[1:], ", "))
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
	if o.announcer == metalLB {
		a, err := metalLBAddition(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// whatItHas asks the API server what the cluster has: the manifests label their DaemonSets.
func whatItHas(ctx context.Context, dir string) (has suiteAdditions, err error) {
	for selector, found := range map[string]*bool{"network-policies=true": &has.policies,
		"app=metallb,component=speaker": &has.announcer} {
		cmd, err := outsideCommand(ctx, dir, []string{"kubectl", "get", "daemonset", "--all-namespaces", "--output=name",
			"--selector=" + selector})
		if err != nil {
			return has, err
		}
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return has, fmt.Errorf("look for DaemonSets with %s: %w", selector, err)
		}
		*found = len(out) > 0
	}
	return has, nil
}

// provide builds what the addition needs, and makes its images.
func (a addition) provide(ctx context.Context, software cluster.Software, dir string) error {
	for _, plugin := range a.plugins {
		if _, err := controlplane.Tool(ctx, plugin); err != nil {
			return err
		}
	}
	for _, p := range a.programs {
		if err := p.writeImage(ctx, software, dir); err != nil {
			return fmt.Errorf("make the image of %s: %w", p.tool, err)
		}
	}
	return nil
}

// bridgePlugins are the CNI plugins that a network of bridges needs.
func bridgePlugins() []string { return []string{"bridge", "host-local", "loopback", "portmap"} }

// program is a program of hack/build-tools.sh as it is in an image.
type program struct {
	// image is the name of the image, tool that of the program, and path its place in the image.
	image, tool, path string
	// alone says that the image has nothing else, and that the program is what it runs.
	alone bool
	// packages are those of Debian that it needs beside those of netfilter.
	packages []string
	// applets are commands of busybox.
	applets []string
}

// writeImage makes the image: the program, with the commands of netfilter, which it may run, and the applets.
func (p program) writeImage(ctx context.Context, software cluster.Software, dir string) error {
	path, err := controlplane.Tool(ctx, p.tool)
	if err != nil {
		return err
	}
	if p.alone {
		return cluster.WriteImage(filepath.Join(dir, p.tool+".tar"), cluster.Image{
			Names: []string{p.image}, Files: map[string]string{p.path: path}, Entrypoint: []string{"/" + p.path},
		})
	}
	tree, err := cluster.NetfilterTree(ctx, software, p.packages...)
	if err != nil {
		return err
	}
	links := map[string]string{}
	for _, a := range p.applets {
		links["bin/"+a] = "busybox"
	}
	return cluster.WriteImage(filepath.Join(dir, p.tool+".tar"), cluster.Image{
		Names: []string{p.image}, Tree: tree, Dirs: []string{"tmp"}, Links: links,
		Files: map[string]string{p.path: path, "bin/busybox": software.Busybox()},
		Env:   []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	})
}

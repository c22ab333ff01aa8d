package main

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"nftproxy/test/cmd/realcluster/bringup"
	"nftproxy/test/cmd/realcluster/node"
	"nftproxy/test/lib/controlplane"
)

// flannelChoice is how flannel makes the pods' network; the zero value is none: the cluster's own network.
type flannelChoice struct {
	backend  string
	nftables bool
}

// networkNames are the values of --cni; "" is the cluster's own network.
func networkNames() []string { return []string{"", "flannel", "flannel-host-gw", "flannel-nftables"} }

// networkOf is the network of a name.
func networkOf(name string) (flannelChoice, error) {
	switch name {
	case "":
		return flannelChoice{}, nil
	case "flannel":
		return flannelChoice{backend: "vxlan"}, nil
	case "flannel-host-gw":
		return flannelChoice{backend: "host-gw"}, nil
	case "flannel-nftables":
		return flannelChoice{backend: "vxlan", nftables: true}, nil
	}
	return flannelChoice{}, fmt.Errorf("--cni: %q: want one of %s", name, strings.Join(networkNames()[1:], ", "))
}

// flannelDaemonSet is its namespace and name.
const flannelDaemonSet = "kube-flannel/kube-flannel-ds"

func (f flannelChoice) chosen() bool { return f.backend != "" }

func (f flannelChoice) manifests() []string {
	if !f.chosen() {
		return nil
	}
	ranges := bringup.PodCIDRs()
	return []string{strings.NewReplacer("IMAGE", flannelImage, "NET6", ranges[1].String(), "NET4", ranges[0].String(),
		"BACKEND", f.backend, "NFTABLES", strconv.FormatBool(f.nftables)).Replace(flannelManifest)}
}

//go:embed manifests/flannel.yaml
var flannelManifest string

// flannelImage has the name of no release: it is made here.
const flannelImage = "ghcr.io/flannel-io/flannel:cluster"

// provide builds the CNI plugins and flannel, and makes its image: the program, and the commands that it runs.
func (f flannelChoice) provide(ctx context.Context, software node.Software, dir string) error {
	if !f.chosen() {
		return nil
	}
	for _, plugin := range []string{"bridge", "host-local", "loopback", "portmap"} {
		if _, err := controlplane.Tool(ctx, plugin); err != nil {
			return err
		}
	}
	return writeProgramImage(ctx, software, dir, flannelImage, "flannel", "opt/bin/flanneld", "sh", "cat", "mv", "sleep", "test")
}

// writeProgramImage makes an image of a program of hack/build-tools.sh, with the commands of netfilter, which it may run, and some
// applets of busybox.
func writeProgramImage(ctx context.Context, software node.Software, dir, image, tool, path string, applets ...string) error {
	program, err := controlplane.Tool(ctx, tool)
	if err != nil {
		return err
	}
	tree, err := node.NetfilterTree(ctx, software)
	if err != nil {
		return err
	}
	links := map[string]string{}
	for _, a := range applets {
		links["bin/"+a] = "busybox"
	}
	return node.WriteImage(filepath.Join(dir, tool+".tar"), node.Image{
		Names: []string{image}, Tree: tree, Dirs: []string{"tmp"}, Links: links,
		Files: map[string]string{path: program, "bin/busybox": software.Busybox()},
		Env:   []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	})
}

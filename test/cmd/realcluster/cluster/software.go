package cluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/controlplane"
)

// Software is where this computer has the programs that run on nodes.
type Software struct {
	// Tools has the programs of hack/build-tools.sh, Debian the unpacked packages.
	Tools, Debian string
}

// Where a machine has the programs.
const (
	toolsDir  = "/opt/tools"
	debianDir = "/opt/debian"
)

// Provide builds and unpacks what is missing: minutes from cold.
func Provide(ctx context.Context) (Software, error) {
	kubelet, err := controlplane.Tool(ctx, "kubelet")
	if err != nil {
		return Software{}, err
	}
	s := Software{Tools: filepath.Dir(kubelet)}
	s.Debian = filepath.Join(s.Tools, "debian")
	err = aptget.Unpack(ctx, s.Debian, "containerd", "runc", "containernetworking-plugins", "busybox-static")
	if err != nil {
		return Software{}, err
	}
	// The plugin portmap runs it.
	_, err = aptget.Command("iptables", "iptables")
	return s, err
}

// Busybox is the path of a static busybox on this computer.
func (s Software) Busybox() string { return filepath.Join(s.Debian, "bin", "busybox") }

// NetfilterTree is a folder with nft, iptables and conntrack, further packages of
// Debian, and all that they need: the root file system of an image. It is unpacked once.
func NetfilterTree(ctx context.Context, s Software, packages ...string) (string, error) {
	tree := filepath.Join(s.Tools, strings.Join(append([]string{"debian-netfilter"}, packages...), "-"))
	all := append([]string{"nftables", "iptables", "conntrack"}, packages...)
	if err := aptget.UnpackRoot(ctx, tree, aptget.Release{Name: "bookworm"}, all...); err != nil {
		return "", err
	}
	// A script of the package, which does not run here, would make these links.
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			err := os.Symlink("xtables-nft-multi", filepath.Join(tree, "usr", "sbin", command+suffix))
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return "", err
			}
		}
	}
	return tree, nil
}

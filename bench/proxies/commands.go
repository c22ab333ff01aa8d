package proxies

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
)

// commands are those that kube-proxy runs in one of its modes.
type commands struct {
	// dir has them.
	dir string
	// asked is the one whose version counts, and name what the report calls it.
	asked, name string
	// clear removes what they have written from a node.
	clear func(*Node) error
}

// systemNFT is the nft of this system.
func systemNFT() (commands, error) {
	path, err := aptget.Command("nft", "nftables")
	return commands{filepath.Dir(path), "nft", "nft", flushNFTables}, err
}

// newNFT is a newer nft, of Debian 13.
func newNFT() (commands, error) {
	path, err := aptget.FromSuite("trixie", "nft", "nftables")
	return commands{filepath.Dir(path), "nft", "newer nft", flushNFTables}, err
}

func iptablesNFT() (commands, error) { return iptables("nft", flushNFTables) }

func iptablesLegacy() (commands, error) {
	c, err := iptables("legacy", nil)
	c.clear = func(n *Node) error {
		for _, command := range []string{"iptables-restore", "ip6tables-restore"} {
			cmd := exec.Command(filepath.Join(c.dir, command))
			cmd.Stdin = strings.NewReader("*filter\nCOMMIT\n*nat\nCOMMIT\n*mangle\nCOMMIT\n")
			if err := n.Node.Run(cmd); err != nil {
				return fmt.Errorf("remove the rules of iptables-legacy: %w", err)
			}
		}
		return nil
	}
	return c, err
}

// iptables returns the commands of iptables for one of the two interfaces of the kernel, "legacy" or "nft".
func iptables(kind string, clear func(*Node) error) (commands, error) {
	dir, err := aptget.IPTables(kind)
	return commands{dir, "iptables", "iptables-" + kind, clear}, err
}

// flushNFTables removes everything from a node's nftables.
func flushNFTables(n *Node) error {
	nft, err := netfilter.FindNFT()
	if err == nil {
		_, err = nft.Run(n.Node, "", "flush", "ruleset")
	}
	return err
}

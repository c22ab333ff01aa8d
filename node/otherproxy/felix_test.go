package otherproxy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"nftproxy/node/otherproxy"
	"nftproxy/test/lib/netfilter"
)

// felix finds Felix in the namespace. Its process may be any on the machine that is elsewhere.
func (w world) felix() (f otherproxy.Felix) {
	w.Helper()
	if err := w.ns.Do(func() (err error) {
		f, err = otherproxy.FindFelix()
		return err
	}); err != nil {
		w.Fatal(err)
	}
	return f
}

func (w world) loadNFT(script string) {
	w.Helper()
	if err := netfilter.NFTForTest(w.T).Load(w.ns, script); err != nil {
		w.Fatal(err)
	}
}

// TestFelixChains: Felix is seen by its chains in the kernel, of each family and each of the three interfaces. Chains
// of others with such names elsewhere are not its own. kube-proxy's tables are a sign only while they have a chain.
func TestFelixChains(t *testing.T) {
	const ip4, ip6 = "table ip calico { chain filter-cali-FORWARD { }\n}\n", "table ip6 calico { chain a { }\n}\n"
	const sign, sign6 = "table ip kube-proxy { chain a { }\n}\n", "table ip6 kube-proxy { chain a { }\n}\n"
	for name, c := range map[string]struct {
		nft      string
		iptables []string // commands
		planes   string
		depends  bool
	}{
		"nothing": {"", nil, "", false},
		"of others": {"table ip mine { chain cali-FORWARD { }\n}\n table ip filter { chain calico { }\n}\n",
			nil, "", false},
		"nftables":                  {ip4, nil, "nftables", false},
		"nftables, IPv6":            {ip6, nil, "nftables", false},
		"nftables and kube-proxy":   {ip4 + sign, nil, "nftables", true},
		"nftables and kube-proxy 6": {ip4 + sign6, nil, "nftables", true},
		"nftables and an empty table": {ip4 + "table ip kube-proxy { set a { type mark\n }\n}", nil,
			"nftables", false},
		"iptables-nft":                 {"", []string{"iptables-nft"}, "iptables", false},
		"ip6tables-nft and kube-proxy": {sign, []string{"ip6tables-nft"}, "iptables", false},
		"iptables-legacy":              {"", []string{"iptables-legacy"}, "iptables", false},
		"ip6tables-legacy":             {"", []string{"ip6tables-legacy"}, "iptables", false},
		"both": {ip4 + sign, []string{"iptables-nft"},
			"nftables iptables", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.loadNFT(c.nft)
			for _, command := range c.iptables {
				w.iptables("", command, "-N", "cali-FORWARD")
				w.iptables("", command, "-A", "FORWARD", "-j", "cali-FORWARD")
			}
			f := w.felix()
			if got := strings.Join(f.Planes, " "); got != c.planes || f.Depends() != c.depends {
				t.Errorf("planes %q, depends %v; want %q, %v: %s", got, f.Depends(), c.planes, c.depends, f)
			}
		})
	}
}

// TestSignOfFelix: where Felix may go by kube-proxy's tables these stay, if the caller wants it so, and kube-proxy's
// other rules go. Where it does not go by them, they go.
func TestSignOfFelix(t *testing.T) {
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t)
			w.load(b, unchanged)
			w.loadNFT("table ip kube-proxy { chain a { }\n}\n table ip6 kube-proxy { chain a { }\n}\n" +
				"table ip calico { chain filter-cali-FORWARD { }\n}")
			remove := func() (stay []string) {
				if err := w.ns.Do(func() error {
					return otherproxy.RemoveAll(t.Context(), otherproxy.Removal{KeepSign: otherproxy.SignOfFelix},
						func(r otherproxy.Rules, err error) {
							if err != nil {
								stay = append(stay, r.Table)
							}
							if kept := errors.Is(err, otherproxy.ErrSign); kept != (err != nil) || !otherproxy.Final(err) {
								t.Errorf("%s: %v", r, err)
							}
						})
				}); err != nil {
					t.Fatal(err)
				}
				return stay
			}
			both := []string{"ip kube-proxy", "ip6 kube-proxy"}
			if stay := remove(); !slices.Equal(stay, both) {
				t.Errorf("beside Felix with nftables, what stays is %v", stay)
			}
			if got := names(w.find()); len(got) != len(both) {
				t.Errorf("after the removal there is %v", got)
			}
			w.loadNFT("delete table ip calico")
			if stay := remove(); len(stay) > 0 || len(w.find()) > 0 {
				t.Errorf("without Felix, what stays is %v", stay)
			}
		})
	}
}

package otherproxy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
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

// startFelix starts a process with its name in the namespace, which does nothing.
func (w world) startFelix() {
	w.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		w.Fatal(err)
	}
	file := filepath.Join(w.TempDir(), "calico-felix")
	text, err := os.ReadFile(sleep)
	if err == nil {
		err = os.WriteFile(file, text, 0o755)
	}
	if err != nil {
		w.Fatal(err)
	}
	cmd := exec.Command(file, "infinity")
	cmd.Env = []string{}
	if err := w.ns.Start(cmd); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // It was killed.
	})
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
			w.startFelix()
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

// TestSignOfFelix: where Felix may go by kube-proxy's tables, one empty chain of each stays, if the caller wants it so,
// and all that serves goes. Where it does not go by them, they go.
func TestSignOfFelix(t *testing.T) {
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t)
			w.startFelix()
			w.load(b, unchanged)
			for _, family := range []string{"ip", "ip6"} {
				w.loadNFT("table " + family + ` kube-proxy { comment "rules for kube-proxy";
	counter c { }
	map verdicts { type inet_service : verdict; elements = { 80 : goto service }; }
	set s { type inet_service; elements = { 80 }; }
	chain service { tcp dport @s counter name c drop; }
	chain services { tcp dport vmap @verdicts; }
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; jump services; }
}`)
			}
			w.loadNFT("table ip calico { chain filter-cali-FORWARD { }\n}")
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
			var watcher otherproxy.Watcher
			look := func() (kinds []otherproxy.Kind, written bool) {
				if err := w.ns.Do(func() (err error) {
					kinds, written, err = watcher.Look()
					return err
				}); err != nil {
					t.Fatal(err)
				}
				return kinds, written
			}
			if kinds, _ := look(); !slices.Contains(kinds, otherproxy.NFTables) {
				t.Errorf("before the removal there is %v", kinds)
			}
			for range 2 { // The second removal changes nothing.
				if stay := remove(); !slices.Equal(stay, both) {
					t.Errorf("beside Felix with nftables, what stays is %v", stay)
				}
				want := []string{"ip kube-proxy (nftables, an empty chain)", "ip6 kube-proxy (nftables, an empty chain)"}
				if got := names(w.find()); !slices.Equal(got, want) {
					t.Errorf("after the removal there is %v", got)
				}
				for _, table := range both {
					got, err := netfilter.NFTForTest(t).Run(w.ns, "", append([]string{"list", "table"}, strings.Fields(table)...)...)
					if want := "table " + table + " {\n\tcomment \"rules for kube-proxy\"\n\tchain services {\n\t}\n}\n"; err != nil ||
						strings.ReplaceAll(got, "\n\n", "\n") != want {
						t.Errorf("left:\n%s (%v)", got, err)
					}
				}
			}
			if kinds, _ := look(); len(kinds) > 0 {
				t.Errorf("after the removal there are rules of %v", kinds)
			}
			if _, written := look(); written || !w.felix().Depends() {
				t.Errorf("changed %v; Felix: %s", written, w.felix())
			}
			// A kube-proxy that fills it again has rules.
			w.loadNFT("table ip kube-proxy { chain services { accept; }\n chain a { jump services; }\n}")
			if kinds, _ := look(); !slices.Equal(kinds, []otherproxy.Kind{otherproxy.NFTables}) {
				t.Errorf("a kube-proxy has rules of %v", kinds)
			}
			w.loadNFT("delete table ip calico")
			if stay := remove(); len(stay) > 0 || len(w.find()) > 0 {
				t.Errorf("without Felix, what stays is %v", stay)
			}
		})
	}
}

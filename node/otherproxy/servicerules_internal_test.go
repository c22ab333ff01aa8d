package otherproxy

import (
	"os/exec"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// TestServiceRules: kube-proxy's virtual servers count as served only when its chain for Services has rules, in the
// same family and in either interface of iptables. The chain alone is there before the virtual servers.
func TestServiceRules(t *testing.T) {
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			netfilter.NeedIPTables(t)
			ns := testnet.NamespaceForTest(t, "rules")
			run := func(command string, args ...string) {
				t.Helper()
				path, err := aptget.Command(command+"-"+backend, "iptables")
				if err != nil {
					t.Fatal(err)
				}
				if err := ns.Run(exec.Command(path, append([]string{"-t", "nat"}, args...)...)); err != nil {
					t.Fatalf("%s %v: %v", command, args, err)
				}
			}
			check := func(when string, want4, want6 bool) {
				t.Helper()
				err := ns.Do(func() error {
					c, err := dial()
					if err != nil {
						return err
					}
					defer c.close()
					for f, want := range map[ip.Family]bool{ip.V4: want4, ip.V6: want6} {
						if got, err := c.hasServiceRules(f); err != nil || got != want {
							t.Errorf("%s: %s: %v, %v", when, f, got, err)
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			check("without tables", false, false)
			run("iptables", "-N", "KUBE-SERVICES")
			run("ip6tables", "-N", "KUBE-SERVICES")
			run("iptables", "-A", "OUTPUT", "-j", "KUBE-SERVICES")
			run("ip6tables", "-A", "OUTPUT", "-j", "ACCEPT")
			check("with chains without rules", false, false)
			run("ip6tables", "-A", "KUBE-SERVICES", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "ACCEPT")
			check("with rules of IPv6", false, true)
			run("iptables", "-A", "KUBE-SERVICES", "-j", "ACCEPT")
			check("with rules of both", true, true)
		})
	}
}

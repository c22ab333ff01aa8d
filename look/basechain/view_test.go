package basechain_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"nftproxy/look/basechain"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// translation is the chain of a service proxy: it translates 127.0.0.2, which stands for a cluster IP.
const translation = `table ip proxy { chain output { type nat hook output priority -100; ip daddr 127.0.0.2 dnat to ` +
	`127.0.0.3; }; }`

// TestViewOf: what the kernel shows a chain beside one that translates, at the same hook, is what ViewOf says, by the
// chain's type, priority and time.
func TestViewOf(t *testing.T) {
	load := func(script string) func(*testing.T, *testnet.Namespace) {
		return func(t *testing.T, ns *testnet.Namespace) {
			if err := netfilter.NFTForTest(t).Load(ns, script); err != nil {
				t.Fatal(err)
			}
		}
	}
	marking := func(kind string, priority int) func(*testing.T, *testnet.Namespace) {
		return load(fmt.Sprintf(`table ip other { chain output { type %s hook output priority %d; ip daddr 127.0.0.2 ct `+
			`mark set 1; ip daddr 127.0.0.3 ct mark set 2; }; }`, kind, priority))
	}
	// iptables works with the rules of an iptables program, before the proxy or after it.
	iptables := func(program string) func(*testing.T, *testnet.Namespace) {
		return func(t *testing.T, ns *testnet.Namespace) {
			netfilter.NeedIPTables(t)
			path, err := aptget.Command(program, "iptables")
			if err != nil {
				t.Fatal(err)
			}
			for i, to := range []string{"127.0.0.2", "127.0.0.3"} {
				args := fmt.Sprintf("-w -t nat -A OUTPUT -d %s -j CONNMARK --set-mark %d", to, i+1)
				if out, err := combined(ns, exec.Command(path, strings.Fields(args)...)); err != nil {
					t.Fatalf("%s %s: %v: %s", program, args, err, out)
				}
			}
		}
	}
	proxy := load(translation)
	const none, untranslated, translated = "0", "1", "2"
	for name, c := range map[string]struct {
		steps []func(*testing.T, *testnet.Namespace)
		mark  string // what the chain has seen
		view  basechain.View
	}{
		"nat, lower priority":                 {steps(marking("nat", -101), proxy), untranslated, basechain.Earlier},
		"nat, the same priority, made before": {steps(marking("nat", -100), proxy), none, basechain.Unknown},
		"nat, the same priority, made after":  {steps(proxy, marking("nat", -100)), untranslated, basechain.Unknown},
		"nat, higher priority":                {steps(proxy, marking("nat", -90)), none, basechain.Later},
		"filter, lower priority":              {steps(proxy, marking("filter", -150)), untranslated, basechain.Earlier},
		"filter, higher priority":             {steps(marking("filter", -90), proxy), translated, basechain.Later},
		"iptables-nft, nat, made before":      {steps(iptables("iptables-nft"), proxy), none, basechain.Unknown},
		"iptables-nft, nat, made after":       {steps(proxy, iptables("iptables-nft")), untranslated, basechain.Unknown},
		"iptables-legacy, nat, made before":   {steps(iptables("iptables-legacy"), proxy), none, basechain.Unknown},
		"iptables-legacy, nat, made after":    {steps(proxy, iptables("iptables-legacy")), untranslated, basechain.Unknown},
		"the proxy, made anew by its name": {steps(proxy, marking("nat", -100), load("delete table ip proxy"), proxy),
			none, basechain.Unknown},
		"nat, an address that is not a Service": {steps(proxy, marking("nat", -100), load("flush table ip proxy")),
			untranslated, basechain.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testnet.NamespaceForTest(t, "view")
			for _, step := range c.steps {
				step(t, ns)
			}
			if err := netfilter.NFTForTest(t).Load(ns, `table ip seen {
	chain postrouting { type filter hook postrouting priority 300; udp dport 9 counter name ct mark map { 0 : "mark0", 1 : "mark1", 2 : "mark2" }; }
	counter mark0 { }
	counter mark1 { }
	counter mark2 { }
}`); err != nil {
				t.Fatal(err)
			}
			conn, err := ns.Dial(t.Context(), "udp", "127.0.0.2:9")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if out, err := netfilter.NFTForTest(t).Run(ns, "", "list", "counter", "ip", "seen", "mark"+c.mark); err != nil ||
				!strings.Contains(out, "packets 1 ") {
				t.Errorf("no packet with the mark %s: %s %v", c.mark, out, err)
			}
			if err := ns.Do(func() error {
				list, err := basechain.List()
				found := false
				for i := range list {
					if x := &list[i]; x.Rules.MarksConnections {
						found = true
						if view := x.ViewOf(-100); view != c.view {
							t.Errorf("chain %s of table %s: view %d, want %d", x.Name, x.TableText(), view, c.view)
						}
					}
				}
				if !found {
					t.Errorf("no chain marks connections: %+v", list)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func steps(s ...func(*testing.T, *testnet.Namespace)) []func(*testing.T, *testnet.Namespace) {
	return s
}

package basechain_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/look/basechain"
	"nftproxy/nft"
	"nftproxy/nft/invalidtable"
	"nftproxy/node/otherproxy"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// TestList: each base chain of nftables and iptables-legacy is found, with what its rules may do to a packet.
// A rule counts wherever a chain leads to it, and no other rule does.
func TestList(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "chains")
	if err := netfilter.NFTForTest(t).Load(ns, `
table inet a {
	chain drops-rest { type filter hook forward priority 5; policy drop; }
	chain counts { type filter hook input priority 0; counter accept; }
	chain jumps { type filter hook output priority 0; jump inner; }
	chain inner { ct state vmap { established : accept, invalid : goto ends }; }
	chain ends { reject; }
	chain unused { drop; }
	chain map-drops { type filter hook output priority 1; ct state vmap { established : accept, invalid : drop }; }
	chain map-accepts { type filter hook output priority 2; ct state vmap { established : accept, related : accept }; }
}
table ip raw { chain untracks { type filter hook prerouting priority -300; udp dport 53 notrack; }; }
table ip6 nat { chain masquerades { type nat hook postrouting priority 100; oifname "eth0" masquerade; }; }
table ip c {
	chain marks { type filter hook prerouting priority -150; ip daddr 10.1.1.1 jump inner; }
	chain inner { meta mark set 0x1; }
	chain marks-connections { type nat hook prerouting priority -90; ct mark set ct mark or 0x80; }
	chain compares { type filter hook prerouting priority -140; meta mark 0x1 ct mark 0x1 counter accept; }
}
table bridge b { chain drops { type filter hook prerouting priority 0; drop; }; }
`); err != nil {
		t.Fatal(err)
	}
	netfilter.NeedIPTables(t)
	legacy, err := aptget.Command("iptables-legacy", "iptables")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"-A INPUT -s 10.9.9.9 -j DROP", "-N inner", "-A inner -j REJECT", "-A FORWARD -j inner",
		"-t nat -A PREROUTING -p tcp --dport 80 -j DNAT --to-destination 10.1.1.1", "-t raw -P OUTPUT DROP",
		"-t raw -A PREROUTING -p udp -j CT --notrack",
		"-t mangle -N inner", "-t mangle -A inner -j MARK --set-mark 1", "-t mangle -A PREROUTING -j inner",
		"-t mangle -A POSTROUTING -d 10.0.0.0/8 -j NFQUEUE --queue-num 100",
		"-t nat -A OUTPUT ! -d 10.0.0.0/8 -j CONNMARK --set-xmark 0x80/0x80",
	} {
		if out, err := combined(ns, exec.Command(legacy, append([]string{"-w"}, strings.Fields(args)...)...)); err != nil {
			t.Fatalf("iptables-legacy %s: %v: %s", args, err, out)
		}
	}
	var list []basechain.Chain
	if err := ns.Do(func() (err error) {
		list, err = basechain.List()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, c := range list {
		if c.Legacy && !c.PolicyDrop && c.Rules == (otherproxy.Effects{}) {
			continue
		}
		queues := map[bool]string{true: " queues"}[c.Rules.Queues]
		got[c.TableText()+" "+c.Name] = fmt.Sprintf("%s %d policy-drop=%t drops=%t translates=%t untracks=%t%s", c.Hook,
			c.Priority, c.PolicyDrop, c.Rules.Drops, c.Rules.Translates, c.Rules.Untracks,
			queues+map[bool]string{true: " marks"}[c.Rules.Marks]+
				map[bool]string{true: " marks-connections"}[c.Rules.MarksConnections])
	}
	want := map[string]string{
		"inet a drops-rest":  "forward 5 policy-drop=true drops=false translates=false untracks=false",
		"inet a counts":      "input 0 policy-drop=false drops=false translates=false untracks=false",
		"inet a jumps":       "output 0 policy-drop=false drops=true translates=false untracks=false",
		"inet a map-drops":   "output 1 policy-drop=false drops=true translates=false untracks=false",
		"inet a map-accepts": "output 2 policy-drop=false drops=false translates=false untracks=false",
		"ip raw untracks": "prerouting -300 policy-drop=false drops=false translates=false " +
			"untracks=true",
		"ip6 nat masquerades": "postrouting 100 policy-drop=false drops=false translates=true " +
			"untracks=false",
		"ip c marks": "prerouting -150 policy-drop=false drops=false translates=false " +
			"untracks=false marks",
		"ip c marks-connections": "prerouting -90 policy-drop=false drops=false translates=false " +
			"untracks=false marks-connections",
		"ip c compares": "prerouting -140 policy-drop=false drops=false translates=false " +
			"untracks=false",
		"bridge b drops": "prerouting 0 policy-drop=false drops=true translates=false " +
			"untracks=false",
		"ip filter (iptables-legacy) INPUT":   "input 0 policy-drop=false drops=true translates=false untracks=false",
		"ip filter (iptables-legacy) FORWARD": "forward 0 policy-drop=false drops=true translates=false untracks=false",
		"ip nat (iptables-legacy) PREROUTING": "prerouting -100 policy-drop=false drops=false translates=true " +
			"untracks=false",
		"ip nat (iptables-legacy) OUTPUT": "output -100 policy-drop=false drops=false translates=false " +
			"untracks=false marks-connections",
		"ip mangle (iptables-legacy) PREROUTING": "prerouting -150 policy-drop=false drops=false translates=false " +
			"untracks=false marks",
		"ip mangle (iptables-legacy) POSTROUTING": "postrouting -150 policy-drop=false drops=false translates=false " +
			"untracks=false queues",
		"ip raw (iptables-legacy) OUTPUT":     "output -300 policy-drop=true drops=false translates=false untracks=false",
		"ip raw (iptables-legacy) PREROUTING": "prerouting -300 policy-drop=false drops=false translates=false untracks=true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func combined(ns *testnet.Namespace, cmd *exec.Cmd) (string, error) {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Run(cmd)
	return out.String(), err
}

// TestOthersTranslate: only a rule that changes destinations counts, and only another program's.
func TestOthersTranslate(t *testing.T) {
	chain := func(table, family, hook string, rules string) string {
		return fmt.Sprintf("table %s %s { chain c { type nat hook %s priority -101; %s; }; }\n", family, table, hook, rules)
	}
	for name, c := range map[string]struct {
		rules string
		want  bool
	}{
		"no rules": {"table ip a { }\n", false},
		"ours": {chain("nftproxy", "ip", "prerouting", "dnat to 10.1.1.1") + chain("nftproxy", "ip6",
			"output", "dnat to fd00::1"), false},
		"kube-proxy's nftables":     {chain("kube-proxy", "ip", "prerouting", "dnat to 10.1.1.1"), false},
		"masquerading":              {chain("cni", "ip", "postrouting", "masquerade"), false},
		"a chain that accepts":      {chain("cni", "ip", "prerouting", "accept"), false},
		"portmap":                   {chain("cni", "ip", "prerouting", "dnat to 10.1.1.1"), true},
		"IPv6":                      {chain("cni", "ip6", "prerouting", "dnat to fd00::1"), true},
		"inet, packets of the node": {chain("cni", "inet", "output", "dnat ip to 10.1.1.1"), true},
		"a redirection":             {chain("cni", "ip", "prerouting", "udp dport 53 redirect to :5353"), true},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testnet.NamespaceForTest(t, "chains")
			if err := netfilter.NFTForTest(t).Load(ns, c.rules); err != nil {
				t.Fatal(err)
			}
			if err := ns.Do(func() error {
				got, err := basechain.OthersTranslate("nftproxy")
				if got != c.want {
					t.Errorf("%t, want %t", got, c.want)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestClosingSparesOurs: a table that drops invalid packets for an nftproxy closes nothing, and one of another name
// does.
func TestClosingSparesOurs(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "closing")
	for _, services := range []string{"nftproxy", "other"} {
		if _, err := invalidtable.Keep(services, ns.Fd()); err != nil {
			t.Fatal(err)
		}
	}
	var list []basechain.Chain
	if err := ns.Do(func() (err error) {
		list, err = basechain.Closing([]nft.TableID{{Family: nft.IPv4, Name: "nftproxy"}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].Table != "other-invalid" || list[0].DropsInvalid("nftproxy") {
		t.Errorf("closing: %+v, want the chain of table other-invalid", list)
	}
}

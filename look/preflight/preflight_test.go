package preflight_test

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/look/preflight"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// world is the network namespace of a node.
type world struct {
	*testing.T
	ns   *testnet.Namespace
	proc string
}

func newWorld(t *testing.T) world {
	return world{t, testnet.NamespaceForTest(t, "preflight"), preflight.DefaultProc}
}

// check runs all probes and returns the findings by their probes.
func (w world) check() map[string]preflight.Finding {
	w.Helper()
	found := map[string]preflight.Finding{}
	if err := w.ns.Do(func() error {
		for _, f := range preflight.Run(w.Context(), preflight.Options{
			Table: "nftproxy", NodePorts: [2]uint16{30000, 32767}, Proc: w.proc,
			Addresses: map[string]string{"health": "127.0.0.1:10256"},
		}) {
			if _, twice := found[f.Probe]; twice {
				w.Errorf("two findings of the probe %q", f.Probe)
			}
			if (f.Level == preflight.Green) != (f.Do == "") || f.Found == "" {
				w.Errorf("finding %+v", f)
			}
			found[f.Probe] = f
		}
		return nil
	}); err != nil {
		w.Fatal(err)
	}
	return found
}

// want expects a finding of that level with the words.
func (w world) want(found map[string]preflight.Finding, level preflight.Level, probe string, words ...string) {
	w.Helper()
	f, has := found[probe]
	if !has || f.Level != level {
		w.Errorf("%s: %+v, want %s; all: %v", probe, f, level, found)
	}
	for _, word := range words {
		if !strings.Contains(f.Found+" "+f.Do, word) {
			w.Errorf("%s: %+v does not say %q", probe, f, word)
		}
	}
}

func (w world) sysctl(name, value string) {
	w.Helper()
	if err := w.ns.Sysctl(name, value); err != nil {
		w.Fatal(err)
	}
}

// write sets the setting in a file of /proc/sys, whose name may have a dot.
func (w world) write(path, value string) error {
	return w.ns.Do(func() error { return os.WriteFile("/proc/sys/"+path, []byte(value), 0) })
}

// apply puts the program of one Service into the kernel.
func (w world) apply(s *service.Service) {
	w.Helper()
	b := snapshots.NewBuilder(service.Node{Name: "here"})
	b.Set(s)
	if err := w.ns.Do(func() error {
		conn, err := kernel.Open(kernel.Config{})
		if err != nil {
			return err
		}
		defer conn.Close()
		program := ruleset.Compile(ruleset.Config{Table: "nftproxy"}, b.Snapshot())
		model, err := conn.Read(program)
		if err != nil {
			return err
		}
		batch, _ := nft.Adopt(model, program).Plan(program, time.Time{})
		return conn.Apply(batch)
	}); err != nil {
		w.Fatal(err)
	}
}

// TestGoodNode: a node as nftproxy needs it has no red finding, and the kernel of the tests has
// every feature, but for those that only some kernels have: these are found where they are.
func TestGoodNode(t *testing.T) {
	w := newWorld(t)
	w.sysctl("net.ipv4.ip_forward", "1")
	found := w.check()
	has, err := netfilter.OwnedTables(w.ns.Fd())
	if err != nil {
		t.Fatal(err)
	}
	optional := map[string]preflight.Level{"kernel: owned tables": preflight.Yellow}
	if has {
		optional["kernel: owned tables"] = preflight.Green
	}
	features := 0
	for probe, f := range found {
		if f.Level == preflight.Red {
			t.Errorf("%s: %+v", probe, f)
		}
		if strings.HasPrefix(probe, "kernel: ") {
			features++
			switch level, expected := optional[probe]; {
			case expected:
				w.want(found, level, probe)
			case probe == "kernel: counters" && f.Level == preflight.Yellow: // before Linux 6.10, by the state of its memory
				t.Logf("%s: %+v", probe, f)
			default:
				w.want(found, preflight.Green, probe)
			}
		}
	}
	if features != 13 {
		t.Errorf("%d features of the kernel, want 13", features)
	}
	for _, probe := range []string{"rights", "connection tracking", "connection tracking: invalid packets",
		"other proxies", "ports: health", "firewalls", "marks", "queues", "sysctl: net.ipv4.ip_forward"} {
		w.want(found, preflight.Green, probe)
	}
	// The trial of the features left nothing in the node's own namespace.
	if tables, err := netfilter.NFTForTest(t).Run(w.ns, "", "list", "tables"); err != nil || tables != "" {
		t.Errorf("tables after the check: %q, %v", tables, err)
	}
}

// TestBadNode: each thing in the way is found, and named.
func TestBadNode(t *testing.T) {
	w := newWorld(t)
	w.sysctl("net.ipv4.ip_forward", "0")
	w.sysctl("net.ipv4.conf.all.route_localnet", "1")
	w.sysctl("net.ipv4.ip_local_port_range", "1024 65535")
	if err := netfilter.NFTForTest(t).Load(w.ns, `
table ip kube-proxy { comment "rules for kube-proxy"; }
table ip old { comment "kept by nftproxy, a Kubernetes service proxy"; }
table inet firewalld {
	chain filter_FORWARD { type filter hook forward priority 10; ct status dnat accept; reject; };
	chain filter_INPUT { type filter hook input priority 10; iif lo accept; counter reject with icmpx admin-prohibited; };
}
table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; chain DOCKER-USER { }; }
table inet mine { chain in { type filter hook input priority 0; policy drop; ct state established accept; tcp dport 22 accept; }; }
`); err != nil {
		t.Fatal(err)
	}
	netfilter.NeedIPTables(t)
	legacy, err := aptget.Command("ip6tables-legacy", "iptables")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.ns.Run(exec.Command(legacy, "-P", "FORWARD", "DROP")); err != nil {
		t.Fatal(err)
	}
	l, err := w.ns.Listen(t.Context(), "tcp", "127.0.0.1:10256")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	found := w.check()
	w.want(found, preflight.Red, "sysctl: net.ipv4.ip_forward", "sysctl -w net.ipv4.ip_forward=1")
	w.want(found, preflight.Yellow, "sysctl: net.ipv4.conf.*.route_localnet", "is 1: other hosts on the LAN")
	w.want(found, preflight.Yellow, "sysctl: net.ipv4.ip_local_port_range", "1024 to 65535",
		"ip_local_reserved_ports=30000-32767")
	w.want(found, preflight.Yellow, "ports: health", "127.0.0.1:10256 is in use")
	w.want(found, preflight.Yellow, "other proxies: table old", "nftproxy cleanup")
	w.want(found, preflight.Yellow, "firewalls: ip filter FORWARD", "chain FORWARD in table ip filter (Docker)",
		"hook forward", "addresses of pods")
	w.want(found, preflight.Yellow, "firewalls: inet mine in", "hook input", "ports of the kubelet")
	w.want(found, preflight.Yellow, "firewalls: firewalld inet firewalld filter_FORWARD", "on the hook forward",
		"--zone=trusted")
	w.want(found, preflight.Yellow, "firewalls: firewalld inet firewalld filter_INPUT", "on the hook input", "--add-port")
	w.want(found, preflight.Yellow, "firewalls: ip6 filter (iptables-legacy) FORWARD", "hook forward")
	w.want(found, preflight.Yellow, "other proxies: ip kube-proxy (nftables)", "cleanup --kube-proxy")
	w.sysctl("net.ipv4.ip_local_reserved_ports", "8080,30000-32767")
	w.want(w.check(), preflight.Green, "sysctl: net.ipv4.ip_local_port_range", "reserved")
}

// TestClosedAtTheEnd: a chain is named whose last rule drops or rejects all packets, in each form that rules have. No
// other is: one whose last rule compares something or is not the end, one on another hook, one of nat.
func TestClosedAtTheEnd(t *testing.T) {
	w := newWorld(t)
	if err := netfilter.NFTForTest(t).Load(w.ns, `
table ip a {
	chain rejects { type filter hook input priority 0; ip saddr 10.0.0.1 accept; counter log reject; };
	chain drops { type filter hook forward priority 0; drop; };
	chain compares { type filter hook input priority 0; tcp dport 25 drop; };
	chain goes-on { type filter hook forward priority 0; drop; accept; };
	chain leaves { type filter hook output priority 0; reject; };
	chain jumps { type filter hook forward priority 1; jump inner; };
	chain inner { tcp dport 25 drop; };
}
`); err != nil {
		t.Fatal(err)
	}
	netfilter.NeedIPTables(t)
	for _, args := range []string{
		"iptables-nft -A INPUT -j REJECT --reject-with icmp-host-prohibited", "ip6tables-nft -A FORWARD -s fd00::1 -j REJECT",
		"iptables-legacy -A FORWARD -p tcp -j ACCEPT", "iptables-legacy -A FORWARD -j REJECT",
		"iptables-legacy -A INPUT -p tcp -j DROP",
		"ip6tables-legacy -A FORWARD -m state --state NEW -j DROP", "ip6tables-legacy -A INPUT -j DROP",
	} {
		words := strings.Fields(args)
		path, err := aptget.Command(words[0], "iptables")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.ns.Run(exec.Command(path, append([]string{"-w"}, words[1:]...)...)); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
	}
	want := map[string]bool{}
	for _, chain := range []string{"ip a rejects", "ip a drops", "ip filter INPUT", "ip filter (iptables-legacy) FORWARD",
		"ip6 filter (iptables-legacy) INPUT"} {
		want["firewalls: "+chain] = true
	}
	got := map[string]bool{}
	for probe, f := range w.check() {
		if strings.HasPrefix(probe, "firewalls") && f.Level == preflight.Yellow {
			got[probe] = true
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestTunnel: the rule of wg-quick is named that drops the resets of Services. Its other chains are not, nor is another
// program's rule.
func TestTunnel(t *testing.T) {
	w := newWorld(t)
	const rules = `
table ip wg-quick-wg0 {
	chain preraw { type filter hook prerouting priority -300; iifname != "wg0" ip daddr 10.99.0.1 fib saddr type != local drop; };
	chain premangle { type filter hook prerouting priority -150; meta l4proto udp meta mark set ct mark; };
	chain postmangle { type filter hook postrouting priority -150; meta l4proto udp mark 0x0000ca6c ct mark set meta mark; };
}
table ip mine { chain preraw { type filter hook prerouting priority -300; ip saddr 192.0.2.1 drop; }; }
`
	if err := netfilter.NFTForTest(t).Load(w.ns, rules); err != nil {
		t.Fatal(err)
	}
	found := w.check()
	w.want(found, preflight.Yellow, "firewalls: ip wg-quick-wg0 preraw", "time out",
		"nft insert rule ip wg-quick-%i preraw iifname lo accept")
	for probe, f := range found {
		if strings.HasPrefix(probe, "firewalls") && probe != "firewalls: ip wg-quick-wg0 preraw" {
			t.Errorf("%+v", f)
		}
	}
}

// TestMarkingChains: a chain of type nat is named that marks connections and may see the address of a Service. No other
// is: a later one, one of the proxy's own table, one that sets packets' marks, or one of another type.
func TestMarkingChains(t *testing.T) {
	w := newWorld(t)
	if err := netfilter.NFTForTest(t).Load(w.ns, `
table ip nftproxy { chain own { type nat hook prerouting priority -100; ct mark set 1; }; }
table ip aws-cni { chain later { type nat hook prerouting priority -90; ct mark set 1; }; }
table ip hostports { chain packets { type nat hook prerouting priority -100; meta mark set 1; }; }
table inet router { chain mangle { type filter hook prerouting priority -150; ct mark set 1; }; }
table ip leaving { chain leaving { type nat hook postrouting priority 100; ct mark set 1; }; }
table inet early { chain early { type nat hook prerouting priority -101; jump inner; }; chain inner { ct mark set 1; }; }
`); err != nil {
		t.Fatal(err)
	}
	netfilter.NeedIPTables(t)
	for _, c := range []struct{ program, args string }{
		{"iptables-nft", "-t nat -N AWS-CONNMARK-CHAIN-0"},
		{"iptables-nft", "-t nat -A AWS-CONNMARK-CHAIN-0 -j CONNMARK --set-xmark 0x80/0x80"},
		{"iptables-nft", "-t nat -A PREROUTING -i eni+ -j AWS-CONNMARK-CHAIN-0"},
		{"ip6tables-legacy", "-t nat -A OUTPUT -j CONNMARK --set-xmark 0x80/0x80"},
	} {
		path, err := aptget.Command(c.program, "iptables")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.ns.Run(exec.Command(path, append([]string{"-w"}, strings.Fields(c.args)...)...)); err != nil {
			t.Fatalf("%s %s: %v", c.program, c.args, err)
		}
	}
	found := w.check()
	w.want(found, preflight.Yellow, "marks: inet early early", "is called before nftproxy's: it then goes by the "+
		"address of a Service")
	w.want(found, preflight.Yellow, "marks: ip nat PREROUTING", "before nftproxy's if it was made later",
		"range of Service addresses", "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS")
	w.want(found, preflight.Yellow, "marks: ip6 nat (iptables-legacy) OUTPUT", "priority -100")
	for probe, f := range found {
		if strings.HasPrefix(probe, "marks") && !slices.Contains([]string{"marks: inet early early",
			"marks: ip nat PREROUTING", "marks: ip6 nat (iptables-legacy) OUTPUT"}, probe) {
			t.Errorf("%+v", f)
		}
	}
}

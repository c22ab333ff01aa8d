package takeover

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"nftproxy/node/otherproxy"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// kubeProxyFilter is the table filter of a kube-proxy's iptables mode: KUBE-NODEPORTS accepts the health check node
// port 30099, and KUBE-FORWARD what is masqueraded, and answers.
const kubeProxyFilter = `*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODEPORTS -p tcp -m comment --comment "ns/web:health check node port" -m tcp --dport 30099 -j ACCEPT
COMMIT
`

// firewalledWorld is a node with kube-proxy's rules, a pod and a client outside.
type firewalledWorld struct {
	*testing.T
	top *testnet.Topology
	pod *testnet.Pod
	// backend is iptables-nft or iptables-legacy.
	backend string
}

func newFirewalledWorld(t *testing.T, backend string) firewalledWorld {
	w := firewalledWorld{T: t, top: testnet.NewForTest(t, testnet.Config{}), backend: backend}
	var err error
	if w.pod, err = w.top.AddPod("web"); err != nil {
		t.Fatal(err)
	}
	w.load(kubeProxyFilter)
	return w
}

func (w firewalledWorld) load(rules string) {
	w.Helper()
	path, err := aptget.Command(w.backend+"-restore", "iptables")
	if err != nil {
		w.Fatal(err)
	}
	var out strings.Builder
	cmd := exec.Command(path, "--noflush")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(rules), &out, &out
	if err := w.top.Node.Run(cmd); err != nil {
		w.Fatalf("%s: %v: %s", cmd, err, out.String())
	}
}

// How long to wait for an answer that has to come, however busy the computer is, and for one that must not come: a
// packet that is dropped has none.
const (
	patience = time.Minute
	silence  = 300 * time.Millisecond
)

// answers says whether a connection from outside to an address of the node is taken within that time.
func (w firewalledWorld) answers(address string, patience time.Duration) bool {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	conn, err := w.top.Outside.Dial(ctx, "tcp", address)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// remove removes kube-proxy's rules as run and cleanup do, or with accepting as cleanup --remove-accepting does.
func (w firewalledWorld) remove(accepting bool) (kept []error) {
	w.Helper()
	keep := Closed
	if accepting {
		keep = nil
	}
	if err := w.top.Node.Do(func() error {
		return otherproxy.RemoveAll(w.Context(), otherproxy.Removal{Closed: keep}, func(_ otherproxy.Rules, err error) {
			if err != nil {
				kept = append(kept, err)
			}
		})
	}); err != nil {
		w.Fatal(err)
	}
	return kept
}

// TestDoorsStayOpen: what kube-proxy's rules let through a firewall goes through it after their removal too, be it a
// health check node port of a node or a marked packet to a pod. With --remove-accepting it does not, unless the
// operator has put the rules in its place that the message names.
func TestDoorsStayOpen(t *testing.T) {
	for _, backend := range []string{"iptables-nft", "iptables-legacy"} {
		for name, c := range map[string]struct{ firewall, instead, says string }{
			"policy of INPUT": {":INPUT DROP [0:0]", "-I INPUT -p tcp --dport 30099 -j ACCEPT", "has policy drop"},
			"the end of INPUT": {"-A INPUT -j REJECT", "-I INPUT -p tcp --dport 30099 -j ACCEPT",
				"-I INPUT -p tcp --dport PORT -j ACCEPT"},
			"below INPUT": {":mine - [0:0]\n:ours - [0:0]\n-A INPUT -g mine\n-A mine -j ours\n-A ours -j DROP",
				"-I INPUT -p tcp --dport 30099 -j ACCEPT", "chain INPUT (table ip filter"},
			"policy of FORWARD": {":FORWARD DROP [0:0]",
				"-I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT", "chain KUBE-FORWARD in ip filter stays"},
			"the end of FORWARD": {"-A FORWARD -j REJECT --reject-with icmp-host-prohibited", "-I FORWARD -m conntrack " +
				"--ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT", "--ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT"},
			"the end below FORWARD": {":reject - [0:0]\n-A reject -j REJECT\n-A FORWARD -j reject",
				"-I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT", "has a rule that drops or rejects"},
			"a queue in FORWARD": {"-A FORWARD -j NFQUEUE",
				"-I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT", "chain FORWARD"},
		} {
			t.Run(backend+" "+name, func(t *testing.T) {
				w := newFirewalledWorld(t, backend)
				// A Service: port 80 of the node is translated to the pod, and marked as what is masqueraded.
				w.load("*nat\n-A PREROUTING -p tcp --dport 80 -j MARK --set-xmark 0x4000/0x4000\n-A PREROUTING -p tcp --dport 80 " +
					"-j DNAT --to-destination " + w.pod.Addrs.V4().String() + ":8080\nCOMMIT\n")
				for address, ns := range map[string]*testnet.Namespace{"0.0.0.0:30099": w.top.Node, "0.0.0.0:8080": w.pod.NS} {
					l, err := ns.Listen(t.Context(), "tcp", address)
					if err != nil {
						t.Fatal(err)
					}
					defer l.Close()
					go accept(l)
				}
				door := w.top.NodeAddrs.V4().String() + ":30099"
				if strings.Contains(c.firewall, "FORWARD") {
					door = w.top.NodeAddrs.V4().String() + ":80"
				}
				w.load("*filter\n" + c.firewall + "\nCOMMIT\n")
				if !w.answers(door, patience) {
					t.Fatal("no answer beside kube-proxy's rules")
				}
				kept := w.remove(false)
				if len(kept) != 1 || !errors.Is(kept[0], otherproxy.ErrOpens) || !strings.Contains(kept[0].Error(), c.says) {
					t.Errorf("kept: %v; want %q", kept, c.says)
				}
				if !w.answers(door, patience) {
					t.Error("no answer after the removal")
				}
				w.load("*filter\n" + c.instead + "\nCOMMIT\n")
				if kept := w.remove(true); len(kept) > 0 {
					t.Errorf("--remove-accepting keeps %v", kept)
				}
				if !w.answers(door, patience) {
					t.Error("no answer by the rules that the message names")
				}
				w.load("*filter\n" + strings.Replace(c.instead, "-I", "-D", 1) + "\nCOMMIT\n")
				if w.answers(door, silence) {
					t.Error("the firewall closes nothing: the test shows nothing")
				}
			})
		}
	}
}

func accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}

// TestClosed: what keeps a chain that accepts packets of IPv4 on the hooks input and forward, and what does not.
func TestClosed(t *testing.T) {
	base := func(family, hook, rules string) string {
		return "table " + family + " other { chain c { type filter hook " + hook + " priority 10; " + rules +
			" }; chain d { ct state invalid drop; }; }"
	}
	for name, c := range map[string]struct {
		rules          string
		input, forward bool
	}{
		"nothing":     {"", false, false},
		"policy":      {base("ip", "input", "policy drop;"), true, false},
		"a rejection": {base("inet", "forward", "reject;"), false, true},
		"a jump":      {base("inet", "forward", "jump d;"), false, true},
		"a goto":      {base("ip", "input", "goto d;"), true, false},
		"a map of verdicts": {base("inet", "input", "tcp dport vmap { 1 : accept, 2 : goto d };"), true,
			false},
		"a named map": {"table inet m { map v { type inet_service : verdict; elements = { 1 : drop " +
			"}; }; chain c { type filter hook forward priority 5; tcp dport vmap @v; }; }", false, true},
		"an unused chain": {base("inet", "input", "accept;"), false, false},
		"another family":  {base("ip6", "input", "policy drop;"), false, false},
		"another hook":    {base("ip", "postrouting", "drop;"), false, false},
		"a bridge":        {"table bridge other { chain c { type filter hook forward priority 0; drop; }; }", false, false},
		"mangle": {"table ip mangle { chain FORWARD { type filter hook forward priority -150; " +
			"drop; }; }", false, true},
		"raw": {"table ip raw { chain OUTPUT { type filter hook output priority -300; drop; }; }", false, false},
		"kube-proxy's own table": {"table ip kube-proxy { chain c { type filter hook input priority 0; drop; }; }",
			false, false},
		"the kubelet's chain, kube-proxy's": {"table ip filter { chain KUBE-FIREWALL { drop; }; chain KUBE-FORWARD { drop; " +
			"}; chain INPUT { type filter hook input priority 0; jump KUBE-FIREWALL; }; chain FORWARD { type filter hook " +
			"forward priority 0; jump KUBE-FORWARD; }; }", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testnet.NamespaceForTest(t, "closed")
			if err := netfilter.NFTForTest(t).Load(ns, c.rules); err != nil {
				t.Fatal(err)
			}
			for hook, want := range map[string]bool{"input": c.input, "forward": c.forward} {
				var got error
				if err := ns.Do(func() error {
					got = Closed(otherproxy.Opening{Table: "ip filter", Hook: hook, Chain: "KUBE-X"})
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if (got != nil) != want {
					t.Errorf("%s: %v, want %t", hook, got, want)
				}
			}
		})
	}
}

package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// writeServices replaces the manifests by texts beside the Node.
func (w *troubles) writeServices(texts ...string) {
	w.Helper()
	node := fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, "+
		"address: %s}]}\n", w.NodeAddrs.V4())
	w.must(os.WriteFile(filepath.Join(w.dir, manifestsDir, "objects.yaml"), []byte(node+strings.Join(texts, "")), 0o644))
}

// wantExplained explains a packet, with the objects, and looks for the status and the texts.
func (w *troubles) wantExplained(what, args string, status int, says ...string) {
	w.Helper()
	stdout, stderr, got := w.explain(args + " --nftproxy-manifests " + manifestsDir + " --hostname-override node-1")
	if got != status {
		w.Errorf("%s: exit status %d, want %d", what, got, status)
	}
	for _, text := range says {
		if !strings.Contains(stdout, text) {
			w.Errorf("%s: does not say %q:\n%s%s", what, text, stdout, stderr)
		}
	}
}

// wantOutcome sends a packet to a Service.
func (w *troubles) wantOutcome(what, to string, answered bool) {
	w.Helper()
	a, err := w.client.NS.Ask(w.Context(), testnet.TCP, netip.MustParseAddrPort(to),
		map[bool]time.Duration{true: time.Minute, false: 300 * time.Millisecond}[answered])
	w.must(err)
	if (a.Outcome == testnet.Answered) != answered {
		w.Errorf("%s: the packet to %s: %s", what, to, a.Outcome)
	}
}

// TestExplainPath: what stops a packet behind the rules, or its answer, is named, and stops a real packet. What is
// mended goes again.
func TestExplainPath(t *testing.T) {
	w := newTroubles(t)
	w.writeServices(object("web", "2026-01-01T00:00:00Z", "clusterIP: 10.96.0.20, ports: [{name: http, port: 80}]", "",
		fmt.Sprintf("{addresses: [%s], nodeName: node-1}", w.local.Addrs.V4())))
	firstSync(t, w.Node, "--nftproxy-manifests", filepath.Join(w.dir, manifestsDir), "--cluster-cidr", "10.244.0.0/16")
	h := w.Node.Handle()
	client, local := w.client.Addrs.V4(), w.local.Addrs.V4()
	const service, table = "10.96.0.20:80", 77
	ask := "--from " + client.String() + " " + service
	fine := func(what string) {
		t.Helper()
		w.wantOutcome(what, service, true)
		w.wantExplained(what, ask, 0, "it goes to 10.244.0.3:8080, and keeps its source address.\n")
	}
	stopped := func(what string, says ...string) {
		t.Helper()
		w.wantOutcome(what, service, false)
		w.wantExplained(what, ask, 1, append(says, "; but this node stops the packet or its answer.\n")...)
	}
	sysctl := func(name, value string) { w.must(w.Node.Sysctl(name, value)) }
	fine("at first")

	sysctl("net.ipv4.ip_forward", "0")
	stopped("ip_forward", "the node does not forward the packet: forwarding of IPv4 is off for veth0",
		"sysctl -w net.ipv4.ip_forward=1")
	sysctl("net.ipv4.ip_forward", "1")
	sysctl("net.ipv4.conf.veth1.forwarding", "0")
	stopped("forwarding of the endpoint's interface", "the node does not forward the answer: forwarding of IPv4 is off "+
		"for veth1")
	sysctl("net.ipv4.conf.veth1.forwarding", "1")
	fine("forwarding is on")

	// A table of its own by the address of one end.
	for _, end := range []struct {
		from netip.Addr
		what string
	}{{client, "10.244.0.3 for the packet from 10.244.0.2 that comes in by veth0"},
		{local, "10.244.0.2 for the answer from 10.244.0.3 that comes in by veth1"}} {
		rule := netlink.NewRule()
		rule.Src, rule.Table, rule.Priority = &net.IPNet{IP: end.from.AsSlice(), Mask: net.CIDRMask(32, 32)}, table, 10
		w.must(h.RuleAdd(rule))
		all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		for kind, says := range map[int]string{unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable",
			unix.RTN_PROHIBIT: "prohibit"} {
			route := &netlink.Route{Dst: all, Table: table, Type: kind}
			w.must(h.RouteAdd(route))
			stopped(says, "the node has a route of type "+says+" to "+end.what, "ip rule show what decides")
			w.must(h.RouteDel(route))
		}
		w.must(h.RuleDel(rule))
	}
	fine("without rules")

	// The reverse path filter, of a source that has its way elsewhere.
	sysctl("net.ipv4.conf.veth0.rp_filter", "1")
	fine("strict for a source that is there")
	w.wantExplained("rp_filter", "--from 10.244.1.9@veth0 "+service, 1, "comes in by veth0 with the source 10.244.1.9, "+
		"and the way back to it is by eth0 (rp_filter is 1 for veth0)")
	sysctl("net.ipv4.conf.veth0.rp_filter", "2")
	w.wantExplained("loose", "--from 10.244.1.9@veth0 "+service, 0)
	sysctl("net.ipv4.conf.veth0.rp_filter", "0")

	// A table by the endpoint's port, for the packet and for its answer.
	blackhole := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Table: table,
		Type: unix.RTN_BLACKHOLE}
	w.must(h.RouteAdd(blackhole))
	rule := func(change func(*netlink.Rule)) *netlink.Rule {
		r := netlink.NewRule()
		r.Table, r.Priority = table, 10
		change(r)
		w.must(h.RuleAdd(r))
		return r
	}
	for end, change := range map[string]func(*netlink.Rule){
		"10.244.0.3 for the packet": func(r *netlink.Rule) {
			r.IPProto, r.Dport = unix.IPPROTO_TCP, netlink.NewRulePortRange(8080, 8080)
		},
		"10.244.0.2 for the answer": func(r *netlink.Rule) { r.Sport = netlink.NewRulePortRange(8000, 8100) },
	} {
		r := rule(change)
		stopped("a rule by port", "the node has a route of type blackhole to "+end)
		w.must(h.RuleDel(r))
	}
	other := rule(func(r *netlink.Rule) { r.IPProto, r.Dport = unix.IPPROTO_UDP, netlink.NewRulePortRange(8080, 8080) })
	fine("a rule by another protocol")
	w.must(h.RuleDel(other))

	// What is not known of the packet.
	for says, change := range map[string]func(*netlink.Rule){
		"the packet's mark by other programs": func(r *netlink.Rule) { r.Mark = 7 },
		"the client's port":                   func(r *netlink.Rule) { r.Sport = netlink.NewRulePortRange(7, 7) },
		"the packet's type of service":        func(r *netlink.Rule) { r.Tos = 0x10 },
		"the user of a process that sends it": func(r *netlink.Rule) { r.UIDRange = netlink.NewRuleUIDRange(7, 7) },
	} {
		r := rule(change)
		w.wantExplained("a rule by "+says, ask, 0, "not known: "+says+", by which rules of routing go")
		w.must(h.RuleDel(r))
	}

	// The route to an interface whose other end is down stays.
	end, err := w.local.NS.Handle().LinkByName("eth0")
	w.must(err)
	w.must(w.local.NS.Handle().LinkSetDown(end))
	stopped("no carrier", "the node cannot send the packet: its interface veth1 has no carrier")
}

// TestExplainNoHost: an endpoint that no host has is named once the kernel knows, and so are endpoints that are
// addresses of Services.
func TestExplainNoHost(t *testing.T) {
	w := newTroubles(t)
	const created = "2026-01-01T00:00:00Z"
	w.writeServices(
		object("gone", created, "clusterIP: 10.96.0.20, ports: [{name: http, port: 80}]", "",
			"{addresses: [192.168.100.77]}"),
		object("web", created, "type: NodePort, clusterIP: 10.96.0.21, ports: [{name: http, port: 80, nodePort: 8080}]", "",
			fmt.Sprintf("{addresses: [%s]}", w.local.Addrs.V4())),
		object("port", created, "clusterIP: 10.96.0.22, ports: [{name: http, port: 80}]", "", fmt.Sprintf("{addresses: [%s]}",
			w.NodeAddrs.V4())),
		object("chain", created, "clusterIP: 10.96.0.23, ports: [{name: http, port: 80}]", "", "{addresses: [10.96.0.21]}"),
	)
	proxy := start(t, w.Node, "--nftproxy-manifests", filepath.Join(w.dir, manifestsDir), "--cluster-cidr",
		"10.244.0.0/16")
	proxy.awaitSync()
	from := "--from " + w.client.Addrs.V4().String() + " "
	w.wantExplained("nobody was asked", from+"10.96.0.20:80", 0, "not known: whether a host has 192.168.100.77 (by "+
		"eth0), since the node has sent nothing there lately")
	w.wantOutcome("nobody is there", "10.96.0.20:80", false)
	w.wantExplained("nobody answers", from+"10.96.0.20:80", 1, "no host has the address 192.168.100.77: "+
		"nobody answers on the link of eth0", "ip neigh show 192.168.100.77 dev eth0")
	w.wantExplained("a node port", from+"10.96.0.22:80", 0, "the endpoint 192.168.100.1:8080 is a node port of this "+
		"node, of Service shop/web: rules translate a packet once")
	w.wantOutcome("a cluster IP", "10.96.0.23:80", false)
	w.wantExplained("a cluster IP", from+"10.96.0.23:80", 1, "the endpoint 10.96.0.21:8080 is the cluster IP of Service "+
		"shop/web: rules translate a packet once, so it is dropped")
	proxy.end()
}

// TestExplainBridge: two pods on one bridge, whose packets to each other rules do not see.
func TestExplainBridge(t *testing.T) {
	w := troublesOn(t, testnet.Config{Bridge: "cni0"})
	link, err := w.local.NS.Handle().LinkByName("eth0")
	w.must(err)
	subnet := &net.IPNet{IP: net.IPv4(10, 244, 0, 0), Mask: net.CIDRMask(24, 32)} // as the plugin bridge has it
	w.must(w.local.NS.Handle().RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: subnet,
		Scope: netlink.SCOPE_LINK}))
	w.writeServices(object("web", "2026-01-01T00:00:00Z", "clusterIP: 10.96.0.20, ports: [{name: http, port: 80}]", "",
		fmt.Sprintf("{addresses: [%s], nodeName: node-1}", w.local.Addrs.V4())))
	firstSync(t, w.Node, "--nftproxy-manifests", filepath.Join(w.dir, manifestsDir), "--cluster-cidr", "10.244.0.0/16")
	ask := "--from " + w.client.Addrs.V4().String() + " 10.96.0.20:80"
	for _, c := range []struct {
		all string
		own bool
	}{{"1", false}, {"0", false}, {"0", true}} {
		w.must(w.Node.Sysctl("net.bridge.bridge-nf-call-iptables", c.all))
		w.must(w.Node.CallRules("cni0", c.own, false))
		if seen := c.all == "1" || c.own; seen {
			w.wantOutcome("seen", "10.96.0.20:80", true)
			w.wantExplained("seen", ask, 0)
			continue
		}
		w.wantOutcome("not seen", "10.96.0.20:80", false)
		w.wantExplained("not seen", ask, 1, "the client and the endpoint are on the bridge cni0, and rules do not see what "+
			"it forwards", "sysctl -w net.bridge.bridge-nf-call-iptables=1")
	}
}

// TestExplainIgnoredSlices: EndpointSlices that do not count are named, each with its reason, where a Service has no
// endpoint.
func TestExplainIgnoredSlices(t *testing.T) {
	w := newTroubles(t)
	const created = "2026-01-01T00:00:00Z"
	slice := func(namespace, name, labels, kind, address string) string {
		return fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: %s, name: %s, "+
			"labels: {%s}}\naddressType: %s\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [%q]}]\n", namespace,
			name, labels, kind, address)
	}
	service := func(name, address string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: %s, creationTimestamp: "+
			"%q}\nspec: {clusterIP: %q, ports: [{name: http, port: 80}]}\n", name, created, address)
	}
	w.writeServices(service("web", "10.96.0.20"), service("six", "10.96.0.21"),
		slice("shop", "labelled", `kubernetes.io/service-name: web, service.kubernetes.io/headless: ""`, "IPv4",
			"10.244.0.3"),
		slice("shop", "named", "kubernetes.io/service-name: web", "FQDN", "web.example.com"),
		slice("shop", "nobodys", "app: web", "IPv4", "10.244.0.3"),
		slice("other", "nobodys", "app: web", "IPv4", "10.244.0.3"),
		service("cart", "10.96.0.22"), slice("shop", "a", "kubernetes.io/service-name: crat", "IPv4", "10.244.0.3"),
		slice("other", "b", "kubernetes.io/service-name: cart", "IPv4", "10.244.0.3"),
		slice("shop", "cart-1", "kubernetes.io/servicename: cart", "IPv4", "10.244.0.3"),
		slice("shop", "six-1", "kubernetes.io/service-name: six", "IPv6", "fd00:244::3"),
	)
	firstSync(t, w.Node, "--nftproxy-manifests", filepath.Join(w.dir, manifestsDir), "--cluster-cidr", "10.244.0.0/16")
	from := "--from " + w.client.Addrs.V4().String() + " "
	w.wantExplained("ignored", from+"10.96.0.20:80", 1,
		"EndpointSlice shop/labelled is ignored: metadata.labels[service.kubernetes.io/headless]: it is for headless "+
			"Services, and Service shop/web has a cluster IP",
		`EndpointSlice shop/named is ignored: addressType: "FQDN": not IPv4 or IPv6`,
		"EndpointSlice shop/nobodys is ignored: metadata.labels: no kubernetes.io/service-name: it belongs to no Service")
	stdout, _, _ := w.explain(from + "10.96.0.20:80 --nftproxy-manifests " + manifestsDir + " --hostname-override node-1")
	if strings.Contains(stdout, "other/nobodys") || strings.Contains(stdout, "its selector has to match") {
		t.Errorf("says:\n%s", stdout)
	}
	w.wantExplained("of no Service", from+"10.96.0.22:80", 1,
		`EndpointSlice shop/a: metadata.labels[kubernetes.io/service-name]: "crat": namespace shop has no such Service `+
			"with a cluster IP; did you mean cart?",
		`EndpointSlice other/b: metadata.labels[kubernetes.io/service-name]: "cart": namespace other has no such Service`,
		"EndpointSlice shop/cart-1: metadata.labels: no kubernetes.io/service-name: it belongs to no Service; is it meant "+
			"by kubernetes.io/servicename?")
	w.wantExplained("of the other family", from+"10.96.0.21:80", 1, "its EndpointSlices have addresses of the other "+
		"family only")
}

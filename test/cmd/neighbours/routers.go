package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"nftproxy/test/lib/testnet"
)

// spread is a Service with policy Cluster, an endpoint on each node, and a hash of the flow that chooses them.
//
//go:embed spread.yaml
var spread string

// The addresses of the Service spread.
const spread4, spread6 = "203.0.113.61", "2001:db8::61"

// behind is the place of a client that reaches the nodes by a router.
const behind = "behind the router"

// routers announce addresses of load balancers from both nodes to a router, which has equal routes by both.
func routers() []neighbour {
	const run = "/usr/lib/frr/frrinit.sh start\nuntil vtysh -c 'show bgp summary' >/dev/null; do sleep 0.1; done\n"
	const start = run + "{ /tmp/announce >/dev/null 2>&1 & echo $! >/run/announce.pid; }\n"
	const stop = "/usr/lib/frr/frrinit.sh stop\nkill \"$(cat /run/announce.pid)\"\nip addr flush dev lo to " + moving4 +
		"\nip addr flush dev lo to " + moving6 + "\n"
	const reload = `sed -i '/^router bgp/a neighbor 192.168.100.2 description router' /etc/frr/frr.conf
/usr/lib/frr/frr-reload.py --reload /etc/frr/frr.conf
vtysh -c 'show running-config' | grep 'description router'
`
	both, one, two := []int{0, 1}, []int{0}, []int{1}
	endpoints := map[netip.AddrPort]string{}
	goes := func(objects string, local ...int) func(context.Context, *world) error {
		return publish(objects, announced(local, both, endpoints))
	}
	stays := announced(both, both, endpoints)
	return []neighbour{{
		name: "frr", program: "FRR", moving: true, routed: true,
		packages: []string{"frr", "frr-pythontools"}, prepare: announcer("192.168.100.1"),
		what: "BGP on two nodes, both with nftproxy, and on the client's router, which has equal routes. A load balancer's " +
			"address with policy Local is announced while the health check node port says so, one with policy Cluster and " +
			"`nftproxy.io/balance: flow` always",
		events: []event{
			{nameStart, start},
			{"the node's endpoint terminates", ""},
			{"the endpoint is gone", ""},
			{"there is an endpoint again", ""},
			{"the other node's endpoint terminates", ""},
			{"the other node's endpoint is ready again", ""},
			{"reloads", reload},
			{"restarts", "/usr/lib/frr/frrinit.sh restart\n"},
		},
		stop: event{"stops", stop},
		peers: []peer{
			{at: "outside", start: frrConfig(64500, "192.168.100.2", "", "", 64512, "192.168.100.1", "fd00:100::1",
				"192.168.100.3", "fd00:100::3") + run},
			// BGP is between neighbours: packets of the other node to the router go there without the detour of world.populate.
			{start: "ip route delete 192.168.100.2/32\nip route delete fd00:100::2/128\n" + announcer("192.168.100.3") + start},
		},
		notes: []string{
			"Give a node the addresses that it announces, such as on `lo`. It then refuses ports that no Service " +
				"has. Otherwise such packets go back and forth between node and router until their time to live ends.",
			"When routes change, an open connection may reach another node and end, even with `balance: flow` " +
				"and policy Cluster: the endpoint sees another node's address.",
		},
		beside: map[string]func(context.Context, *world) error{
			namePrepared:                               announced(two, two, endpoints),
			nameStart:                                  stays,
			"the node's endpoint terminates":           goes(terminating(moving, 1), two...),
			"the endpoint is gone":                     goes(without(moving, 1), two...),
			"there is an endpoint again":               goes(moving, both...),
			"the other node's endpoint terminates":     goes(terminating(moving, 2), one...),
			"the other node's endpoint is ready again": goes(moving, both...),
			"reloads":  stays,
			"restarts": stays,
			"stops":    announced(two, two, endpoints),
		},
	}}
}

// announcer configures a node: a script asks the health check node port of the Service moving and gives the node its
// addresses, or takes them away, and FRR announces those that the node has. It announces those of the Service spread
// always.
func announcer(addr string) string {
	const own = "redistribute connected route-map announced\nnetwork "
	return frrConfig(64512, addr, own+spread4+"/32\n", own+spread6+"/128\n", 64500, "192.168.100.2", "fd00:100::2") + `cat >>/etc/frr/frr.conf <<'EOF'
ip prefix-list announced permit ` + moving4 + `/32
ipv6 prefix-list announced permit ` + moving6 + `/128
route-map announced permit 10
 match ip address prefix-list announced
exit
route-map announced permit 20
 match ipv6 address prefix-list announced
exit
EOF
cat >/tmp/announce <<'EOF'
#!/bin/sh
while :; do
	# A node that is slow to answer is not one without endpoints.
	if busybox wget -q -T 50 -O /dev/null http://` + addr + `:31260/healthz; then
		ip addr replace ` + moving4 + `/32 dev lo
		ip addr replace ` + moving6 + `/128 dev lo
	else
		ip addr flush dev lo to ` + moving4 + `
		ip addr flush dev lo to ` + moving6 + `
	fi
	sleep 1
done
EOF
chmod +x /tmp/announce
`
}

// frrConfig writes FRR's configuration for BGP. four and six are lines for the address families, and peers the
// addresses of routers of another system.
func frrConfig(as int, id, four, six string, other int, peers ...string) string {
	var all strings.Builder
	for _, p := range peers {
		fmt.Fprintf(&all, " neighbor %s remote-as %d\n neighbor %s timers connect 1\n", p, other, p)
		if line := "neighbor " + p + " activate\n"; netip.MustParseAddr(p).Is4() {
			four += line
		} else {
			six += line + "neighbor " + p + " route-map global in\n"
		}
	}
	return fmt.Sprintf(`sed -i s/^bgpd=no/bgpd=yes/ /etc/frr/daemons
cat >/etc/frr/frr.conf <<'EOF'
log file /tmp/frr.log
router bgp %d
 bgp router-id %s
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 no bgp network import-check
%saddress-family ipv4 unicast
%sexit-address-family
address-family ipv6 unicast
%sexit-address-family
exit
route-map global permit 10
 set ipv6 next-hop prefer-global
exit
EOF
`, as, id, all.String(), four, six)
}

// announced waits until the router has routes to the Service moving by the nodes of one list and to the Service spread
// by those of another, and asks for the endpoints of flows to the latter: each node has to choose the same ones.
func announced(local, all []int, endpoints map[netip.AddrPort]string) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		for addr, by := range map[string][]int{moving4: local, moving6: local, spread4: all, spread6: all} {
			if err := w.awaitRoutes(ctx, netip.MustParseAddr(addr), by); err != nil {
				return err
			}
		}
		return w.askEndpoints(ctx, all, endpoints)
	}
}

// nodes are the addresses of both nodes by their number and family.
func (w *world) nodes() []testnet.Addrs { return []testnet.Addrs{w.net.NodeAddrs, w.net.RemoteAddrs} }

// awaitRoutes waits until the router's routes to an address are those by the nodes.
func (w *world) awaitRoutes(ctx context.Context, addr netip.Addr, nodes []int) error {
	family, pick := netlink.FAMILY_V4, testnet.Addrs.V4
	if addr.Is6() {
		family, pick = netlink.FAMILY_V6, testnet.Addrs.V6
	}
	var want, got []string
	for _, n := range nodes {
		want = append(want, pick(w.nodes()[n]).String())
	}
	err := poll(ctx, func() (bool, error) {
		routes, err := w.net.Outside.Handle().RouteListFiltered(family, &netlink.Route{Dst: netlink.NewIPNet(addr.AsSlice())},
			netlink.RT_FILTER_DST)
		got = nil
		for _, r := range routes {
			if r.Gw != nil {
				got = append(got, r.Gw.String())
			}
			for _, hop := range r.MultiPath {
				got = append(got, hop.Gw.String())
			}
		}
		slices.Sort(got)
		return slices.Equal(got, want), err
	})
	if err != nil {
		return fmt.Errorf("await routes to %v by %v, not by %v: %w", addr, want, got, err)
	}
	return nil
}

// askEndpoints asks for the endpoints of the same flows to the Service spread again and again. Each of the nodes has to
// serve some, and no other node any.
func (w *world) askEndpoints(ctx context.Context, nodes []int, endpoints map[netip.AddrPort]string) error {
	const flows, firstPort = 32, 20000
	for i, to := range []string{spread4, spread6} {
		by := map[netip.Addr]int{}
		for n := range uint16(flows) {
			from := netip.AddrPortFrom(w.behind.addrs[i], firstPort+n)
			answer, err := w.places[behind].AskFrom(ctx, testnet.UDP, from, netip.AddrPortFrom(netip.MustParseAddr(to), 80),
				w.long)
			if err != nil {
				return err
			}
			if answer.Outcome != testnet.Answered {
				return fmt.Errorf("from %v to %s: %s", from, to, answer.Outcome)
			}
			if before, has := endpoints[from]; has && before != answer.ID {
				return fmt.Errorf("from %v to %s: endpoint %s, and %s before", from, to, answer.ID, before)
			}
			endpoints[from] = answer.ID
			by[answer.Peer.Addr()]++
		}
		for n, node := range w.nodes() {
			if served := by[node[i]] > 0; served != slices.Contains(nodes, n) {
				return fmt.Errorf("flows to %s by their nodes: %v, want some by each of %v and no other", to, by, nodes)
			}
		}
	}
	return nil
}

// client is one that reaches the nodes by a router.
type client struct {
	ns    *testnet.Namespace
	addrs testnet.Addrs
}

// startRouter has the namespace outside forward packets of another client. Where it has equal routes, all packets of a
// flow take the same.
func (w *world) startRouter() error {
	ns, err := testnet.New("behind")
	if err != nil {
		return err
	}
	w.behind = &client{ns, testnet.Addrs{netip.MustParseAddr("192.168.101.2"), netip.MustParseAddr("fd00:101::2")}}
	w.places[behind] = ns
	near, far := testnet.End{NS: ns, Link: "eth0"}, testnet.End{NS: w.net.Outside, Link: "behind"}
	errs := []error{
		testnet.Pair(near, far), w.net.Outside.Forward(),
		w.net.Outside.Sysctl("net.ipv4.fib_multipath_hash_policy", "1"),
		w.net.Outside.Sysctl("net.ipv6.fib_multipath_hash_policy", "1"),
		os.WriteFile(filepath.Join(w.dir, "manifests", "spread.yaml"), []byte(spread), 0o644),
	}
	for i, text := range []string{"192.168.101.1/24", "fd00:101::1/64"} {
		router := netip.MustParsePrefix(text)
		everything, _ := router.Addr().Prefix(0)
		errs = append(errs, far.NS.AddAddr(far.Link, router),
			ns.AddAddr(near.Link, netip.PrefixFrom(w.behind.addrs[i], router.Bits())), near.Route(everything, router.Addr()))
	}
	return errors.Join(errs...)
}

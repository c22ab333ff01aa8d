package conntrack

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
)

// The node has addresses by local routes only: those of a load balancer that leaves the destination
// alone (GCP), and whole ranges (AnyIP). Its node ports serve there, and their flows do not stay with an
// endpoint that has gone.
func TestLocalRoutes(t *testing.T) {
	families(t, func(l *live) {
		nodePorts, err := service.ParseNodePortAddresses([]string{"all"})
		l.must(err)
		l.cfg.NodePortAddresses = nodePorts
		l.startCleaner()
		l.become(bystander, "")
		lo, err := l.Node.Handle().LinkByName("lo")
		l.must(err)
		route := func(prefix netip.Prefix) *netlink.Route {
			return &netlink.Route{
				LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(),
					prefix.Addr().BitLen())}, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
			}
		}
		external, balancer := netip.MustParseAddr(l.addrs.Replace("EXTERNAL")),
			netip.MustParseAddr(l.addrs.Replace("BALANCER"))
		for name, prefix := range map[string]netip.Prefix{
			"a single address": netip.PrefixFrom(external, external.BitLen()),
			"a range":          netip.PrefixFrom(balancer, balancer.BitLen()-1).Masked(), // without EXTERNAL
		} {
			l.must(l.Node.Handle().RouteAdd(route(prefix)))
			to := map[string]string{"a single address": "EXTERNAL", "a range": "BALANCER"}[name]
			outside := l.dial(l.Outside, l.at(to, 30053))
			// Before there is a Service, nobody answers at the port; the entry has no DNAT.
			outside.wantAnswer("refused")
			l.cleaner.LocalRoutes([]netip.Prefix{prefix})
			l.become(web("ONE-POD"), "node port: 1")
			outside.wantAnswer("one")
			l.become(web("ONE-POD", "TWO-POD"), "")
			l.become(web("TWO-POD"), "endpoint gone: 1")
			outside.wantAnswer("two")
			l.become(bystander, "service gone: 1")
			outside.wantNoEntry()
			// The route has gone: the address is another host's, and what its flows lead to is no concern of ours.
			l.must(l.Node.Handle().RouteDel(route(prefix)))
			l.cleaner.LocalRoutes(nil)
		}
	})
}

// Where an address is local by a route, the rules do not refuse and drop packets to it, and node
// ports serve there only where all addresses serve them.
func TestStaleLocalRoutes(t *testing.T) {
	for _, c := range []struct {
		nodePorts, dst string
		routes         []string
		want           Reason
	}{
		{"0.0.0.0/0", "198.51.100.9:30080", nil, ""},
		{"0.0.0.0/0", "198.51.100.9:30080", []string{"198.51.100.9/32"}, NodePort},
		{"0.0.0.0/0", "198.51.100.9:30080", []string{"198.51.100.0/24"}, NodePort},
		{"0.0.0.0/0", "198.51.101.9:30080", []string{"198.51.100.0/24"}, ""},
		{"0.0.0.0/0", "127.0.0.9:30080", []string{"127.0.0.0/8"}, ""},
		{"::/0", "[2001:db8:9::1]:30080", []string{"2001:db8:9::/64"}, NodePort},
		{"198.51.100.0/24", "198.51.100.9:30080", []string{"198.51.100.0/24"}, ""},
		{"", "198.51.100.9:30080", []string{"198.51.100.0/24"}, ""},
		{"", "10.96.0.1:81", nil, ClusterIP},
		{"", "10.96.0.1:81", []string{"10.96.0.1/32"}, ""},
		{"", "10.96.0.1:80", []string{"10.96.0.1/32"}, ServiceAddress},
		{"", "10.96.1.1:80", nil, Unallocated},
		{"", "10.96.1.1:80", []string{"10.96.1.0/24"}, ""},
	} {
		var list []string
		if c.nodePorts != "" {
			list = []string{c.nodePorts}
		}
		x := NewIndex(Options{NodePortAddresses: nodePortAddresses(t, list...)})
		x.Update(parse(t, cluster))
		scope := x.SetLocalRoutes(prefixes(c.routes...))
		f := flow(service.TCP, c.dst, 0)
		if got, _ := x.Stale(f); got != c.want {
			t.Errorf("node ports %q, routes %v, %s: %q, want %q", c.nodePorts, c.routes, c.dst, got, c.want)
		} else if got == NodePort && !scope.Selects(&f) {
			t.Errorf("node ports %q, routes %v, %s: not in the scope %v", c.nodePorts, c.routes, c.dst, scope)
		}
	}
}

// Single addresses that come cost a look at them only, or none. What goes may change any flow.
func TestLocalRoutesScope(t *testing.T) {
	for name, c := range map[string]struct {
		before, after []string
		want          string
	}{
		"nothing": {[]string{"198.51.100.9/32", "198.51.0.0/24"},
			[]string{"198.51.100.9/32", "198.51.0.0/24"}, ""},
		"a single address comes":         {nil, []string{"198.51.100.9/32"}, "198.51.100.9"},
		"an address of an interface":     {nil, []string{"192.168.1.2/32"}, ""},
		"the route of an interface goes": {[]string{"192.168.1.2/32"}, nil, ""},
		"a range comes":                  {nil, []string{"198.51.0.0/24"}, "everything"},
		"a single address goes":          {[]string{"198.51.100.9/32"}, nil, "everything"},
		"it goes, and its range stays":   {[]string{"198.51.100.9/32", "198.51.100.0/24"}, []string{"198.51.100.0/24"}, ""},
	} {
		x := NewIndex(Options{NodePortAddresses: nodePortAddresses(t, "0.0.0.0/0")})
		x.SetLocalRoutes(prefixes(c.before...))
		x.Update(parse(t, cluster))
		if diff := cmp.Diff(c.want, x.SetLocalRoutes(prefixes(c.after...)).text()); diff != "" {
			t.Errorf("%s: scope (-want +got):\n%s", name, diff)
		}
	}
}

func prefixes(list ...string) (p []netip.Prefix) {
	for _, one := range list {
		p = append(p, netip.MustParsePrefix(one))
	}
	return p
}

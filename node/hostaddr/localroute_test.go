package hostaddr_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/node/hostaddr"
)

// TestFollowLocalRoutes: each local route comes and goes, of both families, whole ranges and
// single addresses, an address of an interface too. Routes of other types and tables wake nobody.
func TestFollowLocalRoutes(t *testing.T) {
	ns, lo := namespace(t)
	f := follow(t, ns, hostaddr.FollowLocalRoutes)
	await := func(what string, want ...string) {
		t.Helper()
		f.await(what, func(list []netip.Prefix) bool {
			var got []string
			for _, r := range list {
				got = append(got, r.String())
			}
			return slices.Equal(got, want)
		})
	}
	await("at the start")
	route := func(cidr string, table, kind int) *netlink.Route {
		_, dst, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		r := &netlink.Route{Dst: dst, Table: table, Type: kind}
		if kind == unix.RTN_LOCAL {
			r.LinkIndex, r.Scope = lo.Attrs().Index, netlink.SCOPE_HOST
		}
		return r
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	h := ns.Handle()
	must(h.RouteAdd(route("203.0.113.0/24", unix.RT_TABLE_LOCAL, unix.RTN_LOCAL)))
	await("a range", "203.0.113.0/24")
	// These would be listed before the next one if they counted.
	must(h.RouteAdd(route("198.51.100.0/24", unix.RT_TABLE_LOCAL, unix.RTN_BLACKHOLE)))
	must(h.RouteAdd(route("198.51.100.7/32", 100, unix.RTN_LOCAL)))
	must(h.RouteAdd(route("2001:db8:113::/48", unix.RT_TABLE_LOCAL, unix.RTN_LOCAL)))
	await("an IPv6 range", "203.0.113.0/24", "2001:db8:113::/48")
	address, err := netlink.ParseAddr("192.0.2.7/24") // On lo the whole range becomes local.
	must(err)
	must(h.AddrAdd(lo, address))
	await("an address", "192.0.2.0/24", "192.0.2.7/32", "203.0.113.0/24", "2001:db8:113::/48")
	must(h.AddrDel(lo, address))
	await("no address", "203.0.113.0/24", "2001:db8:113::/48")
	must(h.RouteDel(route("203.0.113.0/24", unix.RT_TABLE_LOCAL, unix.RTN_LOCAL)))
	await("no range", "2001:db8:113::/48")
	must(h.RouteAdd(route("203.0.113.9/32", unix.RT_TABLE_LOCAL, unix.RTN_LOCAL)))
	await("a single address", "203.0.113.9/32", "2001:db8:113::/48")
	f.end()
}

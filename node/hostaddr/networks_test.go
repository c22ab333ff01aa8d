package hostaddr_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/node/hostaddr"
	"nftproxy/test/lib/testnet"
)

// TestNetworks: networks of interfaces count, and routes for a part of a range, of any table. The default
// route, a route for the whole range and blackholes do not. Each change is told.
func TestNetworks(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "networks")
	h := ns.Handle()
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}))
	link, err := h.LinkByName("eth0")
	must(t, err)
	peer, err := h.LinkByName("peer")
	must(t, err)
	must(t, h.LinkSetUp(peer))
	must(t, h.LinkSetUp(link))
	ranges := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/108")}
	networks := &hostaddr.Networks{}
	wantIn := func(what string, want ...string) {
		t.Helper()
		var got []netip.Prefix
		must(t, ns.Do(func() (err error) {
			got, err = networks.In(t.Context(), ranges)
			return err
		}))
		var list []netip.Prefix
		for _, w := range want {
			list = append(list, netip.MustParsePrefix(w))
		}
		if !slices.Equal(got, list) {
			t.Errorf("%s: %v, want %v", what, got, list)
		}
	}
	route := func(dst string, change func(*netlink.Route)) *netlink.Route {
		_, to, err := net.ParseCIDR(dst)
		must(t, err)
		r := &netlink.Route{Dst: to, LinkIndex: link.Attrs().Index}
		if change != nil {
			change(r)
		}
		return r
	}
	wantIn("an empty node")

	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan struct{}, 100), make(chan error, 1)
	var log bytes.Buffer
	go func() {
		ended <- ns.Do(func() error {
			return networks.Follow(ctx, slog.New(slog.NewTextHandler(&log, nil)), func() { told <- struct{}{} })
		})
	}()
	await := func(what string) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(time.Minute):
			t.Fatalf("%s: not told", what)
		}
	}
	await("at the start")

	address := func(text string) *netlink.Addr {
		a, err := netlink.ParseAddr(text)
		must(t, err)
		a.Flags |= unix.IFA_F_NODAD
		return a
	}
	must(t, h.AddrAdd(link, address("10.100.0.2/24")))
	await("an address in the range")
	must(t, h.AddrAdd(link, address("192.168.0.2/24")))
	must(t, h.AddrAdd(link, address("fd00:96::2/120")))
	wantIn("networks of interfaces", "10.100.0.0/24", "fd00:96::/120")

	for _, r := range []*netlink.Route{
		route("10.101.0.0/24", func(r *netlink.Route) { r.Gw = net.ParseIP("192.168.0.1") }),
		route("10.102.0.5/32", func(r *netlink.Route) { r.Table = 77 }),
		route("10.96.0.0/12", nil),
		route("10.0.0.0/8", nil),
		route("0.0.0.0/0", func(r *netlink.Route) { r.Gw = net.ParseIP("192.168.0.1") }),
		route("10.103.0.0/24", func(r *netlink.Route) { r.Type, r.LinkIndex = unix.RTN_BLACKHOLE, 0 }),
		route("172.16.0.0/24", nil),
		route("fd00:96::f00/120", nil),
		route("fd00:96::/108", nil),
		route("::/0", nil),
	} {
		must(t, h.RouteAdd(r))
	}
	await("routes in the range")
	all := []string{"10.100.0.0/24", "10.101.0.0/24", "10.102.0.5/32", "fd00:96::/120", "fd00:96::f00/120"}
	wantIn("routes", all...)
	for len(told) > 0 {
		<-told
	}
	must(t, h.RouteDel(route("10.101.0.0/24", nil)))
	await("a route that went")
	wantIn("a route that went", slices.Delete(slices.Clone(all), 1, 2)...)

	must(t, h.AddrAdd(link, address("10.110.0.2/8")))
	wantIn("a network of an interface that has the whole range", "10.0.0.0/8", "10.100.0.0/24", "10.102.0.5/32",
		"fd00:96::/120", "fd00:96::f00/120")
	must(t, h.LinkDel(link))
	await("an interface that went")
	wantIn("no interface")

	cancel()
	if err := <-ended; err != nil || log.Len() > 0 {
		t.Errorf("Follow: %v, logged:\n%s", err, log.String())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package hostaddr_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/node/hostaddr"
	"nftproxy/test/lib/testnet"
)

// namespace is a network namespace, and its loopback interface.
func namespace(t *testing.T) (*testnet.Namespace, netlink.Link) {
	t.Helper()
	ns := testnet.NamespaceForTest(t, "hostaddr")
	lo, err := ns.Handle().LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	return ns, lo
}

// followed is what a follower tells.
type followed[T any] struct {
	*testing.T
	told    chan T
	stopped chan error
	cancel  func()
	log     bytes.Buffer
}

// follow starts to follow something of a namespace.
func follow[T any](t *testing.T, ns *testnet.Namespace, run func(context.Context, *slog.Logger,
	func(T)) error) *followed[T] {
	ctx, cancel := context.WithCancel(t.Context())
	f := &followed[T]{T: t, told: make(chan T), stopped: make(chan error, 1), cancel: cancel}
	go func() {
		f.stopped <- ns.Do(func() error {
			return run(ctx, slog.New(slog.NewTextHandler(&f.log, nil)), func(list T) {
				select {
				case f.told <- list:
				case <-ctx.Done():
				}
			})
		})
	}()
	return f
}

// await waits for a list like that. Others may come first.
func (f *followed[T]) await(what string, wanted func(T) bool) {
	f.Helper()
	for {
		select {
		case list := <-f.told:
			if wanted(list) {
				return
			}
			f.Logf("%s: %v", what, list)
		case err := <-f.stopped:
			f.Fatalf("%s: it ended: %v", what, err)
		}
	}
}

// end ends it: without an error, and without a word in the log.
func (f *followed[T]) end() {
	f.Helper()
	f.cancel()
	if err := <-f.stopped; err != nil || f.log.Len() > 0 {
		f.Errorf("%v, logged:\n%s", err, f.log.String())
	}
}

// TestFollow: Follow reports the addresses at once, and again when one comes or goes.
func TestFollow(t *testing.T) {
	ns, lo := namespace(t)
	address, err := netlink.ParseAddr("192.0.2.7/32")
	if err != nil {
		t.Fatal(err)
	}
	f := follow(t, ns, hostaddr.Follow)
	await := func(what string, there bool) {
		t.Helper()
		f.await(what, func(a hostaddr.Addresses) bool {
			if !slices.IsSortedFunc(a.Own, netip.Addr.Compare) {
				t.Errorf("%s: not sorted: %v", what, a.Own)
			}
			return slices.Contains(a.Own, netip.MustParseAddr("192.0.2.7")) == there
		})
	}
	await("at the start", false)
	if err := ns.Handle().AddrAdd(lo, address); err != nil {
		t.Fatal(err)
	}
	await("added", true)
	if err := ns.Handle().AddrDel(lo, address); err != nil {
		t.Fatal(err)
	}
	await("removed", false)
	f.end()
}

// TestBroadcast: the broadcast addresses are those of the kernel's routes.
func TestBroadcast(t *testing.T) {
	ns, lo := namespace(t)
	for _, text := range []string{"192.0.2.7/24", "192.0.2.9/24", "198.51.100.1/31", "203.0.113.9/32", "10.9.0.1/30",
		"10.8.0.1/16", "172.16.3.4/20", "2001:db8::1/64"} {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		if text == "10.8.0.1/16" {
			address.Broadcast = net.IPv4(10, 8, 0, 255)
		}
		if err := ns.Handle().AddrAdd(lo, address); err != nil {
			t.Fatal(err)
		}
	}
	var got hostaddr.Addresses
	if err := ns.Do(func() (err error) {
		got, err = hostaddr.List(t.Context())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	routes, err := ns.Handle().RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_LOCAL,
		Type: unix.RTN_BROADCAST}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		t.Fatal(err)
	}
	var want []netip.Addr
	for _, r := range routes {
		a, _ := netip.AddrFromSlice(r.Dst.IP)
		// Kernels before 5.14 have one to the first address of each network too.
		if a = a.Unmap(); a.As4()[3]&3 != 0 {
			want = append(want, a)
		}
	}
	slices.SortFunc(want, netip.Addr.Compare)
	if want = slices.Compact(want); len(want) < 5 || !slices.Equal(got.Broadcast, want) {
		t.Errorf("%v, want %v", got.Broadcast, want)
	}
}

// TestShared: addresses of a bridge are on a link that pods may share, those of other interfaces are not.
func TestShared(t *testing.T) {
	ns, _ := namespace(t)
	if err := errors.Join(
		ns.Handle().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "azure0"}}),
		ns.Handle().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}),
		ns.AddAddr("azure0", netip.MustParsePrefix("10.240.0.4/16")),
		ns.AddAddr("azure0", netip.MustParsePrefix("fd00:240::4/64")),
		ns.AddAddr("azure0", netip.MustParsePrefix("169.254.1.1/32")),
		ns.AddAddr("eth0", netip.MustParsePrefix("192.0.2.7/24")),
		ns.AddAddr("eth0", netip.MustParsePrefix("2001:db8::7/64")),
	); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error {
		addrs, err := hostaddr.List(t.Context())
		if got := fmt.Sprint(addrs.Shared); got != "[10.240.0.4 fd00:240::4]" {
			t.Errorf("shared are %s of %v", got, addrs.Own)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestServiceDevice: what kube-proxy's IPVS mode or kube-router binds to its device is no address of the node, as long
// as it is on no other interface. A device of that name and another type is not theirs.
func TestServiceDevice(t *testing.T) {
	for _, name := range []string{hostaddr.ServiceDevice, "kube-dummy-if"} {
		attrs := netlink.LinkAttrs{Name: name}
		t.Run(name+" dummy", func(t *testing.T) { testServiceDevice(t, &netlink.Dummy{LinkAttrs: attrs}, true) })
		t.Run(name+" veth", func(t *testing.T) {
			testServiceDevice(t, &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}, false)
		})
	}
}

func testServiceDevice(t *testing.T, device netlink.Link, ofProxy bool) {
	name := device.Attrs().Name
	ns, lo := namespace(t)
	err := ns.Handle().LinkAdd(device)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no dummy interfaces; make test-kernels has")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range []netlink.Link{device, lo} {
		if err := ns.Handle().LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
	}
	for address, on := range map[string]string{
		"10.96.0.1/32": name, "fd00:96::1/128": name, "192.0.2.7/32": name, "192.0.2.8/32": "lo", "2001:db8::8/128": "lo",
	} {
		if err := ns.AddAddr(on, netip.MustParsePrefix(address)); err != nil {
			t.Fatal(err)
		}
	}
	if err := ns.Do(func() error {
		addrs, err := hostaddr.List(t.Context())
		if err != nil {
			return err
		}
		routes, err := hostaddr.LocalRoutes(t.Context())
		for _, a := range []string{"10.96.0.1", "fd00:96::1", "192.0.2.7"} {
			addr := netip.MustParseAddr(a)
			own, routed := slices.Contains(addrs.Own, addr), slices.Contains(routes, netip.PrefixFrom(addr, addr.BitLen()))
			if own == ofProxy || routed == ofProxy || slices.Contains(addrs.Broadcast, addr) {
				t.Errorf("%s is one of the node's: %t, routed: %t, want neither where the device is a proxy's (%t): %v, %v", a, own,
					routed, ofProxy, addrs, routes)
			}
		}
		for _, a := range []string{"192.0.2.8", "2001:db8::8"} {
			addr := netip.MustParseAddr(a)
			if !slices.Contains(addrs.Own, addr) || !slices.Contains(routes, netip.PrefixFrom(addr, addr.BitLen())) {
				t.Errorf("%s is not one of the node's: %v, %v", a, addrs, routes)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

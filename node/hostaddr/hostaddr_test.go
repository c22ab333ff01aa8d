package hostaddr_test

import (
	"bytes"
	"context"
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

// TestFollow: Follow reports the addresses at once, and again when one comes or goes.
func TestFollow(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "hostaddr")
	lo, err := ns.Handle().LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	address, err := netlink.ParseAddr("192.0.2.7/32")
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan []netip.Addr)
	stopped := make(chan error, 1)
	var log bytes.Buffer
	go func() {
		stopped <- ns.Do(func() error {
			return hostaddr.Follow(ctx, slog.New(slog.NewTextHandler(&log, nil)), func(a hostaddr.Addresses) { told <- a.Own })
		})
	}()
	want := netip.MustParseAddr("192.0.2.7")
	// until waits for a list that has the address, or has it not. Others may come first.
	until := func(what string, there bool) {
		t.Helper()
		for {
			select {
			case list := <-told:
				if !slices.IsSortedFunc(list, netip.Addr.Compare) {
					t.Errorf("%s: not sorted: %v", what, list)
				}
				if slices.Contains(list, want) == there {
					return
				}
			case err := <-stopped:
				t.Fatalf("%s: Follow ended: %v", what, err)
			}
		}
	}
	until("at the start", false)
	if err := ns.Handle().AddrAdd(lo, address); err != nil {
		t.Fatal(err)
	}
	until("added", true)
	if err := ns.Handle().AddrDel(lo, address); err != nil {
		t.Fatal(err)
	}
	until("removed", false)

	cancel()
	if err := <-stopped; err != nil {
		t.Errorf("Follow: %v", err)
	}
	if log.Len() > 0 {
		t.Errorf("logged:\n%s", log.String())
	}
}

// TestBroadcast: the broadcast addresses are those of the kernel's routes.
func TestBroadcast(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "hostaddr")
	lo, err := ns.Handle().LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"192.0.2.7/24", "192.0.2.9/24", "198.51.100.1/31", "203.0.113.9/32", "10.9.0.1/30", "10.8.0.1/16", "172.16.3.4/20", "2001:db8::1/64"} {
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
	routes, err := ns.Handle().RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_BROADCAST}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
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

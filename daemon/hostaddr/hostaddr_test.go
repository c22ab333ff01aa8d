package hostaddr_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"nftproxy/daemon/hostaddr"
	"nftproxy/test/testnet"
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
			return hostaddr.Follow(ctx, slog.New(slog.NewTextHandler(&log, nil)), func(a []netip.Addr) { told <- a })
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

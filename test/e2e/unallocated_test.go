package e2e

import (
	"net/netip"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestUnallocated: the API server's own ServiceCIDR is known, so that a packet
// to a cluster IP that no service has does not leave the node. Without the
// proxy it does.
func TestUnallocated(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	// Ends of the ranges that the test cluster allocates from; nothing gets there.
	unallocated := []netip.Addr{netip.MustParseAddr("10.111.255.77"), netip.MustParseAddr("fd00:10:96::f:ff77")}
	sniffer, err := n.SniffUplink(hosts(unallocated)...)
	n.must(err)
	send := func(sport uint16) int {
		for _, a := range unallocated {
			to := netip.AddrPortFrom(a, 80)
			for _, from := range []struct {
				ns   *testnet.Namespace
				addr netip.Addr
			}{{client, of(n.Pod("client").Addrs, ip.Of(a))}, {n.Node, of(n.NodeAddrs, ip.Of(a))}} {
				// The node's own packet may be refused on the spot: it is the
				// sniffer that tells.
				if err := from.ns.SendSCTPInit(netip.AddrPortFrom(from.addr, sport), to); err != nil {
					t.Logf("%s to %s: %v", from.ns, to, err)
				}
			}
		}
		packets, err := sniffer.Packets()
		n.must(err)
		return len(packets)
	}
	if seen := send(1001); seen != 4 {
		t.Fatalf("without the proxy %d packets left the node, want 4", seen)
	}
	p := n.startProxy()
	p.awaitSync(0)
	if seen := send(1002); seen != 4 {
		t.Errorf("with the proxy %d more packets left the node", seen-4)
	}
}

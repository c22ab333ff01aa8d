package service_test

import (
	"net/netip"
	"slices"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// TestSpared: what is spared lies in ServiceCIDRs of the family; without one all API servers are.
func TestSpared(t *testing.T) {
	prefix := netip.MustParsePrefix
	node := service.Node{
		Networks: []netip.Prefix{prefix("10.100.0.0/24"), prefix("192.168.0.0/24"), prefix("10.0.0.0/8")},
		APIServers: []netip.Addr{netip.MustParseAddr("10.101.0.3"), netip.MustParseAddr("192.168.7.3"),
			netip.MustParseAddr("fd00::3")},
	}
	ranges := treap.Map[string, netip.Prefix]{}
	if got, want := node.Spared(ranges, ip.V4), []netip.Prefix{prefix("10.101.0.3/32"),
		prefix("192.168.7.3/32")}; !slices.Equal(got, want) {
		t.Errorf("without a ServiceCIDR: got %v, want %v", got, want)
	}
	ranges = ranges.Set("10.100.0.0/15", prefix("10.100.0.0/15"))
	node.Networks = node.Networks[:2]
	if got, want := node.Spared(ranges, ip.V4), []netip.Prefix{prefix("10.100.0.0/24"),
		prefix("10.101.0.3/32")}; !slices.Equal(got, want) {
		t.Errorf("IPv4: got %v, want %v", got, want)
	}
	if got, want := node.Spared(ranges, ip.V6), []netip.Prefix{prefix("fd00::3/128")}; !slices.Equal(got, want) {
		t.Errorf("IPv6 without a ServiceCIDR: got %v, want %v", got, want)
	}
}

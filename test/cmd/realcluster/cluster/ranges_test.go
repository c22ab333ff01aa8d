package cluster

import (
	"net/netip"
	"testing"
)

func TestOtherRange(t *testing.T) {
	for i, test := range []struct{ node, want string }{
		{"10.244.2.0/24", "10.244.130.0/24"},
		{"fd00:10:244:2::/64", "fd00:10:244:82::/64"},
	} {
		got := otherRange(netip.MustParsePrefix(test.node))
		if got.String() != test.want || !PodCIDRs()[i].Overlaps(got) {
			t.Errorf("%s: got %v, want %s", test.node, got, test.want)
		}
	}
}

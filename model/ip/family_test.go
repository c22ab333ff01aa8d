package ip_test

import (
	"net/netip"
	"testing"

	"nftproxy/model/ip"
)

func TestFamilies(t *testing.T) {
	var values ip.PerFamily[string]
	for i, f := range ip.Families() {
		*values.Of(f) = f.Name()
		a := f.Unspecified()
		if ip.Of(a) != f || !f.Has(a) || ip.Families()[1-i].Has(a) || f.AddrLen()*8 != a.BitLen() {
			t.Errorf("%s: %v of %d bytes", f, a, f.AddrLen())
		}
	}
	if want := (ip.PerFamily[string]{"IPv4", "IPv6"}); values != want {
		t.Errorf("values %v, want %v", values, want)
	}
	if ip.Of(netip.MustParseAddr("::ffff:10.0.0.1")) != ip.V6 {
		t.Error("a mapped address is of IPv4")
	}
}

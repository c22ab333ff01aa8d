package service

import (
	"fmt"
	"net/netip"
	"strings"
)

// ParseRange reads a range of addresses, such as 10.244.0.0/16 or fd00::/64. The address may have
// bits behind the length. The error says what is wrong.
func ParseRange(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err == nil {
		return p, nil
	}
	reason := "want ADDRESS/LENGTH"
	address, length, found := strings.Cut(text, "/")
	switch a, err := netip.ParseAddr(address); {
	case text == "":
		reason = "it is empty"
	case err != nil:
		reason = fmt.Sprintf("%q is not an IP address", address)
	case !found:
		reason = "it has no /LENGTH"
	case a.Zone() != "":
		reason = "a range has no zone"
	default:
		reason = fmt.Sprintf("the length %q is not in 0 to %d", length, a.BitLen())
	}
	return netip.Prefix{}, fmt.Errorf("%q is not a range: %s", text, reason)
}

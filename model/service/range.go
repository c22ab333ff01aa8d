package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ParseRange reads a range of addresses, such as 10.244.0.0/16 or fd00::/64. The address may have
// bits behind the length, and its numbers leading zeros, as for kube-proxy. The error says what is wrong.
func ParseRange(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err == nil {
		return p, nil
	}
	if p, err := netip.ParsePrefix(withoutZeros(text)); err == nil {
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

// withoutZeros removes leading zeros of the numbers in a range of IPv4.
func withoutZeros(text string) string {
	address, length, _ := strings.Cut(text, "/")
	numbers := append(strings.Split(address, "."), length)
	if len(numbers) != 5 || slices.Contains(numbers, "") {
		return text
	}
	for i, n := range numbers {
		numbers[i] = cmp.Or(strings.TrimLeft(n, "0"), "0")
	}
	return strings.Join(numbers[:4], ".") + "/" + numbers[4]
}

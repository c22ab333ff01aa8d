package main

import (
	"strings"
	"testing"
)

// TestNoMasqueradeCIDRs: what is no range, and more ranges than a rule has, are errors that name the flag and the value.
func TestNoMasqueradeCIDRs(t *testing.T) {
	many := strings.Split("10.0.0.0/24,10.0.2.0/24,10.0.4.0/24,10.0.6.0/24,10.0.8.0/24,10.0.10.0/24,10.0.12.0/24,10.0.14.0/24,fd00::/64", ",")
	if got, err := parseNoMasquerade(many); err != nil || len(got) != 9 {
		t.Errorf("8 ranges of IPv4 and one of IPv6: %v, %v", got, err)
	}
	for _, bad := range [][]string{{"10.0.0.300/8"}, {"pods"}, append(many, "10.0.16.0/24")} {
		_, err := parseNoMasquerade(bad)
		if err == nil || !strings.Contains(err.Error(), "--nftproxy-no-masquerade-cidrs") || !strings.Contains(err.Error(), bad[len(bad)-1]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

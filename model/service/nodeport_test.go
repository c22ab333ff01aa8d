package service_test

import (
	"net/netip"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
)

func TestNodePortAddresses(t *testing.T) {
	addrs := func(text string) (list []netip.Addr) {
		for _, a := range strings.Fields(text) {
			list = append(list, netip.MustParseAddr(a))
		}
		return list
	}
	for _, test := range []struct {
		name, option, node, host string
		pending                  bool
		v4, v6                   string // "all" for every address
	}{
		{name: "primary: the first of each family", node: "192.168.0.2 2001:db8::2 192.168.0.3 2001:db8::3", v4: "192.168.0.2", v6: "2001:db8::2"},
		{name: "primary by name", option: "primary", node: "192.168.0.2", v4: "192.168.0.2", v6: "all"},
		{name: "primary, nothing known", host: "192.168.0.2", v4: "all", v6: "all"},
		{name: "primary, to come", pending: true, host: "192.168.0.2"},
		{name: "CIDRs, primary to come", pending: true, option: "192.168.0.0/16,::/0", host: "192.168.0.2", v4: "192.168.0.2", v6: "all"},
		{name: "primary is no loopback address", node: "127.0.0.1 192.168.0.2", v4: "192.168.0.2", v6: "all"},
		{
			name: "CIDRs", option: "192.168.0.0/16,2001:db8::/64", node: "10.9.9.9",
			host: "127.0.0.1 192.168.0.2 192.168.7.7 203.0.113.1 2001:db8::5 2001:db8:1::5", v4: "192.168.0.2 192.168.7.7", v6: "2001:db8::5",
		},
		{name: "CIDRs that contain none", option: "198.51.100.0/24,2001:db8::/64", host: "192.168.0.2"},
		{name: "a host within a CIDR", option: "192.168.0.2/24,::1/128", host: "192.168.0.9 ::1", v4: "192.168.0.9"},
		{name: "zero CIDR", option: "192.168.0.0/16,0.0.0.0/0,2001:db8::/64", host: "192.168.0.2 2001:db8::1", v4: "all", v6: "2001:db8::1"},
		{name: "one family only", option: "192.168.0.0/16", host: "192.168.0.2 2001:db8::1", v4: "192.168.0.2", v6: "all"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var list []string
			if test.option != "" {
				list = strings.Split(test.option, ",")
			}
			n, err := service.ParseNodePortAddresses(list)
			if err != nil {
				t.Fatal(err)
			}
			node := &service.Node{Addresses: addrs(test.node), HostAddresses: addrs(test.host), AddressPending: test.pending}
			for v6, want := range map[bool]string{false: test.v4, true: test.v6} {
				got, all := n.On(node, v6)
				if want == "all" != all {
					t.Errorf("IPv6 %t: all %t, want %q", v6, all, want)
				} else if !all {
					if diff := gocmp.Diff(addrs(want), got, byValue); diff != "" {
						t.Errorf("IPv6 %t (-want +got):\n%s", v6, diff)
					}
				}
			}
		})
	}
	for _, bad := range [][]string{{"primary", "10.0.0.0/8"}, {"10.0.0.0"}, {""}, {"10.0.0.0/33"}} {
		if _, err := service.ParseNodePortAddresses(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

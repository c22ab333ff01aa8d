package service_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

func TestNodePortAddresses(t *testing.T) {
	addrs := func(text string) (list []netip.Addr) {
		for _, a := range strings.Fields(text) {
			list = append(list, netip.MustParseAddr(a))
		}
		return list
	}
	// The expected addresses are those of kube-proxy 1.37.2 in nftables mode
	// (expandNodePortAddressKeywords, NewNodePortAddresses), but for the time in which
	// the node's address is still to come.
	for _, test := range []struct {
		name, option, node, host string
		pending                  bool
		v4, v6                   string // "all" for every address
	}{
		{name: "primary: the first of each family", node: "192.168.0.2 2001:db8::2 192.168.0.3 2001:db8::3",
			v4: "192.168.0.2", v6: "2001:db8::2"},
		{name: "primary by name", option: "primary", node: "192.168.0.2", v4: "192.168.0.2", v6: "all"},
		{name: "primary, nothing known", host: "192.168.0.2", v4: "all", v6: "all"},
		{name: "primary, to come", pending: true, host: "192.168.0.2"},
		{name: "CIDRs, primary to come", pending: true, option: "192.168.0.0/16,::/0", host: "192.168.0.2", v4: "192.168.0.2",
			v6: "all"},
		{name: "primary is no loopback address", node: "127.0.0.1 192.168.0.2", v4: "192.168.0.2", v6: "all"},
		{
			name: "CIDRs", option: "192.168.0.0/16,2001:db8::/64", node: "10.9.9.9",
			host: "127.0.0.1 192.168.0.2 192.168.7.7 203.0.113.1 2001:db8::5 2001:db8:1::5", v4: "192.168.0.2 192.168.7.7",
			v6: "2001:db8::5",
		},
		{name: "CIDRs that contain none", option: "198.51.100.0/24,2001:db8::/64", host: "192.168.0.2"},
		{name: "a host within a CIDR", option: "192.168.0.2/24,::1/128", host: "192.168.0.9 ::1", v4: "192.168.0.9"},
		{name: "zero CIDR", option: "192.168.0.0/16,0.0.0.0/0,2001:db8::/64", host: "192.168.0.2 2001:db8::1", v4: "all",
			v6: "2001:db8::1"},
		{name: "all", option: "all", node: "192.168.0.2", host: "192.168.0.2 2001:db8::1", v4: "all", v6: "all"},
		{name: "localhost serves no node ports", option: "localhost", node: "192.168.0.2", host: "127.0.0.1 ::1 192.168.0.2"},
		{name: "primary and localhost", option: "primary,localhost", node: "192.168.0.2",
			host: "127.0.0.1 ::1 192.168.0.2 192.168.0.3", v4: "192.168.0.2"},
		{name: "primary and a CIDR", option: "10.0.0.0/8,primary", node: "192.168.0.2 2001:db8::2",
			host: "10.1.1.1 192.168.0.2 192.168.0.3", v4: "192.168.0.2 10.1.1.1", v6: "2001:db8::2"},
		{name: "primary within a CIDR", option: "192.168.0.0/16,primary", node: "192.168.0.2",
			host: "192.168.0.2 192.168.0.3 2001:db8::1", v4: "192.168.0.2 192.168.0.3", v6: "all"},
		{name: "primary and a CIDR, primary to come", pending: true, option: "primary,10.0.0.0/8", host: "10.1.1.1",
			v4: "10.1.1.1"},
		{name: "localhost and a CIDR", option: "localhost,10.0.0.0/8", node: "192.168.0.2",
			host: "127.0.0.1 10.1.1.1 192.168.0.2", v4: "10.1.1.1"},
		{name: "all and primary", option: "primary,all", node: "192.168.0.2 2001:db8::2", v4: "all", v6: "all"},
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
			for family, want := range map[ip.Family]string{ip.V4: test.v4, ip.V6: test.v6} {
				got, all := n.On(node, family)
				if want == "all" != all {
					t.Errorf("%s: all %t, want %q", family.Name(), all, want)
				} else if !all {
					if diff := gocmp.Diff(addrs(want), got, byValue); diff != "" {
						t.Errorf("%s (-want +got):\n%s", family.Name(), diff)
					}
				}
			}
		})
	}
	for _, bad := range [][]string{{"primary", "10.0.0.0/8", "primary"}, {"localhost", "localhost"}, {"all", "all"},
		{"Primary"}, {"10.0.0.0"}, {""}, {"10.0.0.0/33"}} {
		if _, err := service.ParseNodePortAddresses(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// TestNodeSettings: the settings of a node go before the others.
func TestNodeSettings(t *testing.T) {
	first, _ := service.ParseNodePortAddresses([]string{"192.168.0.2/32"})
	second, _ := service.ParseNodePortAddresses([]string{"192.168.0.3/32"})
	two := []netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("192.168.0.3")}
	node := &service.Node{HostAddresses: two, Settings: &service.Settings{NodePortAddresses: second}}
	if got, all := first.On(node, ip.V4); all || len(got) != 1 || got[0] != two[1] {
		t.Errorf("addresses %v, all %t; want those of the node's settings", got, all)
	}
}

// TestLoopback: a list that names loopback addresses serves on 127.0.0.1 or ::1; one that contains them among others
// does not. Ranges without these two serve nothing.
func TestLoopback(t *testing.T) {
	for option, want := range map[string]string{
		"localhost": "127.0.0.1 ::1", "10.0.0.0/8,127.0.0.1/32": "127.0.0.1", "::1/128": "::1", "primary": "", "all": "",
		"0.0.0.0/0": "", "::/0": "",
		"all,localhost": "127.0.0.1 ::1", "primary,127.0.0.0/8": "127.0.0.1", "127.0.0.5/32": "not 127.0.0.5/32",
		"127.1.0.0/16,localhost": "127.0.0.1 ::1 not 127.1.0.0/16",
	} {
		n, err := service.ParseNodePortAddresses(strings.Split(option, ","))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, node := range []*service.Node{nil, {}, {Settings: &service.Settings{NodePortAddresses: n}}} {
			list, from := []string{}, n
			if node != nil && node.Settings != nil {
				from = service.NodePortAddresses{} // the node's settings count
			}
			for _, f := range ip.Families() {
				if a, serves := from.Loopback(node, f); serves {
					list = append(list, a.String())
				}
			}
			for _, p := range n.Unserved() {
				list = append(list, "not", p.String())
			}
			got = append(got, strings.Join(list, " "))
		}
		if !slices.Equal(got, []string{want, want, want}) {
			t.Errorf("%s: %q, want %q", option, got, want)
		}
	}
}

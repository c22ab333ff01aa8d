package preflight_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/look/explain"
	"nftproxy/look/explain/live"
	"nftproxy/look/preflight"
)

// TestRoutes: a node from which connect() to the service range fails is found, whatever refuses it, and nft explain
// says the same of a packet of the node; a route to the range, by any interface, is enough.
func TestRoutes(t *testing.T) {
	dst := func(text string) *net.IPNet {
		_, n, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	type step struct {
		route *netlink.Route
		rule  *netlink.Rule
	}
	policy := netlink.NewRule()
	policy.Dst, policy.Type, policy.Family = dst("10.96.0.0/16"), unix.FR_ACT_PROHIBIT, unix.AF_INET
	for name, c := range map[string]struct {
		steps   []step
		refusal string // of the service range; empty for none
	}{
		"nothing":         {nil, "no route"},
		"a default route": {[]step{{route: &netlink.Route{Gw: net.IPv4(192, 168, 9, 1)}}}, ""},
		"a route to it":   {[]step{{route: &netlink.Route{Dst: dst("10.96.0.0/16")}}}, ""},
		"unreachable": {[]step{{route: &netlink.Route{Gw: net.IPv4(192, 168, 9, 1)}},
			{route: &netlink.Route{Dst: dst("10.0.0.0/8"), Type: unix.RTN_UNREACHABLE}}}, "a route of type unreachable"},
		"prohibit": {[]step{{route: &netlink.Route{Dst: dst("10.0.0.0/8"), Type: unix.RTN_PROHIBIT}}},
			"a route of type prohibit"},
		"blackhole": {[]step{{route: &netlink.Route{Dst: dst("10.0.0.0/8"), Type: unix.RTN_BLACKHOLE}}},
			"a route of type blackhole"},
		"a rule of routing": {[]step{{route: &netlink.Route{Gw: net.IPv4(192, 168, 9, 1)}}, {rule: policy}},
			"a route of type prohibit"},
		"a route in its way": {[]step{{route: &netlink.Route{Dst: dst("10.0.0.0/8"), Type: unix.RTN_BLACKHOLE}},
			{route: &netlink.Route{Dst: dst("10.96.0.0/16")}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.ns.Handle()
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}))
			link, err := h.LinkByName("eth0")
			must(err)
			addr, err := netlink.ParseAddr("192.168.9.2/24")
			must(err)
			must(h.AddrAdd(link, addr))
			must(h.LinkSetUp(link))
			for _, s := range c.steps {
				if s.rule != nil {
					must(h.RuleAdd(s.rule))
					continue
				}
				if s.route.Type == 0 {
					s.route.LinkIndex = link.Attrs().Index
				}
				must(h.RouteAdd(s.route))
			}
			must(w.ns.Do(func() error {
				level, word := preflight.Green, "has a route to the service range"
				if c.refusal != "" {
					level, word = preflight.Yellow, "has "+c.refusal+" to the service range 10.96.0.0/16"
				}
				found := map[string]preflight.Finding{}
				for _, f := range preflight.Run(t.Context(), preflight.Options{Table: "nftproxy", Proc: preflight.DefaultProc,
					ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}) {
					found[f.Probe] = f
				}
				w.want(found, level, "routes: 10.96.0.0/16", word)
				return explains(t, c.refusal)
			}))
			hasDefault := strings.Contains(name, "default") || name == "unreachable" || strings.Contains(name, "rule")
			level := map[bool]preflight.Level{true: preflight.Green, false: preflight.Yellow}[hasDefault]
			w.want(w.check(), level, "routes: IPv4")
		})
	}
}

// explains asks for the explanation of a packet of the node.
func explains(t *testing.T, refusal string) error {
	n, err := live.Look(t.Context(), "nftproxy")
	if err != nil {
		return err
	}
	defer n.Close()
	q, err := n.Ask(explain.Origin{Node: true}, explain.Destination{To: netip.MustParseAddrPort("10.96.0.10:80"),
		Protocol: unix.IPPROTO_TCP})
	if err != nil {
		return err
	}
	e, err := n.Explain(t.Context(), q, nil, nil, "")
	if err != nil {
		return err
	}
	text := e.Text(false)
	if refused := strings.Contains(text,
		"connect() fails in a process of the node before any rule sees a packet"); refused != (refusal != "") ||
		!strings.Contains(text, refusal) {
		t.Errorf("explain, with %q:\n%s", refusal, text)
	}
	return nil
}

package preflight_test

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"nftproxy/look/preflight"
	"nftproxy/model/service"
)

// TestBridges: a bridge to an endpoint whose ports are not in hairpin mode is named, if nothing else sends packets
// back, and other bridges are not.
func TestBridges(t *testing.T) {
	w := newWorld(t)
	h := w.ns.Handle()
	must := w.must
	link := func(name string) netlink.Link {
		t.Helper()
		l, err := h.LinkByName(name)
		must(err)
		return l
	}
	for bridge, addr := range map[string]string{"kube-bridge": "10.244.0.1/24", "docker0": "172.17.0.1/16"} {
		must(w.ns.Bridge(bridge))
		must(w.ns.AddAddr(bridge, netip.MustParsePrefix(addr)))
		port := "to-" + bridge[:4]
		must(h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port}, PeerName: "at-" + bridge[:4]}))
		must(h.LinkSetMaster(link(port), link(bridge)))
	}
	w.want(w.check(), preflight.Green, "bridges", "no pod")

	w.apply(&service.Service{
		Name: "ns/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints([]service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.0.2:80"), Node: "here", Ready: true, Serving: true},
			{Addr: netip.MustParseAddrPort("172.17.0.2:80"), Node: "there", Ready: true, Serving: true},
		})}},
	})
	bad := func(when string) {
		t.Helper()
		found := w.check()
		w.want(found, preflight.Yellow, "bridges", "kube-bridge: ports are not in hairpin mode", "hairpinMode")
		if found["bridges"].Found[:11] != "kube-bridge" {
			t.Errorf("%s: %+v", when, found["bridges"])
		}
	}
	bad("at first")
	must(h.LinkSetHairpin(link("to-kube"), true))
	w.want(w.check(), preflight.Green, "bridges", "reach themselves")
	must(h.LinkSetHairpin(link("to-kube"), false))
	bad("hairpin mode is off again")
	must(h.SetPromiscOn(link("kube-bridge")))
	w.want(w.check(), preflight.Green, "bridges", "reach themselves")
}

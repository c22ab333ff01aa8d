package e2e

import (
	"net/netip"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/test/lib/controlplane"
	"nftproxy/watch"
)

// TestAPIServerInServiceCIDR: the ServiceCIDR contains the API server's address and the network that leads to it. The
// proxy hears of changes after its first program, and so does one that starts while the rules of an earlier run are in
// the kernel. An event on the Node names both.
func TestAPIServerInServiceCIDR(t *testing.T) {
	controlplane.Require(t)
	config := planeConfig()
	config.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("fd00:10:96::/112")}
	plane := startForTest(t, config)
	t.Cleanup(plane.stop)
	n := newNodeOf(t, plane, "in-range")
	client := n.addClient()
	web := n.create(service("web", ""))
	reached := func(want ...string) func() error {
		return func() error {
			return everywhere(func(protocol string, family ip.Family) error {
				return n.reaches(client, protocol, address(web, protocol, family), want...)
			})
		}
	}
	publish := func(pod string) {
		for _, a := range n.addServer(pod).Addrs {
			n.publish(slice(sliceName(pod, a), web, a))
		}
	}
	publish("web-1")
	first := n.startProxy()
	first.until("the list", reached("web-1"))
	publish("web-2")
	first.until("a change", reached("web-1", "web-2"))
	n.awaitNodeEvent(watch.ReasonNetworkInServiceCIDR, config.ListenAddr.String(), "172.31.0.4/30")
	first.kill()

	if err := reached("web-1", "web-2")(); err != nil {
		t.Errorf("without the proxy: %v", err)
	}
	second := n.startProxy()
	publish("web-3")
	second.until("a change after the restart", reached("web-1", "web-2", "web-3"))
}

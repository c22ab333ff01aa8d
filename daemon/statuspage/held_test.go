package statuspage_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/daemon/statuspage"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen/statuspagetest"
)

// TestHeld: the page says how many connections wait, in the list and for the Service, and says it no more once the
// rules have the first endpoint, whatever the latest look at the kernel was.
func TestHeld(t *testing.T) {
	page := newPage(func(c *statuspage.Config) {
		c.Held = func(name service.Name) string { return "4711 connections wait at " + string(name) }
	})
	b := snapshots.NewBuilder(service.Node{Name: "node"})
	observe := func(endpoints ...service.Endpoint) {
		b.Set(&service.Service{
			Name: "a/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports:   []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(endpoints)}},
			Options: service.Options{Hold: 30 * time.Second},
		})
		page.Observe(statuspagetest.SyncOf(b.Snapshot()))
	}
	waits := func() (list, detail bool) {
		const text = "4711 connections wait at a/web"
		return strings.Contains(words(get(t, page, "/status").doc), text),
			strings.Contains(words(get(t, page, "/status?service=a/web").doc), text)
	}
	observe()
	if list, detail := waits(); !list || !detail {
		t.Errorf("without endpoints: the list says it %t, the Service's page %t", list, detail)
	}
	observe(service.Endpoint{Addr: netip.MustParseAddrPort("10.244.1.1:80"), Node: "node", Ready: true, Serving: true})
	if list, detail := waits(); list || detail {
		t.Errorf("with an endpoint: the list says it %t, the Service's page %t", list, detail)
	}
}

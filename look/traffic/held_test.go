package traffic_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// holding has Services that hold connections to port 80 of their cluster IPs and to a node port.
func holding(nodePorts map[string]uint16) *nft.Program {
	b := snapshots.NewBuilder(service.Node{Name: "node"})
	for ip, nodePort := range nodePorts {
		b.Set(&service.Service{
			Name: service.NewName("ns", ip), ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)},
			Ports:   []service.Port{{Protocol: service.TCP, Port: 80, NodePort: nodePort}},
			Options: service.Options{Hold: 30 * time.Second},
		})
	}
	return ruleset.Compile(ruleset.Config{Table: "t"}, b.Snapshot())
}

// flow is a connection that has waited for so long.
func flow(from, to string, waited time.Duration) kernel.Entry {
	src, dst := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	key := nft.AppendPort(nft.AppendProto(nft.AppendAddr(nil, dst.Addr()), uint8(service.TCP)), dst.Port())
	key = nft.AppendPort(nft.AppendAddr(key, src.Addr()), src.Port())
	return kernel.Entry{Key: nft.Value(key), Timeout: 30 * time.Second, Expires: 30*time.Second - waited}
}

// TestHeld: each connection that is held counts for the Service whose frontend it asks, as long as that has no
// endpoint. A Service that has just had a packet counts, also where the kernel has no room to remember the connection.
func TestHeld(t *testing.T) {
	k := newCounters()
	c := traffic.NewRefusalCounter(k, k.clock)
	look := func() traffic.Refusals {
		t.Helper()
		k.now = k.now.Add(10 * time.Second)
		l := c.Look()
		if l.Err != nil {
			t.Fatal(l.Err)
		}
		return l
	}
	all := map[string]uint16{"10.0.0.1": 30001, "10.0.0.2": 0, "10.0.0.3": 0}
	c.Follow(holding(all))
	k.flows = []kernel.Entry{
		flow("10.1.0.1:1000", "10.0.0.1:80", 3*time.Second), flow("10.1.0.1:1001", "10.0.0.1:80", 9*time.Second),
		flow("203.0.113.1:1000", "192.0.2.1:30001", time.Second), flow("10.1.0.1:1000", "10.0.0.2:80", 0),
		flow("10.1.0.1:1000", "10.0.0.9:80", time.Second),
	}
	key := string(k.flows[0].Key[:4]) // of an address; the last byte says which
	key = key[:3] + "\x03" + string(k.flows[0].Key[4:12])
	k.elements["held"+key], k.chains["ip held"] = 1, 1
	l := look()
	want := []traffic.Held{
		{Name: "ns/10.0.0.1", Connections: 3, Since: k.now.Add(-9 * time.Second)},
		{Name: "ns/10.0.0.2", Connections: 1, Since: k.now}, {Name: "ns/10.0.0.3", Connections: 1, Since: k.now},
	}
	if diff := cmp.Diff(want, l.Held); diff != "" || l.HeldFull {
		t.Errorf("held, full %t (-want +got):\n%s", l.HeldFull, diff)
	}
	delete(all, "10.0.0.2")
	c.Follow(holding(all))
	if diff := cmp.Diff(want[:1], shifted(look().Held, 10*time.Second)); diff != "" {
		t.Errorf("one Service less, and no packet for another (-want +got):\n%s", diff)
	}
	for len(k.flows) < nft.DynamicLimit {
		k.flows = append(k.flows, flow("10.1.0.1:1000", "10.0.0.3:80", 0))
	}
	if l := look(); !l.HeldFull || len(l.Held) == 0 || l.Held[0].Name != "ns/10.0.0.3" {
		t.Errorf("full %t, %v first", l.HeldFull, l.Held[:1])
	}
	c.Follow(holding(nil))
	if l := look(); l.HeldFull || len(l.Held) > 0 {
		t.Errorf("no Service holds: %+v", l.Held)
	}
}

// shifted is the list as of a time before.
func shifted(list []traffic.Held, by time.Duration) []traffic.Held {
	for i := range list {
		list[i].Since = list[i].Since.Add(-by)
	}
	return list
}

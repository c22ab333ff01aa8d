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

// heldKey is the element that counts the held packets to port 80 of a cluster IP.
func heldKey(ip string) string { return "held" + string(flow("10.1.0.1:1", ip+":80", 0).Key[:12]) }

// TestHeld: each connection that is held counts for the Service whose frontend it asks, as long as that has no
// endpoint. A Service that has just had a packet counts, also where the kernel has no room to remember the connection.
// What the kernel had counted before the first look says of nobody that he waits.
func TestHeld(t *testing.T) {
	k := newCounters()
	c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
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
	k.elements[heldKey("10.0.0.2")], k.elements[heldKey("10.0.0.3")] = 7, 9
	k.chains["ip hold-30"] = 5 // and not "ip held": another version's chain was replaced
	if l := look(); len(l.Held) > 0 || l.HeldFull {
		t.Errorf("by old counters %+v are held, full %t", l.Held, l.HeldFull)
	}
	k.flows = []kernel.Entry{
		flow("10.1.0.1:1000", "10.0.0.1:80", 3*time.Second), flow("10.1.0.1:1001", "10.0.0.1:80", 9*time.Second),
		flow("203.0.113.1:1000", "192.0.2.1:30001", time.Second), flow("10.1.0.1:1000", "10.0.0.2:80", 0),
		flow("10.1.0.1:1000", "10.0.0.9:80", time.Second),
	}
	k.elements[heldKey("10.0.0.3")]++
	k.chains["ip held"]++
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
	k.chains["ip hold-30"]++
	k.cost = time.Second // no budget for the next look
	k.chains["ip held"]++
	if l := look(); !l.HeldFull || len(l.Held) != 1 {
		t.Errorf("full %t, %v", l.HeldFull, l.Held)
	}
	c.Follow(holding(nil))
	if l := look(); len(l.Held) > 0 {
		t.Errorf("no Service holds: %+v", l.Held)
	}
	k.now = k.now.Add(time.Hour)
	if l := look(); l.HeldFull {
		t.Error("full, though no Service holds")
	}
}

// TestHeldFlood: while a flood makes the reading of the flows dear, the counters are read as often as ever. So a
// Service that gets its first client, or refuses some, is seen at once. The flows are read when their budget allows.
func TestHeldFlood(t *testing.T) {
	k := newCounters()
	c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
	c.Follow(holding(map[string]uint16{"10.0.0.1": 0, "10.0.0.2": 0, "10.0.0.3": 0}))
	look := func() traffic.Refusals {
		t.Helper()
		k.now = k.now.Add(10 * time.Second)
		l := c.Look()
		if l.Err != nil {
			t.Fatal(l.Err)
		}
		return l
	}
	packet := func(ip string) { k.elements[heldKey(ip)]++; k.chains["ip held"]++ }
	look()
	k.flows = []kernel.Entry{flow("203.0.113.1:1", "10.0.0.1:80", 0), flow("203.0.113.1:2", "10.0.0.1:80", 0)}
	k.flowsCost = 500 * time.Millisecond // 90 s until the next reading
	readings := k.readings
	first := look()
	flood := traffic.Held{Name: "ns/10.0.0.1", Connections: 2, Since: first.At}
	if diff := cmp.Diff([]traffic.Held{flood}, first.Held); diff != "" {
		t.Errorf("a flood (-want +got):\n%s", diff)
	}
	var want []traffic.Held
	for i, ip := range []string{"10.0.0.2", "10.0.0.3"} {
		packet(ip)
		k.refuse(ip, 1)
		l := look()
		want = append(want, traffic.Held{Name: service.NewName("ns", ip), Connections: 1, Since: l.At})
		if diff := cmp.Diff(append([]traffic.Held{flood}, want...), l.Held); diff != "" {
			t.Errorf("beside the flood (-want +got):\n%s", diff)
		}
		if len(l.Services) != 2*(i+1) {
			t.Errorf("beside the flood, of %d Services and causes packets have counted: %v", 2*(i+1), texts(l.Services))
		}
	}
	packet("10.0.0.1")
	for range 6 {
		look()
	}
	if k.readings != readings+1 {
		t.Errorf("the flows were read %d times within 90 s", k.readings-readings)
	}
	if look(); k.readings != readings+2 {
		t.Error("the flows were not read again")
	}
	k.flows, k.flowsCost = nil, 0
	k.now = k.now.Add(100 * time.Second)
	if l := look(); len(l.Held) > 0 {
		t.Errorf("after the flood %v are held", l.Held)
	}
}

// TestHeldElsewhere: connections that wait for a Service which has its endpoint by now do not count for another one
// whose node port has the same number.
func TestHeldElsewhere(t *testing.T) {
	b := snapshots.NewBuilder(service.Node{Name: "node"})
	b.Set(&service.Service{
		Name: "ns/served", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Ports: []service.Port{{Protocol: service.TCP, Port: 30080, Endpoints: service.MergeEndpoints([]service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.1.1:80"), Node: "node", Ready: true, Serving: true}})}},
		Options: service.Options{Hold: 30 * time.Second},
	})
	b.Set(&service.Service{
		Name: "ns/asleep", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")},
		Ports:   []service.Port{{Protocol: service.TCP, Port: 80, NodePort: 30080}},
		Options: service.Options{Hold: 30 * time.Second},
	})
	k := newCounters()
	c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
	c.Follow(ruleset.Compile(ruleset.Config{Table: "t"}, b.Snapshot()))
	k.flows = []kernel.Entry{flow("10.1.0.1:1000", "10.0.0.1:30080", time.Second)}
	if l := c.Look(); l.Err != nil || len(l.Held) > 0 {
		t.Errorf("error %v, held %+v", l.Err, l.Held)
	}
	k.flows = append(k.flows, flow("203.0.113.1:1000", "192.0.2.1:30080", 0))
	k.now = k.now.Add(10 * time.Second)
	want := []traffic.Held{{Name: "ns/asleep", Connections: 1, Since: k.now}}
	if diff := cmp.Diff(want, c.Look().Held); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// TestHeldBesideRanges: where an address has ranges of ports, a connection to another port does not count for them.
func TestHeldBesideRanges(t *testing.T) {
	b := snapshots.NewBuilder(service.Node{Name: "node"})
	ranged := &service.Service{
		Name: "ns/ranged", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Options:     service.Options{Hold: 30 * time.Second, PortRanges: "5000-5001/TCP,5005/TCP,5020-5029/TCP,6000/UDP"},
	}
	ranged.SetRangePorts()
	b.Set(ranged)
	b.Set(&service.Service{
		Name: "ns/asleep", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")},
		Ports:   []service.Port{{Protocol: service.TCP, Port: 80, NodePort: 30080}},
		Options: service.Options{Hold: 30 * time.Second},
	})
	for to, name := range map[string]service.Name{
		"192.0.2.1:5000": "ns/ranged", "192.0.2.1:5001": "ns/ranged", "192.0.2.1:5005": "ns/ranged",
		"10.0.0.1:5029": "ns/ranged", "192.0.2.1:30080": "ns/asleep", "192.0.2.1:5002": "", "192.0.2.1:6000": "",
		"10.0.0.1:5019": "", "192.0.2.1:50000": "",
	} {
		k := newCounters()
		c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
		c.Follow(ruleset.Compile(ruleset.Config{Table: "t"}, b.Snapshot()))
		k.flows = []kernel.Entry{flow("203.0.113.1:1000", to, 0)}
		var want []traffic.Held
		if name != "" {
			want = []traffic.Held{{Name: name, Connections: 1, Since: k.now}}
		}
		if diff := cmp.Diff(want, c.Look().Held); diff != "" {
			t.Errorf("held at %s (-want +got):\n%s", to, diff)
		}
	}
}

// TestHeldIsMeant: clients that are held again and again are no persistent clients, and take no turn from those.
func TestHeldIsMeant(t *testing.T) {
	k := newCounters()
	c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
	c.Follow(holding(map[string]uint16{"10.0.0.1": 0}))
	for range 5 {
		k.now = k.now.Add(10 * time.Second)
		k.elements[heldKey("10.0.0.1")]++
		k.chains["ip held"]++
		want(t, "held", c.Look().Persistent)
	}
}

// shifted is the list as of a time before.
func shifted(list []traffic.Held, by time.Duration) []traffic.Held {
	for i := range list {
		list[i].Since = list[i].Since.Add(-by)
	}
	return list
}

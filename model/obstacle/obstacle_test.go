package obstacle_test

import (
	"net/netip"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// TestWords: each kind has a word of its own, and those of whole Services a label and a meaning.
func TestWords(t *testing.T) {
	seen := map[string]obstacle.Kind{}
	for k := range obstacle.OthersSourceRanges + 1 {
		if before, again := seen[k.String()]; again || k.String() == "" {
			t.Errorf("kinds %d and %d are both %q", before, k, k)
		}
		seen[k.String()] = k
	}
	for _, k := range obstacle.OfServices() {
		if k.Label() == "" || k.Meaning() == "" {
			t.Errorf("%s has no label or meaning", k)
		}
	}
}

// TestSet: the worst of several obstacles counts, and a Service without any has None.
func TestSet(t *testing.T) {
	var s obstacle.Set
	if !s.Has(obstacle.None) || s.Worst() != obstacle.None {
		t.Errorf("the empty set: %s", s.Worst())
	}
	s.Add(obstacle.NoLocalEndpoints, true)
	s.Add(obstacle.Quarantined, false)
	s.Add(obstacle.Conflict, true)
	if s.Worst() != obstacle.Conflict || s.Has(obstacle.None) || s.Has(obstacle.Quarantined) ||
		!s.Has(obstacle.NoLocalEndpoints) {
		t.Errorf("%b: %s", s, s.Worst())
	}
}

// TestSentences: the text of each obstacle, as all who show one read it.
func TestSentences(t *testing.T) {
	of := func(f obstacle.Fate) obstacle.Obstacle {
		o, stops := f.Obstacle()
		if !stops {
			t.Errorf("%s has no obstacle", f)
		}
		return o
	}
	for _, c := range []struct {
		o    obstacle.Obstacle
		want string
	}{
		{of(obstacle.Refused), "no endpoint serves, so connections are refused"},
		{of(obstacle.Passed), "no endpoint serves, and external-failover is pass, so connections are left to routing"},
		{of(obstacle.Dropped), "internalTrafficPolicy is Local and no endpoint serves on this node, so connections are " +
			"dropped"},
		{of(obstacle.DroppedOutside), "externalTrafficPolicy is Local and no endpoint serves on this node, so connections " +
			"from outside of the cluster are dropped"},
		{of(obstacle.PassedOutside), "no endpoint serves on this node, and external-failover is pass, so connections from " +
			"outside of the cluster are left to routing"},
		{obstacle.Lost("a/b", ""), "it belongs to Service a/b, so the Service does not get it"},
		{obstacle.Lost("a/b", "the API server's address"),
			"it is protected (the API server's address), so the Service does not get it"},
		{obstacle.Lost("", ""), "it is protected, or the kernel refused it, so the Service does not get it"},
		{obstacle.Fenced("a/b", "a/b", "10.0.0.0/8", ip.V4),
			"the source ranges let in only 10.0.0.0/8, so other clients are dropped"},
		{obstacle.Fenced("a/b", "c/d", "", ip.V6),
			"the source ranges of Service c/d let in no client of IPv6, so connections are dropped"},
	} {
		if c.o.String() != c.want {
			t.Errorf("%s\nwant %s", c.o, c.want)
		}
	}
	if o, stops := obstacle.Served.Obstacle(); stops {
		t.Errorf("served, and %s", o)
	}
}

// TestFates: what policies, failover and endpoints make of each way to a Service.
func TestFates(t *testing.T) {
	node := &service.Node{Name: "node-1"}
	cluster, external := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("198.51.100.1")
	for _, c := range []struct {
		name               string
		internal, external service.TrafficPolicy
		failover           service.Failover
		endpoints          []string // the nodes of ready ones
		atCluster, atOther obstacle.Fate
		atNodePort         obstacle.Fate
		kinds              obstacle.Set
		noneHere           [2]bool
	}{
		{name: "none", internal: service.Local, external: service.Local, atCluster: obstacle.Refused,
			atOther: obstacle.Refused, atNodePort: obstacle.Refused, kinds: 1 << obstacle.NoEndpoints},
		{name: "none, pass", external: service.Local, failover: service.FailoverPass, atCluster: obstacle.Refused,
			atOther: obstacle.Passed, atNodePort: obstacle.Refused, kinds: 1 << obstacle.NoEndpoints},
		{name: "elsewhere", endpoints: []string{"node-2"}, atCluster: obstacle.Served, atOther: obstacle.Served,
			atNodePort: obstacle.Served},
		{name: "elsewhere, Local inside", internal: service.Local, endpoints: []string{"node-2"},
			atCluster: obstacle.Dropped, atOther: obstacle.Served, atNodePort: obstacle.Served,
			kinds: 1 << obstacle.NoLocalEndpoints, noneHere: [2]bool{true, false}},
		{name: "elsewhere, Local outside", external: service.Local, endpoints: []string{"node-2"},
			atCluster: obstacle.Served, atOther: obstacle.DroppedOutside, atNodePort: obstacle.DroppedOutside,
			kinds: 1 << obstacle.NoLocalEndpoints, noneHere: [2]bool{false, true}},
		{name: "elsewhere, pass", external: service.Local, failover: service.FailoverPass, endpoints: []string{"node-2"},
			atCluster: obstacle.Served, atOther: obstacle.PassedOutside, atNodePort: obstacle.DroppedOutside,
			kinds: 1 << obstacle.NoLocalEndpoints, noneHere: [2]bool{false, true}},
		{name: "elsewhere, cluster", external: service.Local, failover: service.FailoverCluster,
			endpoints: []string{"node-2"}, atCluster: obstacle.Served, atOther: obstacle.Served, atNodePort: obstacle.Served,
			noneHere: [2]bool{false, true}},
		{name: "here", internal: service.Local, external: service.Local, endpoints: []string{"node-1", "node-2"},
			atCluster: obstacle.Served, atOther: obstacle.Served, atNodePort: obstacle.Served},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &service.Service{Name: "ns/s", ClusterIPs: []netip.Addr{cluster}, ExternalIPs: []netip.Addr{external},
				InternalPolicy: c.internal, ExternalPolicy: c.external, Options: service.Options{ExternalFailover: c.failover},
				Ports: []service.Port{{Protocol: service.TCP, Port: 80, NodePort: 30080}}}
			var list []service.Endpoint
			for i, on := range c.endpoints {
				list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 80),
					Node: on, Ready: true, Serving: true})
			}
			p := &s.Ports[0]
			p.Endpoints = service.MergeEndpoints(list)
			n := share.Count(s, p, node, ip.V4)
			want := map[service.Claim]obstacle.Fate{
				{Addr: cluster, Protocol: service.TCP, Port: 80}:  c.atCluster,
				{Addr: external, Protocol: service.TCP, Port: 80}: c.atOther, service.NodePortClaim(ip.V4, p): c.atNodePort,
			}
			for claim := range s.ClaimsOf(p, ip.V4) {
				if got := obstacle.FateAt(s, claim, n.Anywhere(), n.Local > 0); got != want[claim] {
					t.Errorf("%s: %s, want %s", claim, got, want[claim])
				}
				delete(want, claim)
			}
			if len(want) > 0 {
				t.Errorf("no claims %v", want)
			}
			if got := obstacle.OfPort(s, p, node, ip.V4); got != c.kinds {
				t.Errorf("obstacles %b, want %b", got, c.kinds)
			}
			if inside, outside := obstacle.NoneHere(s, p, node, ip.V4); [2]bool{inside, outside} != c.noneHere {
				t.Errorf("none here: %t, %t", inside, outside)
			}
		})
	}
}

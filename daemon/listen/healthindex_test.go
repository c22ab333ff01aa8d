package listen

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// checked is a Service with a health port and a cluster IP of each family. Each word
// is an endpoint "ADDRESS:PORT", on node-0 and ready unless "elsewhere", "unready" or
// "terminating" follows after a comma. The word "port" begins another port.
func checked(name string, healthPort uint16, words ...string) *service.Service {
	s := &service.Service{
		Name: service.NewName("default", name), Created: time.Unix(0, 0), HealthCheckNodePort: healthPort,
		ClusterIPs:     []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")},
		ExternalPolicy: service.Local,
		Ports:          []service.Port{{Protocol: service.TCP, Port: 80}},
	}
	endpoints := [][]service.Endpoint{nil}
	for _, word := range words {
		last := len(s.Ports) - 1
		if word == "port" {
			s.Ports = append(s.Ports, service.Port{Protocol: service.TCP, Port: uint16(81 + last)})
			endpoints = append(endpoints, nil)
			continue
		}
		addr, state, _ := strings.Cut(word, ",")
		e := service.Endpoint{Addr: netip.MustParseAddrPort(addr), Node: "node-0", Ready: true, Serving: true}
		switch state {
		case "elsewhere":
			e.Node = "node-1"
		case "unready":
			e.Ready, e.Serving = false, false
		case "terminating":
			e.Ready, e.Terminating = false, true
		}
		endpoints[last] = append(endpoints[last], e)
	}
	for i := range s.Ports {
		s.Ports[i].Endpoints = service.MergeEndpoints(endpoints[i])
	}
	return s
}

func nodePorts(t *testing.T, list ...string) service.NodePortAddresses {
	t.Helper()
	n, err := service.ParseNodePortAddresses(list)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// snapshot is a snapshot on the node, under the name node-0.
func snapshot(node service.Node, services ...*service.Service) service.Snapshot {
	node.Name = "node-0"
	b := snapshots.NewBuilder(node)
	for _, s := range services {
		b.Set(s)
	}
	return b.Snapshot()
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

// healthLines are the wanted answers of the indexes, as "ADDRESS:PORT SERVICE LOCAL", with "serves" where endpoints of
// other nodes do.
func healthLines(families ...*healthIndex) []string {
	var list []string
	for _, x := range families {
		for addr, a := range x.wanted {
			line := fmt.Sprintf("%s %s %d", addr.at, a.service, a.local)
			if a.serves && a.local == 0 {
				line += " serves"
			}
			list = append(list, line)
		}
	}
	slices.Sort(list)
	return list
}

func TestHealthWanted(t *testing.T) {
	all := []string{"0.0.0.0/0", "::/0"}
	younger := checked("a-younger", 30100, "10.0.0.9:80")
	younger.Created = time.Unix(1, 0)
	single := checked("single", 30200, "10.0.0.1:80", "[fd00:1::1]:80")
	single.ClusterIPs = single.ClusterIPs[:1]
	for _, c := range []struct {
		name     string
		list     []string
		node     service.Node
		services []*service.Service
		refused  map[string]error
		want     []string
	}{
		{name: "one on all addresses", list: all,
			services: []*service.Service{checked("web", 30100, "10.0.0.1:80", "10.0.0.2:80", "[fd00:1::1]:80")},
			want:     []string{"0.0.0.0:30100 default/web 2", "[::]:30100 default/web 1"}},
		{name: "no health port", list: all, services: []*service.Service{checked("web", 0, "10.0.0.1:80")}},
		{name: "only ready ones of this node", list: all,
			services: []*service.Service{checked("web", 30100, "10.0.0.1:80,elsewhere", "10.0.0.2:80,unready",
				"10.0.0.3:80,terminating", "10.0.0.4:80")},
			want: []string{"0.0.0.0:30100 default/web 1", "[::]:30100 default/web 0"}},
		{name: "addresses over all ports, each once", list: all,
			services: []*service.Service{checked("web", 30100, "10.0.0.1:80", "10.0.0.1:81", "10.0.0.2:80,unready", "port",
				"10.0.0.1:443", "10.0.0.2:443")},
			want: []string{"0.0.0.0:30100 default/web 2", "[::]:30100 default/web 0"}},
		{name: "failover to any node, in the family that has one", list: all,
			services: []*service.Service{failingOver("web", service.FailoverCluster, "10.0.0.1:80,elsewhere",
				"10.0.0.2:80,unready", "[fd00:1::1]:80,terminating")},
			want: []string{"0.0.0.0:30100 default/web 0 serves", "[::]:30100 default/web 0"}},
		{name: "failover to routing", list: all,
			services: []*service.Service{failingOver("web", service.FailoverPass, "10.0.0.1:80,elsewhere")},
			want:     []string{"0.0.0.0:30100 default/web 0", "[::]:30100 default/web 0"}},
		{name: "failover, refused by the kernel", list: all, refused: map[string]error{"default/web": fmt.Errorf("no")},
			services: []*service.Service{failingOver("web", service.FailoverCluster, "10.0.0.1:80,elsewhere")},
			want:     []string{"0.0.0.0:30100 default/web 0", "[::]:30100 default/web 0"}},
		{name: "a service of one family", list: all, services: []*service.Service{single},
			want: []string{"0.0.0.0:30200 default/single 1"}},
		{name: "two with one port", list: all, services: []*service.Service{younger, checked("web", 30100)},
			want: []string{"0.0.0.0:30100 default/web 0", "[::]:30100 default/web 0"}},
		{name: "a node port of an older one", list: all, services: []*service.Service{younger,
			withNodePort(30100, service.TCP)}},
		{name: "a node port of a younger one", list: all, services: []*service.Service{younger, func() *service.Service {
			s := withNodePort(30100, service.TCP)
			s.Created = time.Unix(2, 0)
			return s
		}()}, want: []string{"0.0.0.0:30100 default/a-younger 1", "[::]:30100 default/a-younger 0"}},
		{name: "a node port of another protocol", list: all, services: []*service.Service{younger,
			withNodePort(30100, service.UDP)},
			want: []string{"0.0.0.0:30100 default/a-younger 1", "[::]:30100 default/a-younger 0"}},
		{name: "two with one port in different families", list: all, services: []*service.Service{
			checked("web", 30200, "10.0.0.1:80", "[fd00:1::1]:80"), older(single)},
			want: []string{"0.0.0.0:30200 default/single 1", "[::]:30200 default/web 1"}},
		{name: "refused by the kernel", list: all, services: []*service.Service{checked("web", 30100, "10.0.0.1:80")},
			refused: map[string]error{"default/web": fmt.Errorf("no")},
			want:    []string{"0.0.0.0:30100 default/web 0", "[::]:30100 default/web 0"}},
		{name: "primary", node: service.Node{Addresses: addrs("192.168.0.2", "192.168.0.3", "2001:db8::2")},
			services: []*service.Service{checked("web", 30100)},
			want:     []string{"192.168.0.2:30100 default/web 0", "[2001:db8::2]:30100 default/web 0"}},
		{name: "primary is not known in one family", node: service.Node{Addresses: addrs("192.168.0.2")},
			services: []*service.Service{checked("web", 30100)},
			want:     []string{"192.168.0.2:30100 default/web 0", "[::]:30100 default/web 0"}},
		{name: "CIDRs", list: []string{"192.168.0.0/16", "fe80::/10", "2001:db8::/32"},
			node: service.Node{HostAddresses: addrs("127.0.0.1", "172.16.0.1", "192.168.0.2", "192.168.1.2", "::1",
				"2001:db8::2", "fe80::1")},
			services: []*service.Service{checked("web", 30100, "10.0.0.1:80")},
			want: []string{"192.168.0.2:30100 default/web 1", "192.168.1.2:30100 default/web 1",
				"[2001:db8::2]:30100 default/web 0"}},
		{name: "loopback beside others", list: []string{"primary", "localhost"},
			node:     service.Node{Addresses: addrs("192.168.0.2", "2001:db8::2")},
			services: []*service.Service{checked("web", 30100)},
			want: []string{"127.0.0.1:30100 default/web 0", "192.168.0.2:30100 default/web 0",
				"[2001:db8::2]:30100 default/web 0",
				"[::1]:30100 default/web 0"}},
		{name: "loopback beside all", list: []string{"all", "127.0.0.0/8"},
			services: []*service.Service{checked("web", 30100)},
			want:     []string{"0.0.0.0:30100 default/web 0", "[::]:30100 default/web 0"}},
		{name: "CIDRs that match no address", list: []string{"192.168.0.0/16", "2001:db8::/32"},
			services: []*service.Service{checked("web", 30100)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v4, v6 := newHealthIndex(nodePorts(t, c.list...), ip.V4), newHealthIndex(nodePorts(t, c.list...), ip.V6)
			for _, x := range []*healthIndex{v4, v6} {
				x.update(snapshot(c.node, c.services...), c.refused)
			}
			if diff := cmp.Diff(c.want, healthLines(v4, v6)); diff != "" {
				t.Errorf("wanted (-want +got):\n%s", diff)
			}
		})
	}
}

func failingOver(name string, f service.Failover, words ...string) *service.Service {
	s := checked(name, 30100, words...)
	s.Options.ExternalFailover = f
	return s
}

// withNodePort is a Service without health port whose port has a node port.
func withNodePort(number uint16, p service.Protocol) *service.Service {
	s := checked("node-port", 0)
	s.Ports[0].Protocol, s.Ports[0].NodePort = p, number
	return s
}

func older(s *service.Service) *service.Service {
	c := *s
	c.Created = c.Created.Add(-time.Hour)
	return &c
}

// TestHealthUpdateEqualsFresh: see updateEqualsFresh.
func TestHealthUpdateEqualsFresh(t *testing.T) {
	for seed := range uint64(20) {
		list := [][]string{nil, {"192.168.0.0/16", "2001:db8::/32"}, {"0.0.0.0/0", "::/0"}}[seed%3]
		fresh := func() *healthIndex { return newHealthIndex(nodePorts(t, list...), ip.Families()[seed%2]) }
		updateEqualsFresh(t, seed, gen.Options{Annotations: true}, fresh, healthLines, func(rng *rand.Rand, c *gen.Change) {
			if c.Service != nil {
				s := *c.Service
				s.HealthCheckNodePort = uint16(rng.IntN(4)) // 0 for none
				c.Service = &s
			}
		}, func(rng *rand.Rand, node *service.Node) {
			node.HostAddresses = node.HostAddresses[rng.IntN(3):]
			node.Addresses = node.Addresses[rng.IntN(3):]
			node.Name = fmt.Sprintf("node-%d", rng.IntN(2))
		})
	}
}

// updateEqualsFresh: after any changes an index wants the same as a new one for the latest snapshot, and update says
// whether it has changed. change and setNode make the changes, and the nodes, that matter to the index.
func updateEqualsFresh[W comparable, X follower[W]](t *testing.T, seed uint64, o gen.Options, newIndex func() X,
	lines func(...X) []string,
	change func(*rand.Rand, *gen.Change), setNode func(*rand.Rand, *service.Node)) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	x := newIndex()
	b := snapshots.NewBuilder(gen.PlainNode())
	opened := 0
	for _, c := range gen.Changes(rng, 300, o) {
		change(rng, &c)
		c.Apply(b)
		if node := gen.PlainNode(); rng.IntN(10) == 0 {
			setNode(rng, &node)
			b.SetNode(node)
		}
		var refused map[string]error
		if rng.IntN(3) == 0 {
			refused = map[string]error{string(gen.Name(rng.IntN(3))): fmt.Errorf("no")}
		}
		if rng.IntN(4) == 0 {
			continue // several changes in one snapshot
		}
		before := maps.Clone(x.wants())
		changed := x.update(b.Snapshot(), refused)
		fresh := newIndex()
		fresh.update(b.Snapshot(), refused)
		if diff := cmp.Diff(lines(fresh), lines(x)); diff != "" {
			t.Fatalf("seed %d: wanted (-fresh +updated):\n%s", seed, diff)
		}
		if changed == maps.Equal(before, x.wants()) {
			t.Fatalf("seed %d: update says %t, before %v, after %v", seed, changed, before, x.wants())
		}
		opened += len(x.wants())
	}
	if opened == 0 {
		t.Errorf("seed %d: no port was ever wanted", seed)
	}
}

package ruleset_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/nft/ruleset/rulesettest"
)

// affinitySnapshot has one service with affinity and the endpoints given, the
// first of which are on the node.
func affinitySnapshot(policy service.TrafficPolicy, local int, endpoints ...string) service.Snapshot {
	p := service.Port{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 30080}
	for i, e := range endpoints {
		endpoint := service.Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true}
		if i < local {
			endpoint.Node = "node-0"
		}
		p.Endpoints = append(p.Endpoints, endpoint)
	}
	b := service.NewBuilder(service.Node{Name: "node-0"})
	b.Set(&service.Service{
		Name: "default/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.41")},
		ExternalPolicy: policy, AffinityTimeout: 3600e9, Ports: []service.Port{p},
	})
	return b.Snapshot()
}

// TestAffinityMaps: each of the four maps keeps what its own list has.
func TestAffinityMaps(t *testing.T) {
	program := ruleset.Compile(ruleset.Config{Table: "t"}, affinitySnapshot(service.Local, 1, "10.0.0.1:8080", "10.0.0.2:8080"))
	address := nft.Fields{nft.Saddr, nft.Daddr, nft.L4Proto, nft.Dport}
	port := nft.Fields{nft.Saddr, nft.L4Proto, nft.Dport}
	target := nft.Fields{nft.Daddr, nft.Dport}
	candidates := []struct {
		fields nft.Fields
		key    nft.Value
		data   nft.Value
	}{
		{address, value("203.0.113.9", "172.30.0.41", 6, 80), value("10.0.0.1", 8080)},
		{address, value("203.0.113.9", "172.30.0.41", 6, 80), value("10.0.0.2", 8080)},
		{address, value("203.0.113.9", "172.30.0.41", 6, 80), value("10.0.0.3", 8080)},
		{address, value("203.0.113.9", "172.30.0.41", 6, 80), value("10.0.0.1", 8081)},
		{address, value("203.0.113.9", "172.30.0.41", 6, 81), value("10.0.0.1", 8080)},
		{address, value("203.0.113.9", "172.30.0.41", 17, 80), value("10.0.0.1", 8080)},
		{address, value("203.0.113.9", "172.30.0.42", 6, 80), value("10.0.0.1", 8080)},
		{port, value("203.0.113.9", 6, 30080), value("10.0.0.1", 8080)},
		{port, value("203.0.113.9", 6, 30080), value("10.0.0.2", 8080)},
		{port, value("203.0.113.9", 6, 30081), value("10.0.0.1", 8080)},
	}
	var got []string
	for _, m := range ruleset.AffinityMaps(program) {
		if m.Table != program.Table(m.Table.Family).ID() || !m.Set.Dynamic || m.Name != (ruleset.AffinityName{Family: m.Table.Family, Map: m.Set.Name}) {
			t.Errorf("table %s, set %+v, name %+v", m.Table, m.Set, m.Name)
		}
		kept := []string{m.Table.Family.String(), m.Set.Name + ":"}
		for _, c := range candidates {
			if m.Table.Family == nft.IPv4 && slices.Equal(m.Set.Key, c.fields) && m.Keep(c.key, c.data) {
				kept = append(kept, c.fields.Format(nft.IPv4, c.key)+" : "+target.Format(nft.IPv4, c.data))
			}
		}
		got = append(got, strings.Join(kept, " "))
	}
	want := []string{
		"ip affinity: 203.0.113.9 . 172.30.0.41 . tcp . 80 : 10.0.0.1 . 8080 203.0.113.9 . 172.30.0.41 . tcp . 80 : 10.0.0.2 . 8080",
		"ip local-affinity:",
		"ip node-port-affinity: 203.0.113.9 . tcp . 30080 : 10.0.0.1 . 8080 203.0.113.9 . tcp . 30080 : 10.0.0.2 . 8080",
		"ip node-port-local-affinity: 203.0.113.9 . tcp . 30080 : 10.0.0.1 . 8080",
		"ip6 affinity:", "ip6 local-affinity:", "ip6 node-port-affinity:", "ip6 node-port-local-affinity:",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the maps keep (-want +got):\n%s", diff)
	}
}

// value is a concatenation of addresses, protocols (below 256) and ports.
func value(fields ...any) nft.Value {
	var b []byte
	for _, f := range fields {
		switch f := f.(type) {
		case string:
			b = nft.AppendAddr(b, netip.MustParseAddr(f))
		case int:
			if f < 80 {
				b = nft.AppendProto(b, uint8(f))
			} else {
				b = nft.AppendPort(b, uint16(f))
			}
		}
	}
	return nft.Value(b)
}

// TestAffinityShrunk: only what takes an endpoint out of a list does, and it
// names the maps of that list.
func TestAffinityShrunk(t *testing.T) {
	cfg := ruleset.Config{Table: "t"}
	before := affinitySnapshot(service.Local, 1, "10.0.0.1:8080", "10.0.0.2:8080")
	for _, test := range []struct {
		name  string
		after service.Snapshot
		want  string
	}{
		{"nothing", before, ""},
		{"built again", affinitySnapshot(service.Local, 1, "10.0.0.1:8080", "10.0.0.2:8080"), ""},
		{"one more", affinitySnapshot(service.Local, 1, "10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"), ""},
		{"one less", affinitySnapshot(service.Local, 1, "10.0.0.1:8080"), "affinity node-port-affinity"},
		{"the one here less", affinitySnapshot(service.Local, 0, "10.0.0.2:8080"), "affinity node-port-affinity node-port-local-affinity"},
		{"another port", affinitySnapshot(service.Local, 1, "10.0.0.1:8080", "10.0.0.2:8081"), "affinity node-port-affinity"},
		{"not here any more", affinitySnapshot(service.Local, 0, "10.0.0.1:8080", "10.0.0.2:8080"), "node-port-local-affinity"},
		{"here as well", affinitySnapshot(service.Local, 2, "10.0.0.1:8080", "10.0.0.2:8080"), ""},
		{"no outsiders' list", affinitySnapshot(service.Cluster, 1, "10.0.0.1:8080", "10.0.0.2:8080"), "node-port-local-affinity"},
		{"service gone", service.NewBuilder(service.Node{}).Snapshot(), "affinity node-port-affinity node-port-local-affinity"},
	} {
		old, fresh := ruleset.Compile(cfg, before), ruleset.Compile(cfg, test.after)
		var got []string
		for _, name := range ruleset.AffinityShrunk(old, fresh) {
			if name.Family != nft.IPv4 {
				t.Errorf("%s: %+v", test.name, name)
			}
			got = append(got, name.Map)
		}
		slices.Sort(got)
		if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestAffinityShrunkMissesNothing: whenever an element of a set of endpoints
// goes, it names the map; and where nothing went, it rarely says otherwise (only
// if an element moves to another service).
func TestAffinityShrunkMissesNothing(t *testing.T) {
	shrunk, stayed, moved, some := 0, 0, 0, 0
	seeds(t, 25, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := rulesettest.Config(rng)
		h, c := newHistory(rng), ruleset.NewCompiler(cfg)
		last := c.Compile(h.next())
		for range 50 {
			next := c.Compile(h.next())
			got, want := ruleset.AffinityShrunk(last, next), gone(last.Model(), next.Model(), cfg.Table)
			for _, name := range want {
				if !slices.Contains(got, name) {
					t.Fatalf("an element of %+v went unnoticed", name)
				}
			}
			if n := len(ruleset.AffinityMaps(next)); len(got) > n {
				t.Fatalf("%d maps have shrunk, of %d", len(got), n)
			}
			switch {
			case len(want) > 0:
				shrunk++
			case len(got) > 0:
				moved++
			default:
				stayed++
			}
			if n := len(got); n > 0 && n < 8 {
				some++
			}
			last = next
		}
	})
	if !testing.Short() && (shrunk < 100 || stayed < 100 || moved > stayed/4 || some < 100) {
		t.Errorf("%d times an element went, %d times none, %d times one moved, %d times not all maps have shrunk", shrunk, stayed, moved, some)
	}
}

// gone compares the sets of endpoints in the slow way.
func gone(old, next *nft.Model, table string) []ruleset.AffinityName {
	var maps []ruleset.AffinityName
	for _, f := range nft.Families() {
		id := nft.TableID{Family: f, Name: table}
		for name, s := range old.Table(id).Sets {
			clients, ok := strings.CutSuffix(name, "-endpoints")
			if !ok || !strings.HasSuffix(clients, "affinity") {
				continue
			}
			for key := range s.Elements {
				if _, found := next.Table(id).Sets[name].Elements[key]; !found {
					maps = append(maps, ruleset.AffinityName{Family: f, Map: clients})
					break
				}
			}
		}
	}
	return maps
}

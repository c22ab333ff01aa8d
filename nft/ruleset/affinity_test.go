package ruleset_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// affinitySnapshot has one service with affinity and the given endpoints. The first of
// them are on the node.
func affinitySnapshot(policy service.TrafficPolicy, local int, endpoints ...string) service.Snapshot {
	p := service.Port{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 30080}
	var list []service.Endpoint
	for i, e := range endpoints {
		endpoint := service.Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true}
		if i < local {
			endpoint.Node = "node-0"
		}
		list = append(list, endpoint)
	}
	p.Endpoints = service.MergeEndpoints(list)
	b := snapshots.NewBuilder(service.Node{Name: "node-0"})
	b.Set(&service.Service{
		Name: "default/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.41")},
		ExternalPolicy: policy, AffinityTimeout: 3600e9, Ports: []service.Port{p},
	})
	return b.Snapshot()
}

// TestAffinityMaps: each map of a Service port keeps the endpoints of its own list, and
// of no other Service's.
func TestAffinityMaps(t *testing.T) {
	s := affinitySnapshot(service.Local, 1, "10.0.0.1:8080", "10.0.0.2:8080")
	b := snapshots.NewBuilder(*s.Node)
	for _, svc := range s.Services.All() {
		b.Set(svc)
	}
	b.Set(&service.Service{
		Name: "default/other", ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.42"),
			netip.MustParseAddr("fd00:96::42")}, AffinityTimeout: 3600e9,
		Ports: []service.Port{{Protocol: service.UDP, Port: 53, Endpoints: service.MergeEndpoints([]service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.0.0.3:53"), Ready: true, Serving: true},
			{Addr: netip.MustParseAddrPort("[fd00::3]:53"), Ready: true, Serving: true},
		})}},
	})
	program := ruleset.Compile(ruleset.Config{Table: "t"}, b.Snapshot())
	target := nft.Fields{nft.Daddr, nft.Dport}
	candidates := []nft.Value{
		value("10.0.0.1", 8080), value("10.0.0.2", 8080), value("10.0.0.3", 8080), value("10.0.0.1", 8081),
		value("10.0.0.3", 5300), value("fd00::3", 5300),
	}
	candidates = append(candidates, nft.Value(nft.AppendPort(nft.AppendAddr(nil, netip.MustParseAddr("10.0.0.3")), 53)))
	var got []string
	for _, m := range ruleset.AffinityMaps(program) {
		if m.Table != program.Table(m.Table.Family).ID() || m.Set == nil || !m.Set.Dynamic ||
			m.Name.Family != m.Table.Family || m.Name.Map != m.Set.Name {
			t.Errorf("table %s, set %+v, name %+v", m.Table, m.Set, m.Name)
		}
		if same, ok := ruleset.AffinityOf(program, m.Name); !ok || same.Set != m.Set || same.Table != m.Table {
			t.Errorf("AffinityOf(%+v) = %+v, %v", m.Name, same, ok)
		}
		kept := []string{m.Table.Family.String(), string(m.Name.Service), m.Set.Name + ":"}
		for _, data := range candidates {
			if len(data) == target.Len(m.Table.Family) && m.Keep(value("203.0.113.9"), data) {
				kept = append(kept, target.Format(m.Table.Family, data))
			}
		}
		got = append(got, strings.Join(kept, " "))
	}
	want := []string{
		"ip default/other affinity-default/other/udp/53: 10.0.0.3 . 53",
		"ip default/web affinity-default/web/tcp/80: 10.0.0.1 . 8080 10.0.0.2 . 8080",
		"ip default/web local-affinity-default/web/tcp/80: 10.0.0.1 . 8080",
		"ip6 default/other affinity-default/other/udp/53:",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the maps keep (-want +got):\n%s", diff)
	}
	for _, name := range []ruleset.AffinityName{
		{Family: nft.IPv4, Map: "affinity-default/web/tcp/80", Service: "default/other"},
		{Family: nft.IPv6, Map: "affinity-default/web/tcp/80", Service: "default/web"},
		{Family: nft.IPv4, Map: "affinity-default/gone/tcp/80", Service: "default/gone"},
	} {
		if m, ok := ruleset.AffinityOf(program, name); ok {
			t.Errorf("AffinityOf(%+v) = %+v", name, m)
		}
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

// TestAffinityShrunk: a change that takes an endpoint out of a list names the maps of
// that list. No other change names a map.
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
		{"one less", affinitySnapshot(service.Local, 1, "10.0.0.1:8080"), "affinity"},
		{"the one here less", affinitySnapshot(service.Local, 0, "10.0.0.2:8080"), "affinity"},
		{"the one here less, another has come", affinitySnapshot(service.Local, 1, "10.0.0.3:8080", "10.0.0.2:8080"),
			"affinity local-affinity"},
		{"another port", affinitySnapshot(service.Local, 1, "10.0.0.1:8080", "10.0.0.2:8081"), "affinity"},
		{"not here any more: the map is not wanted", affinitySnapshot(service.Local, 0, "10.0.0.1:8080", "10.0.0.2:8080"),
			""},
		{"here as well", affinitySnapshot(service.Local, 2, "10.0.0.1:8080", "10.0.0.2:8080"), ""},
		{"no outsiders' list: the map is not wanted", affinitySnapshot(service.Cluster, 1, "10.0.0.1:8080", "10.0.0.2:8080"),
			""},
		{"service gone", snapshots.NewBuilder(service.Node{}).Snapshot(), ""},
	} {
		old, fresh := ruleset.Compile(cfg, before), ruleset.Compile(cfg, test.after)
		var got []string
		for _, name := range ruleset.AffinityShrunk(old, fresh) {
			if name.Family != nft.IPv4 {
				t.Errorf("%s: %+v", test.name, name)
			}
			got = append(got, strings.TrimSuffix(name.Map, "-default/web/tcp/80"))
		}
		slices.Sort(got)
		if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		// An address that comes may have been there earlier, and the new program did not
		// make it.
		if n := len(ruleset.AffinityShrunk(ruleset.Compile(cfg, snapshots.NewBuilder(service.Node{}).Snapshot()),
			fresh)); n != len(ruleset.AffinityMaps(fresh)) {
			t.Errorf("%s: %d maps concerned where all are new", test.name, n)
		}
	}
}

// TestAffinityOfManyPorts: sixteen times as many ports take some sixteen times as long, and not 256 times: the loop
// waits for it.
func TestAffinityOfManyPorts(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cost := func(ports int) time.Duration {
		builder := snapshots.NewBuilder(gen.PlainNode())
		s := gen.UniformService(1, 64)
		port := s.Ports[0]
		s.AffinityTimeout, s.Ports = time.Hour, nil
		for i := range ports {
			port.Name, port.Port = fmt.Sprint("p", i), uint16(i+1)
			s.Ports = append(s.Ports, port)
		}
		none := ruleset.Compile(benchConfig(), builder.Snapshot())
		builder.Set(s)
		all := ruleset.Compile(benchConfig(), builder.Snapshot())
		least := time.Hour
		for range 5 {
			before, runs := conntrack.ThreadTime(), 8000/ports // The clock may go in ticks of milliseconds.
			for range runs {
				if n := len(ruleset.AffinityShrunk(none, all)); n != ports {
					t.Fatalf("%d maps of %d ports", n, ports)
				}
			}
			least = min(least, (conntrack.ThreadTime()-before)/time.Duration(runs))
		}
		return least
	}
	if small, large := cost(25), cost(400); large > 100*small {
		t.Errorf("25 ports take %v, and 400 take %v", small, large)
	}
}

// TestAffinityOneEndpointForAllAddresses: a client gets the same endpoint by all addresses
// of a Service, whichever it uses first.
func TestAffinityOneEndpointForAllAddresses(t *testing.T) {
	b := snapshots.NewBuilder(service.Node{Name: "node-0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	var list []service.Endpoint
	for i := range 50 {
		list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8080),
			Ready: true, Serving: true})
	}
	p := service.Port{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 30080,
		Endpoints: service.MergeEndpoints(list)}
	b.Set(&service.Service{
		Name: "default/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.41")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.7")},
		ExternalIPs:     []netip.Addr{netip.MustParseAddr("198.51.100.7")}, AffinityTimeout: 3600e9, Ports: []service.Port{p},
	})
	program := ruleset.Compile(ruleset.Config{Table: "t"}, b.Snapshot())
	ways := []string{"172.30.0.41:80", "203.0.113.7:80", "198.51.100.7:80", "192.0.2.1:30080"}
	rng := rand.New(rand.NewPCG(1, 2))
	host := nft.Host{Local: func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.1") }, Random: rng.Uint32N}
	for i, first := range ways {
		m := program.Model()
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(50 + i)}), 40000)
		var to netip.AddrPort
		for _, way := range append([]string{first}, ways...) {
			r := m.Trace(nft.Packet{Protocol: 6, Src: client, Dst: netip.MustParseAddrPort(way)}, host)
			strict.Learn(m, r)
			if r.Fate != nft.DNATed || to.IsValid() && r.To != to {
				t.Errorf("first %s, then %s: %s, want %s", first, way, r, to)
			}
			to = r.To
		}
	}
}

// TestAffinityNames: the maps and chains of a Service port's clients have names that the
// kernel and nft accept, and that no other Service port uses.
func TestAffinityNames(t *testing.T) {
	long := strings.Repeat("a", 253)
	b := snapshots.NewBuilder(service.Node{Name: "node-0"})
	timeouts := service.ParseTimeouts("udp-10m-24h") // the longest name of an object
	var names []service.Name
	for i, name := range []string{long, long[1:] + "b", "web", "web-masquerade", "web-local", "learn-5"} {
		svc := service.NewName(strings.Repeat("n", 63), name)
		names = append(names, svc)
		endpoints := service.MergeEndpoints([]service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Node: "node-0", Ready: true, Serving: true},
			{Addr: netip.MustParseAddrPort("10.0.0.2:8080"), Node: "node-1", Ready: true, Serving: true},
		})
		b.Set(&service.Service{
			Name: svc, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, 0, byte(i)})}, ExternalPolicy: service.Local,
			AffinityTimeout: 86400e9,
			// The longest word for a way to choose.
			Options: service.Options{UDPTimeouts: timeouts, Balance: service.ByLeastConnections},
			Ports: []service.Port{
				{Protocol: service.SCTP, Port: 65535, NodePort: uint16(30000 + i), Endpoints: endpoints},
				{Protocol: service.UDP, Port: 65535, NodePort: uint16(30000 + i), Endpoints: endpoints},
			},
		})
	}
	s := b.Snapshot()
	program := ruleset.Compile(ruleset.Config{Table: "t"}, s)
	const most = 255 // NFT_NAME_MAXLEN, with its NUL
	for name := range program.IPv4.Chains.All() {
		if len(name) > most {
			t.Errorf("chain name of %d bytes: %s", len(name), name)
		}
	}
	seen := map[string]bool{}
	for _, m := range ruleset.AffinityMaps(program) {
		if len(m.Set.Name) > most || seen[m.Set.Name] {
			t.Errorf("map name of %d bytes, or of two: %s", len(m.Set.Name), m.Set.Name)
		}
		seen[m.Set.Name] = true
	}
	if want := 4 * len(names); len(seen) != want {
		t.Errorf("%d maps, want %d", len(seen), want)
	}
	back := ruleset.ReadBack(program.Model(), "t", s.Node)
	for _, name := range names[2:] {
		if got := back.Services.At(name); got == nil || got.AffinityTimeout != 86400e9 ||
			got.Options.UDPTimeouts != timeouts {
			t.Errorf("read back: %s is %+v", name, got)
		}
	}
}

// TestAffinityShrunkMissesNothing: AffinityShrunk names each map whose list has lost an
// endpoint. Beside these it names only new maps.
func TestAffinityShrunkMissesNothing(t *testing.T) {
	shrunk, stayed := 0, 0
	seeds(t, 40, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := gen.Config(rng)
		h, c := newHistory(rng), ruleset.NewCompiler(cfg)
		last := c.Compile(h.next())
		for range 30 {
			next := c.Compile(h.next())
			got, want := ruleset.AffinityShrunk(last, next), gone(last, next)
			for _, name := range want {
				if !slices.Contains(got, name) {
					t.Fatalf("an endpoint of %+v went unnoticed", name)
				}
			}
			for _, name := range got {
				if _, old := ruleset.AffinityOf(last, name); old && !slices.Contains(want, name) {
					t.Fatalf("%+v is said to have lost an endpoint", name)
				}
			}
			shrunk, stayed = shrunk+len(want), stayed+len(ruleset.AffinityMaps(next))-len(got)
			last = next
		}
	})
	if !testing.Short() && (shrunk < 100 || stayed < 100) {
		t.Errorf("%d maps have shrunk, %d have not", shrunk, stayed)
	}
}

// gone compares the contents that each map may hold, in the slow way.
func gone(old, next *nft.Program) []ruleset.AffinityName {
	var names []ruleset.AffinityName
	for _, m := range ruleset.AffinityMaps(old) {
		now, ok := ruleset.AffinityOf(next, m.Name)
		if !ok {
			continue
		}
		t := old.Table(m.Name.Family)
		for name, s := range old.Model().Table(t.ID()).Sets {
			if !strings.HasSuffix(name, "affinity-endpoints") {
				continue
			}
			for key := range s.Elements {
				endpoint := key[len(key)-m.Name.Family.AddrLen()-4:]
				if m.Keep("", endpoint) && !now.Keep("", endpoint) && !slices.Contains(names, m.Name) {
					names = append(names, m.Name)
				}
			}
		}
	}
	return names
}

package traffic_test

import (
	"fmt"
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

// tables stand for a kernel's: a program in a model, and the numbers of its counters.
type tables struct {
	model  *nft.Model
	counts map[string]uint64
	dumps  int
	now    time.Time
	cost   time.Duration
}

func newTables() *tables {
	return &tables{model: nft.NewModel(), counts: map[string]uint64{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func (k *tables) clock() time.Time { return k.now }

func (k *tables) visit(table nft.TableID, e nft.Element, visit func(kernel.Count)) {
	if k.model.Table(table).Sets[e.Set].Set.Counter {
		visit(kernel.Count{Key: e.Key, Data: e.Data, Packets: k.counts[fmt.Sprint(table.Family, e.Set, e.Key)]})
	}
}

func (k *tables) AllCounts(table nft.TableID, set *nft.Set, visit func(kernel.Count)) error {
	k.dumps++
	k.now = k.now.Add(k.cost)
	if known := k.model.Table(table).Sets[set.Name]; known != nil { // few tables have the sets of ranges
		for _, e := range known.Elements {
			k.visit(table, e, visit)
		}
	}
	return nil
}

func (k *tables) Counts(table nft.TableID, set *nft.Set, keys []nft.Value, visit func(kernel.Count)) error {
	for _, key := range keys {
		if known := k.model.Table(table).Sets[set.Name]; known != nil {
			if e, found := known.Elements[key]; found {
				k.visit(table, e, visit)
			}
		}
	}
	return nil
}

// put puts the snapshot's program in force.
func (k *tables) put(s service.Snapshot) {
	k.model = ruleset.Compile(ruleset.Config{Table: "t", Counters: true}, s).Model()
}

// connect sends a packet and counts it in the elements that it meets, as the kernel does.
func (k *tables) connect(t *testing.T, to string, random uint32, times uint64) {
	t.Helper()
	p := nft.Packet{Protocol: 6, Src: netip.MustParseAddrPort("192.0.2.1:1000"), Dst: netip.MustParseAddrPort(to)}
	node := netip.MustParseAddr("192.168.0.2")
	r := k.model.Trace(p, nft.Host{Local: func(a netip.Addr) bool { return a == node }, Random: func(n uint32) uint32 {
		return random % n
	}})
	if r.Fate != nft.DNATed {
		t.Fatalf("%s: %s", p, r)
	}
	byAddress := nft.AppendPort(nft.AppendProto(nft.AppendAddr(nil, p.Dst.Addr()), 6), p.Dst.Port())
	byPort := nft.AppendPort(nft.AppendProto(nil, 6), p.Dst.Port())
	count := func(set string, key nft.Value) {
		if s := k.model.Table(nft.TableID{Family: nft.IPv4, Name: "t"}).Sets[set]; s.Set.Counter &&
			s.Elements[key].Set != "" {
			k.counts[fmt.Sprint(nft.IPv4, set, key)] += times
		}
	}
	if count("services", nft.Value(byAddress)); k.model.Table(nft.TableID{Family: nft.IPv4,
		Name: "t"}).Sets["range-services"] != nil && p.Dst.Port() == r.To.Port() {
		count("range-services", nft.Value(byAddress[:len(byAddress)-4]))
	}
	count("node-ports", nft.Value(byPort))
	to4 := nft.AppendPort(nft.AppendAddr(nil, r.To.Addr()), r.To.Port())
	for set, key := range map[string][]byte{"endpoints": byAddress, "local-endpoints": byAddress,
		"node-port-endpoints": byPort} {
		for i := range 9 {
			key := nft.Value(key).WithIndex(i)
			if e := k.model.Table(nft.TableID{Family: nft.IPv4, Name: "t"}).Sets[set].Elements[key]; e.Data == nft.Value(to4) {
				count(set, key)
			}
		}
	}
	count("affinity-endpoints", nft.Value(byAddress)+nft.Value(to4))
}

func port(number, nodePort uint16, endpoints ...string) service.Port {
	var list []service.Endpoint
	for _, e := range endpoints {
		list = append(list, service.Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true})
	}
	return service.Port{Protocol: service.TCP, Port: number, NodePort: nodePort, Endpoints: service.MergeEndpoints(list)}
}

func snapshot(services ...*service.Service) service.Snapshot {
	b := snapshots.NewBuilder(service.Node{Name: "node", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}})
	for _, s := range services {
		b.Set(s)
	}
	return b.Snapshot()
}

func svc(name, ip string, ports ...service.Port) *service.Service {
	return &service.Service{Name: service.Name(name), ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)}, Ports: ports}
}

func portTexts(list []traffic.PortTraffic) []string {
	var all []string
	for _, p := range list {
		all = append(all, fmt.Sprintf("%s:%s/%s %d %.1f %v", p.Service, p.Name, p.Protocol, p.Total, p.Rate, p.Known))
	}
	return all
}

// The rates are those of a Service port at all its addresses and node ports together, and of its
// endpoints. They survive that elements are replaced.
func TestRates(t *testing.T) {
	k := newTables()
	r := traffic.NewReader(k, "t", k.clock)
	read := func(when string, want ...string) {
		t.Helper()
		k.now = k.now.Add(2 * time.Second)
		list, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, portTexts(list)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	endpoints := func(when string, want ...string) {
		t.Helper()
		p := traffic.Port{Service: "a/web", Name: "80", Protocol: service.TCP}
		all, err := r.ReadEndpoints([]traffic.Port{p})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range all[p] {
			got = append(got, fmt.Sprintf("%s %d %.1f %v", e.Endpoint, e.Total, e.Rate, e.Known))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	use := func(s service.Snapshot) {
		k.put(s)
		r.Follow(s)
	}
	other := svc("b/db", "10.0.0.2", port(5432, 0, "10.1.0.9:1"))
	use(snapshot(svc("a/web", "10.0.0.1", port(80, 30080, "10.1.0.1:1", "10.1.0.2:1")), other))
	k.connect(t, "10.0.0.1:80", 0, 10)
	read("first", "a/web:80/tcp 10 0.0 false", "b/db:5432/tcp 0 0.0 false")
	endpoints("first", "10.1.0.1:1 10 0.0 false", "10.1.0.2:1 0 0.0 false")
	k.connect(t, "10.0.0.1:80", 1, 4)
	k.connect(t, "192.168.0.2:30080", 0, 2)
	k.connect(t, "10.0.0.2:5432", 0, 8)
	read("second", "b/db:5432/tcp 8 4.0 true", "a/web:80/tcp 16 3.0 true")
	endpoints("second", "10.1.0.2:1 4 2.0 true", "10.1.0.1:1 12 1.0 true")

	// A third endpoint: the Service's element is another, those of the endpoints are the same.
	use(snapshot(svc("a/web", "10.0.0.1", port(80, 30080, "10.1.0.1:1", "10.1.0.2:1", "10.1.0.3:1")), other))
	for key := range k.counts {
		if key[:len("ipservices")] == "ipservices" {
			delete(k.counts, key)
		}
	}
	k.connect(t, "10.0.0.1:80", 2, 6)
	read("after a replaced element", "a/web:80/tcp 22 3.0 true", "b/db:5432/tcp 8 0.0 true")
	endpoints("after a replaced element", "10.1.0.3:1 6 3.0 true", "10.1.0.1:1 12 0.0 true", "10.1.0.2:1 4 0.0 true")

	// Another Service takes the address.
	use(snapshot(svc("a/web", "10.0.0.3", port(80, 0, "10.1.0.1:1")), svc("c/new", "10.0.0.1", port(80, 0, "10.1.0.1:1"))))
	clear(k.counts)
	k.connect(t, "10.0.0.1:80", 0, 2)
	read("after the address moved", "c/new:80/tcp 2 1.0 true", "a/web:80/tcp 22 0.0 true")
}

// With session affinity an endpoint's connections are those that the rules remember.
func TestRatesWithAffinity(t *testing.T) {
	k := newTables()
	r := traffic.NewReader(k, "t", k.clock)
	s := svc("a/web", "10.0.0.1", port(80, 0, "10.1.0.1:1", "10.1.0.2:1"))
	s.AffinityTimeout = time.Hour
	all := snapshot(s)
	k.put(all)
	r.Follow(all)
	if _, err := r.Read(); err != nil {
		t.Fatal(err)
	}
	k.connect(t, "10.0.0.1:80", 1, 7)
	p := traffic.Port{Service: "a/web", Name: "80", Protocol: service.TCP}
	got, err := r.ReadEndpoints([]traffic.Port{p})
	if err != nil {
		t.Fatal(err)
	}
	want := map[traffic.Port][]traffic.EndpointTraffic{p: {
		{Endpoint: netip.MustParseAddrPort("10.1.0.2:1"), Connections: traffic.Connections{Total: 7}},
		{Endpoint: netip.MustParseAddrPort("10.1.0.1:1")},
	}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

// Ranges of ports are a port of their own, and their sets are read only while some Service has any.
func TestRangesAreCounted(t *testing.T) {
	k := newTables()
	r := traffic.NewReader(k, "t", k.clock)
	ranged, plain := svc("a/voice", "10.0.0.1", port(80, 0, "10.1.0.1:1")),
		svc("a/voice", "10.0.0.1", port(80, 0, "10.1.0.1:1"))
	ranged.Options.PortRanges = "7000-8000/TCP"
	ranged.SetRangePorts()
	for _, c := range []struct {
		s     *service.Service
		dumps int
		want  []string
	}{
		{plain, 4, []string{"a/voice:80/tcp 0 0.0 false"}},
		{ranged, 6, []string{"a/voice:ranges/tcp 3 3.0 true", "a/voice:80/tcp 2 2.0 true"}},
		{plain, 4, []string{"a/voice:80/tcp 2 0.0 true"}},
	} {
		all := snapshot(c.s)
		k.put(all)
		r.Follow(all)
		k.dumps = 0
		if c.s == ranged {
			k.connect(t, "10.0.0.1:80", 0, 2)
			k.connect(t, "10.0.0.1:7500", 0, 3)
		}
		list, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, portTexts(list)); diff != "" || k.dumps != c.dumps {
			t.Errorf("%d dumps, want %d; ports (-want +got):\n%s", k.dumps, c.dumps, diff)
		}
		k.now = k.now.Add(time.Second)
	}
}

// A Source reads at most once in ten seconds, and where reading takes long, less often.
func TestSource(t *testing.T) {
	k := newTables()
	s := traffic.NewSource(k, "t", k.clock)
	if list, _, err := s.Ports(); list != nil || err != nil || k.dumps > 0 {
		t.Errorf("before a snapshot: %v, %v, %d dumps", list, err, k.dumps)
	}
	all := snapshot(svc("a/web", "10.0.0.1", port(80, 0, "10.1.0.1:1")))
	k.put(all)
	s.Notify(all)
	const dumpsOfOne = 4 // two sets in each family
	for range 100 {
		k.connect(t, "10.0.0.1:80", 0, 1)
		if _, _, err := s.Ports(); err != nil {
			t.Fatal(err)
		}
		k.now = k.now.Add(time.Second)
	}
	if k.dumps != 10*dumpsOfOne {
		t.Errorf("%d dumps in 100 s", k.dumps)
	}
	k.dumps, k.cost = 0, 100*time.Millisecond
	start := k.now
	for k.now.Sub(start) < time.Hour {
		if _, _, err := s.Ports(); err != nil {
			t.Fatal(err)
		}
		k.now = k.now.Add(time.Second)
	}
	took := time.Duration(k.dumps) * k.cost
	if most := time.Hour/100 + 2*time.Second; took > most || took < most/2 {
		t.Errorf("reading took %v in an hour, want about %v", took, most)
	}
	k.now = k.now.Add(time.Hour)
	list, total, err := s.Ports()
	if err != nil || total != 100 || len(list) != 1 || list[0].Total != 100 {
		t.Errorf("%v, total %d, error %v", portTexts(list), total, err)
	}
}

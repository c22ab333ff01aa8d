package traffic_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/look/traffic"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// counters stand for a kernel's: by chain, and by the element's set and key.
type counters struct {
	chains   map[string]uint64
	elements map[string]uint64
	// flows are those that are held over IPv4.
	flows []kernel.Entry
	// asked counts the elements that were asked for.
	asked int
	// cost is how much the clock goes on for each element, and flowsCost for a reading of the flows, of which there were
	// so many.
	cost, flowsCost time.Duration
	readings        int
	now             time.Time
	err             error
}

func newCounters() *counters {
	return &counters{chains: map[string]uint64{}, elements: map[string]uint64{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0,
		time.UTC)}
}

func (c *counters) clock() time.Time { return c.now }

// cpu goes on with the clock, which stands still while nothing works.
func (c *counters) cpu() time.Duration { return time.Duration(c.now.UnixNano()) }

func (c *counters) ChainCount(table nft.TableID, chain string) (uint64, error) {
	return c.chains[table.Family.String()+" "+chain], c.err
}

func (c *counters) Counts(_ nft.TableID, set *nft.Set, keys []nft.Value, visit func(kernel.Count)) error {
	for _, k := range keys {
		c.asked++
		c.now = c.now.Add(c.cost)
		if n, found := c.elements[set.Name+string(k)]; found {
			visit(kernel.Count{Key: k, Packets: n})
		}
	}
	return c.err
}

func (c *counters) Learned(table nft.TableID, set *nft.Set) ([]kernel.Entry, error) {
	if table.Family == nft.IPv4 && set.Name == ruleset.HeldFlows().Name {
		c.readings++
		c.now = c.now.Add(c.flowsCost)
		return c.flows, c.err
	}
	return nil, c.err
}

// refuse counts packets to a Service's cluster IP.
func (c *counters) refuse(ip string, packets uint64) {
	key := nft.AppendPort(nft.AppendProto(nft.AppendAddr(nil, netip.MustParseAddr(ip)), uint8(service.TCP)), 80)
	c.elements["no-endpoints"+string(key)] += packets
	c.chains["ip refuse"] += packets
}

// program has Services with the given cluster IPs and without endpoints.
func program(ips ...string) *nft.Program {
	b := snapshots.NewBuilder(service.Node{Name: "node"})
	for _, ip := range ips {
		b.Set(&service.Service{
			Name: service.Name("ns/" + strings.ReplaceAll(ip, ".", "-")), ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)},
			Ports: []service.Port{{Protocol: service.TCP, Port: 80}},
		})
	}
	return ruleset.Compile(ruleset.Config{Table: "t"}, b.Snapshot())
}

func texts(list []traffic.Refused) []string {
	var all []string
	for _, r := range list {
		all = append(all, fmt.Sprintf("%s %s %d %d", r.Name, r.Cause, r.Packets, r.Total))
	}
	return all
}

func want(t *testing.T, when string, got []traffic.Refused, lines ...string) {
	t.Helper()
	if diff := cmp.Diff(lines, texts(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// Totals never go down, whatever becomes of the kernel's counters: elements that are replaced,
// chains that are rewritten, Services that come and go.
func TestTotals(t *testing.T) {
	k := newCounters()
	c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
	if look := c.Look(); look.Err != nil || look.Services != nil {
		t.Errorf("before a program: %+v", look)
	}
	look := func() traffic.Refusals {
		k.now = k.now.Add(10 * time.Second)
		return c.Look()
	}
	k.refuse("10.0.0.1", 5)
	c.Follow(program("10.0.0.1", "10.0.0.2"))
	l := look()
	want(t, "what the kernel had counted before", l.Services, "ns/10-0-0-1 no-endpoints 5 5")
	k.refuse("10.0.0.1", 2)
	k.refuse("10.0.0.2", 9)
	l = look()
	want(t, "more packets", l.Services, "ns/10-0-0-2 no-endpoints 9 9", "ns/10-0-0-1 no-endpoints 2 7")
	asked := k.asked
	l = look()
	want(t, "no more packets", l.Services, "ns/10-0-0-2 no-endpoints 0 9", "ns/10-0-0-1 no-endpoints 0 7")
	if k.asked != asked {
		t.Errorf("%d elements were asked though their chain had counted nothing", k.asked-asked)
	}

	clear(k.elements) // they begin again
	k.refuse("10.0.0.1", 3)
	k.chains["ip unknown-port"], k.chains["ip6 unallocated-address"] = 4, 6
	l = look()
	want(t, "replaced elements", l.Services, "ns/10-0-0-1 no-endpoints 3 10", "ns/10-0-0-2 no-endpoints 0 9")
	if n := l.Causes[0][ruleset.NoEndpoints]; n != 19 {
		t.Errorf("%d packets without endpoints", n)
	}
	clear(k.chains) // they were rewritten
	k.chains["ip unknown-port"] = 1
	l = look()
	causes := ip.PerFamily[map[ruleset.Cause]uint64]{
		{ruleset.NoEndpoints: 19, ruleset.UnknownPort: 5, ruleset.NoLocalEndpoints: 0, ruleset.OutsideSourceRanges: 0,
			ruleset.UnallocatedAddress: 0, ruleset.TooManyPings: 0, ruleset.Held: 0},
		{ruleset.NoEndpoints: 0, ruleset.UnknownPort: 0, ruleset.NoLocalEndpoints: 0, ruleset.OutsideSourceRanges: 0,
			ruleset.UnallocatedAddress: 6, ruleset.TooManyPings: 0, ruleset.Held: 0},
	}
	if diff := cmp.Diff(causes, l.Causes); diff != "" {
		t.Errorf("causes (-want +got):\n%s", diff)
	}

	c.Follow(program("10.0.0.1"))
	l = look()
	want(t, "a Service that has gone", l.Services, "ns/10-0-0-1 no-endpoints 0 10")
	k.err = errors.New("no answer")
	k.refuse("10.0.0.1", 1)
	if l = look(); !errors.Is(l.Err, k.err) {
		t.Errorf("error %v", l.Err)
	}
	k.err = nil
	l = look()
	want(t, "after an error", l.Services, "ns/10-0-0-1 no-endpoints 1 11")
}

// However many Services refuse, and however often clients come, reading takes at most
// 1/200 of a core in the long run.
func TestBudget(t *testing.T) {
	const services, looks = 1000, 2000
	k := newCounters()
	k.cost = 10 * time.Microsecond
	var ips []string
	for i := range services {
		ips = append(ips, fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250))
	}
	c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
	c.Follow(program(ips...))
	start := k.now
	for range looks {
		k.now = k.now.Add(time.Second)
		k.refuse(ips[0], 1)
		c.Look()
	}
	took := time.Duration(k.asked) * k.cost
	share := took.Seconds() / k.now.Sub(start).Seconds()
	t.Logf("%d elements were asked in %v: %.2f %% of a core", k.asked, k.now.Sub(start), 100*share)
	if share > 0.0055 {
		t.Errorf("reading took %.2f %% of a core", 100*share)
	}
	if k.asked < services {
		t.Errorf("%d elements were asked", k.asked)
	}
	k.now = k.now.Add(time.Minute)
	k.refuse(ips[0], 1)
	if l := c.Look(); len(l.Services) != 1 || l.Services[0].Total != looks+1 {
		t.Errorf("in the end: %v, want %d packets", texts(l.Services), looks+1)
	}
}

// A Service is reported once its clients come in three looks in a row, and not again for ten
// minutes. Many Services at once are not all reported at once.
func TestPersistent(t *testing.T) {
	k := newCounters()
	c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
	c.Follow(program("10.0.0.1", "10.0.0.2"))
	look := func(ips ...string) []traffic.Refused {
		k.now = k.now.Add(10 * time.Second)
		for _, ip := range ips {
			k.refuse(ip, 1)
		}
		return c.Look().Persistent
	}
	const first, second = "10.0.0.1", "10.0.0.2"
	want(t, "once", look(first))
	want(t, "twice", look(first, second))
	want(t, "three times", look(first), "ns/10-0-0-1 no-endpoints 1 3")
	want(t, "a pause of the second one", look(first, second))
	want(t, "the second one again", look(first, second))
	want(t, "the second one for the third time", look(first, second), "ns/10-0-0-2 no-endpoints 1 4")
	reports := 0
	for range 60 {
		reports += len(look(first))
	}
	if reports != 1 {
		t.Errorf("%d reports in ten minutes", reports)
	}

	var ips []string
	for i := range 200 {
		ips = append(ips, fmt.Sprintf("10.0.1.%d", i))
	}
	k.now = k.now.Add(time.Hour)
	c.Follow(program(ips...))
	reports = 0
	for range 18 {
		reports += len(look(ips...))
	}
	// 20 at once in the third look, and one in each half minute of the 150 s after it.
	if reports != 25 {
		t.Errorf("%d reports of %d Services in three minutes", reports, len(ips))
	}
}

// TestPromisedDrops: drops at node ports and external addresses of externalTrafficPolicy Local are
// counted, but reported to nobody. Drops at the cluster IP of internalTrafficPolicy Local are.
func TestPromisedDrops(t *testing.T) {
	b := snapshots.NewBuilder(service.Node{Name: "node"})
	elsewhere := service.MergeEndpoints([]service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.1:80"), Node: "other",
		Ready: true, Serving: true}})
	b.Set(&service.Service{
		Name: "ns/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		InternalPolicy:  service.Local, ExternalPolicy: service.Local,
		Ports: []service.Port{{Protocol: service.TCP, Port: 80, NodePort: 30080, Endpoints: elsewhere}},
	})
	p := ruleset.Compile(ruleset.Config{Table: "t"}, b.Snapshot())
	elements := map[string]string{} // by what they count
	for _, e := range p.IPv4.Parts.At("ns/web").Elements {
		if ruleset.RefusalSets()[e.Set] != ruleset.NoLocalEndpoints {
			continue
		}
		what := e.Set
		if e.Set == string(ruleset.NoLocalEndpoints) {
			a, _ := netip.AddrFromSlice([]byte(e.Key[:4]))
			what = a.String()
		}
		elements[what] = e.Set + string(e.Key)
	}
	for what, reported := range map[string]bool{"10.0.0.1": true, "192.0.2.1": false,
		"node-port-no-local-endpoints": false} {
		if elements[what] == "" {
			t.Fatalf("nothing counts %s: %q", what, elements)
		}
		k := newCounters()
		c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
		c.Follow(p)
		var look traffic.Refusals
		for range 3 {
			k.now = k.now.Add(10 * time.Second)
			k.elements[elements[what]]++
			k.chains["ip no-local-endpoints"]++
			look = c.Look()
		}
		want(t, what, look.Services, "ns/web no-local-endpoints 1 3")
		if got := len(look.Persistent) > 0; got != reported {
			t.Errorf("%s: reported %v, want %v", what, got, reported)
		}
	}
	// The chain node-port-refuse refuses pods of other nodes.
	k := newCounters()
	c := traffic.NewRefusalCounter(k, k.clock, k.cpu)
	c.Follow(p)
	k.elements[elements["node-port-no-local-endpoints"]]++
	k.chains["ip node-port-refuse"]++
	want(t, "a pod of another node", c.Look().Services, "ns/web no-local-endpoints 1 1")
}

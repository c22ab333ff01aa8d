package ruleset_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
)

// The addresses of refusingProgram's Services.
var (
	emptyAddress       = netip.MustParseAddr("10.96.0.11")
	internalAddress    = netip.MustParseAddr("10.96.0.12")
	externalAddress    = netip.MustParseAddr("198.51.100.3")
	unallocatedAddress = netip.MustParseAddr("10.96.0.99")
	directAddress      = netip.MustParseAddr("198.51.100.14")
	nodeAddress        = netip.MustParseAddr("192.168.0.2")
)

const directNodePort = 30514

// refusingProgram has a Service for each cause of a refusal, and open ones.
func refusingProgram() *nft.Program {
	b := snapshots.NewBuilder(service.Node{Name: "node", Addresses: []netip.Addr{nodeAddress}})
	b.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")})
	b.Set(withRanges("ns/open", netip.MustParseAddr("10.96.0.1"), openAddress, 2, 0))
	b.Set(withRanges("ns/restricted", netip.MustParseAddr("10.96.0.2"), restrictedAddress, 2, 10))
	empty := withRanges("ns/empty", emptyAddress, netip.MustParseAddr("198.51.100.11"), 2, 0)
	for i := range empty.Ports {
		empty.Ports[i].Endpoints = service.Endpoints{}
	}
	b.Set(empty)
	internal := withRanges("ns/internal", internalAddress, netip.MustParseAddr("198.51.100.12"), 2, 0)
	internal.InternalPolicy = service.Local
	b.Set(internal)
	external := withRanges("ns/external", netip.MustParseAddr("10.96.0.13"), externalAddress, 2, 0)
	external.ExternalPolicy = service.Local
	b.Set(external)
	direct := withRanges("ns/direct", netip.MustParseAddr("10.96.0.14"), directAddress, 1, 10)
	direct.Options.SourceRanges = direct.Sources
	direct.ExternalIPs, direct.LoadBalancerIPs, direct.Sources = direct.LoadBalancerIPs, nil, nil
	direct.Ports[0].NodePort = directNodePort
	b.Set(direct)
	return ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, b.Snapshot())
}

// refused is how many packets the counters of a program have counted.
type refused struct {
	Causes map[ruleset.Cause]uint64
	// Services has "service cause".
	Services map[string]uint64
}

func countRefused(t testing.TB, c *kernel.Conn, p *nft.Program) refused {
	t.Helper()
	r := refused{map[ruleset.Cause]uint64{}, map[string]uint64{}}
	for _, cause := range ruleset.Causes() {
		for _, chain := range cause.Chains() {
			if p.IPv4.Chains.At(chain) == nil {
				continue // no pings are answered
			}
			n, err := c.ChainCount(p.IPv4.ID(), chain)
			must(t, err)
			r.Causes[cause] += n
		}
	}
	for name, part := range p.IPv4.Parts.All() {
		for _, e := range part.Elements {
			cause, ok := ruleset.RefusalSets()[e.Set]
			if !ok {
				continue
			}
			found := 0
			must(t, c.Counts(p.IPv4.ID(), p.IPv4.Set(e.Set), []nft.Value{e.Key}, func(n kernel.Count) {
				if found++; n.Key != e.Key {
					t.Errorf("asked for the element %q of %s, got %q", e.Key, e.Set, n.Key)
				}
				if n.Packets > 0 {
					r.Services[name+" "+string(cause)] += n.Packets
				}
			}))
			if found != 1 {
				t.Errorf("%s: %d elements of %s have the key", name, found, e.Set)
			}
		}
	}
	return r
}

// Each refused or dropped packet is counted once by its cause, and where a Service's
// element tells, by the Service. Packets that are served count nowhere.
func TestRefusalsAreCounted(t *testing.T) {
	s := newSender(t)
	lo, err := s.ns.Handle().LinkByName("lo")
	must(t, err)
	clusterIPs := &net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)}
	must(t, s.ns.Handle().RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: clusterIPs,
		Scope: unix.RT_SCOPE_LINK}))
	must(t, s.ns.Handle().AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: nodeAddress.AsSlice(),
		Mask: net.CIDRMask(32, 32)}}))
	p := refusingProgram()
	must(t, s.c.Apply(load(p)))
	send := func(n int, to netip.Addr, port uint16, end error) {
		t.Helper()
		s.time(t, n, inRanges(5), netip.AddrPortFrom(to, port), end)
	}
	const unknown = firstPort + 9
	send(3, openAddress, firstPort, translated)
	send(3, restrictedAddress, firstPort, translated)
	send(1, emptyAddress, firstPort, dropped)
	send(2, emptyAddress, firstPort+1, dropped)
	send(4, internalAddress, firstPort, dropped)
	send(5, externalAddress, firstPort, dropped)
	send(6, netip.MustParseAddr("10.96.0.1"), unknown, dropped)
	send(7, unallocatedAddress, firstPort, dropped)
	s.time(t, 8, inNone(10), netip.AddrPortFrom(restrictedAddress, firstPort), dropped)
	for to, n := range map[netip.AddrPort]int{netip.AddrPortFrom(nodeAddress, directNodePort): 9,
		netip.AddrPortFrom(directAddress, firstPort): 10} {
		s.time(t, 1, inRanges(10), to, translated)
		s.time(t, n, inNone(10), to, dropped)
	}

	want := refused{
		map[ruleset.Cause]uint64{ruleset.NoEndpoints: 3, ruleset.UnknownPort: 6, ruleset.NoLocalEndpoints: 9,
			ruleset.OutsideSourceRanges: 27, ruleset.UnallocatedAddress: 7},
		map[string]uint64{
			"ns/empty no-endpoints": 3, "ns/internal no-local-endpoints": 4,
			"ns/external no-local-endpoints": 5, "ns/restricted outside-source-ranges": 8, "ns/direct outside-source-ranges": 19,
		},
	}
	if diff := cmp.Diff(want, countRefused(t, s.c, p)); diff != "" {
		t.Errorf("counted packets (-want +got):\n%s", diff)
	}
	got, err := s.c.Read(p)
	must(t, err)
	if diff := check.Diff(p, got); diff != "" {
		t.Errorf("counters that have counted are no change (-want +got):\n%s", diff)
	}
	if b, _ := nft.Adopt(got, p).Plan(p, time.Time{}); !b.Empty() {
		t.Errorf("a restart writes\n%s", b)
	}
}

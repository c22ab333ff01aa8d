package kernel_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/testnet"
)

// The ports of services, and of endpoints.
const (
	servicePort, endpointPort = 80, 8080
	affinityTimeout           = 3 * time.Hour
)

// enough is a time-out that every answer keeps. little is for packets that must get no
// nfnetlink.Answer.
const enough, little = time.Minute, 50 * time.Millisecond

// protocols are by testnet's names for them.
func protocols() map[string]uint8 {
	return map[string]uint8{testnet.TCP: unix.IPPROTO_TCP, testnet.UDP: unix.IPPROTO_UDP, testnet.SCTP: unix.IPPROTO_SCTP}
}

// affinityNet is a node with pods, and its tables.
type affinityNet struct {
	*testnet.Topology
	c *kernel.Conn
	p *nft.Program
	// servers are the addresses of the endpoints, by the name that each answers with.
	servers map[string]testnet.Addrs
	clients map[string]client
	// port is the source port of the last question. Each question has another port, so
	// that none belongs to an earlier connection.
	port uint16
}

type client struct {
	ns    *testnet.Namespace
	addrs testnet.Addrs
}

// The services of an affinityNet, by number, with their endpoints.
const (
	anyServer = iota + 1
	onlyFar
	onlyNode
	onlyWeb
	notLearned
	restricted
	restrictedToOne
)

func serviceEndpoints() map[int][]string {
	return map[int][]string{
		anyServer:       {"far", "node", "web-1", "web-2"},
		onlyFar:         {"far"},
		onlyNode:        {"node"},
		onlyWeb:         {"web-1"},
		notLearned:      {"web-2"},
		restricted:      {"web-1"},
		restrictedToOne: {"web-1"},
	}
}

func newAffinityNet(t *testing.T, size uint32) *affinityNet {
	t.Helper()
	n := &affinityNet{Topology: testnet.NewForTest(t, testnet.Config{}), port: 10_000}
	n.clients = map[string]client{"node": {n.Node, n.NodeAddrs}}
	n.servers = map[string]testnet.Addrs{"node": n.NodeAddrs}
	spaces := map[string]*testnet.Namespace{"node": n.Node}
	for _, name := range []string{"web-1", "web-2", "client-1", "client-2", "far"} {
		add := n.AddPod
		if name == "far" {
			add = n.AddRemotePod
		}
		pod, err := add(name)
		must(t, err)
		if name != "far" {
			n.clients[name] = client{pod.NS, pod.Addrs}
		}
		if name == "far" || name[:3] == "web" {
			n.servers[name], spaces[name] = pod.Addrs, pod.NS
		}
	}
	for _, f := range nft.Families() {
		must(t, n.Outside.AddRoute(netip.PrefixFrom(addr(f, 0), 8*f.AddrLen()-8), of(f, n.NodeAddrs)))
		for name, ns := range spaces {
			for proto := range protocols() {
				_, err := ns.Serve(proto, netip.AddrPortFrom(of(f, n.servers[name]), endpointPort), name)
				must(t, err)
			}
		}
	}
	must(t, n.Node.Do(func() (err error) {
		n.c, err = kernel.Open(kernelmodel.Config(t, kernel.Config{}))
		return err
	}))
	t.Cleanup(func() { must(t, n.c.Close()) })
	n.p = &nft.Program{IPv4: n.table(nft.IPv4, size), IPv6: n.table(nft.IPv6, size)}
	must(t, n.c.Apply(load(n.p)))
	return n
}

func of(f nft.Family, as testnet.Addrs) netip.Addr {
	if f == nft.IPv6 {
		return as.V6()
	}
	return as.V4()
}

func at(a netip.Addr, port uint16) nft.Value {
	return nft.Value(nft.AppendPort(nft.AppendAddr(nil, a), port))
}

func (n *affinityNet) table(f nft.Family, size uint32) *nft.Table {
	learn := nft.Rule{nft.MatchDNATed{}, nft.VMap{Key: origServiceKey, Map: "affinity-services"}}
	dispatch := []nft.Rule{{nft.VMap{Key: serviceKey, Map: "services"}}}
	t := newTable(f, []*nft.Set{
		{Name: "affinity", Key: clientKey, Data: target, Dynamic: true, Size: size},
		{Name: "affinity-endpoints", Key: slices.Concat(serviceKey, target)},
		{Name: "affinity-services", Key: serviceKey, Verdicts: true},
		{Name: "endpoints", Key: indexed(serviceKey), Data: target},
		{Name: "hairpin", Key: nft.Fields{nft.Saddr, nft.Daddr}},
		{Name: "services", Key: serviceKey, Verdicts: true},
		{Name: "services-restricted", Key: serviceKey, Verdicts: true},
		{Name: sourceRanges(restricted), Key: nft.Fields{nft.Saddr}, Interval: true},
		{Name: sourceRanges(restrictedToOne), Key: nft.Fields{nft.Saddr}, Interval: true},
	}, []*nft.Chain{
		{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100}, Rules: dispatch},
		{Name: "output", Hook: &nft.Hook{Name: nft.Output, Priority: -100}, Rules: dispatch},
		{Name: "input", Hook: &nft.Hook{Name: nft.Input, Priority: 99}, Rules: []nft.Rule{learn}},
		{Name: "postrouting", Hook: &nft.Hook{Name: nft.Postrouting, Priority: 99}, Rules: []nft.Rule{
			learn, {nft.MatchDNATed{}, nft.InSet{Key: nft.Fields{nft.Saddr, nft.Daddr}, Set: "hairpin"}, nft.Masquerade{}},
		}},
		{Name: "learn-10800", Rules: []nft.Rule{{
			nft.InSet{Key: slices.Concat(origServiceKey, target), Set: "affinity-endpoints"},
			nft.Update{Map: "affinity", Key: origClientKey, Data: target, Timeout: affinityTimeout},
		}}},
		sourceRangesChain(restricted), sourceRangesChain(restrictedToOne),
		{Name: "services-restricted", Rules: []nft.Rule{{nft.VMap{Key: serviceKey, Map: "services-restricted"}},
			{nft.Verdict{Code: nft.Drop}}}},
	}, nil)
	for _, i := range []int{restricted, restrictedToOne} {
		var ranges []nft.Element
		for _, p := range n.admitted(f, i) {
			ranges = append(ranges, nft.Element{
				Set: sourceRanges(i), Key: nft.Value(p.Masked().Addr().AsSlice()), KeyEnd: nft.Value(nft.LastAddr(p).AsSlice()),
			})
		}
		t.Parts = t.Parts.Set(sourceRanges(i), nft.NewPart(ranges, nil))
	}
	var hairpins []nft.Element
	for _, as := range n.servers {
		a := of(f, as)
		hairpins = append(hairpins, nft.Element{Set: "hairpin", Key: nft.Value(nft.AppendAddr(nft.AppendAddr(nil, a), a))})
	}
	t.Parts = t.Parts.Set("hairpin", nft.NewPart(hairpins, nil))
	for i, names := range serviceEndpoints() {
		chain := &nft.Chain{Name: fmt.Sprintf("endpoints-%d-affinity", len(names)), Rules: []nft.Rule{
			{nft.DNAT{Key: clientKey, Map: "affinity"}},
			{nft.DNAT{Key: serviceKey, Mod: uint32(len(names)), Map: "endpoints"}},
			{nft.DNAT{Key: serviceKey, Mod: 1, Map: "endpoints"}},
			{nft.Verdict{Code: nft.Drop}},
		}}
		t.Chains = t.Chains.Set(chain.Name, chain)
		for proto, number := range protocols() {
			t.Parts = t.Parts.Set(fmt.Sprintf("%s-%d", proto, i), n.servicePart(f, i, names, number, chain.Name))
		}
	}
	return t
}

// servicePart is the part of one service and protocol.
func (n *affinityNet) servicePart(f nft.Family, i int, names []string, proto uint8, chain string) *nft.Part {
	service := servicePrefix(f, i, proto, servicePort)
	var targets []nft.Value
	elements := []nft.Element{{Set: "affinity-services", Key: service, Verdict: jump("learn-10800")}}
	for _, name := range names {
		a := of(f, n.servers[name])
		targets = append(targets, at(a, endpointPort))
		if i != notLearned {
			elements = append(elements, nft.Element{Set: "affinity-endpoints", Key: service + at(a, endpointPort)})
		}
	}
	pool := nft.Pool{Map: "endpoints", Prefix: service, Targets: nft.NewTargets(targets...)}
	open := nft.Element{Set: "services", Key: service, Verdict: goTo(chain)}
	if len(n.admitted(f, i)) > 0 {
		open.Verdict = goTo(sourceRanges(i))
		elements = append(elements, nft.Element{Set: "services-restricted", Key: service, Verdict: goTo(chain)})
	}
	return nft.NewPart(append(elements, open), []nft.Pool{pool})
}

// withEndpoints is the program with other endpoints for one service.
func (n *affinityNet) withEndpoints(f nft.Family, service int, proto string, names ...string) *nft.Program {
	changed, p := *n.p.Table(f), *n.p
	chain := fmt.Sprintf("endpoints-%d-affinity", len(serviceEndpoints()[service]))
	changed.Parts = changed.Parts.Set(fmt.Sprintf("%s-%d", proto, service), n.servicePart(f, service, names,
		protocols()[proto], chain))
	if f == nft.IPv4 {
		p.IPv4 = &changed
	} else {
		p.IPv6 = &changed
	}
	return &p
}

// sourceRanges is the name of the set, and of the chain, with a service's sources.
func sourceRanges(service int) string { return fmt.Sprintf("source-ranges-%d", service) }

func sourceRangesChain(service int) *nft.Chain {
	return &nft.Chain{Name: sourceRanges(service), Rules: []nft.Rule{
		{nft.InSet{Key: nft.Fields{nft.Saddr}, Set: sourceRanges(service)}, goTo("services-restricted")},
		{nft.Verdict{Code: nft.Drop}},
	}}
}

// admitted is the sources that may reach a service; all may where there are none. One
// service's range lies within another's.
func (n *affinityNet) admitted(f nft.Family, i int) []netip.Prefix {
	one := of(f, n.Pod("client-2").Addrs)
	switch i {
	case restricted:
		p, err := one.Prefix(one.BitLen() - 8)
		if err != nil {
			panic(err) // no error with an address's own length
		}
		outside := of(f, n.OutsideAddrs)
		return []netip.Prefix{p, netip.PrefixFrom(outside, outside.BitLen())}
	case restrictedToOne:
		return []netip.Prefix{netip.PrefixFrom(one, one.BitLen())}
	}
	return nil
}

// clientNamed is a client by name. The one outside is not among clients, since an
// endpoint's answer to it may not come through the node.
func (n *affinityNet) clientNamed(name string) client {
	if name == "outside" {
		return client{n.Outside, n.OutsideAddrs}
	}
	return n.clients[name]
}

func (n *affinityNet) askService(t *testing.T, name, proto string, f nft.Family, service int,
	timeout time.Duration) testnet.Answer {
	t.Helper()
	n.port++
	from := netip.AddrPortFrom(of(f, n.clientNamed(name).addrs), n.port)
	a, err := n.clientNamed(name).ns.AskFrom(context.Background(), proto, from, netip.AddrPortFrom(addr(f, service),
		servicePort), timeout)
	must(t, err)
	return a
}

// answererOf asks a service and returns the name of the endpoint that answered.
func (n *affinityNet) answererOf(t *testing.T, name, proto string, f nft.Family, service int) string {
	t.Helper()
	a := n.askService(t, name, proto, f, service, enough)
	if a.Outcome != testnet.Answered {
		t.Fatalf("%s asks service %d by %s: %s", name, service, proto, a.Outcome)
	}
	return a.ID
}

// clientKey is the key of the client's element.
func (n *affinityNet) clientKey(name, proto string, f nft.Family, service int) nft.Value {
	return nft.Value(of(f, n.clientNamed(name).addrs).AsSlice()) + servicePrefix(f, service, protocols()[proto],
		servicePort)
}

// endpointValue is the data of the element of a client of this server.
func (n *affinityNet) endpointValue(f nft.Family, server string) nft.Value {
	return at(of(f, n.servers[server]), endpointPort)
}

func (n *affinityNet) affinityMap(f nft.Family) *nft.Set { return n.p.Table(f).Set("affinity") }

// forgetClients empties the map.
func (n *affinityNet) forgetClients(t *testing.T, f nft.Family) {
	t.Helper()
	_, _, err := n.c.Sweep(t.Context(), table(f), n.affinityMap(f), func(key, data nft.Value) bool { return false })
	must(t, err)
}

// everyAffinity runs a test for each family and protocol.
func everyAffinity(t *testing.T, n *affinityNet, test func(t *testing.T, f nft.Family, proto string)) {
	for _, f := range nft.Families() {
		for _, proto := range slices.Sorted(maps.Keys(protocols())) {
			t.Run(f.String()+" "+proto, func(t *testing.T) { test(t, f, proto) })
		}
	}
}

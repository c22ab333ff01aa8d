package kernel_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/treap"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

const tableName = "nftproxy"

func table(f nft.Family) nft.TableID { return nft.TableID{Family: f, Name: tableName} }

// open makes a network namespace and a Conn in it.
func open(t testing.TB) (*testnet.Namespace, *kernel.Conn) {
	t.Helper()
	ns := testnet.NamespaceForTest(t, "kernel")
	return ns, openIn(t, ns)
}

func openIn(t testing.TB, ns *testnet.Namespace) *kernel.Conn {
	t.Helper()
	var c *kernel.Conn
	err := ns.Do(func() (err error) {
		c, err = kernel.Open(kernelmodel.Config(t, kernel.Config{}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // some tests have closed it
	return c
}

// openUnwatched is open for a test that writes what no plan would. The model does not refuse all of
// what the kernel then refuses, such as NAT behind the wrong hook.
func openUnwatched(t *testing.T) *kernel.Conn {
	t.Helper()
	c, err := kernel.Open(kernel.Config{NetNS: testnet.NamespaceForTest(t, "kernel").Fd()})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// load is the batch that makes a program in an empty namespace.
func load(p *nft.Program) nft.Batch {
	b, _ := nft.State{}.Plan(p, timeZero)
	return b
}

// addresses of a family, and the key fields of services and node ports.
func addr(f nft.Family, i int) netip.Addr {
	if f == nft.IPv6 {
		a := netip.MustParseAddr("fd00:10:96::").As16()
		a[13], a[14], a[15] = byte(i>>16), byte(i>>8), byte(i)
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})
}

var (
	serviceKey = nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport}
	nodeKey    = nft.Fields{nft.L4Proto, nft.Dport}
	target     = nft.Fields{nft.Daddr, nft.Dport}
	sourceKey  = nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport, nft.Saddr}

	// The fields of a client's key, before and after translation.
	clientKey         = nft.Fields{nft.Saddr, nft.Daddr, nft.L4Proto, nft.Dport}
	clientNodeKey     = nft.Fields{nft.Saddr, nft.L4Proto, nft.Dport}
	origServiceKey    = nft.Fields{nft.OrigDaddr, nft.L4Proto, nft.OrigDport}
	origNodeKey       = nft.Fields{nft.L4Proto, nft.OrigDport}
	origClientKey     = nft.Fields{nft.OrigSaddr, nft.OrigDaddr, nft.L4Proto, nft.OrigDport}
	origClientNodeKey = nft.Fields{nft.OrigSaddr, nft.L4Proto, nft.OrigDport}
)

func servicePrefix(f nft.Family, i int, proto uint8, port uint16) nft.Value {
	return nft.Value(nft.AppendPort(nft.AppendProto(nft.AppendAddr(nil, addr(f, i)), proto), port))
}

func nodePrefix(proto uint8, port uint16) nft.Value {
	return nft.Value(nft.AppendPort(nft.AppendProto(nil, proto), port))
}

func endpoint(f nft.Family, i int, port uint16) nft.Value {
	return nft.Value(nft.AppendPort(nft.AppendAddr(nil, addr(f, i)), port))
}

func addrValue(f nft.Family, i int) nft.Value { return nft.Value(nft.AppendAddr(nil, addr(f, i))) }

func indexed(key nft.Fields) nft.Fields { return append(key[:len(key):len(key)], nft.Index) }

// sets has a set of every shape that the fields allow, and those of a real program.
func sets() []*nft.Set {
	return []*nft.Set{
		{Name: "address-ranges", Key: nft.Fields{nft.Saddr}, Interval: true},
		{Name: "addresses", Key: nft.Fields{nft.Daddr}},
		{Name: "affinity", Key: clientKey, Data: target, Dynamic: true, Size: 262144},
		{Name: "affinity-default/web/tcp/80", Key: nft.Fields{nft.Saddr}, Data: target, Dynamic: true},
		{Name: "affinity-endpoints", Key: slices.Concat(serviceKey, target)},
		{Name: "affinity-services", Key: serviceKey, Verdicts: true},
		{Name: "recent", Key: serviceKey, Dynamic: true},
		{Name: "recent-ports", Key: nft.Fields{nft.Dport}, Dynamic: true, Size: 3},
		{Name: "client-affinity", Key: nft.Fields{nft.Saddr}, Data: nft.Fields{nft.Daddr}, Dynamic: true, Size: 3},
		{Name: "counted-addresses", Key: nft.Fields{nft.Daddr}, Counter: true, Size: 10},
		{Name: "counted-endpoints", Key: indexed(serviceKey), Data: target, Counter: true},
		{Name: "counted-services", Key: serviceKey, Verdicts: true, MinSize: 100, Counter: true},
		{Name: "endpoints", Key: indexed(serviceKey), Data: target},
		{Name: "hairpin", Key: nft.Fields{nft.Saddr, nft.Daddr}},
		{Name: "indexes", Key: nft.Fields{nft.Index}},
		{Name: "node-affinity", Key: clientNodeKey, Data: target, Dynamic: true, Size: 100},
		{Name: "node-affinity-endpoints", Key: slices.Concat(nodeKey, target)},
		{Name: "node-affinity-services", Key: nodeKey, Verdicts: true},
		{Name: "node-endpoints", Key: indexed(nodeKey), Data: target},
		{Name: "node-ports", Key: nodeKey, Verdicts: true},
		{Name: "only-addr", Key: nft.Fields{nft.Saddr}, Data: nft.Fields{nft.Daddr}},
		{Name: "only-port", Key: nft.Fields{nft.Dport}, Data: nft.Fields{nft.Dport}},
		{Name: "only-proto", Key: nft.Fields{nft.L4Proto}},
		{Name: "port-ranges", Key: nft.Fields{nft.Dport}, Interval: true, Verdicts: true},
		{Name: "port-verdicts", Key: nft.Fields{nft.Dport}, Verdicts: true},
		{Name: "ports", Key: nft.Fields{nft.L4Proto, nft.Dport}},
		{Name: "room", Key: nft.Fields{nft.Daddr}, MinSize: 1},
		{Name: "room-verdicts", Key: serviceKey, Verdicts: true, MinSize: 100},
		{Name: "services", Key: serviceKey, Verdicts: true},
		{Name: "sized", Key: nft.Fields{nft.Daddr}, Size: 100},
		{Name: "sized-ranges", Key: nft.Fields{nft.L4Proto, nft.Saddr}, Interval: true, Size: 100},
		{Name: "source-ranges", Key: sourceKey, Interval: true},
		{Name: "source-verdicts", Key: nft.Fields{nft.Dport, nft.Saddr}, Interval: true, Verdicts: true},
	}
}

func jump(to string) nft.Verdict { return nft.Verdict{Code: nft.Jump, Chain: to} }
func goTo(to string) nft.Verdict { return nft.Verdict{Code: nft.Goto, Chain: to} }

// prefixes of a family: of no bits, of whole bytes, of other bits, and whole addresses.
func prefixes(f nft.Family) []netip.Prefix {
	var all []netip.Prefix
	for _, bits := range []int{0, 1, 8, 9, 24, 31, 32, 48, 64, 127, 128} {
		if bits <= 8*f.AddrLen() {
			all = append(all, netip.PrefixFrom(addr(f, 1), bits).Masked())
		}
	}
	return all
}

// chains has every kind of statement, on every hook that allows it. Only learning has
// those that some versions of nft do not parse.
func chains(f nft.Family) []*nft.Chain {
	var matches []nft.Rule
	for _, p := range prefixes(f) {
		for _, field := range []nft.Field{nft.Saddr, nft.Daddr} {
			matches = append(matches,
				nft.Rule{nft.MatchAddr{Field: field, Prefix: p}, goTo("refuse")},
				nft.Rule{nft.MatchAddr{Field: field, Prefix: p, Not: true}, nft.Verdict{Code: nft.Return}})
		}
	}
	dispatch := []nft.Rule{
		{nft.VMap{Key: serviceKey, Map: "services"}},
		{nft.InSet{Key: nft.Fields{nft.Daddr}, Set: "addresses"}, nft.MatchLocal{Field: nft.Daddr, Not: true},
			goTo("refuse")},
		{nft.MatchInput{Name: "cni0"}, goTo("refuse")},
		{nft.MatchInput{Name: "cni0", Not: true}, goTo("refuse")},
		{nft.MatchInput{Name: "fifteen-letters"}, goTo("refuse")},
		{nft.MatchInput{Name: "fourteen-byte-", Prefix: true}, goTo("refuse")},
		{nft.MatchInput{Name: "veth", Prefix: true, Not: true}, goTo("refuse")},
		{nft.MatchLocal{Field: nft.Saddr}, nft.SetMark{Mask: 0x4000}, nft.Comment("from the node")},
		{nft.MatchLocal{Field: nft.Daddr}, nft.VMap{Key: nodeKey, Map: "node-ports"}},
		{nft.VMap{Key: nft.Fields{nft.Dport}, Map: "port-verdicts"}},
		{nft.VMap{Key: nft.Fields{nft.Dport, nft.Saddr}, Map: "source-verdicts"}},
		{nft.VMap{Key: nft.Fields{nft.Dport}, Map: "port-ranges"}},
	}
	return []*nft.Chain{
		{Name: "empty"},
		{Name: "matches", Rules: append(matches,
			nft.Rule{nft.MatchProto{Protocol: 132}, nft.Verdict{Code: nft.Accept}},
			nft.Rule{nft.MatchProto{Protocol: 17}, nft.InSet{Key: nft.Fields{nft.Saddr, nft.Daddr}, Set: "hairpin"},
				nft.Verdict{Code: nft.Drop}},
			nft.Rule{nft.InSet{Key: nodeKey, Set: "ports"}, jump("empty")},
			nft.Rule{nft.InSet{Key: nft.Fields{nft.L4Proto}, Set: "only-proto"}, jump("empty")},
		)},
		{Name: "refuse", Rules: []nft.Rule{
			{nft.MatchProto{Protocol: 6}, nft.Reject{TCPReset: true}},
			{nft.Reject{}},
		}},
		{Name: "refuse-and-count", Rules: []nft.Rule{
			{nft.Counter{}},
			{nft.MatchProto{Protocol: 6}, nft.Counter{}, nft.Reject{TCPReset: true}},
			{nft.InSet{Key: nodeKey, Set: "ports"}, nft.Counter{}, nft.Verdict{Code: nft.Drop}},
			{nft.Counter{}, nft.Reject{}},
		}},
		{Name: "endpoints-3-masquerade", Rules: []nft.Rule{
			{nft.Update{Map: "recent", Key: serviceKey, Timeout: 5 * time.Minute}},
			{nft.Update{Map: "recent-ports", Key: nft.Fields{nft.Dport}, Timeout: time.Hour + time.Second}},
			{nft.SetMark{Mask: 1 << 14}},
			{nft.SetTimeout{Name: "udp-30s-10m"}},
			{nft.SetTimeout{Name: "tcp-72h"}, nft.Comment("give time-outs")},
			{nft.DNAT{Key: serviceKey, Mod: 3, Hash: nft.Fields{nft.Saddr}, Map: "endpoints"}},
			{nft.DNAT{Key: serviceKey, Mod: 3, Hash: nft.Fields{nft.Saddr, nft.Sport}, Map: "endpoints"}},
			{nft.DNAT{Key: serviceKey, Mod: 3, Map: "endpoints"}},
			{nft.DNAT{Key: serviceKey, Mod: 1, Map: "endpoints"}},
			{nft.Verdict{Code: nft.Drop}},
		}},
		{Name: "restricted", Rules: []nft.Rule{
			{nft.InSet{Key: sourceKey, Set: "source-ranges"}, nft.VMap{Key: serviceKey, Map: "services"}},
			{nft.InSet{Key: nft.Fields{nft.L4Proto, nft.Saddr}, Set: "sized-ranges"}, nft.Verdict{Code: nft.Drop}},
			{nft.InSet{Key: nft.Fields{nft.Saddr}, Set: "address-ranges"}, nft.VMap{Key: serviceKey, Map: "services"}},
		}},
		{Name: "endpoints-3-affinity-default/web/tcp/80", Rules: []nft.Rule{
			{nft.SetMark{Mask: 0x4000}},
			{nft.MatchAddr{Field: nft.Saddr, Not: true, Prefix: prefixes(f)[0]}, nft.SetLabel{Bit: 127}},
			{nft.SetLabel{Bit: 0}},
			{nft.Sample{Of: 2}, nft.SetLabel{Bit: 0}, nft.Log{Prefix: "1/2", Group: 1, Bytes: 64}},
			{nft.MatchProto{Protocol: 6}, nft.DNAT{Key: nft.Fields{nft.Saddr}, Map: "affinity-default/web/tcp/80"}},
			{goTo("endpoints-3-masquerade")},
		}},
		{Name: "endpoints-3-affinity", Rules: []nft.Rule{
			{nft.DNAT{Key: clientKey, Map: "affinity"}},
			{nft.DNAT{Key: clientNodeKey, Map: "node-affinity"}},
			{goTo("endpoints-3-masquerade")},
		}},
		{Name: "answer-pings", Rules: []nft.Rule{
			{nft.MatchEcho{}, nft.InSet{Key: nft.Fields{nft.Daddr}, Set: "addresses"}, nft.MatchLocal{Field: nft.Daddr,
				Not: true}, jump("empty")},
			{nft.Limit{PerSecond: 1000, Burst: 20}, nft.DNATTo{Addr: prefixes(f)[0].Addr().Next()}},
		}},
		{Name: "learn-clients", Rules: []nft.Rule{
			{nft.MatchDNATed{}, nft.InSet{Key: nft.Fields{nft.OrigDaddr}, Set: "addresses"}, jump("empty")},
			{nft.InSet{Key: nft.Fields{nft.OrigSaddr, nft.OrigDaddr}, Set: "hairpin"}, jump("empty")},
			{nft.Update{Map: "client-affinity", Key: nft.Fields{nft.OrigSaddr}, Data: nft.Fields{nft.Daddr},
				Timeout: 24 * time.Hour}},
			{nft.Update{Map: "client-affinity", Key: nft.Fields{nft.Saddr}, Data: nft.Fields{nft.Daddr}, Timeout: 26*time.Hour +
				3*time.Minute + 4*time.Second}},
		}},
		{Name: "node-endpoints-2", Rules: []nft.Rule{
			{nft.DNAT{Key: nodeKey, Mod: 2, Map: "node-endpoints"}},
			{nft.DNAT{Key: nodeKey, Mod: 2, Hash: nft.Fields{nft.Saddr}, Map: "node-endpoints"}},
			{nft.DNAT{Key: nodeKey, Mod: 2, Hash: nft.Fields{nft.Saddr, nft.Sport}, Map: "node-endpoints"}},
			{nft.DNAT{Key: nodeKey, Mod: 1, Map: "node-endpoints"}},
			{nft.Verdict{Code: nft.Drop}},
		}},
		{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100}, Rules: dispatch},
		{Name: "output", Hook: &nft.Hook{Name: nft.Output, Priority: -100}, Rules: dispatch},
		{Name: "input", Hook: &nft.Hook{Name: nft.Input, Priority: 99}, Rules: []nft.Rule{{nft.ClearMark{Mask: 1 << 14}}}},
		{Name: "postrouting", Hook: &nft.Hook{Name: nft.Postrouting, Priority: 100}, Rules: []nft.Rule{
			{nft.MatchDNATed{}, nft.InSet{Key: nft.Fields{nft.Saddr, nft.Daddr}, Set: "hairpin"}, nft.Masquerade{}},
			{nft.MatchMark{Mask: 1 << 14}, nft.ClearMark{Mask: 1 << 14}, nft.Masquerade{}},
			{nft.MatchMark{Mask: 1 << 31}, nft.ClearMark{Mask: 1 << 31}, nft.Masquerade{}},
			{nft.MatchLabel{Bit: 0}, nft.Masquerade{}},
			{nft.MatchLabel{Bit: 1}, nft.SNATTo{Addr: prefixes(f)[0].Addr().Next()}},
			{nft.MatchLabel{Bit: 110}, nft.Masquerade{}},
		}},
	}
}

// learning has chains whose rules have the original port in a concatenation. nft 1.0.6
// prints such rules but does not parse them. It would also abort when it parses an update
// whose data is an IPv6 address and a port. If rules is false, the chains have no rules.
func learning(rules bool) []*nft.Chain {
	const timeout = 3 * time.Hour
	dispatch := []nft.Rule{
		{nft.MatchDNATed{}, nft.VMap{Key: origServiceKey, Map: "affinity-services"}},
		{nft.MatchDNATed{}, nft.VMap{Key: origNodeKey, Map: "node-affinity-services"}},
	}
	all := []*nft.Chain{
		{Name: "learn-10800-default/web/tcp/80", Rules: []nft.Rule{
			{nft.InSet{Key: slices.Concat(origServiceKey, target), Set: "affinity-endpoints"},
				nft.Update{Map: "affinity-default/web/tcp/80", Key: nft.Fields{nft.OrigSaddr}, Data: target, Timeout: timeout}},
		}},
		{Name: "learn-10800", Rules: []nft.Rule{
			{nft.InSet{Key: slices.Concat(origServiceKey, target), Set: "affinity-endpoints"},
				nft.Update{Map: "affinity", Key: origClientKey, Data: target, Timeout: timeout}},
			{nft.InSet{Key: slices.Concat(origNodeKey, target), Set: "node-affinity-endpoints"}, nft.Update{Map: "node-affinity",
				Key: origClientNodeKey, Data: target, Timeout: timeout}},
		}},
		{Name: "learn-input", Hook: &nft.Hook{Name: nft.Input, Priority: 98}, Rules: dispatch},
		{Name: "learn-postrouting", Hook: &nft.Hook{Name: nft.Postrouting, Priority: 99}, Rules: dispatch},
	}
	for _, c := range all {
		if !rules {
			c.Rules = nil
		}
	}
	return all
}

// parts has elements for each set, with and without comments.
func parts(f nft.Family) map[string]*nft.Part {
	longest := strings.Repeat("x", nft.MaxComment)
	key := func(v nft.Value, set string) nft.Element { return nft.Element{Set: set, Key: v} }
	return map[string]*nft.Part{
		"default/web": nft.NewPart([]nft.Element{
			{Set: "services", Key: servicePrefix(f, 1, 6, 80), Verdict: goTo("endpoints-3-masquerade"),
				Comment: "default/web:http"},
			{Set: "services", Key: servicePrefix(f, 1, 132, 80), Verdict: goTo("refuse"), Comment: longest},
			{Set: "services", Key: servicePrefix(f, 2, 17, 53), Verdict: nft.Verdict{Code: nft.Drop}},
			{Set: "counted-services", Key: servicePrefix(f, 3, 6, 80), Verdict: goTo("refuse-and-count"), Comment: longest},
			{Set: "counted-services", Key: servicePrefix(f, 3, 6, 81), Verdict: goTo("refuse-and-count")},
			{Set: "counted-addresses", Key: addrValue(f, 3), Comment: "default/web"},
			{Set: "counted-addresses", Key: addrValue(f, 4)},
			{Set: "node-ports", Key: nodePrefix(6, 30080), Verdict: jump("node-endpoints-2"), Comment: "default/web:http"},
			{Set: "addresses", Key: addrValue(f, 1), Comment: "default/web"},
			{Set: "addresses", Key: addrValue(f, 2)},
			{Set: "affinity-services", Key: servicePrefix(f, 1, 6, 80), Verdict: goTo("learn-10800"),
				Comment: "default/web:http"},
			{Set: "node-affinity-services", Key: nodePrefix(6, 30080), Verdict: jump("learn-10800")},
			{Set: "affinity-endpoints", Key: servicePrefix(f, 1, 6, 80) + endpoint(f, 11, 8080), Comment: "default/web:http"},
			{Set: "node-affinity-endpoints", Key: nodePrefix(6, 30080) + endpoint(f, 11, 8080)},
		}, []nft.Pool{
			{Map: "endpoints", Prefix: servicePrefix(f, 1, 6, 80), Targets: nft.NewTargets(endpoint(f, 11, 8080),
				endpoint(f, 12, 8080), endpoint(f, 13, 8081))},
			{Map: "counted-endpoints", Prefix: servicePrefix(f, 3, 6, 80), Targets: nft.NewTargets(endpoint(f, 11, 8080),
				endpoint(f, 12, 8080), endpoint(f, 13, 8081))},
			{Map: "node-endpoints", Prefix: nodePrefix(6, 30080), Targets: nft.NewTargets(endpoint(f, 11, 8080),
				endpoint(f, 12, 8080))},
		}),
		"ranges": nft.NewPart(ranges(f), nil),
		"shapes": nft.NewPart([]nft.Element{
			{Set: "sized", Key: addrValue(f, 5)},
			key(addrValue(f, 5), "room"),
			{Set: "room-verdicts", Key: servicePrefix(f, 1, 6, 80), Verdict: goTo("refuse")},
			key(addrValue(f, 3)+addrValue(f, 3), "hairpin"),
			key(nft.Value(nft.AppendIndex(nil, 7)), "indexes"),
			key(nft.Value(nft.AppendProto(nil, 17)), "only-proto"),
			key(nodePrefix(17, 53), "ports"),
			{Set: "only-addr", Key: addrValue(f, 3), Data: addrValue(f, 4), Comment: "an address"},
			{Set: "only-port", Key: nft.Value(nft.AppendPort(nil, 80)), Data: nft.Value(nft.AppendPort(nil, 8080))},
			{Set: "port-verdicts", Key: nft.Value(nft.AppendPort(nil, 443)), Verdict: nft.Verdict{Code: nft.Accept}},
			{Set: "port-verdicts", Key: nft.Value(nft.AppendPort(nil, 444)), Verdict: nft.Verdict{Code: nft.Return},
				Comment: "return"},
		}, nil),
	}
}

// ranges has intervals of every form, also in more than one field: all addresses,
// prefixes, ranges that are no prefix, and single addresses.
func ranges(f nft.Family) []nft.Element {
	service := func(i int) []byte { return []byte(servicePrefix(f, i, 6, 80)) }
	var all []nft.Element
	add := func(set string, first, last []byte, comment string) {
		all = append(all, nft.Element{Set: set, Key: nft.Value(first), KeyEnd: nft.Value(last), Comment: comment})
	}
	for i, p := range prefixes(f) {
		add("source-ranges", nft.AppendAddr(service(i), p.Addr()), nft.AppendAddr(service(i), nft.LastAddr(p)), "a prefix")
		add("sized-ranges", nft.AppendAddr(nft.AppendProto(nil, uint8(i)), p.Addr()),
			nft.AppendAddr(nft.AppendProto(nil, uint8(i)), nft.LastAddr(p)), "")
	}
	add("source-ranges", nft.AppendAddr(service(100), addr(f, 3)), nft.AppendAddr(service(101), addr(f, 9)),
		strings.Repeat("x", nft.MaxComment))
	verdict := func(from, to uint16, first, last int, v nft.Verdict) {
		all = append(all, nft.Element{
			Set: "source-verdicts", Verdict: v,
			Key:    nft.Value(nft.AppendAddr(nft.AppendPort(nil, from), addr(f, first))),
			KeyEnd: nft.Value(nft.AppendAddr(nft.AppendPort(nil, to), addr(f, last))),
		})
	}
	verdict(80, 90, 0, 7, goTo("refuse"))
	verdict(91, 91, 0, 7, nft.Verdict{Code: nft.Drop})
	// Intervals of one field reach from the first address to the last, and some adjoin.
	everywhere := netip.PrefixFrom(addr(f, 0), 0)
	lowest, highest := everywhere.Masked().Addr(), nft.LastAddr(everywhere)
	for i, r := range [][2]netip.Addr{
		{lowest, lowest.Next()}, {addr(f, 16), addr(f, 31)}, {addr(f, 32), addr(f, 47)}, {addr(f, 48), addr(f, 48)},
		{addr(f, 49), addr(f, 51)},
		{addr(f, 255), addr(f, 256)}, {highest.Prev(), highest},
	} {
		add("address-ranges", r[0].AsSlice(), r[1].AsSlice(), strings.Repeat("i", i*20))
	}
	for _, r := range []struct {
		from, to uint16
		verdict  nft.Verdict
	}{{0, 79, nft.Verdict{Code: nft.Return}}, {80, 80, nft.Verdict{Code: nft.Drop}},
		{443, 511, nft.Verdict{Code: nft.Return}}, {65535, 65535, nft.Verdict{Code: nft.Accept}}} {
		// nft 1.0.6 does not find the chain of such an element's verdict.
		all = append(all, nft.Element{
			Set: "port-ranges", Verdict: r.verdict, Comment: fmt.Sprintf("%d", r.to),
			Key: nft.Value(nft.AppendPort(nil, r.from)), KeyEnd: nft.Value(nft.AppendPort(nil, r.to)),
		})
	}
	return all
}

func newTable(f nft.Family, sets []*nft.Set, chains []*nft.Chain, parts map[string]*nft.Part) *nft.Table {
	t := &nft.Table{Family: f, Name: tableName, Sets: nft.SetsByName(sets...), Timeouts: nft.TimeoutsByName(
		nft.Timeout{Name: "tcp-72h", Protocol: 6, Established: 72 * time.Hour},
		nft.Timeout{Name: "udp-30s-10m", Protocol: 17, Unreplied: 30 * time.Second, Replied: 10 * time.Minute},
	)}
	for _, c := range chains {
		t.Chains = t.Chains.Set(c.Name, c)
	}
	for name, p := range parts {
		t.Parts = t.Parts.Set(name, p)
	}
	return t
}

// everything is a program with every shape of set and every kind of statement.
func everything() *nft.Program {
	return &nft.Program{
		IPv4: newTable(nft.IPv4, sets(), append(chains(nft.IPv4), learning(true)...), parts(nft.IPv4)),
		IPv6: newTable(nft.IPv6, sets(), append(chains(nft.IPv6), learning(true)...), parts(nft.IPv6)),
	}
}

// parsable is everything that the nft command can parse.
func parsable(t *testing.T, cmd netfilter.NFT) *nft.Program {
	t.Helper()
	p := everything()
	if !parsesOriginalPorts(t, cmd) {
		for _, f := range nft.Families() {
			for _, c := range learning(false) {
				p.Table(f).Chains = p.Table(f).Chains.Set(c.Name, c)
			}
		}
	}
	return p
}

// services is a program of n services with as many endpoints each, in IPv4.
func services(n, endpoints int) *nft.Program {
	chain := &nft.Chain{Name: fmt.Sprintf("endpoints-%d", endpoints), Rules: []nft.Rule{
		{nft.DNAT{Key: serviceKey, Mod: uint32(endpoints), Map: "endpoints"}},
		{nft.DNAT{Key: serviceKey, Mod: 1, Map: "endpoints"}},
		{nft.Verdict{Code: nft.Drop}},
	}}
	pre := &nft.Chain{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100},
		Rules: []nft.Rule{{nft.VMap{Key: serviceKey, Map: "services"}}}}
	declared := []*nft.Set{
		{Name: "endpoints", Key: indexed(serviceKey), Data: target, MinSize: 1},
		{Name: "services", Key: serviceKey, Verdicts: true, MinSize: 1},
	}
	t4 := newTable(nft.IPv4, declared, []*nft.Chain{chain, pre}, nil)
	for i := range n {
		t4.Parts = t4.Parts.Set(fmt.Sprintf("ns/svc-%d", i), service(chain.Name, i, endpoints, 0))
	}
	return &nft.Program{IPv4: t4, IPv6: newTable(nft.IPv6, nil, nil, nil)}
}

// service is one service's part. Another shift gives it other endpoints.
func service(chain string, i, endpoints, shift int) *nft.Part {
	prefix := servicePrefix(nft.IPv4, i, 6, 80)
	var targets []nft.Value
	for j := range endpoints {
		targets = append(targets, endpoint(nft.IPv4, i, uint16(1000+j+shift)))
	}
	pool := nft.Pool{Map: "endpoints", Prefix: prefix, Targets: nft.NewTargets(targets...)}
	return nft.NewPart([]nft.Element{{Set: "services", Key: prefix, Verdict: goTo(chain),
		Comment: fmt.Sprintf("ns/svc-%d:http", i)}}, []nft.Pool{pool})
}

// withPart is the program with one part of its IPv4 table replaced.
func withPart(p *nft.Program, name string, part *nft.Part) *nft.Program {
	t := *p.IPv4
	t.Parts = setPart(t.Parts, name, part)
	return &nft.Program{IPv4: &t, IPv6: p.IPv6}
}

func setPart(parts treap.Map[string, *nft.Part], name string, part *nft.Part) treap.Map[string, *nft.Part] {
	if part == nil {
		return parts.Delete(name)
	}
	return parts.Set(name, part)
}

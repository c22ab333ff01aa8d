package ruleset_test

import (
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// TestSampleLots: no client can tell from which ports its connections are followed. Each time when the rules are made,
// others are; and while they stay, a port has the same lot.
func TestSampleLots(t *testing.T) {
	b := snapshots.NewBuilder(service.Node{Name: "node", Addresses: []netip.Addr{nodeAddress}})
	b.Set(&service.Service{Name: "ns/empty", ClusterIPs: []netip.Addr{netip.MustParseAddr("198.51.100.10")},
		Ports: []service.Port{{Protocol: service.UDP, Port: 80}}})
	p := ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable, Uncounted: true,
		Settings: service.Settings{Flows: 2}}, b.Snapshot())
	const refuse = "refuse"
	chain := *p.IPv4.Chains.At(refuse)
	sample, ok := chain.Rules[0][0].(nft.Sample)
	if !ok {
		t.Fatalf("the first rule is %s", chain.Rules[0].Text(nft.IPv4))
	}
	chain.Rules = append([]nft.Rule{{sample, nft.Counter{}}}, chain.Rules[1:]...)
	p.IPv4.Chains = p.IPv4.Chains.Set(refuse, &chain)
	s := newSender(t)
	const ports = 64
	lots := func() (all [ports]bool) {
		s.sent = 0
		before, err := s.c.ChainCount(p.IPv4.ID(), refuse)
		must(t, err)
		for i := range all {
			s.time(t, 1, func(int) netip.Addr { return netip.MustParseAddr("203.0.113.1") },
				netip.MustParseAddrPort("198.51.100.10:80"), dropped)
			now, err := s.c.ChainCount(p.IPv4.ID(), refuse)
			must(t, err)
			all[i], before = now > before, now
		}
		return all
	}
	batch, _ := nft.State{}.Plan(p, time.Time{})
	must(t, s.c.Apply(batch))
	first := lots()
	if first == ([ports]bool{}) {
		t.Error("no port is followed")
	}
	if again := lots(); again != first {
		t.Errorf("the same ports are followed as %v, and then as %v", first, again)
	}
	must(t, s.c.DeleteTables(p.IPv4.Name))
	must(t, s.c.Apply(batch))
	if other := lots(); other == first {
		t.Errorf("other rules follow the same ports: %v", other)
	}
}

package scenario

import (
	"maps"
	"net/netip"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// Beyond returns the text of those sets and chains of a program that the program of the
// fixture alone, without flags, does not have or has otherwise. So people see only what
// the scenario causes. For the fixture alone it returns the whole program.
func (s *Scenario) Beyond(p *nft.Program) string {
	if s.empty() {
		return p.String()
	}
	plain, err := (&Scenario{Name: "empty"}).Config()
	if err != nil {
		panic(err) // no flags cannot be wrong
	}
	base := ruleset.Compile(plain, fixtureSnapshot()).Model()
	m := p.Model()
	for _, f := range nft.Families() {
		have, known := m.Table(p.Table(f).ID()), base.Table(p.Table(f).ID())
		for name, set := range have.Sets {
			if b := known.Sets[name]; b != nil && maps.Equal(set.Elements, b.Elements) {
				delete(have.Sets, name)
			}
		}
		for name, chain := range have.Chains {
			if sameRules(chain, known.Chains[name], f) {
				delete(have.Chains, name)
			}
		}
	}
	return m.String()
}

// fixtureSnapshot is the snapshot of Fixture.
func fixtureSnapshot() service.Snapshot {
	b := snapshots.NewBuilder(service.Node{
		Name:      NodeName,
		Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("2001:db8::1")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.180.0.0/24"), netip.MustParsePrefix("fd00:10:180::/64")},
	})
	b.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00:172:30::/112")})
	return b.Snapshot()
}

// empty returns whether the scenario is the fixture alone, without flags.
func (s *Scenario) empty() bool {
	for _, o := range s.Steps[0].Objects {
		if o.Kind != "Node" && o.Kind != "ServiceCIDR" {
			return false
		}
	}
	return len(s.Flags) == 0
}

func sameRules(a, b *nft.Chain, f nft.Family) bool {
	if b == nil || len(a.Rules) != len(b.Rules) {
		return false
	}
	for i := range a.Rules {
		if a.Rules[i].Text(f) != b.Rules[i].Text(f) {
			return false
		}
	}
	return true
}

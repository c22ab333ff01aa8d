package ruleset_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/nft"
	"nftproxy/test/check"
)

// withOldRanges is the program as the previous version had it: all source ranges in one
// set, together with the address and port.
func withOldRanges(p *nft.Program) *nft.Program {
	old := &nft.Program{IPv4: p.IPv4.Clone(), IPv6: p.IPv6}
	t := old.IPv4
	key := nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport}
	sources := append(key[:3:3], nft.Saddr)
	for name := range p.IPv4.Chains.All() {
		if strings.HasPrefix(name, "source-ranges-") {
			t.Chains, t.Sets, t.Parts = t.Chains.Delete(name), t.Sets.Delete(name), t.Parts.Delete(name)
		}
	}
	t.Chains, t.Sets = t.Chains.Delete("services-restricted"), t.Sets.Delete("load-balancer-sources")
	t.Sets = t.Sets.Set("source-ranges", &nft.Set{Name: "source-ranges", Key: sources, Interval: true})
	t.Chains = t.Chains.Set("source-ranges", &nft.Chain{Name: "source-ranges", Rules: []nft.Rule{
		{nft.InSet{Key: sources, Set: "source-ranges"}, nft.VMap{Key: key, Map: "services-restricted"}},
		{nft.Verdict{Code: nft.Drop}},
	}})
	for name, part := range t.Parts.All() {
		var elements []nft.Element
		for _, e := range part.Elements {
			list := e.Verdict.Chain
			if strings.HasPrefix(list, "source-ranges-") {
				e.Verdict.Chain = "source-ranges"
				for _, r := range p.IPv4.Parts.At(list).Elements {
					elements = append(elements, nft.Element{Set: "source-ranges", Key: e.Key + r.Key, KeyEnd: e.Key + r.KeyEnd,
						Comment: e.Comment})
				}
			}
			elements = append(elements, e)
		}
		t.Parts = t.Parts.Set(name, nft.NewPart(elements, part.Pools))
	}
	return old
}

// The tables of the previous version become those of this version and are not replaced.
// In every state between, each packet has a right outcome.
func TestUpgradeOfSourceRanges(t *testing.T) {
	const ports, ranges = 2, 300
	s := newSender(t)
	p := openAndRestricted(ports, ranges)
	must(t, s.c.Apply(load(withOldRanges(p))))
	have, err := s.c.Read(p)
	must(t, err)
	b, state := nft.Adopt(have, p).Plan(p, time.Time{})
	for _, op := range b.Ops {
		if _, replaced := op.(nft.DeleteTable); replaced {
			t.Fatalf("the table is replaced: %s", op.Text())
		}
	}
	got := s.upgrade(t, p, b, state, func() error {
		_, admitted := s.send(20, inRanges(ranges), netip.AddrPortFrom(restrictedAddress, firstPort), translated)
		_, refused := s.send(20, inNone(ranges), netip.AddrPortFrom(restrictedAddress, firstPort+1), dropped)
		return errors.Join(admitted, refused)
	})
	if idle := check.Idle(p, got); len(idle) > 0 {
		t.Errorf("left over: %v", idle)
	}
}

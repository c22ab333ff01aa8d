package ruleset_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// TestInTheMiddle: a transaction comes between the two lookups of a packet. It
// has its chain from the old program and meets the endpoints of the new one:
// it must go to one of these or, where there is none, nowhere. It must never
// leave the node as it came. Where a service has or had policy Local, the list
// that its chain knows may be gone with others left: that packet is dropped,
// and its sender tries again.
func TestInTheMiddle(t *testing.T) {
	dnated, dropped := 0, 0
	seeds(t, 150, func(t *testing.T, rng *rand.Rand) {
		cfg, list := randomConfig(t, rng)
		node := randomNode(rng)
		before, after := randomServices(rng, &node), randomServices(rng, &node)
		old := ruleset.Compile(cfg, build(node, before)).Model()
		middle := inTheMiddle(cfg, old, ruleset.Compile(cfg, build(node, after)).Model())
		o := &oracle{&node, after, cfg, nil, list}
		for range 100 {
			p := randomPacket(rng, &node, before)
			if results := old.Outcomes(p, o.local); results[0].Fate != nft.DNATed {
				continue // It met no chain of endpoints.
			}
			now, local := o.endpoints(p)
			was := &oracle{&node, before, cfg, nil, list}
			_, wasLocal := was.endpoints(p)
			for _, r := range middle.Outcomes(p, o.local) {
				switch {
				case r.Fate == nft.DNATed && slices.Contains(now, r.To):
					dnated++
				case r.Fate == nft.Dropped && (len(now) == 0 || local || wasLocal):
					dropped++
				default:
					t.Fatalf("%s: %s, want one of %v, or a drop if there is none", p, r, now)
				}
			}
		}
	})
	if (dnated < 100 || dropped < 100) && !testing.Short() {
		t.Errorf("%d packets translated and %d dropped: the cases are too narrow", dnated, dropped)
	}
}

// inTheMiddle has the verdicts of the old tables and all else from the new.
// Chains that are no longer used are still there: they go much later.
func inTheMiddle(cfg ruleset.Config, old, fresh *nft.Model) *nft.Model {
	m := nft.NewModel()
	for _, f := range nft.Families() {
		id := nft.TableID{Family: f, Name: cfg.Table}
		c := fresh.Table(id)
		for name, chain := range old.Table(id).Chains {
			if c.Chains[name] == nil {
				c.Chains[name] = chain
			}
		}
		for _, name := range []string{"services", "services-cluster", "services-local", "node-ports", "node-ports-cluster", "node-ports-local"} {
			c.Sets[name] = old.Table(id).Sets[name]
		}
		m.Put(c)
	}
	return m
}

// endpoints are those that the packet's address and port, or its node port,
// has, and whether a policy Local has a say in it.
func (o *oracle) endpoints(p nft.Packet) (list []netip.AddrPort, local bool) {
	v6, protocol := p.Dst.Addr().Is6(), service.Protocol(p.Protocol)
	s, port := o.owner(p.Dst, protocol)
	if port == nil {
		s, port = o.nodePortOwner(p.Dst.Port(), protocol, v6)
	}
	if port == nil {
		return nil, false
	}
	return o.reachable(s, port, v6), s.InternalPolicy == service.Local || s.ExternalPolicy == service.Local
}

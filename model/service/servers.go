package service

import (
	"net/netip"
	"slices"
)

// Servers are TCP endpoints of a server that the node itself needs, such as the API
// servers. A value never changes.
type Servers []netip.AddrPort

// fronts are the protected claims that a service gets all the same if it leads to the
// Servers behind them.
type fronts struct {
	claims []Claim
	// leading has the claimants that lead there.
	leading contests
}

// leadsTo says whether the service sends all connections to the claim to the servers: it
// has an endpoint there that may get connections, and each such is one of them. These are
// the ready ones. Those that end but still serve count where none is ready, as in kube-proxy, and
// with externalTrafficPolicy Local always: there they get the node's share while other
// nodes have ready ones. The service's source ranges must admit the node.
func (b *Builder) leadsTo(s *Service, c Claim, servers *Servers) bool {
	if s == nil || c.Protocol != TCP || b.shutsOut(s, c) {
		return false
	}
	ready, ending := heading{}, heading{}
	for i := range s.Ports {
		p := &s.Ports[i]
		number := p.Port
		if c.Addr.IsUnspecified() {
			number = p.NodePort
		}
		if p.Protocol != TCP || number != c.Port {
			continue
		}
		for e := range p.Endpoints.All() {
			at := &ready
			switch {
			case e.Addr.Addr().Is6() != c.Addr.Is6():
				continue
			case e.Ready:
			case e.Serving && e.Terminating:
				at = &ending
			default:
				continue
			}
			at.some = true
			at.elsewhere = at.elsewhere || !slices.Contains(*servers, e.Addr)
			if ready.elsewhere {
				return false
			}
		}
	}
	if ready.some && s.ExternalPolicy == Cluster {
		return true
	}
	return (ready.some || ending.some) && !ending.elsewhere
}

// heading says of endpoints in one state whether there are some, and whether one of them is
// none of the servers.
type heading struct{ some, elsewhere bool }

// shutsOut says whether the service's source ranges keep the node from the claim.
func (b *Builder) shutsOut(s *Service, c Claim) bool {
	wall, _, restricted := s.FirewallAt(c, nil)
	return restricted && !slices.ContainsFunc(b.snapshot.Node.Addresses, func(a netip.Addr) bool {
		return a.Is6() == c.Addr.Is6() && wall.Sources.Contains(a)
	})
}

// setFronts replaces the fronts by those of the protected claims.
func (b *Builder) setFronts() {
	b.fronts = fronts{leading: newContests()}
	for c, guard := range b.protected {
		if guard.Servers == nil {
			continue
		}
		b.fronts.claims = append(b.fronts.claims, c)
		b.contests.claimants(c, func(name Name) {
			if r, _ := b.contests.find(c, name); b.leadsTo(b.Service(name), c, guard.Servers) {
				b.fronts.leading.add(c, r)
			}
		})
	}
}

// noteFronts takes note of a service that has changed, with its claims or its endpoints.
func (b *Builder) noteFronts(name Name) {
	for _, c := range b.fronts.claims {
		r, claims := b.contests.find(c, name)
		leads := claims && b.leadsTo(b.Service(name), c, b.protected[c].Servers)
		last, led := b.fronts.leading.find(c, name)
		if leads == led && (!led || last == r) {
			continue
		}
		before := b.winner(c)
		if led {
			b.fronts.leading.remove(c, last)
		}
		if leads {
			b.fronts.leading.add(c, r)
		}
		b.pending = append(b.pending, pendingClaim{name, c})
		b.noteNumber(c, before, b.winner(c))
		b.decideAgain(c, before, b.winner(c))
	}
}

// winner returns the best right to a claim of those that may have it; where none may, the
// best of all. It is empty if nobody makes the claim.
func (b *Builder) winner(c Claim) right {
	best := b.contests.winners(c).owner
	if best == "" || best.rank() == asClusterIP || b.protected[c].Servers == nil {
		return best
	}
	if leading := b.fronts.leading.winners(c).owner; leading != "" {
		return leading
	}
	return best
}

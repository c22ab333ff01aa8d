package conntrack

import (
	"iter"
	"net/netip"
	"slices"

	"nftproxy/internal/service"
	"nftproxy/internal/treap"
)

// update is an Index on its way from the old snapshot to the one that it
// has.
type update struct {
	*Index
	old   service.Snapshot
	scope Scope
	// last is the latest comparison of two ports: a port has several claims.
	last portChange
}

// setNode follows the node's addresses.
func (u *update) setNode() {
	old, node := u.old.Node, u.snapshot.Node
	if old == node {
		return
	}
	before, served := u.local, u.serving
	u.local, u.serving = u.options.on(node)
	if old == nil || node == nil || old.Name != node.Name ||
		!slices.Equal(old.Addresses, node.Addresses) || !slices.Equal(old.PodCIDRs, node.PodCIDRs) {
		u.scope.all()
		return
	}
	for a := range before {
		// The link-local address of a pod's interface comes and goes with it.
		// It is no service's, and whoever sent from it sends no more.
		if !u.local[a] && !a.IsLinkLocalUnicast() {
			u.scope.all()
		}
	}
	for a := range u.serving {
		if !served[a] {
			u.scope.add(Filter{Dst: a})
		}
	}
}

// on returns the addresses on the node's interfaces, and those that serve node
// ports.
func (o *Options) on(node *service.Node) (local, serving map[netip.Addr]bool) {
	local, serving = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	if node == nil {
		return local, serving
	}
	for _, a := range node.HostAddresses {
		local[a.WithZone("")] = true
	}
	for _, v6 := range []bool{false, true} {
		addrs, all := o.NodePortAddresses.On(node, v6)
		if all {
			addrs = slices.DeleteFunc(slices.Clone(node.HostAddresses), func(a netip.Addr) bool {
				return a.Is6() != v6 || a.IsLoopback()
			})
		}
		for _, a := range addrs {
			serving[a.WithZone("")] = true
		}
	}
	return local, serving
}

// claims yields what the service asks for, with the port that is for it.
func claims(s *service.Service) iter.Seq2[service.Claim, *service.Port] {
	return func(yield func(service.Claim, *service.Port) bool) {
		if s == nil {
			return
		}
		for _, a := range s.ClusterIPs {
			if !yield(service.Claim{Addr: a}, nil) {
				return
			}
		}
		addrs := s.Addresses()
		for i := range s.Ports {
			p := &s.Ports[i]
			for _, a := range addrs {
				if !yield(service.Claim{Addr: a, Protocol: p.Protocol, Port: p.Port}, p) {
					return
				}
			}
			for _, v6 := range []bool{false, true} {
				if p.NodePort != 0 && s.InFamily(v6) && !yield(service.NodePortClaim(v6, p), p) {
					return
				}
			}
		}
	}
}

// replace puts a service in the place of another of its name; nil is none.
func (u *update) replace(old, s *service.Service) {
	by := func(c claimant) bool { return old != nil && c.service == old }
	for c, p := range claims(s) {
		list := u.claims[c]
		i := slices.IndexFunc(list, by)
		if i < 0 {
			u.claims[c] = append(list, claimant{s, p})
			u.gained(c)
			continue
		}
		before := list[i]
		list[i] = claimant{s, p}
		if p != nil {
			u.kept(c, before, list[i])
		}
	}
	for c, p := range claims(old) {
		list := u.claims[c]
		i := slices.IndexFunc(list, by)
		if i < 0 {
			continue // it is s's now
		}
		if list = slices.Delete(list, i, i+1); len(list) > 0 {
			u.claims[c] = list
		} else {
			delete(u.claims, c)
		}
		u.lost(c, p)
	}
}

// gained: what goes there and was never DNATed, or to another's endpoint.
func (u *update) gained(c service.Claim) { u.scope.claim(c, Filter{}) }

// lost: what was sent there leads to nobody's endpoint, or another's.
func (u *update) lost(c service.Claim, p *service.Port) {
	if p == nil {
		u.scope.claim(c, Filter{})
		return
	}
	u.departed.add(c, p.Endpoints)
	u.scope.claim(c, u.affected(c, p.Endpoints))
}

// kept: the claim is still the service's, which may have changed.
func (u *update) kept(c service.Claim, old, new claimant) {
	if u.last.old != old.port || u.last.new != new.port {
		u.last = comparePorts(old.port, new.port)
	}
	change := &u.last
	u.departed.add(c, change.gone)
	switch {
	case narrowed(old.service, new.service) || change.first || change.moved:
		u.scope.claim(c, Filter{})
	case len(change.gone) > 0 || change.unserved && c.Protocol == service.UDP:
		u.scope.claim(c, u.affected(c, change.gone))
	}
}

// affected selects by their status the flows that the loss of endpoints can make
// stale. A busy service has many connections, of which only few are unanswered.
func (u *update) affected(c service.Claim, gone []service.Endpoint) Filter {
	identity := slices.ContainsFunc(gone, func(e service.Endpoint) bool {
		return e.Addr.Port() == c.Port && (e.Addr.Addr() == c.Addr || c.Addr.IsUnspecified())
	})
	if c.Protocol == service.UDP || identity || slices.Contains(u.options.Established, c.Protocol) {
		return Filter{}
	}
	return Filter{Mask: SeenReply}
}

// narrowed says whether connections may be forbidden now that were not.
func narrowed(old, new *service.Service) bool {
	return old.InternalPolicy != new.InternalPolicy || old.ExternalPolicy != new.ExternalPolicy ||
		!old.Sources.Equal(new.Sources) ||
		!slices.Equal(old.LoadBalancerIPs, new.LoadBalancerIPs) || !slices.Equal(old.ClusterIPs, new.ClusterIPs)
}

// portChange is what became of a port's endpoints.
type portChange struct {
	old, new *service.Port
	// gone are the endpoints that are no longer there, sorted.
	gone []service.Endpoint
	// first says that there was no endpoint before, unserved that one no
	// longer serves, moved that one is on another node.
	first, unserved, moved bool
}

// comparePorts goes through both lists, which are sorted, side by side.
func comparePorts(old, new *service.Port) portChange {
	c := portChange{old: old, new: new, first: len(old.Endpoints) == 0 && len(new.Endpoints) > 0}
	left := new.Endpoints
	if len(left) > 0 && len(left) == len(old.Endpoints) && &left[0] == &old.Endpoints[0] {
		return c // shared
	}
	for _, e := range old.Endpoints {
		for len(left) > 0 && left[0].Addr.Compare(e.Addr) < 0 {
			left = left[1:]
		}
		if len(left) == 0 || left[0].Addr != e.Addr {
			c.gone = append(c.gone, e)
			continue
		}
		c.unserved = c.unserved || (e.Ready || e.Serving) && !left[0].Ready && !left[0].Serving
		c.moved = c.moved || e.Node != left[0].Node
	}
	return c
}

// conflicts follows who has what several ask for, where the claims stay and only
// the ages change. Who keeps others from an address has a claim on it, too.
func (u *update) conflicts() {
	for change := range treap.Diff(u.old.Conflicts, u.snapshot.Conflicts) {
		for _, pair := range [][2]*service.Conflicts{{change.Old, change.New}, {change.New, change.Old}} {
			if pair[0] == nil {
				continue
			}
			for _, lost := range pair[0].Lost {
				if lost.Claim.Protocol != 0 && !pair[1].Has(lost.Claim) {
					u.scope.claim(lost.Claim, Filter{})
				}
			}
		}
	}
}

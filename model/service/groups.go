package service

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// claims knows which services ask for something at each address and for each number of the node. All claims of such a
// group are decided together, from nothing, whenever something has changed that may matter to one of them.
type claims struct {
	// services has all services as they were set.
	services map[Name]*claimant
	groups   map[packedClaim]*group
	touched  []*group
	// hosts has, for each address that is somebody's external IP, the services with an endpoint there, and maybe some
	// that had one.
	hosts     map[netip.Addr]map[Name]struct{}
	protected Protected
	// fronts are the protected claims with Servers: who gets them depends on endpoints.
	fronts   []Claim
	reserved Reserved
}

// group is what is decided together: all claims of an address, or those on a number of the node.
type group struct {
	at Claim
	// rights are, once settled, sorted by name, and each service has one.
	rights  []right
	one     [1]right // mostly the only one
	touched bool
	// last is what was decided, nil if all have what they ask for.
	last *decision
}

func newClaims() claims {
	return claims{services: map[Name]*claimant{}, groups: map[packedClaim]*group{},
		hosts: map[netip.Addr]map[Name]struct{}{}}
}

// expect makes room for n more services. Most claim something at one address.
func (c *claims) expect(n int) {
	c.services, c.groups = roomFor(n, c.services), roomFor(n, c.groups)
}

// service returns a service as it was set, or nil.
func (c *claims) service(name Name) *Service {
	if by := c.services[name]; by != nil {
		return by.service
	}
	return nil
}

// touch has a group decided again.
func (c *claims) touch(g *group) {
	if g != nil && !g.touched {
		g.touched = true
		c.touched = append(c.touched, g)
	}
}

func (c *claims) touchAt(claim Claim) { c.touch(c.groups[claim.group().packed()]) }

// touchAll touches all groups of a service.
func (c *claims) touchAll(by *claimant) {
	by.asks.groups(func(at Claim, _ right) { c.touchAt(at) })
}

// touchFronts touches the protected claims that depend on endpoints and on the node's addresses.
func (c *claims) touchFronts() {
	for _, front := range c.fronts {
		c.touchAt(front)
	}
}

// replace replaces the version old of a service by next, which may make the same claims. Either may be nil.
func (c *claims) replace(old, next *Service, same bool, limit int) {
	name := cmp.Or(next, old).Name
	if len(c.hosts) > 0 {
		c.moveEndpoints(old, next)
	}
	for _, front := range c.fronts {
		if old.asksAt(front) || next.asksAt(front) {
			c.touchAt(front)
		}
	}
	by := c.services[name]
	if same {
		by.service, by.asks = next, next.claimable(limit)
		return
	}
	before := by
	if before != nil {
		c.touchAll(before)
		before.service = nil
		delete(c.services, name)
	}
	if next == nil {
		return
	}
	by = next.claimant(before, limit)
	c.services[name] = by
	by.asks.groups(func(at Claim, r right) {
		r.by = by
		g := c.groups[at.packed()]
		if g == nil {
			g = &group{at: at}
			g.rights = g.one[:0]
			c.groups[at.packed()] = g
		}
		g.rights = append(g.rights, r)
		c.touch(g)
	})
}

// asksAt says whether a service may ask for a claim to a port. The service may be nil.
func (s *Service) asksAt(c Claim) bool {
	if s == nil {
		return false
	}
	if c.Addr.IsUnspecified() {
		return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort == c.Port })
	}
	return slices.Contains(s.ClusterIPs, c.Addr) || slices.Contains(s.LoadBalancerIPs, c.Addr) ||
		slices.Contains(s.ExternalIPs, c.Addr)
}

// moveEndpoints touches the external IPs at which a service has got or lost an endpoint. Either version may be nil.
func (c *claims) moveEndpoints(old, next *Service) {
	moved := func(was, is Endpoints) {
		for d := range sorted.Diff(was, is) {
			e := cmp.Or(d.New, d.Old)
			names, external := c.hosts[e.Addr.Addr()]
			if !external || d.Old != nil && d.New != nil {
				continue // in another state it is a resident all the same
			}
			if d.New != nil {
				names[next.Name] = struct{}{}
			}
			c.touchAt(Claim{Addr: e.Addr.Addr()})
		}
	}
	sameAge := old != nil && next != nil && old.Created.Equal(next.Created) &&
		old.whollyRetained() == next.whollyRetained()
	for i := range max(len(old.portList()), len(next.portList())) {
		was, is := old.portAt(i), next.portAt(i)
		if sameAge && was.Protocol == is.Protocol {
			moved(was.Endpoints, is.Endpoints)
			continue
		}
		moved(was.Endpoints, Endpoints{})
		moved(Endpoints{}, is.Endpoints)
	}
}

// portList has the ports; a nil service has none.
func (s *Service) portList() []Port {
	if s == nil {
		return nil
	}
	return s.Ports
}

// portAt returns the port with that index; the zero value for none.
func (s *Service) portAt(i int) (p Port) {
	if ports := s.portList(); i < len(ports) {
		p = ports[i]
	}
	return p
}

// settle makes the touched groups ready to be decided, and returns them.
func (c *claims) settle() []*group {
	fresh := false
	for i := 0; i < len(c.touched); i++ { // it grows
		g := c.touched[i]
		g.settle()
		if g.at.Protocol != 0 {
			for _, a := range c.reserved.NodePortAddresses {
				if a.Is6() == g.at.Addr.Is6() {
					c.touchAt(Claim{Addr: a})
				}
			}
			continue
		}
		_, known := c.hosts[g.at.Addr]
		external := slices.ContainsFunc(g.rights, func(r right) bool { return r.rank == asExternalIP })
		switch {
		case !external:
			delete(c.hosts, g.at.Addr)
		case !known:
			c.hosts[g.at.Addr], fresh = map[Name]struct{}{}, true
		}
	}
	if fresh {
		c.findHosts()
	}
	touched := c.touched
	c.touched = nil
	for _, g := range touched {
		g.touched = false
		if len(g.rights) == 0 {
			delete(c.groups, g.at.packed())
		}
	}
	return touched
}

// findHosts finds the endpoints at external IPs. It goes through all endpoints, when a new external IP comes: an index
// of them would cost each change of endpoints.
func (c *claims) findHosts() {
	for name, by := range c.services {
		for i := range by.service.Ports {
			for e := range by.service.Ports[i].Endpoints.All() {
				if names, external := c.hosts[e.Addr.Addr()]; external {
					names[name] = struct{}{}
				}
			}
		}
	}
}

// claim is the claim to a protocol and port of the group.
func (g *group) claim(at socket) Claim { return Claim{g.at.Addr, at.protocol, at.port} }

// settle drops the rights of claimants that are gone, and keeps the best one of each service.
func (g *group) settle() {
	g.rights = slices.DeleteFunc(g.rights, func(r right) bool { return r.by.service == nil })
	if len(g.rights) < 2 {
		return
	}
	slices.SortFunc(g.rights, func(a, b right) int {
		return cmp.Or(cmp.Compare(a.name(), b.name()), cmp.Compare(a.rank, b.rank))
	})
	// A cluster IP may be a load balancer's address, too, which source ranges restrict.
	for i := len(g.rights) - 1; i > 0; i-- {
		g.rights[i-1].restricts = g.rights[i-1].restricts || g.rights[i].restricts && g.rights[i-1].by == g.rights[i].by
	}
	g.rights = slices.CompactFunc(g.rights, func(a, b right) bool { return a.by == b.by })
}

// rules returns what decisions depend on now.
func (b *Builder) rules() *rules {
	c := &b.claims
	admitted := map[*Service]bool{} // a service asks for each of its claims, and each time it costs all its addresses
	return &rules{
		protected: c.protected, reserved: c.reserved, node: b.snapshot.Node.Addresses,
		ranges: b.rangeLists.admits,
		sources: func(s *Service) bool {
			is, known := admitted[s]
			if !known {
				is = b.sourceLists.admits(s)
				admitted[s] = is
			}
			return is
		},
		number: func(at Claim) []right {
			if g := c.groups[at.packed()]; g != nil {
				return g.rights
			}
			return nil
		},
		hosts: func(a netip.Addr) (list []*Service) {
			for name := range c.hosts[a] {
				if s := c.service(name); s != nil {
					list = append(list, s)
				}
			}
			return list
		},
	}
}

// decideClaims decides the touched groups, and puts what has changed into the snapshot.
func (b *Builder) decideClaims() {
	if len(b.claims.touched) == 0 {
		return
	}
	rules := b.rules()
	owners, changes := map[claimKey]Name{}, []change(nil)
	for _, g := range b.claims.settle() {
		last, next := g.last, rules.decide(g.at, g.rights)
		if g.last = next; last == next {
			continue // both are nil
		}
		for was, is := range differences(last.owned(), next.owned(), owned.compare) {
			if is == nil {
				is = &owned{at: was.at}
			}
			owners[g.claim(is.at).key()] = is.owner
		}
		for was, is := range differences(last.ruled(), next.ruled(), ruling.compare) {
			one := cmp.Or(is, was)
			changes = append(changes, change{one.name, g.claim(one.at).key(), is})
		}
	}
	b.snapshot.Owners.names = b.snapshot.Owners.names.Apply(treap.Edits(owners))
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.claim, b.claim))
	})
	conflicts, restrictions := map[Name]*Conflicts{}, map[Name]*Restrictions{}
	for len(changes) > 0 {
		name, n := changes[0].name, 1
		for n < len(changes) && changes[n].name == name {
			n++
		}
		refusals, walls := editsOf(changes[:n])
		changes = changes[n:]
		before, walled := b.snapshot.Conflicts.At(name).all(), b.snapshot.Restrictions.At(name).all()
		if after := before.Apply(refusals); after != before {
			conflicts[name] = nil
			if after.Len() > 0 {
				conflicts[name] = &Conflicts{after}
			}
		}
		if after := walled.Apply(walls); after != walled {
			restrictions[name] = nil
			if after.Len() > 0 {
				restrictions[name] = &Restrictions{after}
			}
		}
	}
	b.snapshot.Conflicts = b.snapshot.Conflicts.Apply(treap.Edits(conflicts))
	b.snapshot.Restrictions = b.snapshot.Restrictions.Apply(treap.Edits(restrictions))
}

// change is a claim of a service with another ruling than before; nil for none.
type change struct {
	name  Name
	claim claimKey
	is    *ruling
}

// editsOf turns changes for one service into those of its Conflicts and its Restrictions.
func editsOf(changes []change) (refusals []treap.Edit[claimKey, Protection],
	walls []treap.Edit[claimKey, *Restriction]) {
	for _, c := range changes {
		refusal := treap.Edit[claimKey, Protection]{Key: c.claim, Gone: true}
		wall := treap.Edit[claimKey, *Restriction]{Key: c.claim, Gone: true}
		switch {
		case c.is == nil:
		case c.is.behind != nil:
			wall.Value, wall.Gone = c.is.restriction(c.claim.claim()), false
		default:
			refusal.Value, refusal.Gone = c.is.refused, false
		}
		refusals, walls = append(refusals, refusal), append(walls, wall)
	}
	return refusals, walls
}

// differences yields what differs between two sorted lists: an element of the old one, of the next one, or of both.
func differences[T comparable](old, next []T, compare func(a, b T) int) iter.Seq2[*T, *T] {
	return func(yield func(*T, *T) bool) {
		for len(old) > 0 || len(next) > 0 {
			var was, is *T
			order := 0
			switch {
			case len(old) == 0:
				order = 1
			case len(next) == 0:
				order = -1
			default:
				order = compare(old[0], next[0])
			}
			if order <= 0 {
				was, old = &old[0], old[1:]
			}
			if order >= 0 {
				is, next = &next[0], next[1:]
			}
			if (was == nil || is == nil || *was != *is) && !yield(was, is) {
				return
			}
		}
	}
}

// SetProtected replaces the claims that are kept from services. It costs the size of the
// old and the new map. The caller must not change the map afterwards.
func (b *Builder) SetProtected(p Protected) {
	c := &b.claims
	for _, m := range [2]Protected{c.protected, p} {
		for claim := range m {
			if was, is := c.protected[claim], p[claim]; was != is {
				c.touchAt(claim)
			}
		}
	}
	c.protected, c.fronts = p, nil
	for claim, guard := range p {
		if guard.Servers != nil {
			c.fronts = append(c.fronts, claim)
		}
	}
}

// SetReserved replaces the addresses that are kept from services. If it differs from what was set
// before, the claims on all external addresses are decided again. The caller must not change it afterwards.
func (b *Builder) SetReserved(r Reserved) {
	c := &b.claims
	if c.reserved.equal(&r) {
		return
	}
	c.reserved = r
	for _, g := range c.groups {
		if g.at.Protocol == 0 && slices.ContainsFunc(g.rights, func(r right) bool { return r.rank != asClusterIP }) {
			c.touch(g)
		}
	}
}

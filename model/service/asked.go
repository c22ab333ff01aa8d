package service

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"nftproxy/model/sorted"
)

// claims knows what services claim at each address. Whatever something changed for is decided again, from what is
// claimed then: protocols and ports of an address (socket), for all that claim them or for those that had and get them.
type claims struct {
	// services has all services as they were set.
	services map[Name]*claimant
	// asked has the claims at each address, and at the unspecified ones those to numbers of the node.
	asked   map[packedClaim]claimList
	touched map[packedClaim]*touched
	// lost has the claims at the node's addresses where an external address took a number of the node, and the services
	// that had it.
	lost map[claimKey]Name
	// hosts has, for each address that is somebody's external IP, the services with an endpoint there, and maybe some
	// that had one.
	hosts     map[netip.Addr]map[Name]struct{}
	protected Protected
	// fronts are the protected claims with Servers: who gets them depends on endpoints.
	fronts   []Claim
	reserved Reserved
}

// touched is what has to be decided again at one address.
type touched struct {
	addr netip.Addr
	// before has the claims that were decided last, and edits what has changed since.
	before claimList
	edits  []sorted.Edit[claimed]
	// sockets says what is decided again although it may be claimed as before: for all that claim it (true), or for the
	// best claim only. Only that one depends on other claims at the address.
	sockets map[socket]bool
}

func newClaims() claims {
	return claims{services: map[Name]*claimant{}, asked: map[packedClaim]claimList{},
		touched: map[packedClaim]*touched{}, lost: map[claimKey]Name{}, hosts: map[netip.Addr]map[Name]struct{}{}}
}

// expect makes room for n more services. Most claim something at one address.
func (c *claims) expect(n int) {
	c.services, c.asked = roomFor(n, c.services), roomFor(n, c.asked)
}

// service returns a service as it was set, or nil.
func (c *claims) service(name Name) *Service {
	if by := c.services[name]; by != nil {
		return by.service
	}
	return nil
}

// at returns the claims at an address, of those that are settled.
func (c *claims) at(a netip.Addr) claimList { return c.asked[Claim{Addr: a}.packed()] }

// touch has something decided again at an address.
func (c *claims) touch(a netip.Addr) *touched {
	key := Claim{Addr: a}.packed()
	t := c.touched[key]
	if t == nil {
		t = &touched{addr: a, before: c.asked[key], sockets: map[socket]bool{}}
		c.touched[key] = t
	}
	return t
}

// touchSocket has a protocol and port decided again, for all that claim it or for the best claim only.
func (c *claims) touchSocket(a netip.Addr, at socket, all bool) {
	if !uncontested(c.at(a)) { // what comes is decided anyway
		c.touch(a).add(at, all)
	}
}

func (t *touched) add(at socket, all bool) { t.sockets[at] = t.sockets[at] || all }

// touchAll touches all that a service claims. Others depend on its ranges if it has the best right to some.
func (c *claims) touchAll(by *claimant) {
	by.asks.claims(func(a netip.Addr, _ right, sockets []socket) {
		list := c.at(a)
		for _, at := range sockets {
			best := bestTo(list, at)
			c.touchSocket(a, at, at.isRange() && best.by != nil && best.name() == by.service.Name)
		}
	})
}

// touchFronts touches the protected claims that depend on endpoints and on the node's addresses.
func (c *claims) touchFronts() {
	for _, front := range c.fronts {
		c.touchSocket(front.Addr, front.socket(), true)
	}
}

// touchResident touches the external claims that depend on whether an address is that of an endpoint. The port of an
// endpoint of ranges is 0: it may get connections to any.
func (c *claims) touchResident(a netip.Addr, at socket) {
	c.touchSocket(a, at, false)
	for _, p := range protocols() {
		c.touchSocket(a, socket{p, 0}, true)
	}
	if at.port == 0 {
		c.touch(a).addAll(c.at(a), at.protocol)
	}
}

// addAll adds all ports of a protocol that are claimed.
func (t *touched) addAll(list claimList, p Protocol) {
	for one := range list.From(claimed{at: socket{p, 1}}) {
		if one.at.protocol != p {
			return
		}
		t.add(one.at, false)
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
			c.touchSocket(front.Addr, front.socket(), true)
		}
	}
	by := c.services[name]
	if same {
		by.service, by.asks = next, next.claimable(limit)
		return
	}
	if by != nil {
		c.ask(by, true)
		delete(c.services, name)
	}
	if next != nil {
		by = next.claimant(by, limit)
		c.services[name] = by
		c.ask(by, false)
	}
}

// ask adds the claims of a service, or removes them.
func (c *claims) ask(by *claimant, gone bool) {
	var edits []sorted.Edit[claimed]
	by.asks.claims(func(a netip.Addr, r right, sockets []socket) {
		r.by, edits = by, edits[:0]
		for _, at := range sockets {
			edits = append(edits, sorted.Edit[claimed]{Item: claimed{at, r}, Gone: gone})
		}
		key := Claim{Addr: a}.packed()
		if list := c.asked[key]; c.touched[key] == nil && uncontested(list) {
			if next := list.Edit(edits); uncontested(next) { // nearly always: there is nothing to decide
				c.set(key, next)
				return
			}
		}
		t := c.touch(a)
		t.edits = append(t.edits, edits...)
	})
}

// set sets the claims at an address.
func (c *claims) set(key packedClaim, list claimList) {
	if list.Len() == 0 {
		delete(c.asked, key)
		return
	}
	c.asked[key] = list
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
	moved := func(p Protocol, was, is Endpoints) {
		for d := range sorted.Diff(was, is) {
			e := cmp.Or(d.New, d.Old)
			names, external := c.hosts[e.Addr.Addr()]
			if !external || d.Old != nil && d.New != nil {
				continue // in another state it is a resident all the same
			}
			if d.New != nil {
				names[next.Name] = struct{}{}
			}
			c.touchResident(e.Addr.Addr(), socket{p, e.Addr.Port()})
		}
	}
	sameAge := old != nil && next != nil && old.Created.Equal(next.Created) &&
		old.whollyRetained() == next.whollyRetained()
	for i := range max(len(old.portList()), len(next.portList())) {
		was, is := old.portAt(i), next.portAt(i)
		if sameAge && was.Protocol == is.Protocol {
			moved(was.Protocol, was.Endpoints, is.Endpoints)
			continue
		}
		moved(was.Protocol, was.Endpoints, Endpoints{})
		moved(is.Protocol, Endpoints{}, is.Endpoints)
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

// settle brings the claims up to date at all touched addresses.
func (c *claims) settle() {
	fresh := false
	for key, t := range c.touched {
		t.sortEdits()
		list := t.before.Edit(t.edits)
		c.set(key, list)
		_, known := c.hosts[t.addr]
		switch {
		case len(t.edits) == 0, t.addr.IsUnspecified():
		case known:
			if !hasExternal(list.All()) {
				delete(c.hosts, t.addr)
			}
		case hasExternal(t.added()):
			c.hosts[t.addr], fresh = map[Name]struct{}{}, true
		}
	}
	if fresh {
		c.findHosts()
	}
}

// sortEdits sorts the edits, and keeps the last one of each claim.
func (t *touched) sortEdits() {
	slices.SortStableFunc(t.edits, func(a, b sorted.Edit[claimed]) int { return a.Item.Compare(b.Item) })
	last := t.edits[:0]
	for i, e := range t.edits {
		if i+1 == len(t.edits) || t.edits[i+1].Item.Compare(e.Item) != 0 {
			last = append(last, e)
		}
	}
	t.edits = last
}

// added yields the claims that have come.
func (t *touched) added() iter.Seq[claimed] {
	return func(yield func(claimed) bool) {
		for _, e := range t.edits {
			if !e.Gone && !yield(e.Item) {
				return
			}
		}
	}
}

func hasExternal(list iter.Seq[claimed]) bool {
	for one := range list {
		if one.rank == asExternalIP {
			return true
		}
	}
	return false
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

// SetProtected replaces the claims that are kept from services. It costs the size of the
// old and the new map. The caller must not change the map afterwards.
func (b *Builder) SetProtected(p Protected) {
	c := &b.claims
	for _, m := range [2]Protected{c.protected, p} {
		for claim := range m {
			if was, is := c.protected[claim], p[claim]; was != is {
				c.touchSocket(claim.Addr, claim.socket(), true)
				c.touchSocket(claim.Addr, claim.Range().socket(), true)
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
	for key, list := range c.asked {
		if a := key.claim().Addr; !a.IsUnspecified() && !uncontested(list) {
			t := c.touch(a)
			for one := range list.All() {
				t.add(one.at, true)
			}
		}
	}
}

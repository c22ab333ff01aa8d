// Package claims decides which of the services that claim an address and port gets it, and whose source ranges restrict
// it. A decision depends on what is claimed at the address then, on whose endpoint has it, on what the node needs
// itself (Protected, Reserved) and on what is within the bounds, but on no earlier decision. An address of the node is
// decided with the node ports, which have their numbers there, too.
//
// It knows services as values (model/service), and neither bounds nor endpoints' shares. It does no I/O.
package claims

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/model/sorted"
)

// Book knows what services claim at each address. Whatever something changed for is decided again, from what is
// claimed then: protocols and ports of an address (socket), for all that claim them or for those that had and get them.
type Book struct {
	// services has all services as they were set.
	services map[service.Name]*claimant
	// asked has the claims at each address, and at the unspecified ones those to numbers of the node.
	asked   map[netip.Addr]claimList
	touched map[netip.Addr]*touched
	// residents has, for each address that is somebody's external IP, the services with an endpoint there, and maybe some
	// that had one.
	residents map[netip.Addr]map[service.Name]struct{}
	protected Protected
	// withServers are protected claims: who gets them depends on endpoints.
	withServers []service.Claim
	reserved    Reserved
}

// touched is what has to be decided again at one address.
type touched struct {
	// before has the claims that were decided last, and edits what has changed since.
	before claimList
	edits  []sorted.Edit[claimed]
	// sockets says what is decided again although it may be claimed as before: for all that claim it (true), or for the
	// best claim only. Only that one depends on other claims at the address.
	sockets map[socket]bool
}

// NewBook returns a book without services.
func NewBook() *Book {
	return &Book{services: map[service.Name]*claimant{}, asked: map[netip.Addr]claimList{},
		touched: map[netip.Addr]*touched{}, residents: map[netip.Addr]map[service.Name]struct{}{}}
}

// Expect makes room for n services, if there is none yet. Most claim something at one address.
func (c *Book) Expect(n int) {
	if len(c.services)+len(c.asked) == 0 {
		c.services, c.asked = make(map[service.Name]*claimant, n), make(map[netip.Addr]claimList, n)
	}
}

// Service returns a service as it was set, or nil.
func (c *Book) Service(name service.Name) *service.Service {
	if by := c.services[name]; by != nil {
		return by.service
	}
	return nil
}

// touch has something decided again at an address.
func (c *Book) touch(a netip.Addr) *touched {
	t := c.touched[a]
	if t == nil {
		t = &touched{before: c.asked[a], sockets: map[socket]bool{}}
		c.touched[a] = t
	}
	return t
}

// touchSocket has a protocol and port decided again, for all that claim it or for the best claim only.
func (c *Book) touchSocket(a netip.Addr, at socket, all bool) {
	if !uncontested(c.asked[a]) { // what comes is decided anyway
		c.touch(a).add(at, all)
	}
}

func (t *touched) add(at socket, all bool) { t.sockets[at] = t.sockets[at] || all }

// Touch touches all that a service claims, if it is there. Others depend on its ranges if it has the best right to
// some.
func (c *Book) Touch(name service.Name) {
	by := c.services[name]
	if by == nil {
		return
	}
	eachClaim(by.claimable, func(a netip.Addr, _ right, sockets []socket) {
		list := c.asked[a]
		for _, at := range sockets {
			best := bestTo(list, at)
			c.touchSocket(a, at, at.isRange() && best.by != nil && best.name() == name)
		}
	})
}

// TouchWithServers touches the protected claims with Servers: they depend on the node's addresses, too.
func (c *Book) TouchWithServers() {
	for _, claim := range c.withServers {
		c.touchSocket(claim.Addr, socketOf(claim), true)
	}
}

// touchResident touches the external claims that depend on whether an address is that of an endpoint. The port of an
// endpoint of ranges is 0: it may get connections to any.
func (c *Book) touchResident(a netip.Addr, at socket) {
	c.touchSocket(a, at, false)
	for _, p := range service.Protocols() {
		c.touchSocket(a, socket{p, 0}, true)
	}
	if at.port == 0 {
		c.touch(a).addAll(c.asked[a], at.protocol)
	}
}

// addAll adds all ports of a protocol that are claimed.
func (t *touched) addAll(list claimList, p service.Protocol) {
	for one := range list.From(claimed{at: socket{p, 1}}) {
		if one.at.protocol != p {
			return
		}
		t.add(one.at, false)
	}
}

// Replace sets a service; nil removes it. claimable is the part within the bound on one service, and only it makes
// claims. same says that claims and rights are as before.
func (c *Book) Replace(name service.Name, next, claimable *service.Service, same bool) {
	old := c.Service(name)
	if len(c.residents) > 0 {
		c.moveEndpoints(old, next)
	}
	for _, claim := range c.withServers {
		if asksAt(old, claim) || asksAt(next, claim) {
			c.touchSocket(claim.Addr, socketOf(claim), true)
		}
	}
	by := c.services[name]
	if same {
		by.service, by.claimable = next, claimable
		return
	}
	if by != nil {
		c.enter(by, true)
		delete(c.services, name)
	}
	if next != nil {
		by = newClaimant(next, claimable, by)
		c.services[name] = by
		c.enter(by, false)
	}
}

// enter adds the claims of a service, or removes them.
func (c *Book) enter(by *claimant, gone bool) {
	var edits []sorted.Edit[claimed]
	eachClaim(by.claimable, func(a netip.Addr, r right, sockets []socket) {
		r.by, edits = by, edits[:0]
		for _, at := range sockets {
			edits = append(edits, sorted.Edit[claimed]{Item: claimed{at, r}, Gone: gone})
		}
		if list := c.asked[a]; c.touched[a] == nil && uncontested(list) {
			if next := list.Edit(edits); uncontested(next) { // nearly always: there is nothing to decide
				c.set(a, next)
				return
			}
		}
		t := c.touch(a)
		t.edits = append(t.edits, edits...)
	})
}

// set sets the claims at an address.
func (c *Book) set(a netip.Addr, list claimList) {
	if list.Len() == 0 {
		delete(c.asked, a)
		return
	}
	c.asked[a] = list
}

// asksAt says whether a service may ask for a claim to a port. The service may be nil.
func asksAt(s *service.Service, c service.Claim) bool {
	if s == nil {
		return false
	}
	if c.Addr.IsUnspecified() {
		return slices.ContainsFunc(s.Ports, func(p service.Port) bool { return p.NodePort == c.Port })
	}
	return slices.Contains(s.ClusterIPs, c.Addr) || slices.Contains(s.LoadBalancerIPs, c.Addr) ||
		slices.Contains(s.ExternalIPs, c.Addr)
}

// moveEndpoints touches the external IPs at which a service has got or lost an endpoint. Either version may be nil.
func (c *Book) moveEndpoints(old, next *service.Service) {
	moved := func(p service.Protocol, was, is service.Endpoints) {
		for d := range sorted.Diff(was, is) {
			e := cmp.Or(d.New, d.Old)
			names, external := c.residents[e.Addr.Addr()]
			if !external || d.Old != nil && d.New != nil {
				continue // in another state it is a resident all the same
			}
			if d.New != nil {
				names[next.Name] = struct{}{}
			}
			c.touchResident(e.Addr.Addr(), socket{p, e.Addr.Port()})
		}
	}
	same := old != nil && next != nil && sameAge(old, next)
	for i := range max(len(portsOf(old)), len(portsOf(next))) {
		was, is := portAt(old, i), portAt(next, i)
		if same && was.Protocol == is.Protocol {
			moved(was.Protocol, was.Endpoints, is.Endpoints)
			continue
		}
		moved(was.Protocol, was.Endpoints, service.Endpoints{})
		moved(is.Protocol, service.Endpoints{}, is.Endpoints)
	}
}

// portsOf has the ports; a nil service has none.
func portsOf(s *service.Service) []service.Port {
	if s == nil {
		return nil
	}
	return s.Ports
}

// portAt returns the port with that index; the zero value for none.
func portAt(s *service.Service, i int) (p service.Port) {
	if ports := portsOf(s); i < len(ports) {
		p = ports[i]
	}
	return p
}

// settle brings the claims up to date at all touched addresses.
func (c *Book) settle() {
	fresh := false
	for a, t := range c.touched {
		t.sortEdits()
		list := t.before.Edit(t.edits)
		c.set(a, list)
		_, known := c.residents[a]
		switch {
		case len(t.edits) == 0, a.IsUnspecified():
		case known:
			if !hasExternal(list.All()) {
				delete(c.residents, a)
			}
		case hasExternal(t.added()):
			c.residents[a], fresh = map[service.Name]struct{}{}, true
		}
	}
	if fresh {
		c.findResidents()
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

// findResidents finds the endpoints at external IPs. It goes through all endpoints, when a new external IP comes: an
// index of them would cost each change of endpoints.
func (c *Book) findResidents() {
	for name, by := range c.services {
		for i := range by.service.Ports {
			for e := range by.service.Ports[i].Endpoints.All() {
				if names, external := c.residents[e.Addr.Addr()]; external {
					names[name] = struct{}{}
				}
			}
		}
	}
}

// SetProtected replaces the claims that are kept from services. It costs the size of the old and the new map.
func (c *Book) SetProtected(p Protected) {
	for _, m := range [2]Protected{c.protected, p} {
		for claim := range m {
			if was, is := c.protected[claim], p[claim]; was != is {
				c.touchSocket(claim.Addr, socketOf(claim), true)
				c.touchSocket(claim.Addr, socketOf(claim.Range()), true)
			}
		}
	}
	c.protected, c.withServers = p, nil
	for claim, guard := range p {
		if guard.Servers != nil {
			c.withServers = append(c.withServers, claim)
		}
	}
}

// SetReserved replaces the addresses that are kept from services.
func (c *Book) SetReserved(r Reserved) {
	if c.reserved.equal(&r) {
		return
	}
	c.reserved = r
	for a, list := range c.asked {
		if !a.IsUnspecified() && !uncontested(list) {
			t := c.touch(a)
			for one := range list.All() {
				t.add(one.at, true)
			}
		}
	}
}

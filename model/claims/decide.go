package claims

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/sorted"
)

// Within says whether the lists that a service asks for are within the bounds on all services.
type Within struct{ Sources, Ranges func(service.Name) bool }

// Decide decides what is touched, and puts what has changed into the Conflicts, Owners and Restrictions of a snapshot.
func (c *Book) Decide(s *service.Snapshot, lists Within) {
	if len(c.touched) == 0 {
		return
	}
	c.settle()
	r := &round{Book: c, last: s, Within: lists, owners: map[service.ClaimKey]service.Name{}}
	for _, family := range ip.Families() { // numbers of the node matter to the node's addresses
		if numbers := c.touched[family.Unspecified()]; numbers != nil {
			r.decide(family.Unspecified(), numbers)
			for _, a := range c.reserved.NodePortAddresses {
				for at := range numbers.sockets {
					if family.Has(a) {
						c.touchSocket(a, at, false)
					}
				}
			}
		}
	}
	for a, t := range c.touched {
		if !a.IsUnspecified() {
			r.decide(a, t)
		}
	}
	c.touched = map[netip.Addr]*touched{}
	s.Owners = s.Owners.Edit(r.owners)
	publish(s, r.rulings)
}

// decided has the claims at an address that were decided last.
func (c *Book) decided(a netip.Addr) claimList {
	if t := c.touched[a]; t != nil {
		return t.before
	}
	return c.asked[a]
}

// round is what decisions depend on beside what is touched at an address, and what has been decided.
type round struct {
	*Book
	// last has what was decided last, and the node. Nothing in it changes meanwhile.
	last *service.Snapshot
	// Sources and Ranges say whether a service's lists are within the bounds.
	Within
	// rulings are on claims: of several on a claim of a service the last one counts. They come while the claim's address
	// is decided, so the order of addresses does not matter.
	rulings []ruling
	// owners has the entries of Owners; empty for none.
	owners map[service.ClaimKey]service.Name
}

// deliberation is an address while it is decided.
type deliberation struct {
	*round
	*touched
	addr     netip.Addr
	after    claimList
	contests map[socket]*contest
	// guards has what is protected at the address, and residents whose endpoints are there; nil until it is needed.
	guards    Protected
	residents *residents
}

// contest is a claim with what matters of those that make it.
type contest struct {
	claim service.Claim
	key   service.ClaimKey
	guard Protector
	// best is the best right, and several says that others make the claim, too. restricting is the best right of those
	// that restrict the claim, leading that of those that lead to the guard's Servers.
	best, restricting, leading right
	several                    bool
	leads                      map[*claimant]bool
	// inForce are the ranges that the service with the best right gets, if it is a claim to ranges.
	inForce service.PortRanges
	// wanted is the right to the same number of the node, if the address serves node ports, and number is the same unless
	// the number is protected.
	number, wanted right
}

// decide decides what is touched at an address, from what is claimed there now and nothing else. It costs the claims to
// the protocols and ports that are decided for all, and O(log n) for each of the others.
func (r *round) decide(a netip.Addr, t *touched) {
	d := &deliberation{round: r, touched: t, addr: a, after: r.asked[a], contests: map[socket]*contest{}}
	var came []claimed
	for c := range sorted.Diff(t.before, d.after) {
		if c.New != nil {
			came = append(came, *c.New)
			t.add(c.New.at, false)
			continue
		}
		t.add(c.Old.at, false)
		d.rulings = append(d.rulings, ruling{name: c.Old.name(), claim: c.Old.at.claim(d.addr).Key()})
	}
	d.spread()
	for _, one := range came {
		d.rule(one.right, d.contest(one.at))
	}
	for at, all := range t.sockets {
		d.decideSocket(d.contest(at), all)
	}
}

// spread touches what depends on touched claims at the same address: a claim to ranges and a cluster IP matter to
// others.
func (d *deliberation) spread() {
	if was, is := bestTo(d.before, socket{}), bestTo(d.after, socket{}); was.Compare(is) != 0 {
		for one := range d.after.All() {
			if one.at.isRange() || one.rank == asClusterIP {
				d.add(one.at, one.at.isRange())
			}
		}
	}
	for _, p := range service.Protocols() {
		at := socket{p, 0}
		was, is := bestTo(d.before, at), bestTo(d.after, at)
		if all := d.sockets[at] && is.by != nil; all || was.Compare(is) != 0 || was.ranges(p) != is.ranges(p) {
			d.addAll(d.after, p)
		}
	}
}

// decideSocket decides one protocol and port: who has it, and what becomes of those that had it and get it, or of all
// that claim it.
func (d *deliberation) decideSocket(c *contest, all bool) {
	at := socketOf(c.claim)
	if all || c.guard.Servers != nil {
		for one := range claimsTo(d.after, at) {
			d.rule(one.right, c)
		}
	} else {
		if was := d.after.Find(claimed{at, bestTo(d.before, at)}); was != nil {
			d.rule(was.right, c)
		}
		d.rule(c.best, c)
	}
	d.owners[c.key] = d.owner(c)
	numbers := ip.Of(d.addr).Unspecified()
	for _, list := range [2]claimList{d.decided(numbers), d.asked[numbers]} {
		for one := range claimsTo(list, at) { // whoever lost the number to the claim and does not make the claim
			by := d.services[one.name()] // maybe another claimant than the one that lost it
			if d.addr != numbers && d.last.Conflicts.At(one.name()).Has(c.claim) && !d.makes(by, at) {
				d.rulings = append(d.rulings, ruling{name: one.name(), claim: c.key})
			}
		}
	}
	if d.takesNumber(c) {
		d.rulings = append(d.rulings, ruling{name: c.number.name(), claim: c.key, lost: true})
	}
}

// contest returns the contest about a protocol and port.
func (d *deliberation) contest(at socket) *contest {
	c := d.contests[at]
	if c != nil {
		return c
	}
	c = d.contestIn(d.after, at.claim(d.addr))
	d.contests[at] = c
	if owner := c.winner(); c.claim.IsRange() && owner.by != nil && d.Ranges(owner.name()) &&
		d.protection(owner, c) == "" {
		c.inForce = owner.ranges(at.protocol)
	}
	if at.protocol == 0 || d.addr.IsUnspecified() || !d.reserved.servesNodePorts(d.addr) {
		return c
	}
	// An external claim takes the same number of the node at its address.
	numbers := ip.Of(d.addr).Unspecified()
	number := d.contestIn(d.asked[numbers], at.claim(numbers))
	if c.wanted = number.winner(); c.wanted.by != nil && d.protection(c.wanted, number) == "" {
		c.number = c.wanted
	}
	return c
}

// contestIn makes the contest about one claim of a list.
func (r *round) contestIn(list claimList, claim service.Claim) *contest {
	c := &contest{claim: claim, key: claim.Key(), guard: r.protected[claim]}
	for one := range claimsTo(list, socketOf(claim)) {
		c.several = c.best.by != nil
		if !c.several {
			c.best = one.right
		}
		if one.restricts && c.restricting.by == nil {
			c.restricting = one.right
		}
		switch {
		case c.guard.Servers != nil:
			if r.leadsTo(one.by.service, claim, c.guard.Servers) {
				if c.leads == nil {
					c.leads, c.leading = map[*claimant]bool{}, one.right
				}
				c.leads[one.by] = true
			}
		case c.several && (c.restricting.by != nil || one.rank == asExternalIP):
			return c // of those that follow none restricts the claim, but retained services
		}
	}
	return c
}

// winner returns the best right to a claim of those that may have it; where none may, the
// best of all. It is nobody's if nobody makes the claim.
func (c *contest) winner() right {
	if c.best.rank == asClusterIP || c.leading.by == nil {
		return c.best
	}
	return c.leading
}

// rule rules on a claim of a service.
func (d *deliberation) rule(r right, c *contest) {
	if r.by == nil {
		return
	}
	v := ruling{name: r.name(), claim: c.key, refused: d.protection(r, c)}
	restricting := c.restricting
	switch {
	case v.refused != "", c.winner().by != r.by, d.losesAddress(r), d.holder(r, c) != "":
		v.lost = true
	case restricting.by == nil, restricting.by == r.by, restricting.retained() && !r.retained(), c.claim.Protocol == 0:
	case c.guard.Servers != nil && r.rank != asClusterIP: // no other service shuts the node out
	default:
		v.behind, v.closed = restricting, !d.Sources(restricting.name())
	}
	d.rulings = append(d.rulings, v)
}

// losesAddress says whether the claim is of a retained service on a cluster IP that another
// service has by now. The address is not the retained one's any more, nor is any port on it
// that the other does not have.
func (d *deliberation) losesAddress(r right) bool {
	return r.rank == asClusterIP && r.retained() && d.contest(socket{}).best.by != r.by
}

// protection returns what keeps a claim from a service that makes it; empty for nothing.
func (d *deliberation) protection(r right, c *contest) service.Protection {
	if c.claim.IsRange() {
		if why := d.protectsRange(r, c.claim); why != "" {
			return why
		}
	}
	if why := c.guard.against(r.rank); why != "" && !c.leads[r.by] {
		return why
	}
	return d.reserved.protection(c.claim, r.rank)
}

// holder returns the service that has what a claimant asks for, although the claimant has
// the best right of those that ask for the same; empty for none.
func (d *deliberation) holder(r right, c *contest) service.Name {
	if r.rank == asExternalIP && !d.addr.IsUnspecified() {
		at := socketOf(c.claim)
		if name := cmp.Or(d.holderByEndpoint(r, at), d.holderByEndpoint(r, socket{at.protocol, 0})); name != "" {
			return name
		}
	}
	return cmp.Or(d.holderByRange(r, c), d.holderByNumber(r, c))
}

// holderByRange returns the service that has the port of a claim in its ranges, by a better right than the claimant's.
func (d *deliberation) holderByRange(r right, c *contest) service.Name {
	if c.claim.Port == 0 || d.addr.IsUnspecified() {
		return ""
	}
	ranges := d.contest(socket{c.claim.Protocol, 0})
	if ranges.inForce == "" {
		return ""
	}
	owner := ranges.winner()
	if owner.by == r.by || owner.Compare(r) > 0 || !ranges.inForce.Has(c.claim.Port) {
		return ""
	}
	return owner.name()
}

// holderByNumber returns the service that has the claim's number of the node by a better right
// than the claimant has to the claim.
func (d *deliberation) holderByNumber(r right, c *contest) service.Name {
	if c.number.by == nil || c.number.by == r.by || r.rank == asClusterIP || c.number.Compare(r) > 0 {
		return ""
	}
	return c.number.name()
}

// takesNumber says whether the service that has the claim's number of the node, and does not make the claim, loses
// the number on the claim's address.
func (d *deliberation) takesNumber(c *contest) bool {
	winner := c.winner()
	return c.number.by != nil && winner.by != nil && winner.rank != asClusterIP &&
		!d.makes(c.number.by, socketOf(c.claim)) && d.protection(winner, c) == "" && d.holder(winner, c) == ""
}

// makes says whether a service makes a claim, by whichever right. Nobody makes any.
func (d *deliberation) makes(by *claimant, at socket) bool {
	for _, rank := range [...]rank{asClusterIP, asLoadBalancer, asExternalIP} {
		if d.after.Find(claimed{at, right{by: by, rank: rank}}) != nil {
			return true
		}
	}
	return false
}

// owner returns the service that has a claim which several services make, or
// that has what its only claimant asks for; empty if there is no doubt.
func (d *deliberation) owner(c *contest) service.Name {
	winner := c.winner()
	if winner.by == nil {
		return ""
	}
	if name := d.holder(winner, c); name != "" {
		return name
	}
	if c.several || winner.rank != asClusterIP && c.wanted.by != nil && c.wanted.by != winner.by {
		return winner.name()
	}
	return ""
}

// protectsRange returns why ranges of the service are kept from an address that is not its cluster IP: it is one of the
// node that serves node ports, or one of the ports is protected. Anybody may write an external IP, and ranges take
// ports that nobody claims. So there it is any address of the node, another service's cluster IP, and an address with
// an endpoint.
func (d *deliberation) protectsRange(r right, c service.Claim) service.Protection {
	if r.rank == asClusterIP {
		return ""
	}
	if d.reserved.servesNodePorts(c.Addr) || r.rank == asExternalIP && slices.Contains(d.reserved.NodeAddresses, c.Addr) {
		return nodeAddress
	}
	ranges := r.ranges(c.Protocol)
	if r.rank == asExternalIP {
		if port := d.reserved.KubeletPort; port != 0 && c.Protocol == service.TCP && ranges.Has(port) {
			return kubelets
		}
		if whole := d.contest(socket{}).best; whole.by != nil && whole.Compare(r) < 0 {
			return service.Protection("the cluster IP of Service " + whole.name())
		}
		if resident := d.holderByEndpoint(r, socket{}); resident != "" {
			return service.Protection("an endpoint of Service " + resident + " has the address")
		}
	}
	var found service.Protection
	if d.guards == nil {
		d.guards = d.protected.at(c.Addr)
	}
	for guarded, by := range d.guards { // of several, the one whose words sort first, for one answer
		if guarded.Protocol == c.Protocol && ranges.Has(guarded.Port) {
			if why := by.against(r.rank); why != "" && (found == "" || why < found) {
				found = why
			}
		}
	}
	return found
}

// residents says whose endpoints are at the address of a group: at each protocol and port, and at the whole address.
type residents struct {
	oldest map[socket]right
	all    map[resident]bool
}

type resident struct {
	service *service.Service
	at      socket
}

// holderByEndpoint returns the service whose endpoint keeps a claim from an external IP: an external IP does not take a
// packet that is on its way to the endpoint of an older service, not from a client that knows the endpoint, and not
// after another node has translated it. Endpoints in all states count. It is the oldest service with an endpoint
// there, unless the claimant is older by its time of creation, or has the endpoint itself and is
// of the same namespace: a tenant may share a pod among several Services.
func (d *deliberation) holderByEndpoint(r right, at socket) service.Name {
	if d.residents == nil {
		d.residents = d.residentsAt(d.addr)
	}
	oldest := d.residents.oldest[at]
	if oldest.by == nil || oldest.retained() || oldest.name() == r.name() {
		return ""
	}
	if !r.retained() && r.by.service.Created.Before(oldest.by.service.Created) {
		return ""
	}
	ours, _ := r.name().Split()
	theirs, _ := oldest.name().Split()
	if ours == theirs && d.residents.all[resident{r.by.service, at}] {
		return ""
	}
	return oldest.name()
}

func (c *Book) residentsAt(a netip.Addr) *residents {
	r := &residents{map[socket]right{}, map[resident]bool{}}
	for name := range c.residents[a] {
		by := c.services[name]
		if by == nil {
			continue
		}
		one := right{by: by}
		for i := range by.service.Ports {
			p := &by.service.Ports[i]
			for e := range endpointsAt(p, a) {
				for _, at := range [2]socket{{p.Protocol, e.Addr.Port()}, {}} {
					if have := r.oldest[at]; have.by == nil || one.Compare(have) < 0 {
						r.oldest[at] = one
					}
					r.all[resident{by.service, at}] = true
				}
			}
		}
	}
	return r
}

// endpointsAt yields the endpoints of a port at one address, whatever their own ports are.
func endpointsAt(p *service.Port, a netip.Addr) iter.Seq[service.Endpoint] {
	return func(yield func(service.Endpoint) bool) {
		for e := range p.Endpoints.From(service.Endpoint{Addr: netip.AddrPortFrom(a, 0)}) {
			if e.Addr.Addr() != a || !yield(e) {
				return
			}
		}
	}
}

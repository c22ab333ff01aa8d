package service

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
)

// rules are what a decision depends on beside the claimants of its group.
type rules struct {
	protected Protected
	reserved  Reserved
	// node has the Node's addresses.
	node []netip.Addr
	// sources and ranges say whether a service's lists are within the bounds.
	sources, ranges func(*Service) bool
	// number has the claimants of a number of the node.
	number func(Claim) []right
	// hosts has all services with an endpoint at an address that is an external IP, and may have others.
	hosts func(netip.Addr) []*Service
}

// decision says what services do not get of a group, and who has what several ask for. The claims stand in it without
// their address, which is that of the group.
type decision struct {
	// rulings are sorted by service, protocol and port.
	rulings []ruling
	// owners are sorted by protocol and port.
	owners []owned
}

// ruled returns the rulings; a nil decision has none.
func (d *decision) ruled() []ruling {
	if d == nil {
		return nil
	}
	return d.rulings
}

func (d *decision) owned() []owned {
	if d == nil {
		return nil
	}
	return d.owners
}

// ruling is one claim of a service that it does not get, or with a restriction.
type ruling struct {
	name Name
	at   socket
	// refused is why the service does not get the claim, as in a Conflict.
	refused Protection
	// behind is the firewall of another service that restricts the claim, nil if the service does not get the claim.
	behind *wall
	// closed says that the ranges of the firewall are not within the bounds.
	closed bool
}

func (r ruling) compare(o ruling) int {
	if c := cmp.Compare(r.name, o.name); c != 0 {
		return c
	}
	return r.at.compare(o.at)
}

// restriction is the claim at the firewall.
func (r ruling) restriction(claim Claim) *Restriction {
	restriction := &Restriction{Claim: claim, By: r.behind.by, Firewall: r.behind.Firewall}
	if r.closed {
		restriction.Firewall.Sources = restriction.Firewall.Sources.closed()
	}
	return restriction
}

// owned is a claim with its entry in Owners.
type owned struct {
	at    socket
	owner Name
}

func (o owned) compare(p owned) int { return o.at.compare(p.at) }

// deliberation is a group while it is decided.
type deliberation struct {
	*rules
	at Claim
	// contests has the claims by protocol and port.
	contests map[socket]*contest
	list     []*contest
	// guards has what is protected at the address, and residents whose endpoints are there; nil until it is needed.
	guards    Protected
	residents *residents
}

// socket is a protocol and a port. The port is 0 for ranges, and both are for the whole address.
type socket struct {
	protocol Protocol
	port     uint16
}

func (c Claim) socket() socket { return socket{c.Protocol, c.Port} }

func (s socket) compare(o socket) int {
	return cmp.Or(cmp.Compare(s.protocol, o.protocol), cmp.Compare(s.port, o.port))
}

// contest is a claim with what matters of those that make it.
type contest struct {
	claim Claim
	guard Protector
	// best is the best right, and several says that others make the claim, too. restricting is the best right of those
	// that restrict the claim, leading that of those that lead to the guard's Servers.
	best, restricting, leading right
	several                    bool
	leads                      map[*claimant]bool
	// inForce are the ranges that the service with the best right gets, if it is a claim to ranges.
	inForce PortRanges
	// wanted is the right to the same number of the node, if the address serves node ports, and number is the same unless
	// the number is protected. numberAsks says that the number's service makes this claim as well.
	number, wanted right
	numberAsks     bool
}

// decide decides all claims of an address, or on a number of the node, from nothing. The rights are those of all that
// ask for it, sorted by name, one of each. It costs O(n log n) for n claims: on two busy cores, 0.1 s where 10,000
// Services ask for the same 10 ports of an address, and 0.6 s where each asks for 10 of its own. The result is nil if
// all get what they ask for, and nobody is in doubt.
func (r *rules) decide(at Claim, rights []right) *decision {
	if len(rights) == 0 || len(rights) == 1 && rights[0].rank == asClusterIP {
		return nil // nearly always: nothing keeps a service's own cluster IP from it
	}
	d := &decision{}
	group := deliberation{rules: r, at: at, contests: map[socket]*contest{}}
	n := 0
	for _, one := range rights {
		one.claims(at, func(c Claim) {
			group.contestOf(c).add(one, r)
			n++
		})
	}
	d.rulings = make([]ruling, 0, n-len(group.list)) // one of each claim has it
	for _, p := range protocols() {
		if c := group.contests[socket{p, 0}]; c != nil && c.claim.IsRange() {
			if owner := c.winner(); r.ranges(owner.by.service) && group.protection(owner, c) == "" {
				c.inForce = owner.by.service.rangesOf(p)
			}
		}
	}
	for _, one := range rights {
		first := len(d.rulings)
		one.claims(at, func(c Claim) {
			if ruled, any := group.verdict(one, group.contests[c.socket()]); any {
				d.rulings = append(d.rulings, ruled)
			}
		})
		own := d.rulings[first:]
		slices.SortFunc(own, ruling.compare)
		own = slices.CompactFunc(own, func(a, b ruling) bool { return a.at == b.at })
		d.rulings = d.rulings[:first+len(own)]
	}
	sorted := len(d.rulings)
	for _, c := range group.list {
		if owner := group.owner(c); owner != "" {
			d.owners = append(d.owners, owned{c.claim.socket(), owner})
		}
		if group.takesNumber(c) {
			d.rulings = append(d.rulings, ruling{name: c.number.name(), at: c.claim.socket()})
		}
	}
	if len(d.rulings) > sorted {
		slices.SortFunc(d.rulings, ruling.compare)
	}
	if len(d.rulings)+len(d.owners) == 0 {
		return nil
	}
	slices.SortFunc(d.owners, owned.compare)
	return d
}

// contestOf returns the contest about a claim, a new one at first.
func (d *deliberation) contestOf(claim Claim) *contest {
	c := d.contests[claim.socket()]
	if c == nil {
		c = &contest{claim: claim, guard: d.protected[claim]}
		d.contests[claim.socket()] = c
		d.list = append(d.list, c)
		if claim.Protocol != 0 && !claim.Addr.IsUnspecified() && d.reserved.servesNodePorts(claim.Addr) {
			d.contestNumber(c)
		}
	}
	return c
}

// contestNumber finds who has the number of the node that an external claim takes on one of the node's addresses.
func (d *deliberation) contestNumber(c *contest) {
	at := NodePortClaim(ip.Of(c.claim.Addr), &Port{Protocol: c.claim.Protocol, NodePort: c.claim.Port})
	number := contest{claim: at, guard: d.protected[at]}
	for _, r := range d.rules.number(at) {
		number.add(r, d.rules)
	}
	if c.wanted = number.winner(); c.wanted.by != nil && d.protection(c.wanted, &number) == "" {
		c.number = c.wanted
	}
}

// add adds a right of another service to the claim.
func (c *contest) add(r right, rules *rules) {
	c.several = c.several || c.best.by != nil && c.best.by != r.by
	c.best = c.best.better(r)
	c.numberAsks = c.numberAsks || c.number.by == r.by
	if r.restricts && c.claim.Protocol != 0 {
		c.restricting = c.restricting.better(r)
	}
	if c.guard.Servers != nil && rules.leadsTo(r.by.service, c.claim, c.guard.Servers) {
		if c.leads == nil {
			c.leads = map[*claimant]bool{}
		}
		c.leads[r.by] = true
		c.leading = c.leading.better(r)
	}
}

// winner returns the best right to a claim of those that may have it; where none may, the
// best of all. It is nobody's if nobody makes the claim.
func (c *contest) winner() right {
	if c.best.rank == asClusterIP || c.leading.by == nil {
		return c.best
	}
	return c.leading
}

// verdict rules on a claim, and says whether its service does not get it, or gets it with a restriction.
func (d *deliberation) verdict(r right, c *contest) (v ruling, any bool) {
	v = ruling{name: r.name(), at: c.claim.socket(), refused: d.protection(r, c)}
	restricting := c.restricting
	switch {
	case v.refused != "", c.winner().by != r.by, d.losesAddress(r), d.over(r, c) != "":
		return v, true
	case restricting.by == nil || restricting.by == r.by || restricting.retained() && !r.retained():
		return v, false
	case c.guard.Servers != nil && r.rank != asClusterIP:
		return v, false // no other service shuts the node out
	}
	v.behind, v.closed = restricting.by.wall, !d.sources(restricting.by.service)
	return v, true
}

// losesAddress says whether the claim is of a retained service on a cluster IP that another
// service has by now. The address is not the retained one's any more, nor is any port on it
// that the other does not have.
func (d *deliberation) losesAddress(r right) bool {
	return r.rank == asClusterIP && r.retained() && d.contests[socket{}].best.by != r.by
}

// protection returns what keeps a claim from a service that makes it; empty for nothing.
func (d *deliberation) protection(r right, c *contest) Protection {
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

// over returns the service that has what a claimant asks for, although the claimant has
// the best right of those that ask for the same; empty for none.
func (d *deliberation) over(r right, c *contest) Name {
	if r.rank == asExternalIP && d.at.Protocol == 0 {
		at := c.claim.socket()
		if name := cmp.Or(d.residentOver(r, at), d.residentOver(r, socket{at.protocol, 0})); name != "" {
			return name
		}
	}
	return cmp.Or(d.overRange(r, c), d.overNumber(r, c))
}

// overRange returns the service that has the port of a claim in its ranges, by a better right than the claimant's.
func (d *deliberation) overRange(r right, c *contest) Name {
	if c.claim.Port == 0 || d.at.Protocol != 0 {
		return ""
	}
	ranges := d.contests[socket{c.claim.Protocol, 0}]
	if ranges == nil || ranges.inForce == "" {
		return ""
	}
	owner := ranges.winner()
	if owner.by == r.by || owner.Compare(r) > 0 || !ranges.inForce.Has(c.claim.Port) {
		return ""
	}
	return owner.name()
}

// overNumber returns the service that has the claim's number of the node by a better right
// than the claimant has to the claim.
func (d *deliberation) overNumber(r right, c *contest) Name {
	if c.number.by == nil || c.number.by == r.by || r.rank == asClusterIP || c.number.Compare(r) > 0 {
		return ""
	}
	return c.number.name()
}

// takesNumber says whether the service that has the claim's number of the node, and does not ask for the claim, loses
// the number on the claim's address.
func (d *deliberation) takesNumber(c *contest) bool {
	winner := c.winner()
	return c.number.by != nil && !c.numberAsks && winner.rank != asClusterIP && d.protection(winner, c) == "" &&
		d.over(winner, c) == ""
}

// owner returns the service that has a claim which several services make, or
// that has what its only claimant asks for; empty if there is no doubt.
func (d *deliberation) owner(c *contest) Name {
	winner := c.winner()
	if name := d.over(winner, c); name != "" {
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
func (d *deliberation) protectsRange(r right, c Claim) Protection {
	if r.rank == asClusterIP {
		return ""
	}
	if d.reserved.servesNodePorts(c.Addr) || r.rank == asExternalIP && slices.Contains(d.reserved.NodeAddresses, c.Addr) {
		return nodeAddress
	}
	ranges := r.by.service.rangesOf(c.Protocol)
	if r.rank == asExternalIP {
		if port := d.reserved.KubeletPort; port != 0 && c.Protocol == TCP && ranges.Has(port) {
			return kubelets
		}
		if whole := d.contests[socket{}]; whole != nil && whole.best.Compare(r) < 0 {
			return Protection("the cluster IP of Service " + whole.best.name())
		}
		if resident := d.residentOver(r, socket{}); resident != "" {
			return Protection("an endpoint of Service " + resident + " has the address")
		}
	}
	var found Protection
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
	service *Service
	at      socket
}

// residentOver returns the service whose endpoint keeps a claim from an external IP: an external IP does not take a
// packet that is on its way to the endpoint of an older service, not from a client that knows the endpoint, and not
// after another node has translated it. Endpoints in all states count. It is the oldest service with an endpoint
// there, unless the claimant is older by its time of creation, or has the endpoint itself and is
// of the same namespace: a tenant may share a pod among several Services.
func (d *deliberation) residentOver(r right, at socket) Name {
	if d.residents == nil {
		d.residents = residentsOf(d.at.Addr, d.hosts(d.at.Addr))
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

func residentsOf(a netip.Addr, services []*Service) *residents {
	r := &residents{map[socket]right{}, map[resident]bool{}}
	for _, s := range services {
		one := right{by: &claimant{service: s}}
		for i := range s.Ports {
			p := &s.Ports[i]
			for e := range p.endpointsAt(a) {
				for _, at := range [2]socket{{p.Protocol, e.Addr.Port()}, {}} {
					r.oldest[at] = r.oldest[at].better(one)
					r.all[resident{s, at}] = true
				}
			}
		}
	}
	return r
}

package service

import (
	"cmp"

	"nftproxy/model/sorted"
)

// residents knows whose endpoints are at which address, protocol and port, or at which address alone. An external
// IP does not take a packet that is on its way to the endpoint of an older service: not
// from a client that knows the endpoint, and not after another node has translated it.
// Endpoints in all states count.
type residents struct {
	// at is the claim for which an endpoint counts.
	at       func(Protocol, *Endpoint) Claim
	contests contests
	// again counts the further ports of a service that have an endpoint which one of its
	// ports has.
	again map[residence]int
}

// residence is an endpoint of one service.
type residence struct {
	at   packedClaim
	name Name
}

func newResidents(at func(Protocol, *Endpoint) Claim) *residents {
	return &residents{at: at, contests: newContests(), again: map[residence]int{}}
}

// replace replaces the endpoints of a service's old version by those of the next; either
// may be nil. It yields each claim that may have another best resident. It costs the
// difference, unless the service has another age.
func (r *residents) replace(old, next *Service, yield func(Claim)) {
	if old == nil || next == nil || old.age() != next.age() {
		r.changeAll(old, false, yield)
		r.changeAll(next, true, yield)
		return
	}
	right := next.age()
	for i := range max(len(old.Ports), len(next.Ports)) {
		was, is := old.portAt(i), next.portAt(i)
		if was != nil && is != nil && was.Protocol == is.Protocol {
			for d := range sorted.Diff(was.Endpoints, is.Endpoints) {
				if d.Old != nil && d.New != nil {
					continue // it is in another state
				}
				e := d.Old
				if d.New != nil {
					e = d.New
				}
				c := r.at(is.Protocol, e)
				r.change(c, right, d.New != nil)
				yield(c)
			}
			continue
		}
		r.changePort(was, right, false, yield)
		r.changePort(is, right, true, yield)
	}
}

// changeAll adds or removes all endpoints of a service, which may be nil.
func (r *residents) changeAll(s *Service, add bool, yield func(Claim)) {
	if s == nil {
		return
	}
	right := s.age()
	for i := range s.Ports {
		r.changePort(&s.Ports[i], right, add, yield)
	}
}

// changePort adds or removes the endpoints of a port, which may be nil.
func (r *residents) changePort(p *Port, right right, add bool, yield func(Claim)) {
	if p == nil {
		return
	}
	for e := range p.Endpoints.All() {
		c := r.at(p.Protocol, &e)
		r.change(c, right, add)
		yield(c)
	}
}

func (r *residents) change(c Claim, right right, add bool) {
	if len(r.again) == 0 && r.contests.changeSole(c, right, add) {
		return // nearly always
	}
	_, known := r.contests.find(c, right.name())
	at := residence{c.packed(), right.name()}
	switch {
	case add && known:
		r.again[at]++
	case add:
		r.contests.add(c, right)
	case r.again[at] > 1:
		r.again[at]--
	case r.again[at] == 1:
		delete(r.again, at)
	default:
		r.contests.remove(c, right)
	}
}

// over returns the service whose endpoint keeps the claim from an external IP of the
// service with that right; empty for none. That is the oldest service with an endpoint
// there, unless the other is older by its time of creation, or has the endpoint itself and is
// of the same namespace: a tenant may share a pod among several Services.
func (r *residents) over(c Claim, claimant right) Name {
	return cmp.Or(r.overAt(c, claimant), r.overAt(c.Range(), claimant))
}

// overAt is over for one claim. For ranges it is that of the address and protocol: there all ports are kept.
func (r *residents) overAt(c Claim, claimant right) Name {
	if r == nil {
		return ""
	}
	best := r.contests.winners(c).owner
	if best == "" || best.retained() || best.name() == claimant.name() {
		return ""
	}
	const created = rightName - rightCreated
	if !claimant.retained() && claimant[rightCreated:][:created] < best[rightCreated:][:created] {
		return ""
	}
	ours, _ := claimant.name().Split()
	theirs, _ := best.name().Split()
	if _, shared := r.contests.find(c, claimant.name()); shared && ours == theirs {
		return ""
	}
	return best.name()
}

// portAt returns the port with that index, or nil.
func (s *Service) portAt(i int) *Port {
	if i < len(s.Ports) {
		return &s.Ports[i]
	}
	return nil
}

func endpointClaim(p Protocol, e *Endpoint) Claim {
	return Claim{e.Addr.Addr(), p, e.Addr.Port()}
}

// endpointHost is the whole address of an endpoint.
func endpointHost(_ Protocol, e *Endpoint) Claim { return Claim{Addr: e.Addr.Addr()} }

// isExternalIP says whether a right to a claim is that of an address in spec.externalIPs.
func isExternalIP(c Claim, r right) bool {
	return r.rank() == asExternalIP && !c.Addr.IsUnspecified()
}

// knowResidents begins to note endpoints, at the first external IP, or the first with ranges: few clusters have one.
func (b *Builder) knowResidents(at func(Protocol, *Endpoint) Claim) *residents {
	known := newResidents(at)
	var all []*Service
	endpoints := 0
	add := func(s *Service) {
		if s == nil {
			return
		}
		all = append(all, s)
		for i := range s.Ports {
			endpoints += s.Ports[i].Endpoints.Len()
		}
	}
	for name := range b.snapshot.Services.All() {
		if _, edited := b.places[name]; !edited {
			add(b.Service(name))
		}
	}
	for i := range b.edits {
		add(b.edits[i].Value)
	}
	known.contests.sole = make(map[packedClaim]right, endpoints)
	for _, s := range all {
		known.replace(nil, s, func(Claim) {})
	}
	return known
}

// knowHosts begins to note the addresses of endpoints.
func (b *Builder) knowHosts() {
	if b.hosts == nil {
		b.hosts = b.knowResidents(endpointHost)
	}
}

// noteEndpoints tells the residents of another version of a service.
func (b *Builder) noteEndpoints(old, next *Service) {
	if b.hosts != nil {
		b.hosts.replace(old, next, func(c Claim) { b.noteAddress(c.Addr) })
	}
	if b.residents == nil {
		return
	}
	b.residents.replace(old, next, func(c Claim) {
		if c.IsRange() {
			b.noteRanges(c)
			return
		}
		if owner := b.winner(c); owner != "" {
			b.pending = append(b.pending, pendingClaim{owner.name(), c})
			b.noteNumber(c, owner, owner)
		}
	})
}

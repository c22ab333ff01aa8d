package conntrack

import (
	"net/netip"
	"slices"

	"nftproxy/internal/service"
	"nftproxy/internal/treap"
)

// Options are what an Index must know beside the services.
type Options struct {
	// NodePortAddresses are where the node serves node ports.
	NodePortAddresses service.NodePortAddresses
	// Established has the protocols (TCP, SCTP) whose established connections
	// are stale as well once their endpoint has gone. Otherwise they stay, and
	// end by their own time-outs or the pod's last words.
	Established []service.Protocol
	// Pod says whether an address is a pod's; known is false where that cannot
	// be told. Nil stands for never known.
	Pod func(node *service.Node, a netip.Addr) (pod, known bool)
}

// Index answers, for a snapshot, which flows are stale. An Index is not safe
// for concurrent use.
type Index struct {
	options  Options
	snapshot service.Snapshot
	cidrs    []netip.Prefix // of the snapshot

	// claims has who asks for an address and port, node port or cluster IP;
	// the snapshot's conflicts say which of them has it.
	claims map[service.Claim][]claimant
	// departed has what was there before.
	departed departed

	// local are the addresses on the node's interfaces, serving those that
	// serve node ports.
	local, serving map[netip.Addr]bool
	// sources has who is let in to a claim, as far as it was asked since the
	// last Update.
	sources map[service.Claim]admitted
}

// claimant is a service port; a cluster IP as a whole has no port.
type claimant struct {
	service *service.Service
	port    *service.Port
}

type admitted struct {
	ranges    []netip.Prefix
	everybody bool
}

// NewIndex makes an index of nothing.
func NewIndex(o Options) *Index {
	return &Index{
		options: o, claims: map[service.Claim][]claimant{},
		departed: departed{from: map[service.Claim][]departure{}},
		local:    map[netip.Addr]bool{}, serving: map[netip.Addr]bool{}, sources: map[service.Claim]admitted{},
	}
}

// Update makes x the index of the snapshot. It costs O(what has changed since
// the last Update). It returns where the flows are that x may now call stale
// and did not before.
func (x *Index) Update(s service.Snapshot) Scope {
	u := update{Index: x, old: x.snapshot}
	x.departed.epoch++
	x.snapshot = s
	clear(x.sources)
	u.setNode()
	for change := range treap.Diff(u.old.ServiceCIDRs, s.ServiceCIDRs) {
		if change.HadOld {
			x.cidrs = slices.DeleteFunc(x.cidrs, func(cidr netip.Prefix) bool { return cidr == change.Old })
		}
		if change.HasNew {
			x.cidrs = append(x.cidrs, change.New)
			u.scope.all()
		}
	}
	for change := range treap.Diff(u.old.Services, s.Services) {
		u.replace(change.Old, change.New)
	}
	u.conflicts()
	return u.scope
}

// Epoch counts the updates.
func (x *Index) Epoch() uint64 { return x.departed.epoch }

// Forget says that all flows that the updates up to an epoch made stale have
// been found, so that what departed then need not be remembered.
func (x *Index) Forget(epoch uint64) { x.departed.forget(epoch) }

// Owner says whose flow it is: which port of which service, if any, has the
// address and port that it goes to. Whether the flow leads to an endpoint of it
// is another question (Stale).
func (x *Index) Owner(f Flow) (s *service.Service, p *service.Port, ok bool) {
	o, ok := x.owner(&f)
	return o.service, o.port, ok
}

// owner is the service port that has what a flow goes to.
type owner struct {
	claimant
	// nodePort says that it is asked by its node port.
	nodePort bool
}

// owner follows the order of the rules: addresses, then node ports.
func (x *Index) owner(f *Flow) (o owner, ok bool) {
	if o.claimant, ok = x.holder(addressClaim(f)); ok {
		return o, true
	}
	if !x.serving[f.Original.Dst.Addr()] {
		return o, false
	}
	o.nodePort = true
	o.claimant, ok = x.holder(nodePortClaim(f))
	return o, ok
}

func addressClaim(f *Flow) service.Claim {
	dst := f.Original.Dst
	return service.Claim{Addr: dst.Addr(), Protocol: f.Protocol, Port: dst.Port()}
}

func nodePortClaim(f *Flow) service.Claim {
	c := addressClaim(f)
	c.Addr = unspecified(f.V6())
	return c
}

func unspecified(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// holder is the one of the claimants that has not lost the claim to another.
func (x *Index) holder(c service.Claim) (claimant, bool) {
	list := x.claims[c]
	// A packet may have any protocol number, 0 too, by which claims on whole
	// cluster IPs are told: they have no port.
	if len(list) == 0 || c.Protocol == 0 {
		return claimant{}, false
	}
	for _, one := range list[:len(list)-1] {
		if !x.snapshot.Conflicts.At(one.service.Name).Has(c) {
			return one, true
		}
	}
	return list[len(list)-1], true
}

// refused says that the address is a cluster IP, and not bound on the node: as
// NodeLocal DNSCache does, which keeps its other ports.
func (x *Index) refused(a netip.Addr) bool {
	return len(x.claims[service.Claim{Addr: a}]) > 0 && !x.local[a]
}

// unallocated says that the address comes from a ServiceCIDR, no service has it
// as cluster IP, and it is not the node's own.
func (x *Index) unallocated(a netip.Addr) bool {
	return slices.ContainsFunc(x.cidrs, func(cidr netip.Prefix) bool { return cidr.Contains(a) }) &&
		!x.local[a] && len(x.claims[service.Claim{Addr: a}]) == 0
}

// admits says whether a service's address, which a flow from src goes to, lets
// it in: the service's own source ranges, or those of another one that has the
// same address for a load balancer.
func (x *Index) admits(s *service.Service, c service.Claim, src netip.Addr) bool {
	a, ok := x.sources[c]
	if !ok {
		wall, restricted := s.Firewall(), true
		if !wall.Restricts(c) {
			var r service.Restriction
			r, restricted = x.snapshot.Restrictions.At(s.Name).On(c)
			wall = r.Firewall
		}
		a.everybody = true
		if restricted && x.snapshot.Node != nil {
			a.ranges, a.everybody = wall.Admitted(x.snapshot.Node, c.Addr.Is6())
		}
		x.sources[c] = a
	}
	return a.everybody || slices.ContainsFunc(a.ranges, func(r netip.Prefix) bool { return r.Contains(src) })
}

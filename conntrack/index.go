package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/treap"
)

// Options are the facts that an Index needs besides the Services.
type Options struct {
	// NodePortAddresses are the addresses on which the node serves node ports.
	NodePortAddresses service.NodePortAddresses
	// Established has the protocols (TCP, SCTP) whose established connections are
	// stale too when their endpoint is gone. Other established connections stay until
	// they time out, or until the pod closes them.
	Established []service.Protocol
	// Pod says whether an address is a pod's. known is false if that is unknown. A
	// nil Pod means that it is always unknown.
	Pod func(node *service.Node, a netip.Addr) (pod, known bool)
}

// Index says which flows are stale by a snapshot. It is not safe for concurrent use.
type Index struct {
	options  Options
	snapshot service.Snapshot
	// cidrs and spared are the snapshot's ServiceCIDRs, and the addresses where hosts may be.
	cidrs, spared []netip.Prefix

	// claims has the claimants of each address and port, node port or cluster IP, by their names.
	// The snapshot's conflicts say which claimant has it.
	claims map[service.Claim][]claimant
	// others counts the claims of Services that another proxy serves, except whole cluster IPs.
	others map[service.Claim]int
	// frontends counts the claims to a port, and lost those that have
	// ever gone.
	frontends, lost ip.PerFamily[int]
	// recent says whether a claim may have unanswered flows. Nil always says yes.
	recent func(service.Claim) bool
	// departed has endpoints that claims had before.
	departed departed
	silence  silence

	own ownAddresses
	// sources has the admitted clients of claims, and walls those of firewalls, which many claims share. They cache the
	// answers since the last Update.
	sources map[service.Claim]admitted
	walls   map[wall]admitted
	// counts has the numbers of endpoints of ports whose clients may be left to routing. It
	// caches them since the last Update, too.
	counts map[portInFamily]share.Counts
}

// portInFamily is a Service port in one family.
type portInFamily struct {
	port   *service.Port
	family ip.Family
}

// claimant is a Service port that asks for a claim. The port is nil if the claim is a
// whole cluster IP.
type claimant struct {
	service *service.Service
	port    *service.Port
}

// wall tells the firewalls of a family apart.
type wall struct {
	sources   *service.Sources
	addresses *netip.Addr // the first one
	family    ip.Family
}

// admitted are the clients that a claim lets in.
type admitted struct {
	// ranges are disjoint and sorted.
	ranges    []netip.Prefix
	everybody bool
}

// NewIndex makes an index of an empty snapshot.
func NewIndex(o Options) *Index {
	return &Index{
		options: o, claims: map[service.Claim][]claimant{}, others: map[service.Claim]int{},
		departed: departed{from: map[service.Claim][]*departure{}},
		sources:  map[service.Claim]admitted{},
		walls:    map[wall]admitted{},
		counts:   map[portInFamily]share.Counts{},
		silence:  silence{after: silentFor, longest: longestPause},
	}
}

// Update makes x the index of the snapshot. Its cost grows with the changes since the
// last Update, not with the snapshot. It returns the scope of the flows that may be
// stale now and were not before.
func (x *Index) Update(s service.Snapshot) Scope {
	u := update{Index: x, old: x.snapshot}
	x.departed.epoch++
	x.snapshot = s
	clear(x.sources)
	clear(x.walls)
	clear(x.counts)
	u.followNode()
	for change := range treap.Diff(u.old.ServiceCIDRs, s.ServiceCIDRs) {
		if change.HadOld {
			x.cidrs = slices.DeleteFunc(x.cidrs, func(cidr netip.Prefix) bool { return cidr == change.Old })
		}
		if change.HasNew {
			x.cidrs = append(x.cidrs, change.New)
		}
		// The addresses of a new one are dropped. Without an old one, networks and API servers may be spared no more.
		if change.HasNew || s.Node != nil && len(s.Node.Networks)+len(s.Node.APIServers) > 0 {
			u.scope.addAll()
		}
	}
	x.spared = nil
	for _, family := range ip.Families() {
		if s.Node != nil {
			x.spared = append(x.spared, s.Node.Spared(s.ServiceCIDRs, family)...)
		}
	}
	for change := range treap.Diff(u.old.Services, s.Services) {
		u.replace(change.Old, change.New)
	}
	u.followOthers()
	u.followConflicts()
	u.followShadows()
	return u.scope
}

// Epoch returns the number of updates so far.
func (x *Index) Epoch() uint64 { return x.departed.epoch }

// Cover tells the index that passes have found all flows that the updates up to an epoch made
// stale. The index then remembers only a bounded number of the endpoints that departed by that
// epoch.
func (x *Index) Cover(epoch uint64) {
	x.departed.cover(epoch)
	x.departed.endPresumption(epoch)
}

// Forget does what Cover does, and makes the index forget all endpoints that departed by the epoch.
func (x *Index) Forget(epoch uint64) {
	x.departed.forget(epoch)
	x.departed.endPresumption(epoch)
}

// Presume says that no other program translates destinations now. So the index does not need to
// know what earlier rules served: until Cover or Forget of the present epoch, each flow with DNAT
// that leads to no endpoint of its Service counts as one to a former endpoint.
func (x *Index) Presume() { x.departed.anything = x.departed.epoch }

// Owner returns the Service and port that have the address and port that the flow goes to; ok is
// false if none has. It does not check whether the flow leads to one of its endpoints (see Stale).
func (x *Index) Owner(f Flow) (s *service.Service, p *service.Port, ok bool) {
	o, ok := x.owner(&f)
	return o.service, o.port, ok
}

// HasClusterIP returns the Service that has the cluster IP, nil if none has it.
func (x *Index) HasClusterIP(a netip.Addr) *service.Service {
	c := service.Claim{Addr: a}
	list := x.claims[c]
	i := slices.IndexFunc(list, func(one claimant) bool { return !x.snapshot.Conflicts.At(one.service.Name).Has(c) })
	if i < 0 {
		return nil
	}
	return list[i].service
}

// owner is the Service port that has the destination of a flow.
type owner struct {
	claimant
	// nodePort says that the flow goes to its node port.
	nodePort bool
}

// owner looks for the owner in the order of the rules: addresses, then ranges of ports, then node ports.
func (x *Index) owner(f *Flow) (o owner, ok bool) {
	if o.claimant, ok = x.holder(addressClaim(f)); ok {
		return o, true
	}
	if o.claimant, ok = x.holder(addressClaim(f).Range()); ok && o.port.Ranges.Has(f.Original.Dst.Port()) {
		return o, true
	}
	if !x.own.answers(f) {
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
	c.Addr = f.Family().Unspecified()
	return c
}

// holder returns the claimant that has the claim. There is none if the claim is
// protected from all claimants.
func (x *Index) holder(c service.Claim) (claimant, bool) {
	list := x.claims[c]
	// Protocol 0 stands for claims to whole cluster IPs, which have no port. But a
	// packet may have protocol number 0 as well.
	if len(list) == 0 || c.Protocol == 0 {
		return claimant{}, false
	}
	has := func(one claimant) bool { return !x.snapshot.Conflicts.At(one.service.Name).Has(c) }
	if len(list) > 1 {
		// Where several ask for the claim, only its owner can have it.
		if owner := x.snapshot.Owners.Of(c); owner != "" {
			i, found := place(list, owner)
			if !found || !has(list[i]) {
				return claimant{}, false
			}
			return list[i], true
		}
	}
	if i := slices.IndexFunc(list, has); i >= 0 {
		return list[i], true
	}
	return claimant{}, false
}

// place returns the place of a Service among claimants, and whether it is there: thousands may ask for one claim.
func place(list []claimant, name service.Name) (i int, found bool) {
	return slices.BinarySearchFunc(list, name, func(c claimant, name service.Name) int {
		return cmp.Compare(c.service.Name, name)
	})
}

// refused says that the rules refuse unknown ports of the address: it is a cluster IP
// and not bound on the node. NodeLocal DNSCache binds cluster IPs on the node and
// keeps their other ports. So does a host in a network that the rules spare.
func (x *Index) refused(a netip.Addr) bool {
	return len(x.claims[service.Claim{Addr: a}]) > 0 && !x.own.has(a) && !x.mayBeHost(a)
}

// inServiceCIDR says that the address is in a ServiceCIDR.
func (x *Index) inServiceCIDR(a netip.Addr) bool {
	return slices.ContainsFunc(x.cidrs, func(cidr netip.Prefix) bool { return cidr.Contains(a) })
}

// mayBeHost says that a host may have the address although it is in a ServiceCIDR or is a cluster
// IP. The rules neither drop nor refuse such packets.
func (x *Index) mayBeHost(a netip.Addr) bool {
	return slices.ContainsFunc(x.spared, func(n netip.Prefix) bool { return n.Contains(a) })
}

// Unallocated reports whether the address is in a ServiceCIDR, no Service has it as cluster IP, it
// is not the node's own, and the rules do not let its packets through.
func (x *Index) Unallocated(a netip.Addr) bool {
	return x.inServiceCIDR(a) && !x.own.has(a) && !x.mayBeHost(a) && len(x.claims[service.Claim{Addr: a}]) == 0
}

// admits says whether the claim lets in flows from src (service.Service.FirewallAt).
func (x *Index) admits(s *service.Service, c service.Claim, src netip.Addr) bool {
	a, ok := x.sources[c]
	if !ok {
		f, _, restricted := s.FirewallAt(c, x.snapshot.Restrictions.At(s.Name))
		a.everybody = true
		if restricted && x.snapshot.Node != nil {
			a = x.admitted(f, ip.Of(c.Addr))
		}
		x.sources[c] = a
	}
	return a.everybody || service.InRanges(a.ranges, src)
}

// admitted returns the clients that a firewall lets in.
func (x *Index) admitted(f service.Firewall, family ip.Family) admitted {
	at := wall{sources: f.Sources, family: family}
	if len(f.Addresses) > 0 {
		at.addresses = &f.Addresses[0]
	}
	a, known := x.walls[at]
	if !known {
		a.ranges, a.everybody = f.Admitted(x.snapshot.Node, family)
		x.walls[at] = a
	}
	return a
}

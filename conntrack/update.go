package conntrack

import (
	"iter"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// update is one call of Index.Update: the index already has the new snapshot and
// follows its changes from the old one.
type update struct {
	*Index
	old   service.Snapshot
	scope Scope
	// last is the latest comparison of two ports. The several claims of a port share
	// it.
	last portChange
	// asked counts the questions to recent.
	asked int
	// gained has the addresses and ports that a Service has gained since the first update.
	gained []service.Claim
}

// mostAsked is how often an update asks recent at most. A question costs some
// microseconds, a pass over the table milliseconds.
const mostAsked = 256

// quiet says that no client can be in the middle of its handshake with an endpoint of
// the claim. Then a filter for unanswered flows finds nothing.
func (u *update) quiet(c service.Claim) bool {
	if u.recent == nil || u.scope.Everything || u.asked == mostAsked {
		return false
	}
	u.asked++
	return !u.recent(c)
}

// followNode follows the changes of the node.
func (u *update) followNode() {
	old, node := u.old.Node, u.snapshot.Node
	if old == node {
		return
	}
	before := u.own
	u.own.setNode(node, u.options.NodePortAddresses)
	if old == nil || node == nil || old.Name != node.Name || old.Settings != node.Settings ||
		!slices.Equal(old.Addresses, node.Addresses) || !slices.Equal(old.PodCIDRs, node.PodCIDRs) ||
		!slices.Equal(old.Networks, node.Networks) || !slices.Equal(old.APIServers, node.APIServers) {
		u.scope.addAll()
		return
	}
	for a := range before.onInterfaces {
		// The link-local address of a pod's interface comes and goes with the pod. No
		// Service has it, and no program sends from it any more.
		if !u.own.has(a) && !a.IsLinkLocalUnicast() {
			u.scope.addAll()
		}
	}
	for a := range u.own.serving {
		if !before.serves(a) {
			u.scope.add(Filter{Dst: a})
		}
	}
}

// claims yields the claims of a Service, with the port of each.
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
			for _, family := range ip.Families() {
				if p.NodePort != 0 && s.InFamily(family) && !yield(service.NodePortClaim(family, p), p) {
					return
				}
			}
		}
	}
}

// replace replaces a Service by another one of the same name; nil stands for none.
func (u *update) replace(old, s *service.Service) {
	for c, p := range claims(s) {
		list := u.claims[c]
		i, had := place(list, s.Name)
		if !had {
			u.claims[c] = slices.Insert(list, i, claimant{s, p})
			if len(list) == 0 {
				u.countFrontend(c, 1)
			}
			u.gainClaim(c)
			continue
		}
		before := list[i]
		list[i] = claimant{s, p}
		if p != nil {
			u.keepClaim(c, before, list[i])
		}
	}
	for c, p := range claims(old) {
		list := u.claims[c]
		i, has := place(list, old.Name)
		if !has || list[i].service != old {
			continue // The new Service has it.
		}
		if list = slices.Delete(list, i, i+1); len(list) > 0 {
			u.claims[c] = list
		} else {
			delete(u.claims, c)
			u.countFrontend(c, -1)
		}
		u.loseClaim(c, claimant{old, p})
	}
}

// followOthers follows the Services of another proxy. When such a Service goes, flows to former endpoints of ours at
// its claims become stale.
func (u *update) followOthers() {
	for change := range treap.Diff(u.old.Others, u.snapshot.Others) {
		for c := range claims(change.New) {
			if c.Protocol != 0 {
				u.others[c]++
			}
		}
		for c := range claims(change.Old) {
			if c.Protocol == 0 {
				continue
			}
			if u.others[c]--; u.others[c] > 0 {
				continue
			}
			if delete(u.others, c); len(u.departed.from) > 0 {
				u.scope.addClaim(c)
			}
		}
	}
}

// countFrontend counts a claim to a port that has come (1) or gone (-1).
func (u *update) countFrontend(c service.Claim, n int) {
	if c.Protocol == 0 {
		return
	}
	family := ip.Of(c.Addr)
	*u.frontends.Of(family) += n
	*u.lost.Of(family) += max(0, -n)
}

// gainClaim adds the flows to a claim that the Service has gained: flows without
// DNAT, and flows to the endpoints of another Service.
func (u *update) gainClaim(c service.Claim) {
	u.scope.addClaim(c)
	if c.Protocol != 0 && !c.Addr.IsUnspecified() && u.old.Services.Len() > 0 {
		u.gained = append(u.gained, c)
	}
}

// loseClaim adds the flows to a claim that the Service has lost: they lead to its
// former endpoints.
func (u *update) loseClaim(c service.Claim, by claimant) {
	if by.port == nil {
		u.scope.addClaim(c)
		return
	}
	u.depart(c, by, by.port.Endpoints)
	u.loseEndpoints(c, by.port.Endpoints, u.affectedStatus(c, by, by.port.Endpoints), 1)
}

// keepClaim adds the flows to a claim that the Service still has, as far as the
// change of the Service makes them stale.
func (u *update) keepClaim(c service.Claim, before, after claimant) {
	if u.last.before != before.port || u.last.after != after.port {
		u.last = comparePorts(before.port, after.port)
	}
	change := &u.last
	u.depart(c, before, change.gone)
	if before.port.Ranges != after.port.Ranges {
		u.depart(c, before, before.port.Endpoints) // of the ports that the ranges have lost
		u.scope.addClaim(c)
	}
	switch {
	case narrowed(before.service, after.service) || change.first || change.moved || change.more &&
		after.service.FailoverAt(c) == service.FailoverPass:
		u.scope.addClaim(c)
	default:
		u.loseEndpoints(c, change.gone, u.affectedStatus(c, after, change.gone), after.claims())
		u.loseEndpoints(c, change.unready, unservedStatus(c), after.claims())
	}
}

// depart remembers endpoints that a claim has lost, if the claimant had the claim before.
func (u *update) depart(c service.Claim, before claimant, endpoints service.Endpoints) {
	if endpoints.Len() > 0 && holds(&u.old, before.service.Name, c) {
		u.departed.add(c, before.port, endpoints, u.cutOf(u.current(before.service), c.Protocol))
	}
}

// current returns the Service as it is now; the given one if it is gone.
func (u *update) current(s *service.Service) *service.Service {
	if now := u.snapshot.Services.At(s.Name); now != nil {
		return now
	}
	return s
}

// loseEndpoints adds the flows to a claim that lead to one of the lost endpoints and are without
// some bits of the status. Up to few endpoints get a filter of their own; few is the number of claims
// that have lost them. Such a filter finds the flows of all these claims, and selects only
// stale flows, however busy the Service is.
func (u *update) loseEndpoints(c service.Claim, endpoints service.Endpoints, without Status, few int) {
	if endpoints.Len() == 0 {
		return
	}
	if without == SeenReply && u.quiet(c) {
		return
	}
	if whole := claimFilter(c, without); endpoints.Len() > few || u.scope.covers(whole) || c.IsRange() {
		u.scope.add(whole)
		return
	}
	for e := range endpoints.All() {
		u.scope.add(Filter{Protocol: c.Protocol, Endpoint: e.Addr, Mask: without})
	}
}

// claims returns the number of claims of the port: addresses, and the node port.
func (c claimant) claims() int {
	n := len(c.service.ClusterIPs) + len(c.service.ExternalIPs) + len(c.service.LoadBalancerIPs)
	if c.port.NodePort != 0 {
		n++
	}
	return n
}

// affectedStatus returns the bits of the status that all flows lack which the loss of endpoints
// can make stale. A busy Service has many connections, and few of them are unanswered.
func (u *update) affectedStatus(c service.Claim, of claimant, gone service.Endpoints) Status {
	identity := false
	for e := range gone.All() {
		identity = identity || e.Addr.Port() == c.Port && (e.Addr.Addr() == c.Addr || c.Addr.IsUnspecified())
	}
	if c.Protocol == service.UDP || identity || u.cutOf(u.current(of.service), c.Protocol).due(u.departed.now) {
		return 0
	}
	return SeenReply
}

// unservedStatus returns the same for the flows that an endpoint makes stale
// when it no longer serves.
func unservedStatus(c service.Claim) Status {
	if c.Protocol == service.UDP {
		return 0
	}
	return SeenReply
}

// narrowed says whether the change of a Service may forbid flows that were allowed.
func narrowed(before, after *service.Service) bool {
	return before.InternalPolicy != after.InternalPolicy || before.ExternalPolicy != after.ExternalPolicy ||
		before.Options.ExternalFailover != after.Options.ExternalFailover ||
		before.Options.UDPHandling > after.Options.UDPHandling ||
		!before.Sources.Equal(after.Sources) || !before.Options.SourceRanges.Equal(after.Options.SourceRanges) ||
		after.Options.SourceRanges != nil && !slices.Equal(before.ExternalIPs, after.ExternalIPs) ||
		!slices.Equal(before.LoadBalancerIPs, after.LoadBalancerIPs) || !slices.Equal(before.ClusterIPs, after.ClusterIPs)
}

// portChange is the change of a port's endpoints.
type portChange struct {
	before, after *service.Port
	// gone has the endpoints that were removed, unready those that no longer serve, or that no longer terminate without
	// serving.
	gone, unready service.Endpoints
	// first says that there was no endpoint before. moved says that an endpoint is
	// now on another node. more says that one may get new connections that could not before.
	first, moved, more bool
}

// comparePorts compares the endpoints of two ports. Its cost grows with their
// difference.
func comparePorts(before, after *service.Port) portChange {
	c := portChange{before: before, after: after, first: before.Endpoints.Len() == 0 && after.Endpoints.Len() > 0}
	var gone, unready []service.Endpoint
	for change := range sorted.Diff(before.Endpoints, after.Endpoints) {
		was, is := change.Old, change.New
		c.more = c.more || is.TakesNew() && !was.TakesNew()
		switch {
		case is == nil:
			gone = append(gone, *was)
		case was != nil:
			if !is.Serves() && (was.Serves() || was.Terminating && !is.Terminating) {
				unready = append(unready, *was)
			}
			c.moved = c.moved || was.Node != is.Node
		}
	}
	c.gone, c.unready = sorted.Of(gone), sorted.Of(unready)
	return c
}

// followConflicts adds the flows to claims that changed hands although the Services'
// claims stayed the same, as when only their ages changed. The claim of a conflict has
// another claimant, or is protected.
func (u *update) followConflicts() {
	for change := range treap.Diff(u.old.Conflicts, u.snapshot.Conflicts) {
		gone := map[service.Claim]bool{}
		for lost := range change.New.Since(change.Old) {
			if c := lost.Claim; c.Protocol != 0 && !change.Old.Has(c) {
				u.scope.addClaim(c)
				gone[c] = true
			}
		}
		u.departFrom(gone, change.Key)
		for won := range change.Old.Since(change.New) {
			if c := won.Claim; c.Protocol != 0 && !change.New.Has(c) {
				u.gainClaim(c)
			}
		}
	}
}

// departFrom remembers the endpoints that claims had before, by a Service that may have
// had them.
func (u *update) departFrom(gone map[service.Claim]bool, name service.Name) {
	if len(gone) == 0 {
		return
	}
	s := u.old.Services.At(name)
	for c, p := range claims(s) {
		if gone[c] {
			u.depart(c, claimant{s, p}, p.Endpoints)
		}
	}
}

// followShadows remembers whose node ports were at addresses and ports that a Service has
// gained, and whose ranges: packets to a node port or ranges go to the Service that has address and port, if there is
// one.
func (u *update) followShadows() {
	for _, c := range u.gained {
		nodePort := c
		nodePort.Addr = ip.Of(c.Addr).Unspecified()
		if by, ok := u.holder(nodePort); ok {
			u.departed.add(c, by.port, by.port.Endpoints, u.cutOf(by.service, c.Protocol))
		}
		if by, ok := u.holder(c.Range()); ok && !c.IsRange() && by.port.Ranges.Has(c.Port) {
			u.departed.add(c, by.port, by.port.Endpoints, u.cutOf(by.service, c.Protocol))
		}
	}
}

// holds says whether the Service, a claimant, has the claim in the snapshot.
func holds(s *service.Snapshot, name service.Name, c service.Claim) bool {
	owner := s.Owners.Of(c)
	return (owner == "" || owner == name) && !s.Conflicts.At(name).Has(c)
}

package obstacle

import (
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// Fate is what happens to new connections to an address and port of a Service, or to a node port, apart from conflicts
// and source ranges.
type Fate string

// The fates. DroppedOutside drops connections from outside of the cluster only: the external traffic policy is Local,
// and no endpoint is on the node. PassedOutside leaves them to routing, as the Service asks by service.FailoverPass.
// Passed does so with all connections, since there is no endpoint at all. Held drops all of them for a time before they
// are refused, as the Service asks by service.Options.Hold.
const (
	Served         Fate = "served"
	Refused        Fate = "refused"
	Held           Fate = "held"
	Dropped        Fate = "dropped"
	DroppedOutside Fate = "dropped-outside"
	Passed         Fate = "passed"
	PassedOutside  Fate = "passed-outside"
)

// Obstacle is what the fate comes of; ok is false for Served.
func (f Fate) Obstacle() (o Obstacle, ok bool) {
	switch f {
	case Refused:
		o = Obstacle{NoEndpoints, Refuses, "no endpoint serves", all}
	case Held:
		o = Obstacle{Holding, Holds, "no endpoint serves, and no-endpoints is hold", all}
	case Passed:
		o = Obstacle{NoEndpoints, Passes, "no endpoint serves, and external-failover is pass", all}
	case Dropped:
		o = Obstacle{NoLocalEndpoints, Drops, "internalTrafficPolicy is Local and no endpoint serves on this node", all}
	case DroppedOutside:
		o = Obstacle{NoLocalEndpoints, Drops, "externalTrafficPolicy is Local and no endpoint serves on this node", outside}
	case PassedOutside:
		o = Obstacle{NoLocalEndpoints, Passes, "no endpoint serves on this node, and external-failover is pass", outside}
	}
	return o, o.Why != ""
}

// FateAt returns the fate at a claim of the Service. anywhere and here say whether any endpoint of the port serves in
// the claim's family, and whether one on the node does.
func FateAt(s *service.Service, c service.Claim, anywhere, here bool) Fate {
	internal, failover := slices.Contains(s.ClusterIPs, c.Addr), s.FailoverAt(c)
	switch {
	case !anywhere && failover == service.FailoverPass:
		return Passed
	case !anywhere && s.Options.Hold > 0:
		return Held
	case !anywhere:
		return Refused
	case here, internal && s.InternalPolicy == service.Cluster, !internal && s.ExternalPolicy == service.Cluster,
		failover == service.FailoverCluster:
		return Served
	case internal:
		return Dropped
	case failover == service.FailoverPass:
		return PassedOutside
	}
	return DroppedOutside
}

// NoneHere says whether the internal or external policy Local of a port leaves no endpoint in a family, although some
// serve on other nodes. It visits each endpoint.
func NoneHere(s *service.Service, p *service.Port, node *service.Node, family ip.Family) (internal, external bool) {
	if n := share.Count(s, p, node, family); !n.Anywhere() || n.Local > 0 {
		return false, false
	}
	return s.InternalPolicy == service.Local, s.ExternalPolicy == service.Local && s.External(p, family)
}

// OfPort returns the obstacles of a port of the Service in one family, as a whole. It visits each endpoint.
func OfPort(s *service.Service, p *service.Port, node *service.Node, family ip.Family) (found Set) {
	n := share.Count(s, p, node, family)
	found.Add(OnlyDraining, n.Ready == 0 && n.Draining > 0)
	for c := range s.ClaimsOf(p, family) {
		o, stops := FateAt(s, c, n.Anywhere(), n.Local > 0).Obstacle()
		found.Add(o.Kind, stops)
	}
	return found
}

package statuspage

import (
	"math/bits"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// state is a set of conditions of a Service. No condition means that all of it serves.
type state uint8

// The conditions, the worst first.
const (
	// inQuarantine: the kernel refused the Service's part.
	inQuarantine state = 1 << iota
	// noEndpoints: a port has no endpoint, in a family of the Service.
	noEndpoints
	// conflict: the Service does not get all of its claims.
	conflict
	// beyondBound: part of what the Service asks for is beyond a bound.
	beyondBound
	// unusable: a part of the Service's objects cannot be used.
	unusable
	// drainingOnly: a port has only endpoints that terminate.
	drainingOnly
	// noneHere: a port has policy Local, and its endpoints are on other nodes.
	noneHere
)

// conditions is the number of conditions.
const conditions = 7

// rank orders states by their worst condition, from 0 for the worst. It is conditions for
// a Service that serves.
func (s state) rank() int {
	if s == 0 {
		return conditions
	}
	return bits.TrailingZeros8(uint8(s))
}

// ranks is the number of ranks.
const ranks = conditions + 1

// kind describes the Services of a rank.
type kind struct {
	// slug stands in links, label in tables; meaning is a sentence.
	slug, label, meaning string
}

// kinds are in the order of ranks.
func kinds() [ranks]kind {
	return [ranks]kind{
		{"quarantined", "In quarantine", "The kernel refused the rules of the Service, so they are left out. nftproxy " +
			"tries them again."},
		{"no-endpoints", "No endpoints", "A port has no endpoint that serves. Connections to it are refused."},
		{"conflict", "Conflict", "Another Service has an address or port that the Service claims, or the node needs it."},
		{"left-out", "Beyond a bound", "The Service asks for more than one Service may have. The rest is left out."},
		{"problems", "Problems", "A field or an annotation of the Service, or of one of its EndpointSlices, cannot be " +
			"used. The rest of it is used."},
		{"draining", "Draining", "A port has only endpoints that terminate. They still serve."},
		{"no-local", "None on this node", "The traffic policy is Local, and the endpoints are on other nodes. Connections " +
			"that the policy is for are dropped here."},
		{"serving", "Serving", "All ports have endpoints."},
	}
}

// rankOf returns the rank with the slug.
func rankOf(slug string) (rank int, ok bool) {
	for i, k := range kinds() {
		if k.slug == slug {
			return i, true
		}
	}
	return 0, false
}

// families are the families of a Service.
func families(s *service.Service) []ip.Family {
	var list []ip.Family
	for _, family := range ip.Families() {
		if s.InFamily(family) {
			list = append(list, family)
		}
	}
	return list
}

// stateOf returns the conditions of a Service. It visits each endpoint.
func (v *view) stateOf(s *service.Service) state {
	var found state
	if _, held := v.quarantined[string(s.Name)]; held {
		found |= inQuarantine
	}
	if v.snapshot.Conflicts.At(s.Name).Len() > 0 {
		found |= conflict
	}
	if v.snapshot.LeftOut.At(s.Name) != nil || v.snapshot.WithoutAffinity.At(s.Name) != nil ||
		v.snapshot.ClosedSources.At(s.Name) != nil || v.snapshot.UnservedRanges.At(s.Name) != nil {
		found |= beyondBound
	}
	if len(v.problemsOf(s)) > 0 {
		found |= unusable
	}
	for _, family := range families(s) {
		for i := range s.Ports {
			found |= portState(s, &s.Ports[i], v.snapshot.Node, family)
		}
	}
	return found
}

// problemsOf says what cannot be used of the objects of a Service.
func (v *view) problemsOf(s *service.Service) []string {
	if v.problems == nil {
		return nil
	}
	return v.problems(s.Name)
}

// portState returns the conditions of a port in one family.
func portState(s *service.Service, p *service.Port, node *service.Node, family ip.Family) state {
	n := share.Count(s, p, node, family)
	if n.Ready+n.Draining == 0 {
		return noEndpoints
	}
	var found state
	if n.Ready == 0 {
		found |= drainingOnly
	}
	local := s.InternalPolicy == service.Local ||
		s.ExternalPolicy == service.Local && s.Options.ExternalFailover == service.FailoverDrop && s.External(p, family)
	if local && n.Local == 0 {
		found |= noneHere
	}
	return found
}

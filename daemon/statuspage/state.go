package statuspage

import (
	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
)

// kindOf returns the kind of Services with the word.
func kindOf(word string) (kind obstacle.Kind, ok bool) {
	for _, k := range obstacle.OfServices() {
		if k.String() == word {
			return k, true
		}
	}
	return obstacle.None, false
}

func families(s *service.Service) []ip.Family {
	var list []ip.Family
	for _, family := range ip.Families() {
		if s.InFamily(family) {
			list = append(list, family)
		}
	}
	return list
}

// obstaclesOf returns the obstacles of a Service as a whole. It visits each endpoint.
func (v *view) obstaclesOf(s *service.Service) (found obstacle.Set) {
	found.Add(obstacle.Quarantined, v.quarantined[string(s.Name)] != nil)
	found.Add(obstacle.Conflict, v.snapshot.Conflicts.At(s.Name).Len() > 0)
	found.Add(obstacle.BeyondBound, len(v.snapshot.Bounds(s.Name)) > 0)
	found.Add(obstacle.Problems, len(v.problems(s.Name)) > 0)
	for _, family := range families(s) {
		for i := range s.Ports {
			found |= obstacle.OfPort(s, &s.Ports[i], v.snapshot.Node, family)
		}
	}
	return found
}

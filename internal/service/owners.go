package service

import "slices"

// ConflictsBy is what the service lost if each claim belongs to whom owner
// says; nil for nothing. A Builder knows the owners of what it was given: this
// is for snapshots that come from elsewhere.
func (s *Service) ConflictsBy(owner func(Claim) Name) *Conflicts {
	var lost []Conflict
	for _, c := range s.claims() {
		if o := owner(c); o != s.Name {
			lost = append(lost, Conflict{c, o})
		}
	}
	if lost == nil {
		return nil
	}
	return &Conflicts{lost}
}

// NewRestrictions puts restrictions in order; nil for none.
func NewRestrictions(list []Restriction) *Restrictions {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Restriction) int { return compareClaims(a.Claim, b.Claim) })
	return &Restrictions{list}
}

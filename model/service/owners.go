package service

import (
	"net/netip"
	"slices"
)

// ConflictsGivenOwners returns the claims of the service that owner gives to others, or
// to none; nil if there are none. It is for snapshots that no Builder made.
func (s *Service) ConflictsGivenOwners(owner func(Claim) Name) *Conflicts {
	var conflicts Conflicts
	s.claimable(DefaultMaxElements).claims(func(a netip.Addr, _ right, sockets []socket) {
		for _, at := range sockets {
			if c := (Claim{a, at.protocol, at.port}); owner(c) != s.Name {
				conflicts.byClaim = conflicts.byClaim.Set(c.key(), "")
			}
		}
	})
	if conflicts.Len() == 0 {
		return nil
	}
	return &conflicts
}

// NewRestrictions makes Restrictions of a list in any order; nil for none.
func NewRestrictions(list []Restriction) *Restrictions {
	if len(list) == 0 {
		return nil
	}
	var r Restrictions
	list = slices.Clone(list)
	for i := range list {
		r.byClaim = r.byClaim.Set(list[i].Claim.key(), &list[i])
	}
	return &r
}

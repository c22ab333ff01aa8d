package service

import (
	"maps"
	"slices"
)

// claimants knows who claims what. Nearly every claim has only one claimant,
// which is no list then: at the start there would be thousands of lists of one.
type claimants struct {
	sole map[Claim]*Service
	// contested has the claims of two and more, the one that has it first.
	contested map[Claim][]*Service
}

func newClaimants() claimants {
	return claimants{sole: map[Claim]*Service{}, contested: map[Claim][]*Service{}}
}

// expect makes room for the claims of n services more: an address and a port
// is what most have.
func (c *claimants) expect(n int) { c.sole = roomFor(2*n, c.sole) }

// add puts s among the claimants and returns them all, nil if s is alone.
func (c *claimants) add(claim Claim, s *Service) []*Service {
	list, contested := c.contested[claim]
	if !contested {
		other, taken := c.sole[claim]
		if !taken {
			c.sole[claim] = s
			return nil
		}
		delete(c.sole, claim)
		list = []*Service{other}
	}
	at, _ := slices.BinarySearchFunc(list, s, claim.precedence)
	list = slices.Insert(list, at, s)
	c.contested[claim] = list
	return list
}

// remove takes s away and returns those that are left.
func (c *claimants) remove(claim Claim, s *Service) []*Service {
	list, contested := c.contested[claim]
	if !contested {
		delete(c.sole, claim)
		return nil
	}
	list = slices.DeleteFunc(list, func(o *Service) bool { return o == s })
	if len(list) > 1 {
		c.contested[claim] = list
		return list
	}
	delete(c.contested, claim)
	c.sole[claim] = list[0]
	return list
}

// swap puts s in the place of old, whose right is the same.
func (c *claimants) swap(claim Claim, old, s *Service) {
	list, contested := c.contested[claim]
	if !contested {
		c.sole[claim] = s
		return
	}
	list[slices.Index(list, old)] = s
}

// roomFor returns the map with room for n entries more. One that is as large
// already, or that stays small, may grow by itself at no higher price.
func roomFor[K comparable, V any](n int, m map[K]V) map[K]V {
	const small = 8
	if n <= max(small, len(m)) {
		return m
	}
	larger := make(map[K]V, len(m)+n)
	maps.Copy(larger, m)
	return larger
}

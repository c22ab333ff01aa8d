package service

import (
	"maps"

	"nftproxy/model/treap"
)

// contests has all claims with the rights of their claimants, the services that make
// them. Nearly every claim has one claimant, which needs no contest: at the start there
// would be thousands.
type contests struct {
	sole      map[packedClaim]right
	contested map[Claim]*contest
}

// contest is a claim with two or more claimants. A change costs O(log n).
type contest struct {
	// rights has the right of each claimant.
	rights map[Name]right
	// claimants sorts all rights, the best first, and restricting the rights of services whose source
	// ranges restrict the claim.
	claimants, restricting treap.Map[right, struct{}]
}

// winners has the best right to a claim, and the best right of the services that
// restrict it; empty for none.
type winners struct{ owner, restricting right }

func newContests() contests {
	return contests{sole: map[packedClaim]right{}, contested: map[Claim]*contest{}}
}

// expect makes room for the claims of n more services. Most have two claims: the
// cluster IP and one port on it.
func (c *contests) expect(n int) { c.sole = roomFor(2*n, c.sole) }

// winners returns the best rights to a claim.
func (c *contests) winners(claim Claim) winners {
	var w winners
	if one := c.contested[claim]; one != nil {
		w.owner, _, _ = one.claimants.First()
		w.restricting, _, _ = one.restricting.First()
		return w
	}
	if w.owner = c.sole[claim.packed()]; w.owner != "" && w.owner.restricts() {
		w.restricting = w.owner
	}
	return w
}

// changeSole adds or removes the only claimant of a claim. It returns false, and
// changes nothing, if there are others.
func (c *contests) changeSole(claim Claim, r right, add bool) bool {
	if len(c.contested) > 0 && c.contested[claim] != nil {
		return false
	}
	p := claim.packed()
	if !add {
		delete(c.sole, p)
		return true
	}
	if _, taken := c.sole[p]; taken {
		return false
	}
	c.sole[p] = r
	return true
}

func (c *contest) add(r right) {
	c.remove(r.name())
	c.rights[r.name()] = r
	c.claimants = c.claimants.Set(r, struct{}{})
	if r.restricts() {
		c.restricting = c.restricting.Set(r, struct{}{})
	}
}

func (c *contest) remove(name Name) {
	r := c.rights[name]
	delete(c.rights, name)
	c.claimants, c.restricting = c.claimants.Delete(r), c.restricting.Delete(r)
}

// add adds a claimant.
func (c *contests) add(claim Claim, r right) {
	if one := c.contested[claim]; one != nil {
		one.add(r)
		return
	}
	p := claim.packed()
	other, taken := c.sole[p]
	if !taken {
		c.sole[p] = r
		return
	}
	delete(c.sole, p)
	one := &contest{rights: map[Name]right{}}
	one.add(other)
	one.add(r)
	c.contested[claim] = one
}

// remove removes a claimant.
func (c *contests) remove(claim Claim, r right) {
	one := c.contested[claim]
	if one == nil {
		delete(c.sole, claim.packed())
		return
	}
	one.remove(r.name())
	if len(one.rights) == 1 {
		delete(c.contested, claim)
		c.sole[claim.packed()], _, _ = one.claimants.First()
	}
}

// find returns the right of one claimant; false if the service makes no such claim.
func (c *contests) find(claim Claim, name Name) (right, bool) {
	one := c.contested[claim]
	if one == nil {
		r, taken := c.sole[claim.packed()]
		return r, taken && r.name() == name
	}
	r, found := one.rights[name]
	return r, found
}

// claimants yields the names of all claimants.
func (c *contests) claimants(claim Claim, yield func(Name)) {
	if r, alone := c.sole[claim.packed()]; alone {
		yield(r.name())
		return
	}
	if one := c.contested[claim]; one != nil {
		for name := range one.rights {
			yield(name)
		}
	}
}

// all yields each claim with the right of each claimant, in no order.
func (c *contests) all(yield func(Claim, right)) {
	for claim, r := range c.sole {
		yield(claim.claim(), r)
	}
	for claim, one := range c.contested {
		for _, r := range one.rights {
			yield(claim, r)
		}
	}
}

// roomFor returns the map with room for n more keys. It leaves alone a map that has n
// keys already, or that stays small: such a map grows at no higher cost by itself.
func roomFor[K comparable, V any](n int, m map[K]V) map[K]V {
	const small = 8
	if n <= max(small, len(m)) {
		return m
	}
	larger := make(map[K]V, len(m)+n)
	maps.Copy(larger, m)
	return larger
}

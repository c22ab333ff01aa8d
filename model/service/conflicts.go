package service

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"nftproxy/model/treap"
)

// ClaimKey is a claim in bytes that sort like claims: IPv4 first, then by address, protocol and port. It has no zone,
// since no service's address has one.
type ClaimKey string

// Key returns the claim as a key of sorted maps.
func (c Claim) Key() ClaimKey {
	var k [1 + 16 + 3]byte
	if c.Addr.Is6() {
		k[0] = 1
	}
	addr := c.Addr.As16()
	copy(k[1:], addr[:])
	k[17] = byte(c.Protocol)
	binary.BigEndian.PutUint16(k[18:], c.Port)
	return ClaimKey(k[:])
}

// Claim returns the claim of a key.
func (k ClaimKey) Claim() Claim {
	addr := netip.AddrFrom16([16]byte([]byte(k[1:17])))
	if k[0] == 0 {
		addr = addr.Unmap()
	}
	return Claim{addr, Protocol(k[17]), binary.BigEndian.Uint16([]byte(k[18:]))}
}

// Conflicts are the claims that one service makes and does not get. They never change;
// the next version shares the equal part with the last one.
type Conflicts struct {
	byClaim treap.Map[ClaimKey, Protection]
}

// Conflict is a claim that a service does not get.
type Conflict struct {
	Claim Claim
	// Protected says why the claim is protected. It is empty if another service has
	// the claim, or the address of a retained service; the snapshot's Owners name that
	// service.
	Protected Protection
}

// all returns the conflicts by their claims; a nil receiver has none.
func (c *Conflicts) all() (none treap.Map[ClaimKey, Protection]) {
	if c == nil {
		return none
	}
	return c.byClaim
}

// Has reports whether the claim is a conflict; a nil receiver has none.
func (c *Conflicts) Has(claim Claim) bool {
	_, found := c.Get(claim)
	return found
}

// Get returns the protection of the claim, if that is a conflict (Conflict.Protected).
func (c *Conflicts) Get(claim Claim) (protected Protection, found bool) {
	if c == nil { // nearly always, and without the key
		return "", false
	}
	return c.byClaim.Get(claim.Key())
}

// Edit returns the conflicts after sorted edits: the same ones if nothing changes, and nil if there are none.
func (c *Conflicts) Edit(edits []treap.Edit[ClaimKey, Protection]) *Conflicts {
	switch after := c.all().Apply(edits); {
	case after == c.all():
		return c
	case after.Len() == 0:
		return nil
	default:
		return &Conflicts{after}
	}
}

// Len returns the number of conflicts; a nil receiver has none.
func (c *Conflicts) Len() int { return c.all().Len() }

// All yields the conflicts in the order of the claims.
func (c *Conflicts) All() iter.Seq[Conflict] { return c.Since(nil) }

// Since yields, in the order of the claims, the conflicts that were not there before, or
// had another reason. It costs what differs. Both may be nil.
func (c *Conflicts) Since(before *Conflicts) iter.Seq[Conflict] {
	return func(yield func(Conflict) bool) {
		for d := range treap.Diff(before.all(), c.all()) {
			if d.HasNew && !yield(Conflict{d.Key.Claim(), d.New}) {
				return
			}
		}
	}
}

// Protection says, in words for people, what needs an address and port. A service gets
// them only if the address is its cluster IP.
type Protection string

// Owners names the owners of claims that several services make.
type Owners struct {
	names treap.Map[ClaimKey, Name]
}

// Of returns the service with the best right to a claim that several services make; empty if at
// most one makes it. If the claim is among the Conflicts of that service, it is protected, and
// nobody has it.
func (o Owners) Of(c Claim) Name { return o.names.At(c.Key()) }

// Over returns the service that causes a conflict of another one: it has the claim, or the address
// of a retained service.
func (o Owners) Over(loser Name, c Claim) Name {
	if owner := o.Of(c); owner != "" && owner != loser {
		return owner
	}
	return o.Of(Claim{Addr: c.Addr})
}

// Edit returns the owners after changes; an empty name is for none.
func (o Owners) Edit(changes map[ClaimKey]Name) Owners {
	return Owners{o.names.Apply(treap.Edits(changes))}
}

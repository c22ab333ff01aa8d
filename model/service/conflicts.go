package service

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"nftproxy/model/treap"
)

// claimKey is a packedClaim as a key of sorted maps.
type claimKey string

// packedClaim is a claim in bytes that sort like claims: IPv4 first, then by address,
// protocol and port. It has no zone, since no service's address has one. A Go map finds it
// sooner than a Claim, which has a pointer.
type packedClaim [1 + 16 + 3]byte

func (c Claim) packed() (p packedClaim) {
	if c.Addr.Is6() {
		p[0] = 1
	}
	addr := c.Addr.As16()
	copy(p[1:], addr[:])
	p[17] = byte(c.Protocol)
	binary.BigEndian.PutUint16(p[18:], c.Port)
	return p
}

func (c Claim) key() claimKey {
	p := c.packed()
	return claimKey(p[:])
}

func (k claimKey) claim() Claim { return packedClaim([]byte(k)).claim() }

func (p packedClaim) claim() Claim {
	addr := netip.AddrFrom16([16]byte(p[1:17]))
	if p[0] == 0 {
		addr = addr.Unmap()
	}
	return Claim{addr, Protocol(p[17]), binary.BigEndian.Uint16(p[18:])}
}

// Conflicts are the claims that one service makes and does not get. They never change;
// the next version shares the equal part with the last one.
type Conflicts struct {
	byClaim treap.Map[claimKey, Protection]
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
func (c *Conflicts) all() (none treap.Map[claimKey, Protection]) {
	if c == nil {
		return none
	}
	return c.byClaim
}

// Has reports whether the claim is a conflict; a nil receiver has none.
func (c *Conflicts) Has(claim Claim) bool {
	if c == nil { // nearly always, and without the key
		return false
	}
	_, found := c.byClaim.Get(claim.key())
	return found
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
			if d.HasNew && !yield(Conflict{d.Key.claim(), d.New}) {
				return
			}
		}
	}
}

// Protection says, in words for people, what needs an address and port. A service gets
// them only if the address is its cluster IP.
type Protection string

// Protected has the claims that are protected from external addresses, and from node ports
// and health check node ports. A service still gets its own cluster IP.
type Protected map[Claim]Protector

// Protector says why a claim is protected.
type Protector struct {
	Protection Protection
	// FromLoadBalancers protects the claim from addresses of status.loadBalancer too,
	// not only from those of spec.externalIPs.
	FromLoadBalancers bool
	// Servers, if there are any, are endpoints to which the claim may lead: a service
	// that sends all its connections to them gets the claim.
	Servers *Servers
}

// against returns what protects the claim from services of that rank; empty for nothing.
func (p Protector) against(r rank) Protection {
	if r == asExternalIP || r == asLoadBalancer && p.FromLoadBalancers {
		return p.Protection
	}
	return ""
}

// Owners names the owners of claims that several services make.
type Owners struct {
	names treap.Map[claimKey, Name]
}

// Of returns the service with the best right to a claim that several services make; empty if at
// most one makes it. If the claim is among the Conflicts of that service, it is protected, and
// nobody has it.
func (o Owners) Of(c Claim) Name { return o.names.At(c.key()) }

// Over returns the service that causes a conflict of another one: it has the claim, or the address
// of a retained service.
func (o Owners) Over(loser Name, c Claim) Name {
	if owner := o.Of(c); owner != "" && owner != loser {
		return owner
	}
	return o.Of(Claim{Addr: c.Addr})
}

package service

import (
	"cmp"
	"crypto/sha256"
	"iter"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/treap"
)

// Sources are the ranges of client addresses that loadBalancerSourceRanges or the
// annotation source-ranges let in. It never changes.
type Sources struct {
	ranges []netip.Prefix
	// v6 is where those of IPv6 begin.
	v6 int
	// digests tell the lists of the families apart.
	digests ip.PerFamily[Digest]
}

// Digest identifies a list of ranges. Equal lists have the same digest. It is infeasible
// to make different lists with the same digest (SHA-256, cut to 160 bits).
type Digest [20]byte

// NewSources makes Sources of ranges that may overlap, in any order. A family without a range
// admits no source, since an operator who lists ranges wants to exclude all others.
func NewSources(ranges []netip.Prefix) *Sources {
	disjoint := Disjoint(ranges)
	s := &Sources{ranges: disjoint, v6: len(disjoint)}
	if i := slices.IndexFunc(disjoint, func(r netip.Prefix) bool { return r.Addr().Is6() }); i >= 0 {
		s.v6 = i
	}
	s.digests = ip.PerFamily[Digest]{digest(disjoint[:s.v6]), digest(disjoint[s.v6:])}
	return s
}

// MaxSourcesLeft is the greatest number of ranges of each family that AllBut returns. One address that is left out of
// all takes as many ranges as it has bits.
const MaxSourcesLeft = 4096

// AllBut makes Sources of what the ranges leave out, with as few ranges as there can be. A family without a range is
// admitted as a whole. If more than MaxSourcesLeft are needed, ok is false, and nobody is admitted.
func AllBut(ranges []netip.Prefix) (s *Sources, ok bool) {
	disjoint, left := Disjoint(ranges), []netip.Prefix{}
	for _, family := range ip.Families() {
		var own []netip.Prefix
		for _, r := range disjoint {
			if family.Has(r.Addr()) {
				own = append(own, r)
			}
		}
		rest := leftOf(nil, netip.PrefixFrom(family.Unspecified(), 0), own)
		if len(rest) > MaxSourcesLeft {
			return NewSources(nil), false
		}
		left = append(left, rest...)
	}
	return NewSources(left), true
}

// leftOf adds to the list what the ranges leave out of a whole that contains them. They are disjoint and sorted. It
// ends soon after the list has become too long.
func leftOf(list []netip.Prefix, whole netip.Prefix, ranges []netip.Prefix) []netip.Prefix {
	switch {
	case len(ranges) == 0:
		return append(list, whole)
	case ranges[0] == whole || len(list) > MaxSourcesLeft:
		return list
	}
	bits := whole.Bits()
	middle := whole.Addr().AsSlice()
	middle[bits/8] |= 0x80 >> (bits % 8)
	upper, _ := netip.AddrFromSlice(middle)
	i := 0
	for i < len(ranges) && ranges[i].Addr().Less(upper) {
		i++
	}
	list = leftOf(list, netip.PrefixFrom(whole.Addr(), bits+1), ranges[:i])
	return leftOf(list, netip.PrefixFrom(upper, bits+1), ranges[i:])
}

// Disjoint returns the ranges masked and sorted, without those that another one contains.
func Disjoint(ranges []netip.Prefix) []netip.Prefix {
	list := make([]netip.Prefix, len(ranges))
	for i, r := range ranges {
		list[i] = r.Masked()
	}
	// If two prefixes overlap, one contains the other and sorts before it.
	slices.SortFunc(list, netip.Prefix.Compare)
	var disjoint []netip.Prefix
	for _, r := range list {
		if n := len(disjoint); n == 0 || !disjoint[n-1].Overlaps(r) {
			disjoint = append(disjoint, r)
		}
	}
	return disjoint
}

func digest(ranges []netip.Prefix) Digest {
	all := make([]byte, 0, len(ranges)*len("255.255.255.255/32\n"))
	for _, r := range ranges {
		all = append(r.AppendTo(all), '\n')
	}
	sum := sha256.Sum256(all)
	return Digest(sum[:len(Digest{})])
}

// Ranges returns all ranges, disjoint and sorted.
func (s *Sources) Ranges() []netip.Prefix {
	if s == nil {
		return nil
	}
	return s.ranges
}

// Of returns the ranges of one family; all says that every source is admitted.
func (s *Sources) Of(family ip.Family) (ranges []netip.Prefix, all bool) {
	if s == nil {
		return nil, true
	}
	ranges = s.ranges[:s.v6]
	if family == ip.V6 {
		ranges = s.ranges[s.v6:]
	}
	switch {
	case len(ranges) == 0:
		return nil, false
	case ranges[0].Bits() == 0:
		return nil, true
	}
	return slices.Clip(ranges), false
}

// Digest returns the digest of one family's ranges.
func (s *Sources) Digest(family ip.Family) Digest {
	return *s.digests.Of(family)
}

// And returns the sources that both let in. A nil receiver or argument lets in all.
func (s *Sources) And(o *Sources) *Sources {
	if s == nil || o == nil {
		return cmp.Or(s, o)
	}
	var both []netip.Prefix
	for a, b := s.ranges, o.ranges; len(a) > 0 && len(b) > 0; {
		if a[0].Overlaps(b[0]) {
			both = append(both, Smaller(a[0], b[0]))
		}
		if endsBefore(a[0], b[0]) {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return NewSources(both)
}

// endsBefore says of two prefixes of sorted lists which of them can overlap no later one of the other list.
func endsBefore(a, b netip.Prefix) bool {
	if a.Overlaps(b) {
		return a.Bits() > b.Bits()
	}
	return a.Addr().Less(b.Addr())
}

// Contains says whether one of the ranges contains the address.
func (s *Sources) Contains(a netip.Addr) bool { return InRanges(s.ranges, a) }

// InRanges says whether one of the ranges, which are disjoint and sorted, contains the address.
func InRanges(ranges []netip.Prefix, a netip.Addr) bool {
	after, _ := slices.BinarySearchFunc(ranges, a, func(r netip.Prefix, a netip.Addr) int {
		if r.Addr().Compare(a) <= 0 {
			return -1
		}
		return 1
	})
	return after > 0 && ranges[after-1].Contains(a)
}

// Equal reports whether both let in the same ranges.
func (s *Sources) Equal(o *Sources) bool {
	return s == o || s != nil && o != nil && slices.Equal(s.ranges, o.ranges)
}

// Firewall says which sources may reach a load balancer's addresses.
type Firewall struct {
	Sources *Sources
	// Addresses are the load balancer's addresses of both families.
	Addresses []netip.Addr
}

// Firewall returns the service's own firewall of its load balancer's addresses. Others that have such an address and
// port have it too.
func (s *Service) Firewall() Firewall { return Firewall{s.Sources, s.LoadBalancerIPs} }

// FirewallAt returns the firewall in front of one of the service's claims, and the service whose ranges it has: those
// of its own, or of others where it has none. It returns false if every source may reach the claim.
func (s *Service) FirewallAt(c Claim, others *Restrictions) (f Firewall, by Name, restricted bool) {
	if own := s.Firewall(); own.Restricts(c) {
		return own, s.Name, true
	}
	// Each of the service's addresses is external but cluster IPs, of which there are two at most, and a load balancer's,
	// which have the annotation's ranges already. So thousands of external IPs are not searched for each of them.
	_, all := s.Options.SourceRanges.Of(ip.Of(c.Addr))
	if !all && c.Protocol != 0 && (!slices.Contains(s.ClusterIPs, c.Addr) || slices.Contains(s.ExternalIPs, c.Addr)) {
		return Firewall{Sources: s.Options.SourceRanges}, s.Name, true
	}
	other, found := others.On(c)
	return other.Firewall, other.By, found
}

// Restricts reports whether the firewall refuses some source at the claim's address and port. It
// never restricts a whole cluster IP or a node port.
func (f Firewall) Restricts(c Claim) bool {
	_, all := f.Sources.Of(ip.Of(c.Addr))
	return !all && c.Protocol != 0 && slices.Contains(f.Addresses, c.Addr)
}

// Itself returns the load balancer's addresses of one family that may reach each other, in addition
// to the sources in the ranges. If the ranges contain the node, these are all other addresses: if a
// load balancer's address is bound on the node, the node may send from it (kube-proxy does the
// same).
func (f Firewall) Itself(node *Node, family ip.Family) []netip.Addr {
	mayReach := func(a netip.Addr) bool { return family.Has(a) && f.Sources.Contains(a) }
	if _, all := f.Sources.Of(family); all || !slices.ContainsFunc(node.Addresses, mayReach) {
		return nil
	}
	var itself []netip.Addr
	for _, a := range f.Addresses {
		if family.Has(a) && !f.Sources.Contains(a) {
			itself = append(itself, a)
		}
	}
	slices.SortFunc(itself, netip.Addr.Compare)
	return slices.Compact(itself)
}

// Admitted returns the sources that may reach the addresses of one family, disjoint; all
// says that every source may.
func (f Firewall) Admitted(node *Node, family ip.Family) (sources []netip.Prefix, all bool) {
	ranges, all := f.Sources.Of(family)
	itself := f.Itself(node, family)
	if len(itself) == 0 {
		return ranges, all
	}
	for _, a := range itself {
		ranges = append(ranges, netip.PrefixFrom(a, a.BitLen()))
	}
	ranges, _ = NewSources(ranges).Of(family)
	return ranges, false
}

// Equal reports whether both let in the same sources to the same addresses.
func (f Firewall) Equal(o Firewall) bool {
	return f.Sources.Equal(o.Sources) && slices.Equal(f.Addresses, o.Addresses)
}

// Restrictions are a service's claims that another service restricts. Source ranges go
// with the load balancer's address and port, whichever service it leads to (as in
// kube-proxy). They never change.
type Restrictions struct {
	byClaim treap.Map[ClaimKey, *Restriction]
}

// Restriction is one such claim. If several services restrict it, By is the one with the
// best right to it.
type Restriction struct {
	Claim    Claim
	By       Name
	Firewall Firewall
}

// all returns the restrictions by their claims; a nil receiver has none.
func (r *Restrictions) all() (none treap.Map[ClaimKey, *Restriction]) {
	if r == nil {
		return none
	}
	return r.byClaim
}

// On returns the restriction of a claim; a nil receiver has none.
func (r *Restrictions) On(claim Claim) (Restriction, bool) {
	if r == nil { // nearly always, and without the key
		return Restriction{}, false
	}
	if found := r.At(claim.Key()); found != nil {
		return *found, true
	}
	return Restriction{}, false
}

// At returns the restriction of a claim, nil for none; a nil receiver has none.
func (r *Restrictions) At(claim ClaimKey) *Restriction { return r.all().At(claim) }

// Edit returns the restrictions after sorted edits: the same ones if nothing changes, and nil if there are none.
func (r *Restrictions) Edit(edits []treap.Edit[ClaimKey, *Restriction]) *Restrictions {
	switch after := r.all().Apply(edits); {
	case after == r.all():
		return r
	case after.Len() == 0:
		return nil
	default:
		return &Restrictions{after}
	}
}

// All yields them in the order of the claims.
func (r *Restrictions) All() iter.Seq[Restriction] {
	return func(yield func(Restriction) bool) {
		for _, one := range r.byClaim.All() {
			if !yield(*one) {
				return
			}
		}
	}
}

// NewRestrictions makes Restrictions of a list in any order; nil for none.
func NewRestrictions(list []Restriction) *Restrictions {
	if len(list) == 0 {
		return nil
	}
	var r Restrictions
	list = slices.Clone(list)
	for i := range list {
		r.byClaim = r.byClaim.Set(list[i].Claim.Key(), &list[i])
	}
	return &r
}

// Closed returns sources that let in nobody in the families that had ranges, and nil for nil.
func (s *Sources) Closed() *Sources {
	if s == nil {
		return nil
	}
	var open []netip.Prefix
	for _, family := range ip.Families() {
		if _, all := s.Of(family); all {
			open = append(open, netip.PrefixFrom(family.Unspecified(), 0))
		}
	}
	return NewSources(open)
}

package conntrack

import (
	"slices"

	"nftproxy/model/service"
)

// maxFilters is the largest number of filters in a scope; one more makes the scope
// everything. The kernel walks its whole table for each filter, so a few filters
// already cost more than everything. The exact number depends on the table.
const maxFilters = 8

// Scope says where in the table entries may have become stale: nowhere, where some
// filters select them, or everywhere.
type Scope struct {
	// Filters has at most 8 different filters, and none with Everything.
	Filters    []Filter
	Everything bool
}

// Empty reports whether no entry can have become stale.
func (s Scope) Empty() bool { return !s.Everything && len(s.Filters) == 0 }

// Selects reports whether the flow is in the scope.
func (s Scope) Selects(f *Flow) bool {
	return s.Everything || slices.ContainsFunc(s.Filters, func(one Filter) bool { return one.Selects(f) })
}

// add adds the entries that a filter selects.
func (s *Scope) add(f Filter) {
	if s.covers(f) {
		return
	}
	if s.Filters = append(slices.DeleteFunc(s.Filters, f.covers), f); len(s.Filters) > maxFilters {
		s.addAll()
	}
}

// covers says that the scope has everything that the filter selects. It may be false
// where that is hard to see.
func (s *Scope) covers(f Filter) bool {
	return s.Everything || slices.ContainsFunc(s.Filters, func(one Filter) bool { return one.covers(f) })
}

// walks returns the number of filtered walks that read the scope; 0 for one walk over
// everything.
func (s Scope) walks() (n int) {
	for _, f := range s.Filters {
		n += len(f.families())
	}
	return n
}

// covers says that f selects everything that o selects. It may be false where that is
// hard to see.
func (f Filter) covers(o Filter) bool {
	return (f.Mask == 0 || f.Mask == o.Mask && f.Status == o.Status) &&
		(f.Protocol == 0 || f.Protocol == o.Protocol) && (!f.Dst.IsValid() || f.Dst == o.Dst) &&
		(f.Port == 0 || f.Port == o.Port) &&
		(!f.Endpoint.IsValid() || f.Endpoint == o.Endpoint)
}

// addAll makes the scope everything.
func (s *Scope) addAll() { *s = Scope{Everything: true} }

// merge adds another scope.
func (s *Scope) merge(o Scope) {
	if o.Everything {
		s.addAll()
	}
	for _, f := range o.Filters {
		s.add(f)
	}
}

// addClaim adds the entries to a claim.
func (s *Scope) addClaim(c service.Claim) { s.add(claimFilter(c, 0)) }

// claimFilter selects the entries without some bits of the status that go to a claim: an address and
// port, a node port of both families, or a cluster IP.
func claimFilter(c service.Claim, without Status) Filter {
	f := Filter{Protocol: c.Protocol, Port: c.Port, Mask: without}
	if !c.Addr.IsUnspecified() {
		f.Dst = c.Addr
	}
	return f
}

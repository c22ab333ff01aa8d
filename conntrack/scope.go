package conntrack

import (
	"slices"

	"nftproxy/internal/service"
)

// maxFilters is how many filtered dumps are made instead of one of everything:
// the kernel walks its whole table for each.
const maxFilters = 8

// Scope says where in the table flows may have become stale: nowhere, where
// some filters select, or everywhere.
type Scope struct {
	// Filters are few, each once; none with Everything.
	Filters    []Filter
	Everything bool
}

// Empty says that nothing can have become stale.
func (s Scope) Empty() bool { return !s.Everything && len(s.Filters) == 0 }

// Selects says whether the flow is in the scope.
func (s Scope) Selects(f *Flow) bool {
	return s.Everything || slices.ContainsFunc(s.Filters, func(one Filter) bool { return one.Selects(f) })
}

func (s *Scope) add(f Filter) {
	switch {
	case s.Everything || slices.ContainsFunc(s.Filters, func(one Filter) bool { return one.covers(f) }):
	case len(s.Filters) == maxFilters:
		s.all()
	default:
		s.Filters = append(s.Filters, f)
	}
}

// covers says that f selects all that o does, as far as that is easy to see.
func (f Filter) covers(o Filter) bool {
	return (f.Mask == 0 || f.Mask == o.Mask && f.Status == o.Status) &&
		(f.Protocol == 0 || f.Protocol == o.Protocol) && (!f.Dst.IsValid() || f.Dst == o.Dst) && (f.Port == 0 || f.Port == o.Port)
}

func (s *Scope) all() { *s = Scope{Everything: true} }

func (s *Scope) merge(o Scope) {
	if o.Everything {
		s.all()
	}
	for _, f := range o.Filters {
		s.add(f)
	}
}

// claim adds what goes to an address and port, a node port (of both families),
// or a cluster IP.
func (s *Scope) claim(c service.Claim, status Filter) {
	f := Filter{Protocol: c.Protocol, Port: c.Port, Status: status.Status, Mask: status.Mask}
	if !c.Addr.IsUnspecified() {
		f.Dst = c.Addr
	}
	s.add(f)
}

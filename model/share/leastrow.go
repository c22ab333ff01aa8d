package share

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"

	"nftproxy/model/service"
)

// LeastRow is the row of a list of endpoints by least connections, on one node.
type LeastRow struct {
	// Addrs are the endpoints, in the order by which this node decides between equal ones. Nodes have different orders.
	Addrs []netip.AddrPort
	// Loads are theirs. Slots add up to the size of the row, and nothing is open.
	Loads []Load
	size  int
}

// NewLeastRow returns the row of a list of a port, with the slots that its endpoints had last as far as they are within
// the bounds. It returns nil if there is no room for feedback, or none is needed.
func NewLeastRow(s *service.Service, p *service.Port, node *service.Node, choice *Choice, local bool) *LeastRow {
	addrs := choice.List(local)
	if s.Options.Balance != service.ByLeastConnections || addrs.Len() < 2 || s.SlotLimit == service.NoSlots {
		return nil
	}
	r := &LeastRow{Addrs: make([]netip.AddrPort, 0, addrs.Len())}
	for a := range addrs.All() {
		r.Addrs = append(r.Addrs, a)
	}
	r.order(node)
	weights := make([]uint32, len(r.Addrs))
	for i, a := range r.Addrs {
		e := p.Endpoints.Find(service.Endpoint{Addr: a})
		had := e.Slots.Cluster
		if local {
			had = e.Slots.Local
		}
		weights[i] = e.Quarters()
		r.Loads = append(r.Loads, Load{Weight: weights[i], Slots: int(had)})
	}
	if r.size = LeastConnectionsSize(weights, SlotLimit(s)); r.size == 0 {
		return nil
	}
	r.set(LeastConnections(r.Loads, r.size, 0))
	return r
}

// order sorts the endpoints by a hash of the node's name and their address.
func (r *LeastRow) order(node *service.Node) {
	hashes := make(map[netip.AddrPort]uint64, len(r.Addrs))
	for _, a := range r.Addrs {
		hash := fnv.New64a()
		text, _ := a.MarshalBinary() // never fails
		_, _ = hash.Write(append([]byte(node.Name), text...))
		hashes[a] = hash.Sum64()
	}
	slices.SortFunc(r.Addrs, func(a, b netip.AddrPort) int {
		return cmp.Or(cmp.Compare(hashes[a], hashes[b]), a.Compare(b))
	})
}

func (r *LeastRow) set(slots []int) {
	for i, n := range slots {
		r.Loads[i].Slots = n
	}
}

// Step moves at most most slots, by what is open, and returns how many it has moved.
func (r *LeastRow) Step(most int) (moved int) {
	next := LeastConnections(r.Loads, r.size, most)
	for i, n := range next {
		moved += max(0, n-r.Loads[i].Slots)
	}
	r.set(next)
	return moved
}

// Len is the number of slots.
func (r *LeastRow) Len() int { return r.size }

// IsLeastRow says whether a row of endpoints of equal weights may have these slots.
func IsLeastRow(slots []int) bool {
	size := LeastConnectionsSize(slices.Repeat([]uint32{1}, len(slots)), MaxSize)
	fair := size / max(1, len(slots))
	for _, n := range slots {
		if n < fair/leastFloor || n > leastCap*fair {
			return false
		}
		size -= n
	}
	return size == 0
}

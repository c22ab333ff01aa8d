package conntrack

import (
	"net/netip"
	"slices"

	"nftproxy/internal/service"
	"nftproxy/internal/treap"
)

// Reason says why a flow is stale.
type Reason string

// The reasons that Stale gives. All concern entries that were never DNATed.
const (
	// ServiceAddress: it goes to an address and port of a service, which has
	// endpoints or refuses.
	ServiceAddress Reason = "service address"
	// ClusterIP: it goes to a cluster IP, by a port or protocol that the
	// service does not have, and would be refused now.
	ClusterIP Reason = "unknown port of a cluster IP"
	// Unallocated: it goes to an address that cluster IPs come from but that no
	// service has, and would be dropped now.
	Unallocated Reason = "unallocated address"
	// NodePort: it goes to a node port on an address that serves node ports.
	NodePort Reason = "node port"
)

// Index answers, for a snapshot, which flows are stale. An Index is not safe
// for concurrent use.
type Index struct {
	addresses service.NodePortAddresses
	snapshot  service.Snapshot

	// How many service ports (services, for cluster IPs) ask for each. Whose
	// it is in a conflict makes no difference here.
	services   tally[target]
	nodePorts  tally[localPort]
	clusterIPs tally[netip.Addr]
	// identities are service addresses and node ports that are themselves
	// endpoints of their service port.
	identities tally[target]

	// local are the addresses on the node's interfaces, serving those of them
	// that serve node ports.
	local, serving map[netip.Addr]bool
}

type target struct {
	addr     netip.AddrPort
	protocol service.Protocol
}

type localPort struct {
	port     uint16
	protocol service.Protocol
}

// NewIndex makes an index of nothing. The addresses are those of the node on
// which node ports are served.
func NewIndex(addresses service.NodePortAddresses) *Index {
	return &Index{
		addresses: addresses, services: tally[target]{}, nodePorts: tally[localPort]{},
		clusterIPs: tally[netip.Addr]{}, identities: tally[target]{},
	}
}

// Update makes x the index of the snapshot. It costs O(what has changed since
// the last Update). It returns whether x may now call a flow stale that it did
// not call stale before.
func (x *Index) Update(s service.Snapshot) (grown bool) {
	if x.snapshot.Node != s.Node {
		x.setNode(s.Node)
		grown = true
	}
	if x.snapshot.ServiceCIDRs != s.ServiceCIDRs {
		grown = true
	}
	for change := range treap.Diff(x.snapshot.Services, s.Services) {
		// First in, then out: what stays never looks new.
		if change.HasNew && x.count(change.New, 1) {
			grown = true
		}
		if change.HadOld && x.count(change.Old, -1) {
			grown = true
		}
	}
	x.snapshot = s
	return grown
}

func (x *Index) setNode(node *service.Node) {
	x.local, x.serving = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	if node == nil {
		return
	}
	for _, a := range node.HostAddresses {
		x.local[a.WithZone("")] = true
	}
	for _, v6 := range []bool{false, true} {
		addrs, all := x.addresses.On(node, v6)
		if all {
			addrs = slices.DeleteFunc(slices.Clone(node.HostAddresses), func(a netip.Addr) bool {
				return a.Is6() != v6 || a.IsLoopback()
			})
		}
		for _, a := range addrs {
			x.serving[a.WithZone("")] = true
		}
	}
}

// count adds (by 1) or removes (by -1) what the service asks for, and returns
// whether that widened what is stale.
func (x *Index) count(s *service.Service, by int) (grown bool) {
	widen := func(left int) { grown = grown || by > 0 && left == by }
	spare := func(left int) { grown = grown || by < 0 && left == 0 }
	for _, a := range s.ClusterIPs {
		widen(x.clusterIPs.add(a, by))
	}
	addresses := s.Addresses()
	for i := range s.Ports {
		p := &s.Ports[i]
		for _, a := range addresses {
			at := target{netip.AddrPortFrom(a, p.Port), p.Protocol}
			widen(x.services.add(at, by))
			if isEndpoint(p, at.addr) {
				spare(x.identities.add(at, by))
			}
		}
		if p.NodePort == 0 {
			continue
		}
		widen(x.nodePorts.add(localPort{p.NodePort, p.Protocol}, by))
		for i := range p.Endpoints {
			if e := p.Endpoints[i].Addr; e.Port() == p.NodePort {
				spare(x.identities.add(target{e, p.Protocol}, by))
			}
		}
	}
	return grown
}

func isEndpoint(p *service.Port, addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(p.Endpoints, addr, func(e service.Endpoint, a netip.AddrPort) int {
		return e.Addr.Compare(a)
	})
	return found
}

// Stale says whether the flow has to go, and why: the rules that are in force
// would not let its first packet pass as it did.
func (x *Index) Stale(f Flow) (reason Reason, stale bool) {
	// Our rules use the default zone. In others, such as a software switch's,
	// flows to service addresses are un-DNATed by design.
	if f.Status&DstNAT != 0 || f.Zone != 0 {
		return "", false
	}
	// An assured entry of a protocol with connections has a peer that finished
	// the handshake: a local listener on a node-port number, say, that was
	// there before the service. That connection works and would not survive,
	// since a new entry in its middle is sent to an endpoint that never heard
	// of it. Nothing un-DNATed can be assured that should be a service's: from
	// a black hole no handshake comes back. New connections get the service.
	// A UDP flow, however, has no beginning that a later datagram lacks, and
	// as long as it talks its entry would keep the service away.
	if f.Status&Assured != 0 && (f.Protocol == service.TCP || f.Protocol == service.SCTP) {
		return "", false
	}
	at := target{f.Original.Dst, f.Protocol}
	switch dst := at.addr.Addr(); {
	case x.identities[at] > 0:
		// The kernel does not set IPS_DST_NAT for a DNAT that changes nothing
		// (nf_nat_setup_info): this is what a flow looks like that the rules
		// sent where it was going, as with an ingress on the host network
		// whose external IP is the node's. It counts until the endpoint is
		// removed, since one that is only not ready keeps its flows.
		return "", false
	case x.services[at] > 0:
		return ServiceAddress, true
	case x.clusterIPs[dst] > 0 && !x.local[dst]:
		// Bound on the node, as NodeLocal DNSCache does, it keeps its other ports.
		return ClusterIP, true
	case x.nodePorts[localPort{at.addr.Port(), at.protocol}] > 0 && x.serving[dst]:
		return NodePort, true
	}
	if dst := at.addr.Addr(); x.unallocated(dst) {
		return Unallocated, true
	}
	return "", false
}

// unallocated says that the address comes from a ServiceCIDR, no service has it
// as cluster IP, and it is not the node's own.
func (x *Index) unallocated(a netip.Addr) bool {
	if x.local[a] || x.clusterIPs[a] > 0 {
		return false
	}
	for _, cidr := range x.snapshot.ServiceCIDRs.All() {
		if cidr.Contains(a) {
			return true
		}
	}
	return false
}

// tally counts; what is not in it counts 0.
type tally[K comparable] map[K]int

// add changes the count of k and returns what it is now.
func (t tally[K]) add(k K, by int) int {
	n := t[k] + by
	if n == 0 {
		delete(t, k)
	} else {
		t[k] = n
	}
	return n
}

package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"nftproxy/model/ip"
)

// Name is a Service's "namespace/name".
type Name string

// NewName joins the two parts of a Service's name.
func NewName(namespace, name string) Name { return Name(namespace + "/" + name) }

// Split returns the namespace and the name within it.
func (n Name) Split() (namespace, name string) {
	namespace, name, _ = strings.Cut(string(n), "/")
	return namespace, name
}

// Protocol is a transport protocol by its IANA number.
type Protocol uint8

// The protocols that a Service port can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// ParseProtocol reads "TCP", "UDP" or "SCTP", in either case.
func ParseProtocol(s string) (Protocol, error) {
	switch s { // the API's words, without a copy
	case "TCP":
		return TCP, nil
	case "UDP":
		return UDP, nil
	}
	switch strings.ToLower(s) {
	case "tcp":
		return TCP, nil
	case "udp":
		return UDP, nil
	case "sctp":
		return SCTP, nil
	}
	return 0, fmt.Errorf("unknown protocol %q", s)
}

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// Service is one Service with its endpoints. It must not change once a Builder has it: a change is
// a new Service. An unchanged one keeps its pointer, so all later stages can skip it.
type Service struct {
	Name Name
	// Created decides conflicts: the older service keeps a claim of equal rank.
	Created time.Time
	// ClusterIPs holds at most one address of each family.
	ClusterIPs []netip.Addr
	// ExternalIPs are the addresses in spec.externalIPs. LoadBalancerIPs are those in
	// status.loadBalancer.ingress with ipMode VIP. Neither has duplicates.
	ExternalIPs, LoadBalancerIPs []netip.Addr
	// Sources says which sources may reach the LoadBalancerIPs; nil admits all. It does
	// not concern other addresses. It has what is both in loadBalancerSourceRanges and in
	// Options.SourceRanges.
	Sources *Sources
	// InternalPolicy is for the cluster IPs, ExternalPolicy for external
	// addresses and node ports.
	InternalPolicy, ExternalPolicy TrafficPolicy
	// AffinityTimeout is how long a client keeps its endpoint after its last new
	// connection, in whole seconds (the API has 1 s to 1 day). 0 is no session affinity.
	AffinityTimeout time.Duration
	// HealthCheckNodePort is the port where load balancers ask whether the node has
	// endpoints of its own; 0 for none.
	HealthCheckNodePort uint16
	Ports               []Port
	// SlotLimit, if not 0, is the greatest number of slots of each list of endpoints: the Builder sets it where
	// more would exceed the bound on one service.
	SlotLimit int
	// OtherPorts are ports of its EndpointSlices that no port of the Service takes, MaxOtherPorts at most, sorted. It is
	// empty where each port of the Service has endpoints. The text form does not have them.
	OtherPorts []SlicePort
	// Options are what the service asks for by annotations.
	Options Options
	// Retained says what of the service is not in the source's list any more.
	Retained Retained
}

// SlicePort is a port of an EndpointSlice, by name, which may be empty, and protocol. The port of
// the Service with the same two gets its endpoints.
type SlicePort struct {
	Name     string
	Protocol Protocol
}

// Compare orders by name and then by protocol.
func (p SlicePort) Compare(o SlicePort) int {
	return cmp.Or(cmp.Compare(p.Name, o.Name), cmp.Compare(p.Protocol, o.Protocol))
}

// InSlices returns the ports of EndpointSlices that have the endpoints of the port.
func (p *Port) InSlices() SlicePort { return SlicePort{p.Name, p.Protocol} }

// MaxOtherPorts is the greatest number of Service.OtherPorts.
const MaxOtherPorts = 10

// Retained says what of a service a list of the source lacks, although it was served before. The
// service is still served for a while, since the list may be wrong (watch/retention.go).
type Retained uint8

// What is retained: nothing, all endpoints, or the service with its endpoints. A retained
// service gives each of its claims up to any service that is there, and restricts none.
const (
	RetainedNothing Retained = iota
	RetainedEndpoints
	RetainedService
)

// TrafficPolicy says which endpoints get the connections to an address.
type TrafficPolicy bool

// The traffic policies: all endpoints, or only those on the node.
const (
	Cluster TrafficPolicy = false
	Local   TrafficPolicy = true
)

func (p TrafficPolicy) String() string {
	if p == Local {
		return "Local"
	}
	return "Cluster"
}

// Clone returns a copy with ports of its own.
func (s *Service) Clone() *Service {
	c := *s
	c.Ports = slices.Clone(s.Ports)
	return &c
}

// Port is one port of a Service.
type Port struct {
	// Name may be empty if the service has only one port.
	Name     string
	Protocol Protocol
	Port     uint16
	// NodePort is 0 for none.
	NodePort uint16
	// Ranges, if there are any, stand in the place of Port, which is 0. Connections keep the port that they ask for. Such
	// a port has neither a name nor a node port, and the ports of its endpoints are 0.
	Ranges PortRanges
	// Endpoints has the endpoints in all slices, of both families.
	Endpoints Endpoints
}

// Endpoint is one address and port behind a service port.
type Endpoint struct {
	Addr netip.AddrPort
	// Node is the name of the node it runs on, empty if unknown.
	Node string
	// Ready, Serving and Terminating are the EndpointSlice conditions, with
	// the API's defaults (true, true, false) filled in.
	Ready, Serving, Terminating bool
	// Slots are those that feedback gives it on this node. Objects do not tell them.
	Slots Slots
	// Nodes and Zones are the endpoint's hints: the nodes and zones that it is meant
	// for. Empty for none.
	Nodes, Zones Hints
	// Weight is its share of new connections, beside those of the others.
	Weight Weight
	// Share is how much of the weight counts on this node (Adjustment). Objects do not tell it.
	Share Share
}

// Weight is an endpoint's weight, as the difference to DefaultWeight: so the zero value is the default one.
type Weight int32

// DefaultWeight is the weight of an endpoint whose slice names none, as in Cilium.
const DefaultWeight = 100

// NewWeight returns the weight of a number; 0 is that of an endpoint which gets no new connections and keeps those that
// it has.
func NewWeight(n uint16) Weight { return Weight(n) - DefaultWeight }

// Number returns the number, 0 to 65535.
func (w Weight) Number() uint16 { return uint16(w + DefaultWeight) }

// Hints is a list of node or zone names, sorted, with commas between them. It is one
// string so that endpoints can be compared.
type Hints string

// NewHints makes a list of names, in any order; empty ones are left out.
func NewHints(names []string) Hints {
	names = slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "" })
	slices.Sort(names)
	return Hints(strings.Join(slices.Compact(names), ","))
}

// Has reports whether the name is in the list. No list has the empty name.
func (h Hints) Has(name string) bool {
	for len(h) > 0 && name != "" {
		first, rest, _ := strings.Cut(string(h), ",")
		if first == name {
			return true
		}
		h = Hints(rest)
	}
	return false
}

// Node has the facts about the node that a snapshot is for.
type Node struct {
	Name string
	// Zone is the node's label topology.kubernetes.io/zone, empty for none.
	Zone string
	// Eligible says that load balancers may choose the node: the Node object is known, and neither
	// it nor its machine is about to be deleted (KEP-3836).
	Eligible bool
	// PodCIDRs are the ranges that the cluster gave the node for its pods.
	PodCIDRs []netip.Prefix
	// Addresses are the addresses in the Node object: InternalIPs before ExternalIPs,
	// each in the object's order.
	Addresses []netip.Addr
	// AddressPending says that no address is known yet: the Node object or its status is missing.
	// Until then no address is primary.
	AddressPending bool
	// HostAddresses are the addresses on the node's interfaces, sorted. If node ports
	// are configured by CIDRs, the addresses in these CIDRs serve them.
	HostAddresses []netip.Addr
	// SharedAddresses are those of HostAddresses, sorted, on interfaces whose link pods of the node may be on, such as
	// bridges: a packet that comes in there to such an address may be from any pod.
	SharedAddresses []netip.Addr
	// Networks are the networks in ServiceCIDRs that the node is on or has routes to, and
	// APIServers the addresses of API servers. Both are sorted. Packets there are not
	// dropped or refused for being in a ServiceCIDR.
	Networks   []netip.Prefix
	APIServers []netip.Addr
	// Settings, if not nil, replace those that the rules, and everything that follows the rules,
	// started with.
	Settings *Settings
}

// OwnAddress returns the first of the Node's addresses of the family that an interface of the host has; the zero Addr
// if there is none.
func (n *Node) OwnAddress(f ip.Family) netip.Addr {
	for _, a := range n.Addresses {
		if f.Has(a) && slices.Contains(n.HostAddresses, a) {
			return a
		}
	}
	return netip.Addr{}
}

// ID names a service port in messages: "namespace/name:port", with the number
// for a port without name, and RangesText for ranges.
func (s *Service) ID(p *Port) string {
	return string(s.Name) + ":" + p.Label()
}

// RangesText stands in messages for a port that is ranges.
const RangesText = "ranges"

// HasEndpoints reports whether some port has an endpoint; a nil service has none.
func (s *Service) HasEndpoints() bool {
	return s != nil && slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Endpoints.Len() > 0 })
}

// compareBools sorts false first.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Equal compares by value. It does not use reflection, which takes some 50 times as long:
// a service can have thousands of endpoints. Endpoints that both services share cost
// nothing.
func (s *Service) Equal(o *Service) bool {
	return s == o || s.Name == o.Name && s.Created.Equal(o.Created) && s.Retained == o.Retained &&
		s.Options.Equal(o.Options) &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) && slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) && s.Sources.Equal(o.Sources) &&
		s.InternalPolicy == o.InternalPolicy && s.ExternalPolicy == o.ExternalPolicy &&
		s.AffinityTimeout == o.AffinityTimeout && s.HealthCheckNodePort == o.HealthCheckNodePort &&
		s.SlotLimit == o.SlotLimit && slices.Equal(s.OtherPorts, o.OtherPorts) && slices.EqualFunc(s.Ports, o.Ports,
		Port.equal)
}

func (p Port) equal(o Port) bool {
	return p.Name == o.Name && p.Protocol == o.Protocol && p.Port == o.Port && p.NodePort == o.NodePort &&
		p.Ranges == o.Ranges &&
		p.Endpoints.Equal(o.Endpoints)
}

// Equal compares by value, but for the settings.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone && n.Eligible == o.Eligible && n.AddressPending == o.AddressPending &&
		n.Settings == o.Settings && slices.Equal(n.PodCIDRs, o.PodCIDRs) &&
		slices.Equal(n.Addresses, o.Addresses) && slices.Equal(n.HostAddresses, o.HostAddresses) &&
		slices.Equal(n.SharedAddresses, o.SharedAddresses) &&
		slices.Equal(n.Networks, o.Networks) && slices.Equal(n.APIServers, o.APIServers)
}

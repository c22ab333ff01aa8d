package service

import (
	"fmt"
	"strings"
)

// DefaultMaxElements is the default bound on the elements that one service may have in
// the node's tables. With ten ports, a cluster IP, node ports and ten more addresses a
// service may have 2,000 endpoints.
const DefaultMaxElements = 1 << 18

// DefaultMaxAllElements is the default bound on the elements of all services of a node. Beyond what each service may
// have in any case, it holds for their lists of endpoints, and once more for the slots of weights, hashes and least
// connections.
const DefaultMaxAllElements = 1 << 20

// UncountedElements is how many elements without slots each service may have, whatever others have.
const UncountedElements = 1 << 12

// MaxClaims is how many claims on addresses and node ports one service may make,
// whatever its endpoints. A claim that two services make costs more than an element
// does. A hundred addresses may have a hundred ports each.
const MaxClaims = 1 << 14

// DefaultMaxAffinityPorts is the default bound on service ports with session affinity. Each such
// port has a map of its own in the kernel. The kernel searches maps by name in a list, so n of them
// cost n squared.
const DefaultMaxAffinityPorts = 2000

// DefaultMaxSourceLists is the default bound on different lists of source ranges. Each list has a
// set of its own in the kernel, of 18 KB at least since Linux 6.18. The kernel searches sets by
// name in a list, so n of them cost n squared.
const DefaultMaxSourceLists = 2000

// DefaultMaxRangeLists is the bound on different lists of port ranges. Each has chains and sets of its own in the
// kernel, one for each protocol.
const DefaultMaxRangeLists = 256

// shares is the number of namespaces that can use up the whole of a bound on all services.
const shares = 4

// NamespaceShare is how much of a bound one namespace may use up.
func NamespaceShare(limit int) int { return (limit-1)/shares + 1 }

// LeftOut counts what a service asks for beyond the bound on one service.
type LeftOut struct {
	// Limit is the bound, in elements. It is 0 if the service reached MaxClaims.
	Limit int
	// All, if not 0, is the bound on all services: older services have used it up, or a quarter of it in the namespace.
	All int
	// ExternalIPs and LoadBalancerIPs count addresses. NodePorts and Ports count the
	// service's ports; a port of Ports is left out with its node port and endpoints.
	ExternalIPs, LoadBalancerIPs, NodePorts, Ports int
	// SlotLimit, if not 0, is the service's: its lists of endpoints have fewer slots than it asks for.
	SlotLimit int
}

// String reads like "left out: 90 externalIPs: the service would take more than
// 262144 elements".
func (l *LeftOut) String() string {
	var parts []string
	for _, p := range []struct {
		n         int
		one, many string
	}{
		{l.Ports, "port", "ports"}, {l.NodePorts, "node port", "node ports"},
		{l.LoadBalancerIPs, "load balancer address", "load balancer addresses"},
		{l.ExternalIPs, "external IP", "external IPs"},
	} {
		switch {
		case p.n == 1:
			parts = append(parts, "1 "+p.one)
		case p.n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.many))
		}
	}
	reason := fmt.Sprintf("the service would take more than %d elements", l.Limit)
	switch {
	case l.Limit == 0:
		reason = fmt.Sprintf("the service asks for more than %d addresses and ports", MaxClaims)
	case l.All != 0:
		reason = fmt.Sprintf("there is room for %d elements beyond %d of each service, and for %d in one namespace, the "+
			"oldest services first",
			l.All, UncountedElements, NamespaceShare(l.All))
	}
	if len(parts) == 0 {
		return fmt.Sprintf("%s: %s", l.slots(), reason)
	}
	text := fmt.Sprintf("left out: %s: %s", strings.Join(parts, ", "), reason)
	if l.SlotLimit != 0 {
		text += "; " + l.slots()
	}
	return text
}

// slots says what fewer slots mean.
func (l *LeftOut) slots() string {
	if l.SlotLimit == NoSlots {
		return "weights of endpoints, hashes of clients and least connections do not count, but for the weight 0"
	}
	return fmt.Sprintf("weights of endpoints and hashes of clients count with %d slots for each list of endpoints, and "+
		"least connections where it has half as many endpoints at most", l.SlotLimit)
}

// WithoutAffinity says why a service that asks for session affinity is served without
// it, by a hash of the client's address.
type WithoutAffinity struct {
	// Ports is the number of the service's ports.
	Ports int
	// Limit is how many ports may have session affinity: ports of the services in the
	// service's namespace or, without Namespace, of all services.
	Limit     int
	Namespace bool
}

// String reads like "served without session affinity, by a hash of the client's address: the services of one
// namespace may have it on 500 ports, the oldest first".
func (w *WithoutAffinity) String() string {
	services := "all services together"
	if w.Namespace {
		services = "the services of one namespace"
	}
	if w.Ports > w.Limit {
		return fmt.Sprintf("served without session affinity, by a hash of the client's address: it has %d ports, and %s "+
			"may have it on %d", w.Ports, services, w.Limit)
	}
	return fmt.Sprintf("served without session affinity, by a hash of the client's address: %s may have it on %d ports, "+
		"the oldest first", services, w.Limit)
}

// ClosedSources says that the source ranges of a service exceed the bound on different lists. The
// ranges then admit no client.
type ClosedSources struct {
	// Limit is how many lists all services may have together. The services of one
	// namespace bring in a quarter of them at most.
	Limit int
}

// String reads like "no client is let in where source ranges apply: ...".
func (c *ClosedSources) String() string {
	return fmt.Sprintf("no client is let in where source ranges apply: there is room for %d different lists of source "+
		"ranges, and for %d by the Services of one namespace, the oldest Services first",
		c.Limit, NamespaceShare(c.Limit))
}

// UnservedRanges says that a service's port ranges exceed the bound on different lists.
type UnservedRanges struct {
	// Limit is how many lists all services may have together. The services of one namespace bring in a quarter of them at
	// most.
	Limit int
}

// String reads like "no port range is served: ...".
func (u *UnservedRanges) String() string {
	return fmt.Sprintf("no port range is served: there is room for %d different lists of port ranges, and for %d by the "+
		"Services of one namespace, the oldest Services first",
		u.Limit, NamespaceShare(u.Limit))
}

// NoSlots is the SlotLimit of a service whose lists have a slot for each endpoint.
const NoSlots = 1

package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"nftproxy/nft"
)

// Purpose says what a rule of a program is for.
type Purpose string

// The purposes of rules. A rule without a purpose is none that a program has.
const (
	NoPurpose Purpose = ""
	// FindFrontend looks for the packet's address, protocol and port.
	FindFrontend Purpose = "find the address and port"
	// FindRanges looks for the ranges of ports of the packet's address and protocol, and FindInRanges for its port there.
	FindRanges   Purpose = "find the address and its ranges of ports"
	FindInRanges Purpose = "find the port in the ranges"
	// FindOthers sends what has no frontend by address to the chain dispatch.
	FindOthers Purpose = "look for other reasons to handle the packet"
	// FindPing looks for the address of an echo request, and AnswerPing has it answered.
	FindPing   Purpose = "find the address of a ping"
	AnswerPing Purpose = "have the node answer the ping"
	// RefuseUnknownPort refuses other ports of cluster IPs.
	RefuseUnknownPort Purpose = "refuse unknown ports of cluster IPs"
	// FindNodePort looks for the packet's protocol and port among the node ports.
	FindNodePort Purpose = "find the node port"
	// FindOnLoopback does the same for connections that nftproxy makes for clients on loopback.
	FindOnLoopback Purpose = "find the node port for a client on loopback"
	// AdmitSource and AdmitLoadBalancer let in what source ranges admit; RefuseSource drops the rest.
	AdmitSource       Purpose = "let in sources of the ranges"
	AdmitLoadBalancer Purpose = "let in the load balancer itself"
	DropSource        Purpose = "drop sources outside the ranges"
	// FindRestricted looks for the frontend of a source that was let in. DropRestricted should not
	// be met.
	FindRestricted Purpose = "find the restricted address and port"
	DropRestricted Purpose = "drop what no restricted address has"
	// ForPods, ForNode, ForOutsiders and ForOtherPods choose the list of external policy Local.
	// RefuseOtherPods refuses pods and DropNotLocal drops packets of clients outside if the node has no endpoint.
	ForPods         Purpose = "give pods the endpoints of all nodes"
	ForNode         Purpose = "give the node the endpoints of all nodes"
	ForOutsiders    Purpose = "give clients outside the endpoints of this node"
	ForOtherPods    Purpose = "give pods of other nodes the endpoints of all nodes, and have them masqueraded"
	RefuseOtherPods Purpose = "refuse pods of other nodes: no endpoint is on this node"
	DropNotLocal    Purpose = "drop packets of clients outside: no endpoint is on this node"
	// MarkOutsiders and MarkAll say what is to be masqueraded, by a label of the connection or by the
	// packet's mark.
	MarkOutsiders Purpose = "have clients that are no pods masqueraded"
	MarkAll       Purpose = "have all clients masqueraded"
	// FindClient sends a remembered client to its endpoint, NewClient goes on without one.
	FindClient Purpose = "send a remembered client to its endpoint"
	NewClient  Purpose = "choose an endpoint for a new client"
	// GiveTimeouts gives a connection the time-outs that its Service asks for.
	GiveTimeouts Purpose = "give the connection the time-outs of its Service"
	// FollowFlow tells the process of a new connection, and labels the connection; FollowRefusal tells it of one that will
	// be refused or dropped.
	FollowFlow    Purpose = "tell of a sample of the new connections"
	FollowRefusal Purpose = "tell of a sample of what is refused or dropped"
	// Choose translates to a random endpoint. ChooseFirst does so where the map changes at this
	// moment, and DropUnchosen drops what then has no endpoint.
	Choose       Purpose = "choose an endpoint"
	ChooseFirst  Purpose = "choose the first endpoint, if the map changes at this moment"
	DropUnchosen Purpose = "drop what has no endpoint, if the map changes at this moment"
	// RefuseTCP and RefuseOthers answer packets that are refused.
	RefuseTCP    Purpose = "refuse by a TCP reset"
	RefuseOthers Purpose = "refuse by ICMP port unreachable"
	// RefuseMidstream, HoldKnown, RefuseHeld, NoteHeld and HoldUnnoted decide whether a packet is held.
	RefuseMidstream Purpose = "refuse what opens no connection"
	HoldKnown       Purpose = "hold what has not waited for long"
	RefuseHeld      Purpose = "refuse what has waited for long"
	NoteHeld        Purpose = "note since when the connection waits, and hold it"
	HoldUnnoted     Purpose = "hold what no set has room for"
	// DropCounted drops packets in a chain that other rules lead to.
	DropCounted Purpose = "drop"
	// CountForService counts a packet that will be refused or dropped, for the Service that it was for.
	CountForService Purpose = "count the packet for its Service"
	// DropUnallocated drops packets to a ServiceCIDR, and DropUntranslated packets to other cluster
	// IPs, that nothing has translated.
	DropUnallocated  Purpose = "drop packets to service addresses that no Service has"
	DropUntranslated Purpose = "drop packets to cluster IPs that nothing has translated"
	// SpareNetworks, SpareServices and SpareNothing are about packets to service addresses before
	// they are refused or dropped.
	SpareNetworks Purpose = "let through what goes to a network that the node reaches, or to an API server"
	SpareServices Purpose = "let through what these rules have translated"
	SpareDecided  Purpose = "leave addresses in ServiceCIDRs, which have been decided before"
	SpareNothing  Purpose = "refuse or drop the rest"
	// NoteRecent notes that an address and port had a new connection.
	NoteRecent Purpose = "note that the Service port has a new connection"
	// FindLearner and Remember remember clients.
	FindLearner Purpose = "find the map that remembers the client"
	Remember    Purpose = "remember the client's endpoint"
	// MasqueradeMarked, MasqueradeHairpin and Unmark are for connections that leave.
	MasqueradeMarked  Purpose = "masquerade connections that are to be masqueraded"
	MasqueradeHairpin Purpose = "masquerade connections that come back to their own pod"
	Unmark            Purpose = "clear the mark"
)

// rule is a rule for the purpose. Its comment says so, in the kernel too.
func (p Purpose) rule(statements ...nft.Statement) nft.Rule {
	return append(statements, nft.Comment(p))
}

// PurposeOf returns what a rule is for, as its comment says. It returns NoPurpose for a rule without a comment, which
// is another program's, or of a version that wrote no comments (LayoutOf).
func PurposeOf(r nft.Rule) Purpose { return Purpose(r.Comment()) }

// ServiceName is what the comment of a frontend's element says of its Service.
type ServiceName struct {
	// Service is "namespace/name", and Port the name or number of its port. A long comment was cut: then
	// Service is its beginning, and Port may be empty.
	Service, Port string
	// Cut says that the comment was cut. Shared says that the address is the cluster IP of another Service
	// too.
	Cut, Shared bool
}

// NameInComment reads the comment of an element that leads to a Service.
func NameInComment(comment string) ServiceName {
	var f ServiceName
	f.Cut = isCut(comment)
	comment, f.Shared = strings.CutPrefix(comment, alsoClusterIPOf)
	f.Service = comment
	if at := strings.LastIndexByte(comment, ':'); at >= 0 {
		f.Service, f.Port = comment[:at], comment[at+1:]
	}
	return f
}

// ClusterIPOwner returns the name of the Service that has a cluster IP in a table, as far as the
// comment contains it; empty if the table does not have the address.
func ClusterIPOwner(c *nft.Contents, a netip.Addr) string {
	if set := c.Sets[clusterIPs]; set != nil {
		return set.Elements[addrValue(a)].Comment
	}
	return ""
}

// HasServices reports whether a table has cluster IPs, which each Service has in each of its families.
func HasServices(c *nft.Contents) bool {
	set := c.Sets[clusterIPs]
	return set != nil && len(set.Elements) > 0
}

// RestrictedBy names the Service whose source ranges restrict an address and port (the key of a frontend);
// empty if no comment tells it.
func RestrictedBy(c *nft.Contents, frontend nft.Value) string {
	for _, a := range allAccess() {
		if set := c.Sets[a.restricted]; set != nil && set.Elements[frontend].Comment != "" {
			return NameInComment(set.Elements[frontend].Comment).Service
		}
	}
	return ""
}

// SourceSet names the set of the ranges that a chain of source ranges lets in.
func SourceSet(chain string) string { return strings.TrimPrefix(chain, nodePortPrefix) }

// MeansNoEndpoints reports whether a frontend's verdict refuses or holds because there is no endpoint on any
// node.
func MeansNoEndpoints(v nft.Verdict) bool {
	return slices.Contains(NoEndpoints.Chains(), v.Chain) || holdOf(v.Chain) > 0
}

// ServesAnywhere reports whether a frontend's verdict leads to endpoints of all nodes.
func ServesAnywhere(v nft.Verdict) bool {
	shared, ok := parseShared(v.Chain)
	return ok && shared.masquerade != masqueradeNone
}

// InServiceCIDR reports whether a table drops packets to the address if no Service has it.
func InServiceCIDR(c *nft.Contents, a netip.Addr) bool {
	return slices.ContainsFunc(ServiceCIDRs(c), func(p netip.Prefix) bool { return p.Contains(a) })
}

// LocalEndpoints returns the addresses of endpoints that are known to be on the node, sorted.
func LocalEndpoints(c *nft.Contents) []netip.Addr {
	var list []netip.Addr
	for _, e := range sortedElements(c, hairpin) {
		if e.Comment != maybeHere {
			list = append(list, addrOf(e.Key[:len(e.Key)/2]))
		}
	}
	return list
}

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
	// FindOthers sends what has no frontend by address to the chain dispatch.
	FindOthers Purpose = "look for other reasons to handle the packet"
	// RefuseUnknownPort refuses other ports of cluster IPs.
	RefuseUnknownPort Purpose = "refuse unknown ports of cluster IPs"
	// FindNodePort looks for the packet's protocol and port among the node ports.
	FindNodePort Purpose = "find the node port"
	// AdmitSource and AdmitLoadBalancer let in what source ranges admit; RefuseSource drops the rest.
	AdmitSource       Purpose = "let in sources of the ranges"
	AdmitLoadBalancer Purpose = "let in the load balancer itself"
	DropSource        Purpose = "drop sources outside the ranges"
	// FindRestricted looks for the frontend of a source that was let in. DropRestricted should not
	// be met.
	FindRestricted Purpose = "find the restricted address and port"
	DropRestricted Purpose = "drop what no restricted address has"
	// ForPods, ForNode and ForOutsiders choose the list of external policy Local. DropNotLocal drops
	// packets of clients outside if the node has no endpoint.
	ForPods      Purpose = "give pods the endpoints of all nodes"
	ForNode      Purpose = "give the node the endpoints of all nodes"
	ForOutsiders Purpose = "give clients outside the endpoints of this node"
	DropNotLocal Purpose = "drop packets of clients outside: no endpoint is on this node"
	// MarkOutsiders and MarkAll say what is to be masqueraded, by a label of the connection or by the
	// packet's mark.
	MarkOutsiders Purpose = "have clients that are no pods masqueraded"
	MarkAll       Purpose = "have all clients masqueraded"
	// FindClient sends a remembered client to its endpoint, NewClient goes on without one.
	FindClient Purpose = "send a remembered client to its endpoint"
	NewClient  Purpose = "choose an endpoint for a new client"
	// Choose translates to a random endpoint. ChooseFirst does so where the map changes at this
	// moment, and DropUnchosen drops what then has no endpoint.
	Choose       Purpose = "choose an endpoint"
	ChooseFirst  Purpose = "choose the first endpoint, if the map changes at this moment"
	DropUnchosen Purpose = "drop what has no endpoint, if the map changes at this moment"
	// RefuseTCP and RefuseOthers answer packets that are refused.
	RefuseTCP    Purpose = "refuse by a TCP reset"
	RefuseOthers Purpose = "refuse by ICMP port unreachable"
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

// PurposeOf returns what a chain's rule is for. number is the rule's place in the chain, from 1. It
// returns NoPurpose if no program of this version has such a rule there.
func PurposeOf(c *nft.Chain, number int) Purpose {
	r := withoutCounters(c.Rules[number-1])
	last := number == len(c.Rules)
	switch {
	case c.Hook != nil:
		return purposeInBase(c, number, r)
	case c.Name == dispatch:
		return choosePurpose(
			purposeIf{kinds(r, "InSet", "MatchLocal", "Verdict") && setAt(r, 0) == clusterIPs && refuses(r), RefuseUnknownPort},
			purposeIf{kinds(r, "MatchLocal", "MatchAddr", "VMap") && setAt(r, 2) == nodePorts, FindNodePort},
			purposeIf{kinds(r, "InSet", "VMap") && setAt(r, 0) == nodePortAddresses && setAt(r, 1) == nodePorts, FindNodePort})
	case isCheck(c.Name):
		return choosePurpose(
			purposeIf{kinds(r, "InSet", "Verdict") && setAt(r, 0) == reachable && isReturn(r), SpareNetworks},
			purposeIf{kinds(r, "MatchDNATed", "InSet", "Verdict") && isReturn(r), SpareServices},
			purposeIf{kinds(r, "MatchAddr", "Verdict") && isReturn(r), SpareDecided},
			purposeIf{last && len(r) == 1 && refuses(r), SpareNothing})
	case isRefusing(c.Name):
		return choosePurpose(
			purposeIf{kinds(r, "MatchProto", "Reject"), RefuseTCP}, purposeIf{kinds(r, "Reject"), RefuseOthers},
			purposeIf{isDrop(r), DropCounted}, purposeIf{kinds(r, "InSet") && RefusalSets()[setAt(r, 0)] != "", CountForService})
	case c.Name == servicesRestricted:
		return choosePurpose(purposeIf{isVMap(r, servicesRestricted), FindRestricted}, purposeIf{last && isDrop(r), DropRestricted})
	case strings.HasPrefix(c.Name, sourceRanges):
		admits := kinds(r, "InSet", "Verdict") && r[1] == nft.Statement(nft.Verdict{Code: nft.Goto, Chain: servicesRestricted})
		return choosePurpose(
			purposeIf{admits && setAt(r, 0) == c.Name, AdmitSource}, purposeIf{admits && setAt(r, 0) == loadBalancerSources, AdmitLoadBalancer},
			purposeIf{last && len(r) == 1 && refuses(r), DropSource})
	case c.Name == externalLocal, c.Name == nodePortExternalLocal:
		return purposeInExternalLocal(r, last)
	}
	return purposeInShared(c.Name, r, last)
}

// isRefusing says whether the chain does nothing but refuse or drop packets.
func isRefusing(chain string) bool {
	return slices.ContainsFunc(Causes(), func(c Cause) bool { return slices.Contains(c.Chains(), chain) })
}

// refuses says whether the rule ends with a drop, or leads to a chain that refuses or drops.
func refuses(r nft.Rule) bool {
	v, ok := r[len(r)-1].(nft.Verdict)
	return ok && (v.Code == nft.Drop || v.Code == nft.Goto && isRefusing(v.Chain) ||
		v.Code == nft.Jump && isCheck(v.Chain))
}

func isReturn(r nft.Rule) bool { return r[len(r)-1] == nft.Statement(nft.Verdict{Code: nft.Return}) }

// purposeIf is a purpose with its condition.
type purposeIf struct {
	holds   bool
	purpose Purpose
}

// choosePurpose returns the first purpose whose condition holds.
func choosePurpose(list ...purposeIf) Purpose {
	for _, p := range list {
		if p.holds {
			return p.purpose
		}
	}
	return NoPurpose
}

func purposeInBase(c *nft.Chain, number int, r nft.Rule) Purpose {
	switch c.Name {
	case prerouting, output:
		return choosePurpose(purposeIf{isVMap(r, services) && number == 1, FindFrontend}, purposeIf{isRule(r, jump(dispatch)), FindOthers})
	case postrouting, input:
		return choosePurpose(
			purposeIf{kinds(r, "MatchAddr", "MatchLocal", "Verdict") && refuses(r), DropUnallocated},
			purposeIf{kinds(r, "InSet", "MatchLocal", "Verdict") && refuses(r) && setAt(r, 0) == clusterIPs, DropUntranslated},
			purposeIf{kinds(r, "MatchDNATed", "VMap"), FindLearner},
			purposeIf{kinds(r, "MatchMark", "ClearMark", "Masquerade") || kinds(r, "MatchLabel", "Masquerade"), MasqueradeMarked},
			purposeIf{kinds(r, "InSet", "MatchDNATed", "Masquerade") && setAt(r, 0) == hairpin, MasqueradeHairpin},
			purposeIf{kinds(r, "MatchMark", "ClearMark"), Unmark})
	}
	return NoPurpose
}

func purposeInExternalLocal(r nft.Rule, last bool) Purpose {
	cluster := len(r) > 0 && slices.Contains([]string{servicesCluster, nodePortsCluster}, setAt(r, len(r)-1))
	return choosePurpose(
		purposeIf{cluster && (kinds(r, "MatchAddr", "VMap") || kinds(r, "MatchInput", "VMap")), ForPods},
		purposeIf{cluster && (kinds(r, "MatchLocal", "SetMark", "VMap") || kinds(r, "MatchLocal", "SetLabel", "VMap")), ForNode},
		purposeIf{isVMap(r, servicesLocal) || isVMap(r, nodePortsLocal), ForOutsiders},
		purposeIf{last && len(r) == 1 && refuses(r), DropNotLocal})
}

// purposeInShared is about the chains that sharedChain names.
func purposeInShared(chain string, r nft.Rule, last bool) Purpose {
	if strings.HasPrefix(strings.TrimPrefix(chain, "node-port-"), "learn-") {
		return choosePurpose(purposeIf{kinds(r, "InSet", "Update"), Remember})
	}
	kind := strings.TrimPrefix(kindOfChain(chain), "node-port-")
	if kind = strings.TrimPrefix(kind, "local-"); !strings.HasPrefix(kind, "endpoints-") {
		return NoPurpose
	}
	remembers := strings.Contains(chain, "affinity-")
	mod := uint32(0)
	if kinds(r, "DNAT") {
		mod = r[0].(nft.DNAT).Mod
	}
	goOn := kinds(r, "Verdict") && r[0].(nft.Verdict).Code == nft.Goto
	single := kind == "endpoints-1" || strings.HasPrefix(kind, "endpoints-1-")
	return choosePurpose(
		purposeIf{kinds(r, "Update"), NoteRecent},
		purposeIf{kinds(r, "SetMark") || kinds(r, "SetLabel"), MarkAll},
		purposeIf{marksOutsiders(r), MarkOutsiders},
		purposeIf{remembers && kinds(r, "MatchProto", "DNAT"), FindClient},
		purposeIf{remembers && last && goOn, NewClient},
		purposeIf{!remembers && mod == 1 && !single, ChooseFirst},
		purposeIf{!remembers && mod > 0, Choose},
		purposeIf{!remembers && last && isDrop(r), DropUnchosen})
}

// marksOutsiders says whether the rule marks packets that come from none of some ranges, or not by some interface.
func marksOutsiders(r nft.Rule) bool {
	last := len(r) - 1
	ranges := last > 0 && !slices.ContainsFunc(r[:last], func(s nft.Statement) bool { return kindName(s) != "MatchAddr" })
	return (ranges || kinds(r[:max(last, 0)], "MatchInput")) && (kindName(r[last]) == "SetMark" || kindName(r[last]) == "SetLabel")
}

// withoutCounters returns the rule without the statements that change nothing of a packet.
func withoutCounters(r nft.Rule) nft.Rule {
	return slices.DeleteFunc(slices.Clone(r), func(s nft.Statement) bool { return s == nft.Statement(nft.Counter{}) })
}

// kinds says whether the rule has statements of these types, and no others.
func kinds(r nft.Rule, names ...string) bool {
	return slices.EqualFunc(r, names, func(s nft.Statement, name string) bool { return kindName(s) == name })
}

func kindName(s nft.Statement) string {
	switch s.(type) {
	case nft.MatchAddr:
		return "MatchAddr"
	case nft.MatchProto:
		return "MatchProto"
	case nft.MatchLocal:
		return "MatchLocal"
	case nft.MatchInput:
		return "MatchInput"
	case nft.MatchMark:
		return "MatchMark"
	case nft.MatchLabel:
		return "MatchLabel"
	case nft.SetLabel:
		return "SetLabel"
	case nft.MatchDNATed:
		return "MatchDNATed"
	case nft.InSet:
		return "InSet"
	case nft.VMap:
		return "VMap"
	case nft.DNAT:
		return "DNAT"
	case nft.Update:
		return "Update"
	case nft.SetMark:
		return "SetMark"
	case nft.ClearMark:
		return "ClearMark"
	case nft.Masquerade:
		return "Masquerade"
	case nft.Reject:
		return "Reject"
	case nft.Verdict:
		return "Verdict"
	}
	return ""
}

// isRule says whether the rule is this one statement.
func isRule(r nft.Rule, s nft.Verdict) bool { return len(r) == 1 && r[0] == nft.Statement(s) }

func isDrop(r nft.Rule) bool { return isRule(r, nft.Verdict{Code: nft.Drop}) }

// isVMap says whether the rule does what the map has for the packet, and nothing else.
func isVMap(r nft.Rule, name string) bool { return kinds(r, "VMap") && setAt(r, 0) == name }

// setAt returns the set or map of a statement, empty if it has none.
func setAt(r nft.Rule, i int) string {
	switch s := r[i].(type) {
	case nft.InSet:
		return s.Set
	case nft.VMap:
		return s.Map
	}
	return ""
}

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

// ClusterIPOwner names the Service that a table has for a cluster IP, as far as the comment tells it; empty
// if the table does not have the address.
func ClusterIPOwner(c *nft.Contents, a netip.Addr) string {
	if set := c.Sets[clusterIPs]; set != nil {
		return set.Elements[addrValue(a)].Comment
	}
	return ""
}

// RestrictedBy names the Service whose source ranges restrict an address and port (the key of a frontend);
// empty if no comment tells it.
func RestrictedBy(c *nft.Contents, frontend nft.Value) string {
	if set := c.Sets[servicesRestricted]; set != nil {
		return NameInComment(set.Elements[frontend].Comment).Service
	}
	return ""
}

// MeansNoEndpoints says whether a frontend's verdict refuses, since there is no endpoint on any node.
func MeansNoEndpoints(v nft.Verdict) bool { return slices.Contains(NoEndpoints.Chains(), v.Chain) }

// InServiceCIDR says whether a table drops packets to the address if no Service has it.
func InServiceCIDR(c *nft.Contents, a netip.Addr) bool {
	return slices.ContainsFunc(serviceCIDRs(c), func(p netip.Prefix) bool { return p.Contains(a) })
}

// ServiceCIDRs returns the ranges whose addresses a table drops packets to if no Service has them.
func ServiceCIDRs(c *nft.Contents) []netip.Prefix { return serviceCIDRs(c) }

// LocalEndpoints returns the addresses of endpoints that are certain to be on the node, sorted.
func LocalEndpoints(c *nft.Contents) []netip.Addr {
	var list []netip.Addr
	for _, e := range sortedElements(c, hairpin) {
		if e.Comment != maybeHere {
			list = append(list, addrOf(e.Key[:len(e.Key)/2]))
		}
	}
	return list
}

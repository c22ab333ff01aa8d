package ruleset

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// A ServiceCIDR, or the cluster IP of a Service, may lie in a network where real hosts are.
// So some packets are spared although no Service has their address: those to networks that
// the node is on or has routes to, those to API servers, and those that our own rules have
// translated. The program has the chains for that only where they can matter.

// reachable is the set of the networks and API servers.
const reachable = "reachable-networks"

// The chains that spare packets before the cause's chain. They return to the rule behind the
// one that jumped there. The first is for addresses in ServiceCIDRs, the other two for cluster
// IPs: outside of ServiceCIDRs, and with a port that the Service does not have.
const (
	checkUnallocated  = "check-unallocated-address"
	checkUntranslated = "check-untranslated"
	checkUnknownPort  = "check-unknown-port"
)

// checks has the chains with their causes.
func checks() map[string]Cause {
	return map[string]Cause{checkUnallocated: UnallocatedAddress, checkUntranslated: UnallocatedAddress,
		checkUnknownPort: UnknownPort}
}

// spared says which packets are to be spared.
type spared struct {
	// networks: some network or API server lies where service addresses are.
	networks bool
	// translated: some endpoint lies in a ServiceCIDR.
	translated bool
	// ranged: some Service has ranges of ports. It matters with translated only.
	ranged bool
}

// at says what matters for the chain.
func (s spared) at(check string) spared {
	translated := s.translated && check != checkUnknownPort
	return spared{s.networks, translated, s.ranged && translated}
}

// verdict leads packets to the chain, or at once to that of its cause.
func (s spared) verdict(check string) nft.Verdict {
	if s.at(check) == (spared{}) {
		return gotoChain(string(checks()[check]))
	}
	return jump(check)
}

// chain spares packets and leads the others to the chain of the cause. The recentSet of both
// ways has the frontend of each packet that has just been translated. Whether anybody has
// translated it would not do: other programs' rules may translate to a cluster IP. For the
// addresses in ServiceCIDRs checkUnallocated has decided before checkUntranslated is asked.
func (s spared) chain(check string, ranges []netip.Prefix) *nft.Chain {
	var rules []nft.Rule
	s = s.at(check)
	if check == checkUntranslated {
		for _, cidr := range ranges {
			rules = append(rules, SpareDecided.rule(nft.MatchAddr{Field: nft.Daddr, Prefix: cidr},
				nft.Verdict{Code: nft.Return}))
		}
		s.translated = false
	}
	if s.networks {
		rules = append(rules, SpareNetworks.rule(nft.InSet{Key: daddr(), Set: reachable}, nft.Verdict{Code: nft.Return}))
	}
	if s.translated {
		// The status is needed: the sets remember a Service for some time after it has gone. A
		// translation to where the packet goes anyway has no status, so its packets are not spared.
		for _, a := range allAccess() {
			rules = append(rules, a.spareRule())
		}
		if s.ranged {
			rules = append(rules, byRange().spareRule())
		}
	}
	return &nft.Chain{Name: check, Rules: append(rules, SpareNothing.rule(gotoChain(string(checks()[check]))))}
}

// spareRule spares what the access has just translated.
func (a *access) spareRule() nft.Rule {
	return SpareServices.rule(nft.MatchDNATed{}, nft.InSet{Key: a.original, Set: a.recent}, nft.Verdict{Code: nft.Return})
}

// rangesOfFamily returns the ServiceCIDRs of the table's family.
func (t *tableCompiler) rangesOfFamily() []netip.Prefix {
	var ranges []netip.Prefix
	for _, cidr := range t.ranges.All() {
		if t.family.Has(cidr.Addr()) {
			ranges = append(ranges, cidr)
		}
	}
	return ranges
}

// setReachable sets the networks and API servers that are spared. Without a cluster IP outside of
// ServiceCIDRs, and without a ServiceCIDR, there is nothing to spare them from.
func (t *tableCompiler) setReachable() {
	var list []netip.Prefix
	if t.needs.has(need{kind: needUnlisted}) || len(t.rangesOfFamily()) > 0 {
		list = t.node.Spared(t.ranges, t.family)
	}
	t.editElements(reachable, rangesPart(reachable, list).Elements)
	if some := len(list) > 0; some != (t.sets.At(reachable) != nil) {
		t.sets = put(t.sets, reachable, &nft.Set{Name: reachable, Key: daddr(), Interval: true}, some)
	}
}

// hasTargetIn says whether a target's address is in the range. Targets are sorted by address.
func hasTargetIn(targets nft.Targets, cidr netip.Prefix) bool {
	first, last := addrValue(cidr.Masked().Addr()), addrValue(nft.LastAddr(cidr))
	n := len(first)
	for chunk := range targets.Chunks() {
		if chunk[len(chunk)-1][:n] < first {
			continue
		}
		if chunk[0][:n] > last {
			return false
		}
		i, _ := slices.BinarySearchFunc(chunk, first, func(t, first nft.Value) int { return cmp.Compare(t[:n], first) })
		if i < len(chunk) && chunk[i][:n] <= last {
			return true
		}
	}
	return false
}

// readReachable returns what setReachable put into the set.
func readReachable(c *nft.Contents) []netip.Prefix {
	var list []netip.Prefix
	for _, e := range sortedElements(c, reachable) {
		if p, ok := prefixOf(addrOf(e.Key), addrOf(e.KeyEnd)); ok {
			list = append(list, p)
		}
	}
	return list
}

// withReachable returns the node with the networks that the rules spare. A single address may be that of an API server.
func withReachable(node service.Node, networks []netip.Prefix) *service.Node {
	node.Networks, node.APIServers = networks, nil
	for _, n := range networks {
		if n.IsSingleIP() {
			node.APIServers = append(node.APIServers, n.Addr())
		}
	}
	return &node
}

package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// Cause says why the rules refuse or drop the first packet of a connection. Each cause has
// chains of its own. The counters of the chains' rules count the packets. No other rule
// refuses, and no other drops but for packets that meet the tables in the middle of a
// change. The chain of TooManyPings is there only with service.Settings.AnswerPing.
type Cause string

// The causes. Clients of the first two get an answer at once, the packets of others are
// dropped.
const (
	// NoEndpoints: the Service port has no endpoint at all.
	NoEndpoints Cause = "no-endpoints"
	// UnknownPort: the cluster IP's Service has no such port.
	UnknownPort Cause = "unknown-port"
	// NoLocalEndpoints: the Service port has endpoints, but none on this node, and its traffic
	// policy is Local.
	NoLocalEndpoints Cause = "no-local-endpoints"
	// OutsideSourceRanges: the source ranges do not have the client's address. The chain for node ports is there where a
	// node port has source ranges.
	OutsideSourceRanges Cause = "outside-source-ranges"
	// UnallocatedAddress: no Service has that address of a ServiceCIDR.
	UnallocatedAddress Cause = "unallocated-address"
	// TooManyPings: more echo requests to Services than PingsPerSecond.
	TooManyPings Cause = "too-many-pings"
	// Held: the Service port has no endpoint at all, and the Service asks that connections wait for one. Its chains and
	// sets are there where a frontend holds.
	Held Cause = "held"
)

// Causes lists all causes.
func Causes() []Cause {
	return []Cause{NoEndpoints, UnknownPort, NoLocalEndpoints, OutsideSourceRanges, UnallocatedAddress, TooManyPings,
		Held}
}

// causesOfServices are those that have a chain and a set of each access.
func causesOfServices() []Cause {
	return []Cause{NoEndpoints, NoLocalEndpoints, OutsideSourceRanges, Held}
}

// access has the ways to reach Services that a cause of causesOfServices may concern. A Service with source ranges has
// no ranges of ports.
func (c Cause) access() []*access {
	if c == OutsideSourceRanges {
		all := allAccess()
		return all[:]
	}
	all := accessWithRanges()
	return all[:]
}

// Drops reports whether the rules drop packets of the cause, rather than refuse them.
func (c Cause) Drops() bool { return c != NoEndpoints && c != UnknownPort }

// Chains returns the names of the cause's chains.
func (c Cause) Chains() []string {
	if !slices.Contains(causesOfServices(), c) {
		return []string{string(c)}
	}
	var chains []string
	for _, a := range c.access() {
		chains = append(chains, a.refusalChain(c))
	}
	return chains
}

// Counting lists the causes whose elements may have counted if the cause's chains have. The chain of NoEndpoints also
// refuses pods of other nodes (RefuseOtherPods): these packets are NoLocalEndpoints of their Service.
func (c Cause) Counting() []Cause {
	if c == NoEndpoints {
		return []Cause{NoEndpoints, NoLocalEndpoints}
	}
	return []Cause{c}
}

// refuse is the chain of addresses without endpoints. The chain of node ports has the prefix
// of that access.
const refuse = "refuse"

// refusalChain is the access's chain of one of causesOfServices.
func (a *access) refusalChain(c Cause) string {
	if c == NoEndpoints {
		return a.chainPrefix + refuse
	}
	return a.chainPrefix + string(c)
}

// refusalSet is the set that has each frontend of the access with the cause, which is neither
// UnknownPort, UnallocatedAddress nor TooManyPings. The set's elements count the packets.
func (a *access) refusalSet(c Cause) string { return a.chainPrefix + string(c) }

// RefusalSets returns the sets whose elements count packets that were refused or dropped, with the
// cause. An element belongs to the Service that the packets were for. UnknownPort,
// UnallocatedAddress and TooManyPings have none.
func RefusalSets() map[string]Cause {
	sets := map[string]Cause{}
	for _, c := range causesOfServices() {
		for _, a := range c.access() {
			sets[a.refusalSet(c)] = c
		}
	}
	return sets
}

// Promised returns the function that says whether an element of the part counts packets whose
// drop is what externalTrafficPolicy Local promises: a load balancer is meant to notice that the
// node has no endpoint, and to try another one.
func Promised(part *nft.Part) func(*nft.Element) bool {
	var internal []string // the beginnings of keys: a Service has a cluster IP or two
	for i := range part.Elements {
		if e := &part.Elements[i]; e.Set == clusterIPs {
			internal = append(internal, string(e.Key))
		}
	}
	address, nodePort, ranged := byAddress().refusalSet(NoLocalEndpoints), byNodePort().refusalSet(NoLocalEndpoints),
		byRange().refusalSet(NoLocalEndpoints)
	return func(e *nft.Element) bool {
		return e.Set == nodePort || (e.Set == address || e.Set == ranged) &&
			!slices.ContainsFunc(internal, func(ip string) bool { return strings.HasPrefix(string(e.Key), ip) })
	}
}

// refusalSets declares the sets of all causes that are always there. Without counters they have no elements.
func refusalSets() []*nft.Set {
	var sets []*nft.Set
	for _, a := range allAccess() {
		for _, c := range causesOfServices() {
			if c != Held && (c != OutsideSourceRanges || a.verdicts == services) {
				sets = append(sets, a.refusalSetOf(c))
			}
		}
	}
	return sets
}

// refusalSetOf declares the set of a cause.
func (a *access) refusalSetOf(c Cause) *nft.Set {
	return &nft.Set{Name: a.refusalSet(c), Key: a.key, MinSize: minSizeBehind, Counter: true}
}

// refusalChains are the chains of all causes. Where a Service has the packet, the first rule
// finds the Service's element, which counts. It does nothing else.
func refusalChains(cfg *Config) []*nft.Chain {
	chains := countingChains()
	cfg.adapt(chains...)
	return chains
}

// adapt gives chains of causes what the configuration wants in them.
func (c *Config) adapt(chains ...*nft.Chain) {
	for _, chain := range chains {
		c.uncount(chain)
		for _, cause := range Causes() {
			if cause.concernsService() && slices.Contains(cause.Chains(), chain.Name) {
				c.followRefused(cause, chain)
			}
		}
	}
}

// concernsService says whether the packets go to a Service.
func (c Cause) concernsService() bool {
	return c == UnknownPort || slices.Contains(causesOfServices(), c)
}

// uncount takes the counters out of a chain's rules where the configuration wants none.
func (c *Config) uncount(chain *nft.Chain) {
	if !c.Uncounted {
		return
	}
	for i, r := range chain.Rules {
		chain.Rules[i] = slices.DeleteFunc(slices.Clone(r), func(s nft.Statement) bool { return s == nft.Counter{} })
	}
}

// dropCounted counts packets and drops them.
func dropCounted() nft.Rule {
	return DropCounted.rule(nft.Counter{}, nft.Verdict{Code: nft.Drop})
}

func countingChains() []*nft.Chain {
	drop := dropCounted()
	chains := []*nft.Chain{
		{Name: string(UnknownPort), Rules: rejectCounted()},
		{Name: string(UnallocatedAddress), Rules: []nft.Rule{drop}},
		byAddress().outsideChain(),
	}
	for _, a := range allAccess() {
		chains = append(chains, a.refusalChains()...)
	}
	return chains
}

// refusalChains are the chains of the access for the causes that each access has.
func (a *access) refusalChains() []*nft.Chain {
	return []*nft.Chain{
		{Name: a.refusalChain(NoEndpoints), Rules: append([]nft.Rule{a.refusalRule(NoEndpoints)}, rejectCounted()...)},
		{Name: a.refusalChain(NoLocalEndpoints), Rules: []nft.Rule{a.refusalRule(NoLocalEndpoints), dropCounted()}},
	}
}

// rejectCounted counts packets and refuses them. A reset reaches the client at once; after ICMP many give up only when
// they have sent their SYN again, a second later.
func rejectCounted() []nft.Rule {
	return []nft.Rule{
		RefuseTCP.rule(nft.MatchProto{Protocol: uint8(service.TCP)}, nft.Counter{}, nft.Reject{TCPReset: true}),
		RefuseOthers.rule(nft.Counter{}, nft.Reject{}),
	}
}

// outsideChain drops the packets of sources that are not in the ranges.
func (a *access) outsideChain() *nft.Chain {
	return &nft.Chain{Name: a.refusalChain(OutsideSourceRanges), Rules: []nft.Rule{a.refusalRule(OutsideSourceRanges),
		dropCounted()}}
}

// refusalRule has the Service's element count.
func (a *access) refusalRule(c Cause) nft.Rule {
	return CountForService.rule(nft.InSet{Key: a.key, Set: a.refusalSet(c)})
}

// addRefusal adds the element that counts the frontend's packets of the cause. By those of node ports without an
// endpoint on this node prerouting refuses, too.
func (c *serviceCompiler) addRefusal(f frontend, cause Cause) {
	if c.cfg.Uncounted && f.refusalSet(cause) != byNodePort().refusalSet(NoLocalEndpoints) {
		return
	}
	c.elements = append(c.elements, nft.Element{Set: f.refusalSet(cause), Key: f.at, Comment: f.comment})
}

// refuseAll leads all packets of the frontend to the chain of the cause.
func (c *serviceCompiler) refuseAll(f frontend, vmap string, cause Cause) {
	c.addVerdict(f, vmap, gotoChain(f.refusalChain(cause)))
	c.addRefusal(f, cause)
}

func gotoChain(chain string) nft.Verdict { return nft.Verdict{Code: nft.Goto, Chain: chain} }

// notOwn spares the node's own addresses. NodeLocal DNSCache binds a cluster IP on
// the node; that address keeps its other ports.
func notOwn() nft.Statement { return nft.MatchLocal{Field: nft.Daddr, Not: true} }

// toClusterIP leads packets to a cluster IP that were not translated to the chain of the
// cause, by a chain that spares some.
func toClusterIP(check string, s spared) []nft.Statement {
	return []nft.Statement{nft.InSet{Key: daddr(), Set: clusterIPs}, notOwn(), s.verdict(check)}
}

// rangeRules drop packets to a ServiceCIDR that were not translated. No service has
// their address, so no host does, but for those that are spared.
func rangeRules(ranges []netip.Prefix, s spared) []nft.Rule {
	var rules []nft.Rule
	for _, cidr := range ranges {
		rules = append(rules, DropUnallocated.rule(nft.MatchAddr{Field: nft.Daddr, Prefix: cidr}, notOwn(),
			s.verdict(checkUnallocated)))
	}
	return rules
}

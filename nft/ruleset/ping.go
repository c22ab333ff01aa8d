package ruleset

import (
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// pingAddresses holds the addresses of Services that answer echo requests (service.Settings.AnswerPing). Several
// Services may share an address, so its element is a part of its own.
const pingAddresses = "ping-addresses"

// The most echo requests of a family that are translated: each makes an entry in connection tracking, which stays for
// 30 s after the last packet (nf_conntrack_icmp_timeout). The kernel answers further packets of these entries without
// asking the rules.
const (
	PingsPerSecond = 1000
	pingBurst      = 1000
)

// findPing leads echo requests to the chain that has them answered. It is the first rule of the chain dispatch, so that
// no packet of a Service meets it.
func findPing() nft.Rule {
	return FindPing.rule(nft.MatchEcho{}, nft.InSet{Key: daddr(), Set: pingAddresses}, notOwn(),
		jump(string(TooManyPings)))
}

// pingChain translates echo requests to the node's address. The kernel answers them as those to itself, with the
// Service's address as their source.
func pingChain(cfg *Config, b *base) *nft.Chain {
	var rules []nft.Rule
	if b.spared.networks {
		rules = append(rules, SpareNetworks.rule(nft.InSet{Key: daddr(), Set: reachable}, nft.Verdict{Code: nft.Return}))
	}
	rules = append(rules, AnswerPing.rule(nft.Limit{PerSecond: PingsPerSecond, Burst: pingBurst},
		nft.DNATTo{Addr: b.ping}), dropCounted())
	chain := &nft.Chain{Name: string(TooManyPings), Rules: rules}
	cfg.uncount(chain)
	return chain
}

// addPing notes that the address of the service that is compiled answers, as far as the port says: somebody outside
// gets an endpoint there. An address with source ranges does not answer, since the ranges are for addresses with a
// port.
func (c *serviceCompiler) addPing(a netip.Addr, restricted bool, l endpointLists) {
	if !c.cfg.AnswerPing || restricted {
		return
	}
	policy := c.svc.ExternalPolicy
	if slices.Contains(c.svc.ClusterIPs, a) {
		policy = c.svc.InternalPolicy
	}
	targets := l.cluster
	if policy == service.Local {
		targets = l.local
	}
	if targets.Len() > 0 {
		c.pings = append(c.pings, a)
	}
}

// setPings sets the addresses of a service that answer.
func (t *tableCompiler) setPings(name service.Name, addrs []netip.Addr) {
	for _, a := range addrs {
		w := wanted{needOfPing(a), pingAddress(a)}
		t.needs.define(w)
		t.needs.count(w.need, 1)
	}
	for _, a := range t.pings[name] {
		t.needs.count(needOfPing(a), -1)
	}
	delete(t.pings, name)
	if len(addrs) > 0 {
		t.pings[name] = addrs
	}
}

// pingAddress makes the element of an address that answers.
type pingAddress netip.Addr

func needOfPing(a netip.Addr) need { return need{needPing, string(addrValue(a))} }

func (a pingAddress) make(*Config, pods) made {
	addr := netip.Addr(a)
	return made{name: "ping " + addr.String(),
		part: nft.NewPart([]nft.Element{{Set: pingAddresses, Key: addrValue(addr)}}, nil)}
}

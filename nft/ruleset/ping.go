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

func pingPart(a netip.Addr) string { return "ping " + a.String() }

// pings says how a table answers echo requests. By the zero value it does not.
type pings struct {
	// by is the address of the node that answers.
	by netip.Addr
	// networks: some network or API server lies where service addresses are (spared).
	networks bool
}

// rules lead echo requests to the chain that has them answered. It is the first of the chain dispatch, so that no
// packet of a Service meets it.
func (p pings) rules() []nft.Rule {
	if !p.by.IsValid() {
		return nil
	}
	return []nft.Rule{FindPing.rule(nft.MatchEcho{}, nft.InSet{Key: daddr(), Set: pingAddresses}, notOwn(),
		jump(string(TooManyPings)))}
}

// chain translates echo requests to the node's address. The kernel answers them as those to itself, with the Service's
// address as their source.
func (p pings) chain(cfg *Config) *nft.Chain {
	var rules []nft.Rule
	if p.networks {
		rules = append(rules, SpareNetworks.rule(nft.InSet{Key: daddr(), Set: reachable}, nft.Verdict{Code: nft.Return}))
	}
	rules = append(rules, AnswerPing.rule(nft.Limit{PerSecond: PingsPerSecond, Burst: pingBurst}, nft.DNATTo{Addr: p.by}),
		dropCounted())
	chain := &nft.Chain{Name: string(TooManyPings), Rules: rules}
	cfg.uncount(chain)
	return chain
}

// setPings builds the chain of echo requests.
func (t *tableCompiler) setPings() {
	if !t.cfg.AnswerPing {
		return
	}
	t.ping = pings{t.node.OwnAddress(t.family), t.spared.networks}
	if t.ping.by.IsValid() {
		t.chains = t.chains.Set(string(TooManyPings), t.ping.chain(&t.cfg))
	} else {
		t.chains = t.chains.Delete(string(TooManyPings))
	}
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
	if targets.Len() > 0 && !slices.Contains(c.pings, a) {
		c.pings = append(c.pings, a)
	}
}

// setPinged sets the addresses of a service that answer.
func (t *tableCompiler) setPinged(name service.Name, addrs []netip.Addr) {
	if !t.cfg.AnswerPing {
		return
	}
	for _, a := range addrs {
		if t.pinged[a]++; t.pinged[a] == 1 {
			t.editPing(a, nft.NewPart([]nft.Element{{Set: pingAddresses, Key: addrValue(a)}}, nil))
		}
	}
	for _, a := range t.pingsOf[name] {
		if t.pinged[a]--; t.pinged[a] == 0 {
			delete(t.pinged, a)
			t.editPing(a, nil)
		}
	}
	if len(addrs) == 0 {
		delete(t.pingsOf, name)
		return
	}
	t.pingsOf[name] = addrs
}

// editPing gives an address its element, or removes it.
func (t *tableCompiler) editPing(a netip.Addr, wanted *nft.Part) {
	name := pingPart(a)
	if there := t.parts.At(name); (there == nil) == (wanted == nil) {
		delete(t.edits, name)
		return
	}
	t.edits[name] = wanted
}

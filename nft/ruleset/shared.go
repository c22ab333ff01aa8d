package ruleset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// masquerading says which connections of a shared chain are masqueraded.
type masquerading uint8

const (
	// masqueradeOutsiders masquerades connections that do not come from the
	// cluster's pods.
	masqueradeOutsiders masquerading = iota
	masqueradeAll
	// masqueradeNone keeps the client's address, as external policy Local promises.
	masqueradeNone
)

// sharedChain is all that a shared chain depends on; its name says the same. Services
// with the same number of slots, which are drawn in the same way, share a chain. So do the addresses of a Service
// port whose clients are remembered. Only chains that use the map localEndpoints
// never masquerade.
type sharedChain struct {
	access *access
	// slots is the number of elements of the list, usually one for each endpoint.
	slots      int
	masquerade masquerading
	// balance says how a packet draws one of them.
	balance service.Balance
	// timeouts are those that connections get.
	timeouts service.Timeouts
	// flows is how many connections there are for each one that the chain tells of; 0 if it tells of none.
	flows int
	// clients makes it the chain that sends each remembered client to its endpoint,
	// by the map of the list in lists. It gives the time-outs, tells of connections, and sends others
	// on to the chain without clients, time-outs and flows.
	clients clients
	lists   clientList
	// learn, if not 0, makes it the chain that remembers clients for so long, in the
	// maps of the lists. Then only access, clients and lists count beside it.
	learn time.Duration
}

func (s sharedChain) name() string {
	name := s.access.chainPrefix
	switch {
	case s.learn > 0:
		return fmt.Sprintf("%slearn-%d-%s%s", name, s.learn/time.Second, s.clients.name, s.lists.suffix())
	case s.masquerade == masqueradeNone:
		name += "local-"
	}
	name += "endpoints-" + strconv.Itoa(s.slots)
	if s.balance != service.ByRandom {
		name += "-by-" + s.balance.String()
	}
	if s.masquerade == masqueradeAll {
		name += "-masquerade"
	}
	if s.timeouts != (service.Timeouts{}) {
		name += "-" + s.timeouts.String()
	}
	if s.flows > 0 {
		name += "-" + flowsPrefix + strconv.Itoa(s.flows)
	}
	if s.clients != (clients{}) {
		name += "-" + s.lists.mapName(s.clients)
	}
	return name
}

// parseShared reads a name: all that the chain depends on, but for its access and the protocol of its clients. ok is
// false for the name of another chain.
func parseShared(name string) (s sharedChain, ok bool) {
	name = strings.TrimPrefix(strings.TrimPrefix(name, nodePortPrefix), rangePrefix)
	if of, learns := strings.CutPrefix(name, "learn-"); learns {
		seconds, of, _ := strings.Cut(of, "-")
		n, err := strconv.Atoi(seconds)
		s.learn, s.lists = time.Duration(n)*time.Second, clusterList
		for _, lists := range []clientList{localList, clusterList | localList} {
			if before, found := strings.CutSuffix(of, lists.suffix()); found && s.lists == clusterList {
				s.lists, of = lists, before
			}
		}
		s.clients.name = of
		return s, err == nil && n > 0
	}
	if kind, of, remembers := strings.Cut(name, "-affinity-"); remembers {
		s.clients.name, s.lists = of, clusterList
		if name, remembers = strings.CutSuffix(kind, "-local"); remembers {
			s.lists = localList
		}
	}
	if name, ok = strings.CutPrefix(name, "local-"); ok {
		s.masquerade = masqueradeNone
	}
	words := strings.Split(name, "-")
	if len(words) < 2 || words[0] != "endpoints" {
		return s, false
	}
	s.slots, _ = strconv.Atoi(words[1])
	words = words[2:]
	for _, b := range []service.Balance{service.ByClient, service.ByFlow, service.ByLeastConnections} {
		by := strings.Split("by-"+b.String(), "-")
		if len(words) >= len(by) && slices.Equal(words[:len(by)], by) {
			s.balance, words = b, words[len(by):]
			break
		}
	}
	if len(words) > 0 && words[0] == "masquerade" {
		s.masquerade, words = masqueradeAll, words[1:]
	}
	if n := len(words); n > 1 && words[n-2]+"-" == flowsPrefix {
		s.flows, _ = strconv.Atoi(words[n-1])
		words = words[:n-2]
	}
	if len(words) > 0 {
		s.timeouts = service.ParseTimeouts(strings.Join(words, "-"))
	}
	return s, true
}

// next is the chain that this one sends connections on to, if there is one.
func (s sharedChain) next() (next sharedChain, ok bool) {
	ok = s.clients != clients{} && s.learn == 0
	s.clients, s.lists, s.timeouts, s.flows = clients{}, 0, service.Timeouts{}, 0
	return s, ok
}

// make makes the chain. A learning chain is a fact for the chains that see connections last.
func (s sharedChain) make(cfg *Config, p pods) made {
	m := made{chains: []*nft.Chain{s.chain(cfg, p)}}
	for list := range s.lists.each() {
		name := list.mapName(s.clients)
		m.needs = append(m.needs, wanted{need{needSet, name}, clientMap(name)})
	}
	if s.timeouts != (service.Timeouts{}) {
		m.needs = append(m.needs, wanted{need{needTimeouts, s.timeouts.String()}, timeoutObject(s.timeouts)})
	}
	if s.learn > 0 {
		m.needs = append(m.needs, wanted{need: need{needLearning, s.access.verdicts}})
	}
	if next, ok := s.next(); ok {
		m.needs = append(m.needs, wanted{need{needChain, next.name()}, next})
	}
	return m
}

// pool is the map that has the chain's endpoints.
func (s sharedChain) pool() string {
	if s.masquerade == masqueradeNone {
		return s.access.localEndpoints
	}
	return s.access.endpoints
}

// chain builds the shared chain. Maps and rules change in one transaction, but a
// packet between two lookups may see the old number of slots and the new
// ones. Then it goes to index 0, which exists as long as any endpoint does.
// Without endpoints it is dropped: it must not leave the node with the service's
// address on it.
func (s sharedChain) chain(cfg *Config, p pods) *nft.Chain {
	if s.learn > 0 {
		return &nft.Chain{Name: s.name(), Rules: s.access.learnRules(s.clients, s.lists, s.learn)}
	}
	rules := append([]nft.Rule{s.access.recentRule()}, s.masqueradeRules(cfg, p)...)
	if s.timeouts != (service.Timeouts{}) {
		rules = append(rules, GiveTimeouts.rule(nft.SetTimeout{Name: s.timeouts.String()}))
	}
	if s.flows > 0 {
		rules = append(rules, cfg.followRule(s.flows))
	}
	if next, ok := s.next(); ok {
		return &nft.Chain{Name: s.name(), Rules: append(rules,
			// The protocol is known; but nft reads no translation of ports without it.
			FindClient.rule(nft.MatchProto{Protocol: uint8(s.clients.protocol)},
				nft.DNAT{Key: client(), Map: s.lists.mapName(s.clients)}),
			NewClient.rule(nft.Verdict{Code: nft.Goto, Chain: next.name()}),
		)}
	}
	dnat := nft.DNAT{Key: s.access.key, KeepPort: s.access.keepsPort, Mod: uint32(s.slots), Hash: hashed(s.balance),
		Map: s.pool()}
	rules = append(rules, Choose.rule(dnat))
	if s.slots > 1 {
		dnat.Mod, dnat.Hash = 1, nil
		rules = append(rules, ChooseFirst.rule(dnat))
	}
	return &nft.Chain{Name: s.name(), Rules: append(rules, DropUnchosen.rule(nft.Verdict{Code: nft.Drop}))}
}

// hashed returns the fields by whose hash packets draw; none for random draws.
func hashed(b service.Balance) nft.Fields {
	switch b {
	case service.ByClient:
		return client()
	case service.ByFlow:
		return nft.Fields{nft.Saddr, nft.Sport}
	}
	return nil
}

// masqueradeRules has the rule that says what is to be masqueraded, if there is one.
func (s sharedChain) masqueradeRules(cfg *Config, p pods) []nft.Rule {
	later := cfg.toMasquerade()
	switch others := p.others(); {
	case s.masquerade == masqueradeAll:
		return []nft.Rule{MarkAll.rule(later)}
	case s.masquerade == masqueradeOutsiders && len(others) > 0:
		return []nft.Rule{MarkOutsiders.rule(append(others, later)...)}
	}
	return nil
}

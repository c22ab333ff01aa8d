package ruleset

import (
	"fmt"
	"time"

	"nftproxy/nft"
)

// masquerading says which connections of a shared chain are masqueraded.
type masquerading uint8

const (
	// fromOutside masquerades what does not come from the cluster's pods.
	fromOutside masquerading = iota
	always
	// never keeps the client's address, which is what external policy Local is
	// asked for.
	never
)

// sharedChain is what a chain depends on that services with the same number of
// endpoints share; its name says it all. Chains of an entrance's own endpoints
// never masquerade, and no others do not.
type sharedChain struct {
	entrance   *entrance
	endpoints  int
	masquerade masquerading
	// affinity sends a client to where it was sent before.
	affinity bool
	// learn, if it is not 0, makes it another kind of chain, which nothing
	// above concerns but the entrance: it remembers clients for that long.
	learn time.Duration
}

func (s sharedChain) name() string {
	name := s.entrance.chains
	switch {
	case s.learn > 0:
		return fmt.Sprintf("%slearn-%d", name, s.learn/time.Second)
	case s.endpoints == 0:
		return refuse
	case s.masquerade == never:
		name += fmt.Sprintf("local-endpoints-%d", s.endpoints)
	case s.masquerade == always:
		name += fmt.Sprintf("endpoints-%d-masquerade", s.endpoints)
	default:
		name += fmt.Sprintf("endpoints-%d", s.endpoints)
	}
	if s.affinity {
		name += "-affinity"
	}
	return name
}

// pool is the maps that have the chain's endpoints.
func (s sharedChain) pool() pool {
	if s.masquerade == never {
		return s.entrance.own
	}
	return s.entrance.all
}

// chain builds the shared chain. Maps and rules change in one transaction, but
// a packet in between two lookups may see the old count and the new endpoints:
// then index 0, which is there as long as there is any endpoint, takes it; and
// where there is none, it must not leave the node as it came.
func (s sharedChain) chain(cfg *Config, p pods) *nft.Chain {
	if s.learn > 0 {
		return &nft.Chain{Name: s.name(), Rules: s.entrance.learnRules(s.learn)}
	}
	rules := s.marking(cfg, p)
	if s.affinity {
		rules = append(rules, nft.Rule{nft.DNAT{Key: s.entrance.clientKey(), Map: s.pool().affinity}})
	}
	dnat := nft.DNAT{Key: s.entrance.key, Mod: uint32(s.endpoints), Map: s.pool().endpoints}
	rules = append(rules, nft.Rule{dnat})
	if s.endpoints > 1 {
		dnat.Mod = 1
		rules = append(rules, nft.Rule{dnat})
	}
	return &nft.Chain{Name: s.name(), Rules: append(rules, nft.Rule{nft.Verdict{Code: nft.Drop}})}
}

// tellsPods says whether the chain depends on who is a pod.
func (s sharedChain) tellsPods() bool { return s.learn == 0 && s.masquerade == fromOutside }

// marking is the rule that marks what is to be masqueraded, if there is one.
func (s sharedChain) marking(cfg *Config, p pods) []nft.Rule {
	mark := nft.SetMark{Mask: cfg.mark()}
	switch others, ok := p.match(true); {
	case s.masquerade == always:
		return []nft.Rule{{mark}}
	case s.masquerade == fromOutside && ok:
		return []nft.Rule{{others, mark}}
	}
	return nil
}

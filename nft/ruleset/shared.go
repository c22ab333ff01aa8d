package ruleset

import (
	"fmt"

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
// endpoints share; its name says it all. Chains of localEndpoints never
// masquerade, and no others do not.
type sharedChain struct {
	entrance   entrance
	endpoints  int
	masquerade masquerading
}

func (s sharedChain) name() string {
	switch {
	case s.endpoints == 0:
		return refuse
	case s.masquerade == never:
		return fmt.Sprintf("%slocal-endpoints-%d", s.entrance.chains, s.endpoints)
	case s.masquerade == always:
		return fmt.Sprintf("%sendpoints-%d-masquerade", s.entrance.chains, s.endpoints)
	}
	return fmt.Sprintf("%sendpoints-%d", s.entrance.chains, s.endpoints)
}

// pool is the map that has the chain's endpoints.
func (s sharedChain) pool() string {
	if s.masquerade == never {
		return s.entrance.localEndpoints
	}
	return s.entrance.endpoints
}

// chain builds the shared chain. Maps and rules change in one transaction, but
// a packet in between two lookups may see the old count and the new endpoints:
// then index 0, which is there as long as there is any endpoint, takes it; and
// where there is none, it must not leave the node as it came.
func (s sharedChain) chain(cfg *Config, p pods) *nft.Chain {
	rules := s.marking(cfg, p)
	dnat := nft.DNAT{Key: s.entrance.key, Mod: uint32(s.endpoints), Map: s.pool()}
	rules = append(rules, nft.Rule{dnat})
	if s.endpoints > 1 {
		dnat.Mod = 1
		rules = append(rules, nft.Rule{dnat})
	}
	return &nft.Chain{Name: s.name(), Rules: append(rules, nft.Rule{nft.Verdict{Code: nft.Drop}})}
}

// tellsPods says whether the chain depends on who is a pod.
func (s sharedChain) tellsPods() bool { return s.masquerade == fromOutside }

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

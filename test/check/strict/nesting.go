package strict

import "nftproxy/nft"

// maxNesting is how many chains a packet can be sent on through, one from the other, from a base
// chain (NFT_JUMP_STACK_SIZE). The kernel counts chains to which a packet goes like those to which it
// jumps.
const maxNesting = 15

// checkNesting checks that no way from a base chain is endless or too long. The kernel looks at no
// other chains.
func checkNesting(c *nft.Contents) error {
	heights := map[string]int{}
	for name, chain := range c.Chains {
		if chain.Hook != nil && height(c, name, heights) > maxNesting {
			return ErrNesting
		}
	}
	return nil
}

// height is how many chains follow on the longest way through the chain, or more than maxNesting if
// some way is endless. heights has those of chains that are known or being looked at.
func height(c *nft.Contents, name string, heights map[string]int) int {
	if h, known := heights[name]; known {
		return h
	}
	heights[name] = maxNesting // for the chains behind it: a way back is endless
	longest := 0
	follow := func(v nft.Verdict) {
		if v.Chain != "" && c.Chains[v.Chain] != nil {
			longest = max(longest, 1+height(c, v.Chain, heights))
		}
	}
	for _, r := range c.Chains[name].Rules {
		for _, s := range r {
			switch s := s.(type) {
			case nft.Verdict:
				follow(s)
			case nft.VMap:
				if m := c.Sets[s.Map]; m != nil {
					for _, e := range m.Elements {
						follow(e.Verdict)
					}
				}
			}
		}
	}
	heights[name] = longest
	return longest
}

package ruleset

import (
	"strings"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// timeoutObject makes the object of time-outs that chains refer to. The program wants it while a chain gives it; the
// kernel keeps it (nft.Timeout).
type timeoutObject service.Timeouts

func (t timeoutObject) make(*Config, pods) made {
	return made{timeouts: []nft.Timeout{{Name: service.Timeouts(t).String(), Protocol: uint8(t.Protocol),
		Unreplied: t.Unreplied, Replied: t.Replied, Established: t.Established}}}
}

// timeoutsOf reads from the name of a shared chain the time-outs that it gives.
func timeoutsOf(chain string) service.Timeouts {
	words := strings.Split(kindOfChain(chain), "-")
	for i, word := range words {
		more := map[string]int{"udp": 3, "tcp": 2}[word]
		if more > 0 && len(words) >= i+more {
			return service.ParseTimeouts(strings.Join(words[i:i+more], "-"))
		}
	}
	return service.Timeouts{}
}

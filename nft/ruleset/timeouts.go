package ruleset

import (
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

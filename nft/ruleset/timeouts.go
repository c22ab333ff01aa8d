package ruleset

import (
	"strings"

	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/nft"
)

// timeoutUses has the objects of time-outs that a program's chains refer to, and counts these chains.
type timeoutUses struct {
	objects treap.Map[string, nft.Timeout]
	users   map[string]int
}

// count counts a chain that gives time-outs, or with -1 one that does not any more. The program wants an object while a
// chain gives it; the kernel keeps it (nft.Timeout).
func (u *timeoutUses) count(t service.Timeouts, by int) {
	if t == (service.Timeouts{}) {
		return
	}
	name, before := t.String(), u.users[t.String()]
	u.users[name] += by
	switch {
	case before == 0:
		u.objects = u.objects.Set(name, nft.Timeout{Name: name, Protocol: uint8(t.Protocol), Unreplied: t.Unreplied,
			Replied: t.Replied, Established: t.Established})
	case u.users[name] == 0:
		delete(u.users, name)
		u.objects = u.objects.Delete(name)
	}
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

package ruleset

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"nftproxy/model/service"
)

// TestParseShared: the name of a shared chain says all that the chain depends on.
func TestParseShared(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	balances := []service.Balance{service.ByRandom, service.ByClient, service.ByFlow}
	timeouts := []service.Timeouts{{}, service.ParseTimeouts("udp-30s-10m"), service.ParseTimeouts("tcp-2h")}
	names := []string{"ns/web/tcp/80", "ns/affinity/udp/53", "ns/x-affinity-y/tcp/1", "ns/learn-3-endpoints-2/tcp/65535"}
	for range 2000 {
		s := sharedChain{access: accessWithRanges()[rng.IntN(3)]}
		if rng.IntN(3) == 0 {
			s.learn = time.Duration(1+rng.IntN(86400)) * time.Second
		} else {
			s.slots, s.masquerade = 1+rng.IntN(300), masquerading(rng.IntN(3))
			s.balance, s.timeouts = balances[rng.IntN(3)], timeouts[rng.IntN(3)]
		}
		if s.learn > 0 || rng.IntN(2) == 0 {
			s.clients.name, s.lists = names[rng.IntN(len(names))], []clientList{clusterList, localList}[rng.IntN(2)]
		}
		if s.learn > 0 && rng.IntN(3) == 0 {
			s.lists = clusterList | localList
		}
		name := s.name()
		s.access = nil
		if got, ok := parseShared(name); !ok || got != s {
			t.Errorf("%s: %+v, want %+v", name, got, s)
		}
	}
	for _, name := range []string{"", "refuse", "endpoints", "services-restricted", "source-ranges-none", "learn",
		"learn-x-a/b", "learn-0-a/b", "node-port-no-local-endpoints", fmt.Sprint(layoutPrefix, Layout)} {
		if s, ok := parseShared(name); ok {
			t.Errorf("%q: %+v", name, s)
		}
	}
}

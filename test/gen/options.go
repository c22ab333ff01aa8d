package gen

import (
	"math/rand/v2"

	"nftproxy/model/service"
)

// options returns what a service asks for by annotations: mostly one thing, or several.
func options(rng *rand.Rand) service.Options {
	var o service.Options
	keys := optionValues()
	for range 1 + rng.IntN(2) {
		of := keys[rng.IntN(len(keys))]
		if err := o.Set(of[0], of[1+rng.IntN(len(of)-1)]); err != nil {
			panic(err) // the values are right
		}
	}
	return o
}

// optionValues has a list for each annotation: its key, then values of it.
func optionValues() [][]string {
	return [][]string{
		{"balance", "random", "client", "flow"},
		{"eject", "off", "report", "on"},
		{"external-failover", "drop", "pass", "cluster"},
		{"port-ranges", "80-82/TCP,79-85/UDP", "1-65535/TCP", "81/UDP,83-84/UDP", "30000-30002/TCP,80-90/SCTP", "2-81/UDP,1-65535/SCTP"},
	}
}

package gen

import (
	"hash/fnv"
	"math/rand/v2"

	"nftproxy/model/service"
)

// options returns what the service asks for by annotations: mostly one thing of those that change the rules, or
// several, and at times one of the others.
func options(rng *rand.Rand, s *service.Service) service.Options {
	var o service.Options
	draw := func(rng *rand.Rand, keys [][]string) {
		of := keys[rng.IntN(len(keys))]
		if err := o.Set(of[0], of[1+rng.IntN(len(of)-1)]); err != nil {
			panic(err) // the values are right
		}
	}
	for range 1 + rng.IntN(2) {
		draw(rng, optionValues())
	}
	// These follow from the service, so that they change nothing else of what is drawn.
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(s.String()))
	own := rand.New(rand.NewPCG(sum.Sum64(), 1))
	if own.IntN(2) == 0 {
		draw(own, flowOptionValues())
	}
	if own.IntN(3) == 0 {
		draw(own, timeoutOptionValues())
	}
	if own.IntN(3) == 0 {
		draw(own, [][]string{{service.FlowsKey, "off", "1/1", "1/16"}})
	}
	return o
}

// optionValues has a list for each annotation that changes the rules: its key, then values of it.
func optionValues() [][]string {
	return [][]string{
		{"balance", "random", "client", "flow", "least-connections"},
		{"eject", "off", "report", "on"},
		{"external-failover", "drop", "pass", "cluster"},
		{service.NoEndpointsKey, "hold", "hold=30s", "refuse"},
		{"port-ranges", "80-82/TCP,79-85/UDP", "1-65535/TCP", "81/UDP,83-84/UDP", "30000-30002/TCP,80-90/SCTP",
			"2-81/UDP,1-65535/SCTP"},
		{"source-ranges", "none", "0.0.0.0/0", "192.168.0.0/16,2001:db8::/64", "192.168.0.0/24,10.0.0.0/29,::/0",
			"192.168.0.2/32,2001:db8::2/128", "10.0.0.0/8,203.0.113.0/25,fd00:1::/64"},
	}
}

// flowOptionValues has those that change no rules of a snapshot, as optionValues: they concern flows that there are, or
// endpoints that come later.
func flowOptionValues() [][]string {
	return [][]string{
		{"departed-connections", "keep", "cut", "cut-after=1s", "cut-after=30s", "cut-after=1h"},
		{"slow-start", "1s", "30s", "1h"},
		{service.UDPHandlingAnnotation, "Default", "PreserveDuringTermination"},
	}
}

// timeoutOptionValues has the time-outs of connections, as optionValues. Two Services often want the same object.
func timeoutOptionValues() [][]string {
	return [][]string{
		{service.UDPTimeoutsKey, "30s,10m", "30s,10m", "10s,10s", "10m,24h"},
		{service.TCPTimeoutKey, "2h", "2h", "1m", "168h"},
	}
}

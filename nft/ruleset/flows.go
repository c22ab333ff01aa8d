package ruleset

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// FlowLabel is the connection's label that says that the process has been told of it. Two nftproxies of a network
// namespace share it.
const FlowLabel = 111

// FlowBytes is how much the rules send of a packet: what tells its protocol, its addresses and ports, and the flags of
// TCP, with 20 bytes to spare in IPv4.
const FlowBytes = 64

// The first group of nfnetlink_log by which the rules tell of connections, and the number of these groups. Tables with
// other names have other groups, mostly.
const (
	firstFlowGroup = 28_000
	flowGroups     = 1000
)

// FlowGroup is the group of nfnetlink_log by which the rules of a table tell of connections: only one process can
// listen to a group.
func FlowGroup(table string) uint16 {
	if table == DefaultTable {
		return firstFlowGroup
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(table))
	return uint16(firstFlowGroup + 1 + sum.Sum32()%flowGroups)
}

// flowsPrefix begins what the name of a shared chain says about the share of connections that it tells of.
const flowsPrefix = "flows-"

// rate is how many connections to the Service there are for each one that the rules tell of; 0 for none.
func (c *Config) rate(s *service.Service) int {
	if c.Unlabelled || c.Unlogged {
		return 0
	}
	return c.Flows.Of(s)
}

// sample begins a rule for one of so many packets.
func sample(rate int) []nft.Statement {
	if rate == 1 {
		return nil
	}
	return []nft.Statement{nft.Sample{Of: uint32(rate)}}
}

// log tells of a packet, with the rate and the cause for which it is refused or dropped; empty if it is not.
func (c *Config) log(rate int, cause Cause) nft.Statement {
	return nft.Log{Prefix: FlowPrefix{Rate: rate, Cause: cause}.String(), Group: FlowGroup(c.Table), Bytes: FlowBytes}
}

// followRule tells of a connection before it is translated. It labels the connection: by that a table of its own finds
// the first packet of the answer.
func (c *Config) followRule(rate int) nft.Rule {
	return FollowFlow.rule(append(sample(rate), nft.SetLabel{Bit: FlowLabel}, c.log(rate, ""))...)
}

// flowsPerSecond bounds the messages of one chain about refused and dropped packets: unlike connections, they
// cost their sender nothing. The burst is as much again.
const flowsPerSecond = 1000

// followRefused has a chain of the cause tell of packets first. All Services share it, so their own rates do not count.
func (c *Config) followRefused(cause Cause, chain *nft.Chain) {
	if rate := c.rate(&service.Service{}); rate > 0 {
		rule := FollowRefusal.rule(append(sample(rate), nft.Limit{PerSecond: flowsPerSecond, Burst: flowsPerSecond},
			c.log(rate, cause))...)
		chain.Rules = append([]nft.Rule{rule}, chain.Rules...)
	}
}

// FlowPrefix is what the prefix of a message says.
type FlowPrefix struct {
	// Rate is how many connections there are for each one that is told of.
	Rate int
	// Cause is why it is refused or dropped; empty if it is not.
	Cause Cause
}

// String is, for example, "1/16" or "1/16 no-endpoints".
func (p FlowPrefix) String() string {
	text := fmt.Sprintf("1/%d", p.Rate)
	if p.Cause != "" {
		text += " " + string(p.Cause)
	}
	return text
}

// ParseFlowPrefix reads what String returned; ok is false for another text.
func ParseFlowPrefix(text string) (p FlowPrefix, ok bool) {
	text, ok = strings.CutPrefix(text, "1/")
	rate, cause, _ := strings.Cut(text, " ")
	n, err := strconv.ParseUint(rate, 10, 16)
	return FlowPrefix{int(n), Cause(cause)}, ok && err == nil && n > 0
}

// readFlows returns the share of connections that a table tells of where Services do not ask for another one.
func readFlows(c *nft.Contents) service.Flows {
	chain := c.Chains[refuse]
	if chain == nil {
		return service.FlowsAsNode
	}
	for _, r := range chain.Rules {
		for _, s := range r {
			if log, ok := s.(nft.Log); ok && PurposeOf(r) == FollowRefusal {
				p, _ := ParseFlowPrefix(log.Prefix)
				return service.Flows(p.Rate)
			}
		}
	}
	return service.FlowsAsNode
}

// ownFlows is what the Services of the chain ask for, where the node follows a share of connections.
func (s sharedChain) ownFlows(node service.Flows) service.Flows {
	switch {
	case s.flows == node.Rate():
		return service.FlowsAsNode
	case s.flows == 0:
		return service.FlowsOff
	}
	return service.Flows(s.flows)
}

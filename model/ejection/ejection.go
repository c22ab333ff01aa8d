// Package ejection decides which endpoints a node does without because they give it no answer, before Kubernetes says that
// they are gone. An endpoint is suspected when connections to it have no answer, and confirmed when it does not answer this
// node's own connects either. It is left out of a Service port only where that cannot make things worse: see Machine.
//
// The package sees observations and times as values, and returns what to ask and what to leave out. It opens no connection,
// reads no clock, and changes no rules. A refusal (a TCP reset) is an answer: a pod that refuses is the business of its
// readiness probe.
package ejection

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"nftproxy/model/service"
)

// Mode says what is done about endpoints that do not answer.
type Mode uint8

// The modes: nothing; say what would be done; leave them out.
const (
	Off Mode = iota
	Report
	On
)

// ParseMode reads "off", "report" or "on".
func ParseMode(s string) (Mode, error) {
	for m := Off; m <= On; m++ {
		if s == m.String() {
			return m, nil
		}
	}
	return Off, fmt.Errorf("unknown mode %q: want off, report or on", s)
}

// Of returns the mode of a Service, by its annotation or else the node's.
func (m Mode) Of(s *service.Service) Mode {
	if asked := s.Options.Eject; asked != service.EjectAsNode {
		return Mode(asked - service.EjectOff)
	}
	return m
}

func (m Mode) String() string { return [...]string{"off", "report", "on"}[m] }

// Target is an endpoint of any number of Service ports.
type Target struct {
	Protocol service.Protocol
	Addr     netip.AddrPort
}

// TCP is the TCP target at an address. Only TCP targets can be suspected and asked.
func TCP(a netip.AddrPort) Target { return Target{service.TCP, a} }

func (t Target) compare(o Target) int {
	return cmp.Or(cmp.Compare(t.Protocol, o.Protocol), t.Addr.Compare(o.Addr))
}

// Flow is a TCP connection through the rules whose first packet has had no answer.
type Flow struct {
	// ID tells it from others, also from a later one with the same addresses and ports.
	ID uint32
	To netip.AddrPort
}

// Answer is what came of a connect of the node's own.
type Answer uint8

// The answers.
const (
	// Answered: it was accepted or refused.
	Answered Answer = iota
	// Unanswered: nothing came in time, or a router said that there is no host.
	Unanswered
	// Unknown: it could not be asked, such as for lack of memory or because of a local rule.
	Unknown
)

// Left is an endpoint that a Service port does without, or with mode Report would do without.
type Left struct {
	Service service.Name
	// Port is the Service port's name for people, ID of service.Service.
	Port string
	Mode Mode
	service.Ejection
}

func (l Left) compare(o Left) int {
	return cmp.Or(cmp.Compare(l.Service, o.Service), cmp.Compare(l.Protocol, o.Protocol), cmp.Compare(l.Ejection.Port, o.Ejection.Port), l.Addr.Compare(o.Addr))
}

// Held is a Service port that keeps endpoints which do not answer.
type Held struct {
	Service service.Name
	Port    string
	// Silent is how many of its Endpoints do not answer.
	Silent, Endpoints int
	Why               Reason
}

// Reason says why a Service port keeps endpoints that do not answer.
type Reason string

// The reasons.
const (
	// MostSilent: more than half of the endpoints do not answer, or the last one does not. A policy or a network explains that.
	MostSilent Reason = "most of its endpoints do not answer this node: a network policy, or the network"
	// NoControl: no other endpoint of the port has answered this node, so the node may not be allowed to ask.
	NoControl Reason = "no other endpoint of the port answers this node's own connects either: it may not be allowed to connect"
	// OwnNetwork: as many nodes are silent as answer.
	OwnNetwork Reason = "endpoints on many nodes do not answer: this node's own network"
)

// Times and bounds.
const (
	// Patience is how long a first packet waits for an answer before the endpoint is suspected, and a connect of the node's
	// own before it has failed.
	Patience = time.Second
	// tries is how many connects have to fail, and between is the time from one to the next.
	tries   = 2
	between = 250 * time.Millisecond
	// ahead is the number of connections without an answer for which the node asks before they have waited for Patience.
	ahead = 3
	// An endpoint that has answered is not suspected for a time that grows from firstTrust to mostTrust, and begins anew
	// after an hour. What has been left out is asked again after a time that grows from firstAgain to mostAgain.
	firstTrust, mostTrust, trustFor = 5 * time.Second, 30 * time.Second, time.Hour
	firstAgain, mostAgain           = time.Second, 10 * time.Second
	// forgetAfter is how long an endpoint that is kept although it does not answer is asked without a new connection.
	forgetAfter = 30 * time.Second
	// fresh is how long an answer counts for the node that gave it.
	fresh = 15 * time.Second

	// mostTargets bounds the targets that are suspected, and mostFlows the connections that are told apart for each.
	// mostTrusted bounds those that are not suspected for a time.
	mostTargets = 1024
	mostFlows   = 16
	mostTrusted = 4 * mostTargets
	// mostAsking bounds the connects under way, and mostAsks those that begin in a second.
	mostAsking, mostAsks = 64, 64
	// controls is how many other endpoints of a port are asked for comparison.
	controls = 3
	// opinions is how many endpoints that a namespace has on a node are asked before the node counts as silent for it.
	opinions = 3
)

// Package ejection decides which endpoints a node does without because they give it no answer, before Kubernetes says
// that they are gone: see Machine. It sees observations and times as values, and returns what to ask and what to leave
// out. A refusal (a TCP reset) is an answer: a pod that refuses is the business of its readiness probe.
package ejection

import (
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/service"
)

// Flow is a TCP connection through the rules whose first packet has had no answer.
type Flow struct {
	// ID tells it from others, also from a later one with the same addresses and ports.
	ID uint32
	To netip.AddrPort
}

// Ask is a question of the node's own: a connect that may take Patience, or what the API server knows of a Node.
type Ask struct {
	// To has where to connect: an endpoint, or ports of a Node, of which one answer is enough.
	To []netip.AddrPort
	// Node is the name of the Node that To or, if To is empty, the API server is asked about; empty for an endpoint.
	Node string

	about *tries         // nil for what the API server is asked
	by    []service.Name // that are decided on again when there is an answer
}

// Answer is what came of an Ask.
type Answer uint8

const (
	// Answered: a connect was accepted or refused, or the API server has said what it knows.
	Answered Answer = iota
	// Unanswered: nothing came in time, or a router said that there is no host.
	Unanswered
	// Unknown: it could not be asked, such as because of a local rule, or because the API server is away.
	Unknown
)

// Facts is what the API server knows of a Node.
type Facts struct {
	// Addrs are where to ask it: ports that all nodes have, at its own addresses. Without any there is no such Node.
	Addrs    []netip.AddrPort
	PodCIDRs []netip.Prefix
}

// has says that an address is the Node's, or that of a pod there.
func (f *Facts) has(a netip.Addr) bool {
	return slices.ContainsFunc(f.Addrs, func(own netip.AddrPort) bool { return own.Addr() == a }) ||
		slices.ContainsFunc(f.PodCIDRs, func(r netip.Prefix) bool { return r.Contains(a) })
}

// Verdict is what a node does without at a moment. The lists are sorted.
type Verdict struct {
	Left []Left
	Held []Held
	// Unjudged says why nodes without an answer are not judged.
	Unjudged []Unjudged
}

// Left is an endpoint that a Service port does without, or with EjectReport would do without.
type Left struct {
	Service service.Name
	// Port is the Service port's name for people, ID of service.Service.
	Port string
	Mode service.Eject // report or on
	service.Adjustment
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

const (
	Half      Reason = "a Service port keeps its last endpoint, and half of its endpoints unless their node is gone"
	NoControl Reason = "no other endpoint of the port answers this node's own connects either: it may not be allowed to " +
		"connect"
	OwnNetwork Reason = "as many nodes are silent as answer: this node's own network"
)

// Unjudged is a node without an answer that is not judged: only those of its endpoints are left out that were asked
// themselves.
type Unjudged struct {
	Node, Why string
}

// Adjustments are those of the Service ports with EjectOn.
func (v Verdict) Adjustments() (all service.Adjustments) {
	lists := map[service.Name][]service.Adjustment{}
	for _, l := range v.Left {
		if l.Mode == service.EjectOn {
			lists[l.Service] = append(lists[l.Service], l.Adjustment)
		}
	}
	for name, list := range lists {
		all = all.Set(name, service.NewAdjusted(list))
	}
	return all
}

// Times and bounds.
const (
	// Patience is how long a client's first packet waits for an answer before it counts, and a connect of the node's own
	// before it has failed.
	Patience = time.Second
	// enough is how many tries have to fail, and between is the time from one to the next.
	enough  = 2
	between = 250 * time.Millisecond
	// mostUndecided is how long after its first try an endpoint stays until its Node has been asked, at most.
	mostUndecided = 3 * time.Second
	// What has not answered is asked again after a time that grows from firstAgain to mostAgain, and what has answered not
	// for pause.
	firstAgain, mostAgain = time.Second, 6 * time.Second
	pause                 = 2 * time.Second
	// settled is the time from one step to the next while there is nothing to ask.
	settled = time.Second
	// forgetAfter is how long an endpoint that is kept although it does not answer is asked without a new connection.
	forgetAfter = 30 * time.Second
	// fresh is how long an answer counts for the node that gave it, and a silence against it.
	fresh = 15 * time.Second

	// mostSuspects bounds the endpoints that are suspected. mostListings bounds how many Services of a namespace list the
	// same suspect; those beyond keep it.
	mostSuspects = 256
	mostListings = 16
	// askTime is what a connect takes of the time for all connects, and asksBurst how many may begin at once. To ask the
	// API server takes as much as lookupCost connects.
	askTime    = time.Second / 64
	asksBurst  = 128
	lookupCost = 8
	// controls is how many other endpoints of a port are asked for comparison in the time between.
	controls = 3
	// references is how many other Nodes are to have answered before one is dead. names is how many are learnt by name at
	// a time, namesOfOne those of one namespace, and sampleAgain the least time from one time to the next.
	references, names, namesOfOne = 3, 32, 8
	sampleAgain                   = 2 * time.Second
	// factsFor is how long the API server's words about a Node count, and missingFor those that there is none.
	factsFor, missingFor = 5 * time.Minute, time.Minute
	// retryLookup is when the API server is asked again after it gave no answer.
	retryLookup = 2 * time.Second
)

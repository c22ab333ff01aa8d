// Package explain gives an account of the rules for one packet, in words and as data: each
// step, the endpoints and how likely each one is, masquerading, and where and why the packet is refused,
// dropped or left alone. It names the cause in the cluster as far as tables and objects tell it.
//
// The package is pure: package live asks the kernel for the facts. It evaluates the rules by the
// interpreter of package nft, which the tests of all rules use. Of other programs' chains it says that the
// packet passes them, not what they do.
package explain

import (
	"context"
	"net/netip"
	"time"

	"nftproxy/look/basechain"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// Question is the packet to explain: the first one of a connection.
type Question struct {
	Packet nft.Packet
	// From says in words where the packet comes from, such as "a pod of this node".
	From string
	// NoWay says, for a packet of the node itself, why the node's routes refuse the destination, such as "no route"; empty
	// if they do not. connect() fails then, and no rule sees a packet.
	NoWay string
	// Assumed has a sentence for each fact that whoever asks did not give. Guessed says that the client is
	// one of them.
	Assumed []string
	Guessed bool
}

// Facts are all that an explanation goes by.
type Facts struct {
	// Tables are nftproxy's tables as the kernel has them, with those remembered clients that matter.
	Tables *nft.Model
	// Table is the name of the tables.
	Table string
	// Local says whether the kernel's routing calls an address local.
	Local func(netip.Addr) bool
	// Way says how packets of the node get to an address, such as "by eth0"; empty if the kernel knows no
	// way. A nil Way says nothing about ways.
	Way func(netip.Addr) string
	// Hop says what the kernel does with a packet that comes in by an interface, or that the node sends. ok is false where
	// it cannot tell. masqueraded says that our rules mark it for that. A nil Hop says nothing about packets behind our
	// rules.
	Hop func(p nft.Packet, masqueraded bool) (h Hop, ok bool)
	// Unasked lists what rules of routing go by that Hop does not know, in words; nil if that is not known.
	Unasked func(nft.Family) []string
	// Ignored are the EndpointSlices by the objects that do not count, and why, as far as that is known.
	Ignored []IgnoredSlice
	// Problems says what cannot be used of a Service's objects; nil where no source of objects tells it.
	Problems func(service.Name) []string
	// Expires returns how long a dynamic map will remember a client.
	Expires func(set string, client nft.Value) time.Duration
	// Held says how many connections to a frontend are held, and since when, in words. A nil Held says nothing.
	Held func(ruleset.Place) string
	// Chains are the base chains of all programs.
	Chains []basechain.Chain
	// NoOwner says that no process owns the tables, on a kernel where nftproxy owns its tables.
	NoOwner bool
	// OtherTables are further tables of the packet's family that an nftproxy has made.
	OtherTables []OtherTable
	// Objects are the Services by the API server or manifests, nil if there is no such source. Source
	// names it.
	Objects *service.Snapshot
	Source  string
	// Adjustments are the endpoints that have less than their weight in the tables.
	Adjustments service.Adjustments
}

// OtherTable is a table of another nftproxy than the one whose table the reader asks about.
type OtherTable struct {
	ID nft.TableID
	// Kept says in words whether a process keeps it, and Remedy what to do about it.
	Kept, Remedy string
	// Has says that it has rules for the packet. They count if the kernel asks no other table with such rules before: then
	// Facts has this table, and Instead is the one that the reader asks about.
	Has     bool
	Instead string
}

// IgnoredSlice is an EndpointSlice that does not count.
type IgnoredSlice struct{ Namespace, Name, Why string }

// Outcome says what becomes of the packet at nftproxy's rules.
type Outcome string

// The outcomes.
const (
	Endpoint  Outcome = "endpoint"  // it goes to an endpoint
	Refused   Outcome = "refused"   // it is answered by a TCP reset or by ICMP
	Dropped   Outcome = "dropped"   // it is thrown away without an answer
	Untouched Outcome = "untouched" // it is left alone
	Undecided Outcome = "undecided" // it meets something that is not nftproxy's
	Mixed     Outcome = "mixed"     // more than one of these
)

// Explanation is the account. The help of nftproxy explain promises the names in the JSON.
type Explanation struct {
	Packet  Packet  `json:"packet"`
	Outcome Outcome `json:"outcome"`
	// Summary is the outcome in a sentence.
	Summary string `json:"summary"`
	// Results has each outcome that is possible, with its chance.
	Results []Result `json:"results"`
	// Service and Port name the Service that has the address and port; empty if none has.
	Service string `json:"service"`
	Port    string `json:"port"`
	// Problems are what cannot be used of the objects of the Service. It is nil if that is not known.
	Problems []string `json:"problems"`
	// Endpoints are those that the packet may go to.
	Endpoints []Target `json:"endpoints"`
	// Stops are the endpoints with which the packet starts no connection, since this node does not pass on the packet or
	// the answer. Only the first MostWays endpoints are tried. Of a packet that is no Service's it is the destination.
	Stops []Stop `json:"stops"`
	// Affinity is the client's entry in the map of remembered clients, nil if there is none.
	Affinity *Affinity `json:"affinity"`
	// Steps are the rules on the most likely way, in their order.
	Steps []Step `json:"steps"`
	// Otherwise has the steps of other ways, from where they part.
	Otherwise []Branch `json:"otherwise"`
	// Causes say who in the cluster, or on the node, brings the outcome about, and Remedies what helps.
	Causes   []string `json:"causes"`
	Remedies []string `json:"remedies"`
	// Others are chains of other programs that the packet passes, and which may drop or change it.
	Others []Other `json:"others"`
	// Notes are further facts that the reader should know, such as that nobody keeps the tables up to
	// date.
	Notes   []string `json:"notes"`
	Assumed []string `json:"assumed"`
	// Elsewhere says what becomes of packets from other clients, where that differs. It is for questions
	// that name no client.
	Elsewhere []Client `json:"elsewhere"`
}

// Client is what becomes of a packet from another client.
type Client struct {
	Source  string  `json:"source"`
	From    string  `json:"from"`
	Outcome Outcome `json:"outcome"`
	Summary string  `json:"summary"`
}

// Packet is the question.
type Packet struct {
	Protocol    string `json:"protocol"`
	Source      string `json:"source"`
	Interface   string `json:"interface"`
	FromNode    bool   `json:"fromNode"`
	From        string `json:"from"`
	Destination string `json:"destination"`
}

// Result is a possible outcome.
type Result struct {
	Outcome Outcome `json:"outcome"`
	// By says how a packet is refused: "tcp reset", "icmp port unreachable", or "no way" where the node's routes refuse
	// it.
	By     string  `json:"by"`
	Chance float64 `json:"chance"`
}

// Target is an endpoint that the packet may go to.
type Target struct {
	Address     string  `json:"address"`
	Chance      float64 `json:"chance"`
	Masqueraded bool    `json:"masqueraded"`
	// MasqueradedBy says which rule masquerades, and why.
	MasqueradedBy string `json:"masqueradedBy"`
	// Way says how the packet leaves the node, or "" if nothing is known. Only the first MostWays endpoints
	// have it.
	Way string `json:"way"`
	// About says what the objects tell of the endpoint, such as "ready, on node-2".
	About string `json:"about"`

	addr netip.AddrPort
	// here says that the objects have the endpoint on this node.
	here bool
}

// Affinity is a remembered client.
type Affinity struct {
	Map            string `json:"map"`
	Endpoint       string `json:"endpoint"`
	ExpiresSeconds int64  `json:"expiresSeconds"`
}

// Step is a rule that the packet meets.
type Step struct {
	Hook  string `json:"hook"`
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Number is the rule's place in the chain, from 1, and Rule its text in nft syntax.
	Number  int    `json:"number"`
	Rule    string `json:"rule"`
	Matched bool   `json:"matched"`
	// Says is the step in words.
	Says string `json:"says"`
	// Elements are the members of sets and maps that the rule found, as nft writes them.
	Elements []string `json:"elements"`

	// minor steps are only for readers who ask for every rule.
	minor bool
}

// Branch is another way that the packet may take.
type Branch struct {
	Chance float64 `json:"chance"`
	Steps  []Step  `json:"steps"`
}

// Other is another program's chain that the packet passes.
type Other struct {
	basechain.Chain
	Says string `json:"says"`
}

// MostWays is the number of endpoints, in the order of Explanation.Endpoints, which Explain follows behind our rules:
// the kernel is asked for each one.
const MostWays = 100

// Explain gives the account of one packet. It fails only if ctx ends before.
func Explain(ctx context.Context, q Question, f *Facts) (Explanation, error) {
	x := &explainer{question: q, facts: f}
	if err := x.walk(ctx); err != nil {
		return Explanation{}, err
	}
	e := Explanation{
		Packet: packetOf(q), Assumed: list(q.Assumed), Endpoints: x.targets(), Results: x.results(), Affinity: x.affinity(),
		Steps: x.steps(&x.ways[0], 0), Otherwise: x.branches(), Elsewhere: []Client{}, Stops: []Stop{},
	}
	x.describe(e.Endpoints)
	e.Service, e.Port = x.frontend.Service, x.frontend.Port
	if f.Problems != nil && e.Service != "" {
		e.Problems = list(f.Problems(service.Name(e.Service)))
	}
	e.Outcome = overall(e.Results)
	if q.NoWay != "" {
		x.refuseForWay(&e)
		return e, nil
	}
	if err := x.findCauses(ctx, &e); err != nil {
		return Explanation{}, err
	}
	e.Causes, e.Remedies, e.Notes = list(x.causes), list(x.remedies), list(x.notes)
	e.Others = x.others()
	e.Summary = x.summary(&e)
	return e, nil
}

// refuseForWay makes of an explanation one of a packet that the node cannot send.
func (x *explainer) refuseForWay(e *Explanation) {
	r := noWayResult()
	e.Outcome, e.Results, e.Endpoints, e.Affinity, e.Steps, e.Otherwise = r.Outcome, []Result{r}, []Target{}, nil,
		[]Step{}, []Branch{}
	e.Summary = r.sentence()
	to := x.question.Packet.Dst.Addr()
	x.cause("the node has %s to %s: connect() fails in a process of the node before any rule sees a packet",
		x.question.NoWay, to)
	if x.isClusterIP(to) {
		x.cause("the rules would lead packets to the Service's endpoints, but the kernel looks for a route first, for the " +
			"address that the process asks for")
	}
	x.remedy("add a default route, or a route to the range of the Services: ip route add RANGE dev INTERFACE (any "+
		"interface that is up will do: the packet takes the way to the endpoint); ip route get %s and ip rule show the "+
		"routes that count", to)
	x.findDoubts()
	e.Causes, e.Remedies, e.Notes, e.Others = list(x.causes), list(x.remedies), list(x.notes), []Other{}
}

func noWayResult() Result { return Result{Outcome: Refused, By: "no way", Chance: 1} }

// Brief gives the outcome of one packet without causes. It fails only if ctx ends before.
func Brief(ctx context.Context, q Question, f *Facts) (Client, error) {
	x := &explainer{question: q, facts: f}
	if err := x.walk(ctx); err != nil {
		return Client{}, err
	}
	if q.NoWay != "" {
		r := noWayResult()
		return Client{q.Packet.Src.Addr().String(), q.From, r.Outcome, r.sentence()}, nil
	}
	e := Explanation{Endpoints: x.targets(), Results: x.results(), Affinity: x.affinity()}
	e.Outcome = overall(e.Results)
	x.follow(&e)
	return Client{q.Packet.Src.Addr().String(), q.From, e.Outcome, x.summary(&e)}, nil
}

// list is never nil, so that the JSON has a list.
func list(texts []string) []string { return append([]string{}, texts...) }

func packetOf(q Question) Packet {
	p := q.Packet
	return Packet{
		Protocol: nft.ProtocolText(p.Protocol), Source: p.Src.Addr().String(), Interface: p.Input, FromNode: p.FromNode,
		From:        q.From,
		Destination: endText(p, p.Dst),
	}
}

// overall is the outcome of all results together.
func overall(results []Result) Outcome {
	o := results[0].Outcome
	for _, r := range results[1:] {
		if r.Outcome != o {
			return Mixed
		}
	}
	return o
}

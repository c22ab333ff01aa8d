// Package obstacle is the vocabulary for why a Service, or one of its addresses and ports, does not work: each obstacle
// has one word and one text. Commands, the status page and metrics say it with these. The compiler of the rules asks
// FateAt, too: so what they say is what the rules do.
package obstacle

import (
	"fmt"
	"math/bits"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// Kind is a kind of obstacles.
type Kind uint8

// The kinds. Those of whole Services are sorted, the worst first, and None is a Service without any of them. What is
// behind None stands before single addresses and ports only, and keeps out some clients.
const (
	// Quarantined: the kernel refused what the rules have of the Service.
	Quarantined Kind = iota
	// NoEndpoints: a port has no endpoint that serves, in a family of the Service.
	NoEndpoints
	// Conflict: the Service does not get all of its claims.
	Conflict
	// BeyondBound: part of what the Service asks for is beyond a bound.
	BeyondBound
	// Problems: a part of the Service's objects cannot be used.
	Problems
	// OnlyDraining: a port has only endpoints that terminate.
	OnlyDraining
	// NoLocalEndpoints: a traffic policy is Local, and the endpoints are on other nodes.
	NoLocalEndpoints
	// Holding: a port has no endpoint that serves, and connections to it are held.
	Holding
	None
	// SourceRanges: source ranges of the Service let in some clients only.
	SourceRanges
	// OthersSourceRanges: source ranges of another Service with that address do.
	OthersSourceRanges
)

// words are what a kind is called: in JSON, tables and links; as a label on the status page; and in sentences about a
// whole Service. The kinds behind None have the word only.
type words struct{ word, label, meaning string }

func (k Kind) words() words {
	return [...]words{
		Quarantined: {"quarantined", "In quarantine", "The kernel refused the rules of the Service, so they are left out. " +
			"nftproxy tries them again."},
		NoEndpoints: {"no-endpoints", "No endpoints", "A port has no endpoint that serves. Connections to it are refused."},
		Conflict: {"conflict", "Conflict", "Another Service has an address or port that the Service claims, or the node " +
			"needs it."},
		BeyondBound: {"left-out", "Beyond a bound", "The Service asks for more than one Service may have. The rest is left " +
			"out."},
		Problems: {"problems", "Problems", "A field or an annotation of the Service, or of one of its EndpointSlices, " +
			"cannot be used. The rest of it is used."},
		OnlyDraining: {"draining", "Draining", "A port has only endpoints that terminate. They still serve."},
		NoLocalEndpoints: {"no-local-endpoints", "None on this node", "The traffic policy is Local, and the endpoints are " +
			"on other nodes. Connections that the policy is for are dropped here."},
		Holding: {"held", "Held", "A port has no endpoint that serves, and the Service asks that connections wait for one " +
			"(no-endpoints: hold)."},
		None:               {"serving", "Serving", "All ports have endpoints."},
		SourceRanges:       {word: "source-ranges"},
		OthersSourceRanges: {word: "others-source-ranges"},
	}[k]
}

func (k Kind) String() string { return k.words().word }

// Label is a short name for people.
func (k Kind) Label() string { return k.words().label }

// Meaning says what the kind means for a Service.
func (k Kind) Meaning() string { return k.words().meaning }

// OfServices lists the kinds of whole Services, the worst first, and None.
func OfServices() (list [None + 1]Kind) {
	for i := range list {
		list[i] = Kind(i)
	}
	return list
}

// Set is a set of kinds of whole Services.
type Set uint16

// Add adds a kind, if it is so.
func (s *Set) Add(k Kind, is bool) {
	if is {
		*s |= 1 << k
	}
}

// Has says whether the set has the kind. The empty set has None.
func (s Set) Has(k Kind) bool { return k == None && s == 0 || s&(1<<k) != 0 }

// Worst returns the worst kind, None for the empty set.
func (s Set) Worst() Kind { return Kind(min(bits.TrailingZeros16(uint16(s)), int(None))) }

// Effect is what an obstacle does to connections, or to a claim.
type Effect string

// The effects.
const (
	Refuses Effect = "refused"
	Drops   Effect = "dropped"
	Holds   Effect = "held"
	Passes  Effect = "passed"
	Denies  Effect = "not-served"
)

// Obstacle is one thing that stands before an address and port, or a node port, of a Service.
type Obstacle struct {
	Kind   Kind
	Effect Effect
	// Why is the reason, as a clause, and meets says who or what meets the effect.
	Why, meets string
}

// String is the whole sentence: the reason, and what follows.
func (o Obstacle) String() string {
	does := map[Effect]string{Refuses: "are refused", Drops: "are dropped", Holds: "are held",
		Passes: "are left to routing", Denies: "does not get it"}
	return fmt.Sprintf("%s, so %s %s", o.Why, o.meets, does[o.Effect])
}

// The connections that meet obstacles.
const (
	all     = "connections"
	outside = "connections from outside of the cluster"
)

// FailedOver is why connections from outside go to endpoints of other nodes although the external policy is Local.
const FailedOver = "external-failover is cluster, and no endpoint serves on this node"

// Lost is the obstacle at a claim that the Service does not get. owner has the claim, or else protection says what
// needs it; both are empty if that is not known.
func Lost(owner service.Name, protection service.Protection) Obstacle {
	o := Obstacle{Conflict, Denies, "it is protected, or the kernel refused it", "the Service"}
	switch {
	case protection != "":
		o.Why = fmt.Sprintf("it is protected (%s)", protection)
	case owner != "":
		o.Why = "it belongs to Service " + string(owner)
	}
	return o
}

// Fenced is the obstacle of source ranges before a Service, which by has, another one or itself. ranges lists those of
// the family.
func Fenced(of, by service.Name, ranges string, family ip.Family) Obstacle {
	o := Obstacle{Kind: SourceRanges, Effect: Drops, meets: "other clients"}
	whose := "the source ranges"
	if by != of {
		o.Kind, whose = OthersSourceRanges, "the source ranges of Service "+string(by)
	}
	if o.Why = LetIn(whose, ranges, family); ranges == "" {
		o.meets = all
	}
	return o
}

// LetIn says which clients source ranges, which whose names, let in.
func LetIn(whose, ranges string, family ip.Family) string {
	if ranges == "" {
		return fmt.Sprintf("%s let in no client of %s", whose, family.Name())
	}
	return fmt.Sprintf("%s let in only %s", whose, ranges)
}

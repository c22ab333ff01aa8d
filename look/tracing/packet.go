package tracing

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"nftproxy/nft"
	"nftproxy/nft/livetrace"
)

// Packet is one packet and its way. The names in JSON are promised.
type Packet struct {
	// Number counts the packets of a trace from 1.
	Number int `json:"packet"`
	// Time is when its first event was read.
	Time     time.Time `json:"time"`
	Protocol string    `json:"protocol"`
	// Source and Destination are as the packet came, before any translation.
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	// Input is the interface that it came in by. It is empty for a packet of the node itself.
	Input string `json:"inputInterface"`
	// Output is the interface that it was to leave by; empty if it did not come so far.
	Output string `json:"outputInterface"`
	// Service is the namespace/name of the Service with that destination, and Port the name or
	// number of its port; empty for none.
	Service string `json:"service"`
	Port    string `json:"port"`
	// Translated is the destination after translation: the endpoint. It is the zero AddrPort if
	// no chain has seen another destination.
	Translated netip.AddrPort `json:"endpoint,omitzero"`
	// Fate says what became of the packet in the rules.
	Fate  Fate   `json:"fate"`
	Steps []Step `json:"steps"`
	// Omitted is how many steps beyond MaxSteps were left out.
	Omitted int `json:"omittedSteps"`
	// Incomplete says that events of the packet may be missing: the kernel lost some while the
	// packet was on its way, or the trace ended before all of them were read.
	Incomplete bool `json:"incomplete"`

	id uint32
	// last is when its last event was read; lastEvent is that event's number.
	last      time.Time
	lastEvent uint64
	hook      string
}

// Fate says how the rules ended.
type Fate string

// The fates of a packet.
const (
	Passed  Fate = "passed"
	Dropped Fate = "dropped"
	Refused Fate = "refused"
	// Other: a rule handed the packet to another program, such as a queue, and no chain has seen it since.
	Other Fate = "handed over"
)

// Step is one event of a packet.
type Step struct {
	// Hook is the kernel's hook, such as "prerouting"; empty where that is unknown.
	Hook string `json:"hook"`
	// Family and Table name the table, and Chain the chain.
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Handle is the rule's number in its table; 0 if no rule of the chain decided.
	Handle uint64 `json:"handle"`
	// Rule is the rule in nft's syntax; empty if none of the chain decided, and if its text is
	// unknown: only the rules of nftproxy are known.
	Rule string `json:"rule"`
	// By says what decided: a rule, the end of a chain, or a base chain's policy.
	By string `json:"by"`
	// Verdict is what follows; at the end of a chain it is "continue". Others are "accept", "drop", "continue", "return",
	// "goto CHAIN", "jump CHAIN".
	Verdict string `json:"verdict"`
	// Mark is the packet's mark after the step.
	Mark uint32 `json:"mark"`
}

// What decides a step.
const (
	byRule     = "rule"
	byPolicy   = "policy"
	endOfChain = "end of chain"
)

// MaxSteps bounds the steps that are kept of one packet.
const MaxSteps = 256

// Names are what the events do not say themselves. Each may return nothing for what it does
// not know.
type Names struct {
	// Rule is a rule of a table by its handle.
	Rule func(family uint8, table string, handle uint64) nft.Rule
	// Hook is the hook of a base chain.
	Hook func(family uint8, table, chain string) string
	// Interface is an interface by its index.
	Interface func(index uint32) string
	// Service is the Service, and its port's name or number, to which a packet goes.
	Service func(protocol uint8, source, destination netip.AddrPort) (service, port string)
}

// add adds an event to the packet's way.
func (p *Packet) add(e livetrace.Event, names Names) {
	if e.Packet != nil {
		p.see(e.Packet, names)
	}
	if hook := names.Hook(e.Family, e.Table, e.Chain); hook != "" {
		p.hook = hook
		if e.EndsChain() {
			return // its policy follows
		}
	}
	s := Step{Hook: p.hook, Family: nft.FamilyText(e.Family), Table: e.Table, Chain: e.Chain, Handle: e.Handle,
		Verdict: e.Verdict, Mark: e.Mark}
	var rule nft.Rule
	switch {
	case e.Kind == livetrace.ByPolicy:
		s.By = byPolicy
	case e.EndsChain():
		s.By, s.Handle = endOfChain, 0
	default:
		s.By = byRule
		rule = names.Rule(e.Family, e.Table, e.Handle)
		s.Rule = ruleText(rule, nft.Family(e.Family))
	}
	p.decide(s, rule)
	if len(p.Steps) == MaxSteps {
		p.Omitted++
		return
	}
	p.Steps = append(p.Steps, s)
}

// heading is where the packet goes now.
func (p *Packet) heading() netip.AddrPort {
	if p.Translated.IsValid() {
		return p.Translated
	}
	return p.Destination
}

// see notes what the headers say at the beginning of a base chain.
func (p *Packet) see(now *livetrace.Packet, names Names) {
	if now.Destination != p.Destination && now.Destination.Port() != 0 {
		p.Translated = now.Destination
	}
	if now.Output != 0 {
		p.Output = names.Interface(now.Output)
	}
}

// decide notes what the step makes of the packet.
func (p *Packet) decide(s Step, rule nft.Rule) {
	refuses := slices.ContainsFunc(rule, func(s nft.Statement) bool { _, rejects := s.(nft.Reject); return rejects })
	switch s.Verdict {
	case "drop":
		p.Fate = Dropped
		if refuses {
			p.Fate = Refused
		}
	case "queue", "stolen":
		p.Fate = Other
	default:
		if p.Fate == Other { // The program has given it back.
			p.Fate = Passed
		}
	}
}

// ruleText is the rule in nft's syntax. What has no syntax there stands as dots.
func ruleText(r nft.Rule, f nft.Family) string {
	var words []string
	for _, s := range r.Body() {
		if s == (nft.Unknown{}) {
			words = append(words, "...")
			continue
		}
		words = append(words, s.Text(f))
	}
	return strings.Join(words, " ")
}

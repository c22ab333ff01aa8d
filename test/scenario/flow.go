package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"nftproxy/nft"
)

// Origin is where a flow comes from.
type Origin string

// The origins of flows.
const (
	Pod     Origin = "pod"
	Node    Origin = "node"
	Outside Origin = "outside"
)

// ICMP is the protocol of an echo request; its flows have no ports.
const ICMP = "icmp"

// HTTP is the protocol of a load balancer's question to a Service's
// healthCheckNodePort, by TCP.
const HTTP = "http"

// Flow is a connection attempt and the outcome that it should have.
type Flow struct {
	Origin Origin
	// Source has port 0 where the file does not give one.
	Source      netip.AddrPort
	Destination netip.AddrPort
	// Protocol is tcp, udp, sctp, icmp or http.
	Protocol string
	Want     Outcome
	// Why is the comment at the end of the line.
	Why string
}

// Fate is the kind of an outcome.
type Fate string

// The fates of flows.
const (
	// Translated flows reach one of the endpoints.
	Translated Fate = "translated"
	// Refused flows are answered at once: TCP by a reset, other protocols by ICMP port
	// unreachable.
	Refused Fate = "refused"
	// Dropped flows get no answer, and no packet of them leaves the node.
	Dropped Fate = "dropped"
	// Untouched flows reach their destination, and the proxy changes nothing in them.
	Untouched Fate = "untouched"
	// Echoed flows are echo requests that the node answers in place of their destination.
	Echoed Fate = "echoed"
	// Answered flows ask a health check node port and get an answer.
	Answered Fate = "answered"
)

// Outcome is what happens to a flow.
type Outcome struct {
	Fate Fate
	// Targets are the endpoints that Translated flows reach, sorted. With enough
	// attempts a flow reaches each of them.
	Targets []Target
	// Sticky flows of one client all reach the same target. With AnyAddress this holds
	// across all addresses of a Service. A file has one such Service for each protocol.
	Sticky, AnyAddress bool
	// Chance is for kube-proxy: the flow reaches one of the targets, which may differ
	// from run to run.
	Chance bool
	// Answer is the answer to Answered flows.
	Answer Answer
}

// Answer is the answer of a health check node port.
type Answer struct {
	// Code is the HTTP status code: 200 or 503.
	Code int
	// Service is the "namespace/name" of the Service.
	Service string
	// Weight is the number of the node's ready endpoints, in the body and in
	// the header X-Load-Balancing-Endpoint-Weight.
	Weight int
}

func (a Answer) String() string { return fmt.Sprintf("%d %s weight %d", a.Code, a.Service, a.Weight) }

// Target is an endpoint. Masqueraded says that the node's address is the source of the
// packets there.
type Target struct {
	Endpoint    netip.AddrPort
	Masqueraded bool
	// As is the address of the node that the endpoint sees, if the file names it.
	As netip.Addr
}

func (t Target) String() string {
	if t.As.IsValid() {
		return t.Endpoint.String() + " masqueraded as " + t.As.String()
	}
	if t.Masqueraded {
		return t.Endpoint.String() + " masqueraded"
	}
	return t.Endpoint.String()
}

func (o Outcome) String() string {
	if o.Fate == Answered {
		return o.Answer.String()
	}
	if o.Fate != Translated {
		return string(o.Fate)
	}
	words := make([]string, len(o.Targets))
	for i, t := range o.Targets {
		words[i] = t.String()
	}
	text := strings.Join(words, " | ")
	switch {
	case o.AnyAddress:
		return "sticky " + anyAddress + text
	case o.Sticky:
		return "sticky " + text
	case o.Chance:
		return chance + text
	}
	return text
}

// In the text of an outcome, chance stands before the targets for Chance, and anyAddress
// stands behind "sticky" for AnyAddress.
const (
	chance     = "one of "
	anyAddress = "by any address "
)

// Client is equal for those sticky flows that must reach the same target.
func (f Flow) Client() string {
	if f.Want.AnyAddress {
		return fmt.Sprintf("%s %s %s", f.Origin, f.Source.Addr(), f.Protocol)
	}
	return f.Path()
}

// Path is the flow without its outcome.
func (f Flow) Path() string {
	source, destination := f.Source.String(), f.Destination.String()
	if f.Source.Port() == 0 {
		source = f.Source.Addr().String()
	}
	if f.Protocol == ICMP {
		destination = f.Destination.Addr().String()
	}
	return fmt.Sprintf("%s %s -> %s/%s", f.Origin, source, destination, f.Protocol)
}

func (f Flow) String() string { return f.Path() + " = " + f.Want.String() }

// ParseFlow reads "ORIGIN SOURCE -> DESTINATION/PROTOCOL = OUTCOME [# WHY]".
func ParseFlow(line string) (Flow, error) {
	f, err := parseFlow(line)
	if err != nil {
		return Flow{}, fmt.Errorf("flow %q: %w", line, err)
	}
	return f, nil
}

func parseFlow(line string) (f Flow, err error) {
	line, f.Why, _ = strings.Cut(line, "#")
	f.Why = strings.TrimSpace(f.Why)
	path, outcome, ok := strings.Cut(line, " = ")
	from, to, ok2 := strings.Cut(path, " -> ")
	origin, source, ok3 := strings.Cut(from, " ")
	destination, protocol, ok4 := strings.Cut(to, "/")
	if !ok || !ok2 || !ok3 || !ok4 {
		return f, fmt.Errorf("want ORIGIN SOURCE -> DESTINATION/PROTOCOL = OUTCOME")
	}
	f.Origin, f.Protocol = Origin(origin), protocol
	if !slices.Contains([]Origin{Pod, Node, Outside}, f.Origin) {
		return f, fmt.Errorf("origin %q: want pod, node or outside", origin)
	}
	if f.Source, err = parseSource(source); err != nil {
		return f, err
	}
	if f.Destination, err = parseDestination(destination, protocol); err != nil {
		return f, err
	}
	f.Want, err = ParseOutcome(strings.TrimSpace(outcome))
	answered := f.Want.Fate == Answered
	if err == nil && (answered && f.Protocol != HTTP || f.Protocol == HTTP && !answered && f.Want.Fate != Refused) {
		return f, fmt.Errorf("outcome %q: want an answer or refused for http, and an answer for nothing else", f.Want)
	}
	if err == nil && f.Want.Fate == Echoed && f.Protocol != ICMP {
		return f, fmt.Errorf("outcome %q: want it for icmp only", f.Want)
	}
	return f, err
}

func parseSource(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, 0), nil
	}
	return netip.ParseAddrPort(text)
}

func parseDestination(text, protocol string) (netip.AddrPort, error) {
	if !slices.Contains([]string{"tcp", "udp", "sctp", ICMP, HTTP}, protocol) {
		return netip.AddrPort{}, fmt.Errorf("protocol %q: want tcp, udp, sctp, icmp or http", protocol)
	}
	if protocol == ICMP {
		a, err := netip.ParseAddr(text)
		return netip.AddrPortFrom(a, 0), err
	}
	return netip.ParseAddrPort(text)
}

// ParseOutcome reads what Outcome.String writes.
func ParseOutcome(text string) (Outcome, error) {
	if fate := Fate(text); slices.Contains([]Fate{Refused, Dropped, Untouched, Echoed}, fate) {
		return Outcome{Fate: fate}, nil
	}
	var a Answer
	if n, err := fmt.Sscanf(text, "%d %s weight %d", &a.Code, &a.Service, &a.Weight); n > 1 {
		if err != nil || a.String() != text {
			return Outcome{}, fmt.Errorf("outcome %q: want CODE NAMESPACE/NAME weight N", text)
		}
		return Outcome{Fate: Answered, Answer: a}, nil
	}
	o := Outcome{Fate: Translated}
	text, o.Sticky = cutPrefix(text, "sticky ")
	if o.Sticky {
		text, o.AnyAddress = cutPrefix(text, anyAddress)
	}
	text, o.Chance = cutPrefix(text, chance)
	for word := range strings.SplitSeq(text, " | ") {
		var t Target
		var err error
		word, as, named := strings.Cut(word, " masqueraded as ")
		if named {
			if t.As, err = netip.ParseAddr(as); err != nil {
				return Outcome{}, fmt.Errorf("outcome %q: %w", text, err)
			}
			t.Masqueraded = true
		} else {
			word, t.Masqueraded = strings.CutSuffix(word, " masqueraded")
		}
		if t.Endpoint, err = netip.ParseAddrPort(word); err != nil {
			return Outcome{}, fmt.Errorf("outcome %q: %w", text, err)
		}
		o.Targets = append(o.Targets, t)
	}
	slices.SortFunc(o.Targets, func(a, b Target) int { return a.Endpoint.Compare(b.Endpoint) })
	return o, nil
}

func cutPrefix(text, prefix string) (rest string, found bool) { return strings.CutPrefix(text, prefix) }

// Packet is the flow's first packet as the interpreter takes it. Pods come in
// by the given interface. Without a source port the client's kernel chooses one, so a hash of it may have any value.
func (f Flow) Packet(podInterface string) (nft.Packet, error) {
	p := nft.Packet{Src: f.Source, Dst: f.Destination, FromNode: f.Origin == Node}
	switch f.Origin {
	case Pod:
		p.Input = podInterface
	case Outside:
		p.Input, p.ToInput = "eth0", true // which has the node's addresses
	}
	name := f.Protocol
	switch {
	case name == ICMP && f.Destination.Addr().Is6():
		name = "ipv6-icmp"
	case name == HTTP:
		name = "tcp"
	}
	for n := range 256 {
		if nft.ProtocolText(uint8(n)) == name {
			p.Protocol = uint8(n)
			return p, nil
		}
	}
	return p, fmt.Errorf("flow %s: unknown protocol %s", f.Path(), strconv.Quote(name))
}

package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// PortRange is all port numbers from First to Last.
type PortRange struct{ First, Last uint16 }

// PortRanges are ranges of port numbers as text: "10000-20000,30000". They are sorted, and there is a gap between each
// two. As text they can be compared by ==.
type PortRanges string

// MaxPortRanges is the greatest number of ranges that one service may have, of all protocols. The kernel finds a port
// among them in a tree.
const MaxPortRanges = 16

// All yields the ranges in order.
func (r PortRanges) All() func(yield func(PortRange) bool) {
	return func(yield func(PortRange) bool) {
		for text := range strings.SplitSeq(string(r), ",") {
			if one, err := parsePortRange(text); err != nil || !yield(one) {
				return
			}
		}
	}
}

// Has reports whether a port is in one of the ranges. The clean-up of connection tracking asks for each connection, so
// it reads the text as it is.
func (r PortRanges) Has(port uint16) bool {
	var first, n uint16
	single := true
	for i := range len(r) {
		switch c := r[i]; c {
		case '-':
			first, n, single = n, 0, false
		case ',':
			if !single && first <= port && port <= n || single && port == n {
				return true
			}
			n, single = 0, true
		default:
			n = n*10 + uint16(c-'0')
		}
	}
	return r != "" && (!single && first <= port && port <= n || single && port == n)
}

// NewPortRanges sorts and joins the ranges. It keeps the slice.
func NewPortRanges(list []PortRange) PortRanges {
	slices.SortFunc(list, func(a, b PortRange) int { return int(a.First) - int(b.First) })
	var texts []string
	for i := 0; i < len(list); {
		one := list[i]
		for i++; i < len(list) && int(list[i].First) <= int(one.Last)+1; i++ {
			one.Last = max(one.Last, list[i].Last)
		}
		texts = append(texts, one.String())
	}
	return PortRanges(strings.Join(texts, ","))
}

// String is "10000-20000", or "53" for one port.
func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

func parsePortRange(text string) (PortRange, error) {
	first, last, ranged := strings.Cut(text, "-")
	if !ranged {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a == 0 || a > b {
		return PortRange{}, fmt.Errorf("%q is not a range of ports from 1 to 65535", text)
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

// RangesByProtocol are the ranges that a service asks for, as text that can be compared by ==:
// "5060/TCP,10000-20000/UDP". It is empty for none. TCP comes before UDP before SCTP.
type RangesByProtocol string

// Protocols lists the protocols that a service port can have.
func Protocols() []Protocol { return []Protocol{TCP, UDP, SCTP} }

// parsePortRanges reads the value of the annotation: ranges with their protocols, and commas between them. The first
// range of the list may have blanks around it, as the others.
func parsePortRanges(value string) (RangesByProtocol, error) {
	const want = "; want a list such as 5060/TCP,10000-20000/UDP, of TCP, UDP and SCTP"
	byProtocol := map[Protocol][]PortRange{}
	words := strings.SplitN(value, ",", MaxPortRanges+1)
	if len(words) > MaxPortRanges {
		return "", fmt.Errorf("more than %d ranges; none is served", MaxPortRanges)
	}
	for _, word := range words {
		ports, protocol, _ := strings.Cut(strings.TrimSpace(word), "/")
		p, err := ParseProtocol(protocol)
		if err != nil {
			return "", fmt.Errorf("unknown protocol %q%s", beginningOf(protocol), want)
		}
		one, err := parsePortRange(beginningOf(ports))
		if err != nil {
			return "", fmt.Errorf("%w%s", err, want)
		}
		byProtocol[p] = append(byProtocol[p], one)
	}
	return NewRangesByProtocol(func(p Protocol) PortRanges { return NewPortRanges(byProtocol[p]) }), nil
}

// beginningOf cuts a word for a message.
func beginningOf(word string) string { return word[:min(len(word), 20)] }

// NewRangesByProtocol joins the ranges of each protocol.
func NewRangesByProtocol(of func(Protocol) PortRanges) RangesByProtocol {
	var texts []string
	for _, p := range Protocols() {
		for one := range of(p).All() {
			texts = append(texts, one.String()+"/"+strings.ToUpper(p.String()))
		}
	}
	return RangesByProtocol(strings.Join(texts, ","))
}

// Of returns the ranges of a protocol.
func (r RangesByProtocol) Of(p Protocol) PortRanges {
	suffix := "/" + strings.ToUpper(p.String())
	var texts []string
	for text := range strings.SplitSeq(string(r), ",") {
		if ports, is := strings.CutSuffix(text, suffix); is {
			texts = append(texts, ports)
		}
	}
	return PortRanges(strings.Join(texts, ","))
}

// portRangesOption is the option of that key.
func portRangesOption() option {
	return option{
		key: "port-ranges",
		set: func(o *Options, value string) (err error) {
			ranges, err := parsePortRanges(value)
			if err == nil {
				o.PortRanges = ranges
			}
			return err
		},
		get: func(o *Options) string { return string(o.PortRanges) },
	}
}

// IsRange reports whether the port stands for ranges of ports.
func (p *Port) IsRange() bool { return p.Ranges != "" }

// Label is the port's name, its number if it has none, or RangesText.
func (p *Port) Label() string {
	switch {
	case p.IsRange():
		return RangesText
	case p.Name == "":
		return strconv.Itoa(int(p.Port))
	}
	return p.Name
}

// First is the port's number, or the first one of its ranges.
func (p *Port) First() uint16 {
	for r := range p.Ranges.All() {
		return r.First
	}
	return p.Port
}

// Number is the port's number as text, or its ranges.
func (p *Port) Number() string {
	if p.IsRange() {
		return string(p.Ranges)
	}
	return strconv.Itoa(int(p.Port))
}

// RangesRefused says why the service's port ranges are not served; empty if they are, or if it has none.
func (s *Service) RangesRefused() string {
	switch {
	case s.Options.PortRanges == "":
		return ""
	case s.AffinityTimeout > 0:
		return "not with sessionAffinity ClientIP; nftproxy.io/balance: client does the same for ranges; no range is served"
	case s.Options.SourceRanges != nil:
		return "not with nftproxy.io/source-ranges; no range is served"
	case s.Sources != nil:
		return "not with loadBalancerSourceRanges; no range is served"
	}
	return ""
}

// SetRangePorts replaces the service's ports that are ranges by those that its Options ask for: one for each protocol,
// behind the other ports. They have the endpoints of all other ports of the service, whose own ports do not count: they
// are 0 there. It changes s.
func (s *Service) SetRangePorts() {
	s.Ports = slices.DeleteFunc(s.Ports, func(p Port) bool { return p.IsRange() })
	if s.Options.PortRanges == "" || s.RangesRefused() != "" {
		return
	}
	for _, p := range Protocols() {
		if ranges := s.Options.PortRanges.Of(p); ranges != "" {
			s.Ports = append(s.Ports, Port{Protocol: p, Ranges: ranges})
		}
	}
	s.FillRanges()
}

// FillRanges gives the ports that are ranges the endpoints of the others. It changes the ports of s.
func (s *Service) FillRanges() {
	var all []Endpoint
	for i := range s.Ports {
		if s.Ports[i].IsRange() {
			continue
		}
		for e := range s.Ports[i].Endpoints.All() {
			e.Addr = netip.AddrPortFrom(e.Addr.Addr(), 0)
			if e.Share != NoShare {
				e.Share = WholeShare
			}
			all = append(all, e)
		}
	}
	endpoints := MergeEndpoints(all)
	for i := range s.Ports {
		if s.Ports[i].IsRange() {
			s.Ports[i].Endpoints = endpoints
		}
	}
}

// HasRanges says whether some port is ranges. They are behind all others.
func (s *Service) HasRanges() bool { return len(s.Ports) > 0 && s.Ports[len(s.Ports)-1].IsRange() }

// Endpoint returns the port's endpoint that a connection to a port number leads to if it goes on at the address to; nil
// if that is none.
func (p *Port) Endpoint(number uint16, to netip.AddrPort) *Endpoint {
	if p.IsRange() {
		if to.Port() != number {
			return nil
		}
		to = netip.AddrPortFrom(to.Addr(), 0)
	}
	return p.Endpoints.Find(Endpoint{Addr: to})
}

// IsRange reports whether the claim is one to ranges of ports: of an address and protocol, whatever the ranges are. One
// service has the ranges of each address and protocol.
func (c Claim) IsRange() bool { return c.Protocol != 0 && c.Port == 0 && !c.Addr.IsUnspecified() }

// Range returns the claim to ranges of the claim's address and protocol.
func (c Claim) Range() Claim { return Claim{Addr: c.Addr, Protocol: c.Protocol} }

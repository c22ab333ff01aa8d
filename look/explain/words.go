package explain

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// unknownText says what the interpreter does not know.
func (x *explainer) unknownText(s *nft.Step) string {
	if s.Last >= 0 && s.Last < len(s.Rule) {
		if _, rule := s.Rule[s.Last].(nft.Unknown); !rule {
			return fmt.Sprintf("%q refers to a set, a chain or a verdict that is not as nftproxy makes it",
				s.Rule[s.Last].Text(s.Table.Family))
		}
		if s.Last > 0 {
			return fmt.Sprintf("a rule that is not nftproxy's begins with %q, which matches, and goes on in a way that "+
				"nftproxy does not know", s.Rule[:s.Last].Text(s.Table.Family))
		}
	}
	return "a rule is not nftproxy's, and has parts that nftproxy does not know"
}

// addressText is an address with the protocol, as ranges of ports are looked up.
func addressText(p nft.Packet, to netip.AddrPort) string {
	return fmt.Sprintf("%s/%s", to.Addr(), nft.ProtocolText(p.Protocol))
}

// whoseRanges names the Service whose ranges a rule has found, and the ranges.
func (x *explainer) whoseRanges(s *nft.Step) string {
	for _, l := range s.Lookups {
		if l.Found {
			return fmt.Sprintf("of %s: it goes through chain %s", clean(ruleset.NameInComment(l.Element.Comment).Service),
				clean(l.Element.Verdict.Chain))
		}
	}
	return "which has ranges"
}

// keyText is what a rule looks for in a map of frontends or ranges.
func (x *explainer) keyText(s *nft.Step) string {
	lookup, at := statement[nft.VMap](s.Rule)
	switch {
	case at >= 0 && !slices.Contains(lookup.Key, nft.Daddr):
		return portText(x.question.Packet)
	case at >= 0 && !slices.Contains(lookup.Key, nft.Dport):
		return addressText(x.question.Packet, s.Destination)
	}
	return endText(x.question.Packet, s.Destination)
}

// sayFrontend says what a map of frontends has for the packet.
func (x *explainer) sayFrontend(s *nft.Step) string {
	for _, l := range s.Lookups {
		if !l.Found || !l.Set.Verdicts {
			continue
		}
		of, what := "", endText(x.question.Packet, s.Destination)
		if f := ruleset.NameInComment(l.Element.Comment); f.Service != "" {
			of = ", of " + frontendText(f)
		}
		switch {
		case l.Set.Key[0] != nft.Daddr:
			what = portText(x.question.Packet)
		case x.purpose(s) == ruleset.FindInRanges:
			what = addressText(x.question.Packet, s.Destination)
		}
		return fmt.Sprintf("map %s has %s%s: %s", l.Set.Name, what, of, verdictText(l.Element.Verdict))
	}
	return s.Rule.Body().Text(s.Table.Family)
}

func frontendText(f ruleset.ServiceName) string {
	if f.Port == "" {
		return clean(f.Service)
	}
	return clean(f.Service + ":" + f.Port)
}

func verdictText(v nft.Verdict) string {
	switch v.Code {
	case nft.Jump, nft.Goto:
		return "it goes on in chain " + clean(v.Chain)
	case nft.Drop:
		return "it is dropped"
	case nft.Accept:
		return "it is left to routing, untranslated"
	}
	return v.String()
}

// chosen names the endpoints of a way.
func (x *explainer) chosen(w *nft.Way) string {
	draw := drawText(w)
	switch n := len(w.Ends); {
	case n == 1:
		return w.Ends[0].To.String() + draw
	case n == 2:
		return fmt.Sprintf("%s or %s%s", w.Ends[0].To, w.Ends[1].To, draw)
	default:
		return fmt.Sprintf("one of %d endpoints%s", n, draw)
	}
}

// drawText says how the way's rules choose among the endpoints, after a comma; empty if there is only one.
func drawText(w *nft.Way) string {
	for i := range w.Steps {
		s := &w.Steps[i]
		to, at := statement[nft.DNAT](s.Rule)
		switch {
		case at < 0 || !s.Matched:
		case ruleset.Feeds(s.Chain) && len(w.Ends) > 1:
			return ", at random, the less likely the more connections of this node it has"
		case len(to.Hash) == 1:
			return ", by a hash of the client's address"
		case len(to.Hash) > 1:
			return ", by a hash of the client's address and port"
		}
	}
	uneven := slices.ContainsFunc(w.Ends, func(e nft.End) bool { return math.Abs(e.Chance-w.Ends[0].Chance) > 1e-9 })
	switch {
	case len(w.Ends) == 1:
		return ""
	case uneven:
		return ", at random, by their weights"
	}
	return ", at random"
}

// missing is the key that a map does not have.
func (x *explainer) missing(s *nft.Step) string {
	if len(s.Lookups) == 0 {
		return "an element"
	}
	l := s.Lookups[len(s.Lookups)-1]
	return l.Fields.Format(s.Table.Family, l.Key)
}

// setOf names the last set or map that the rule asked, or would ask.
func setOf(s *nft.Step) string {
	if n := len(s.Lookups); n > 0 {
		return s.Lookups[n-1].Set.Name
	}
	for i := len(s.Rule) - 1; i >= 0; i-- {
		switch st := s.Rule[i].(type) {
		case nft.VMap:
			return st.Map
		case nft.DNAT:
			return st.Map
		}
	}
	return ""
}

// statement returns the rule's first statement of a type, and its index; -1 if it has none. Its place in the
// rule says nothing: another process may have put counters before it.
func statement[T nft.Statement](r nft.Rule) (T, int) {
	for i, s := range r {
		if found, is := s.(T); is {
			return found, i
		}
	}
	var none T
	return none, -1
}

// endedAt says whether the evaluation of the rule ended at a statement of a type.
func endedAt[T nft.Statement](s *nft.Step) bool {
	if s.Last < 0 || s.Last >= len(s.Rule) {
		return false
	}
	_, is := s.Rule[s.Last].(T)
	return is
}

// condition puts a match of a client's address or interface into words, as it was found.
func (x *explainer) condition(s *nft.Step) string {
	src := x.question.Packet.Src.Addr()
	var outside []string
	for at, statement := range s.Rule {
		m, is := statement.(nft.MatchAddr)
		switch {
		case !is || m.Field != nft.Saddr:
			continue
		case m.Not != held(s, at):
			return fmt.Sprintf("the source %s is in %s", src, m.Prefix)
		}
		outside = append(outside, m.Prefix.String())
	}
	if len(outside) > 0 {
		return fmt.Sprintf("the source %s is not in %s", src, strings.Join(outside, " or "))
	}
	m, at := statement[nft.MatchInput](s.Rule)
	if at < 0 {
		return s.Rule.Body().Text(s.Table.Family)
	}
	name := m.Name
	if m.Prefix {
		name += "*"
	}
	in := x.question.Packet.Input
	switch {
	case x.question.Packet.FromNode:
		return fmt.Sprintf("the packet comes from the node itself, not by the interface %s", name)
	case m.Not == held(s, at):
		return fmt.Sprintf("the packet comes in by %s, not by %s", in, name)
	}
	return fmt.Sprintf("the packet comes in by %s", in)
}

// held says whether a statement of the rule held.
func held(s *nft.Step, at int) bool { return s.Matched || s.Last > at }

// endText is an address and port with the protocol. ICMP has no ports.
func endText(p nft.Packet, a netip.AddrPort) string {
	return targetText(p, a) + "/" + nft.ProtocolText(p.Protocol)
}

// targetText is where a packet goes: an address and port, or for ICMP an address.
func targetText(p nft.Packet, to netip.AddrPort) string {
	if !hasPorts(p) {
		return to.Addr().String()
	}
	return to.String()
}

func portText(p nft.Packet) string {
	return fmt.Sprintf("the port %d/%s", p.Dst.Port(), nft.ProtocolText(p.Protocol))
}

func hasPorts(p nft.Packet) bool {
	switch service.Protocol(p.Protocol) {
	case service.TCP, service.UDP, service.SCTP:
		return true
	}
	return false
}

// clean replaces what is not to be seen in a text that others can choose, such as a comment, or changes how other
// text is seen: control characters and directions of writing. The text may go to a terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return '?'
		}
		return r
	}, text)
}

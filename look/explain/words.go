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

// say puts a step into words. minor steps tell most readers nothing.
func (x *explainer) say(s *nft.Step, w *nft.Way) (text string, minor bool) {
	p := x.purpose(s)
	switch {
	case s.Unknown:
		return "nftproxy cannot tell what happens here: " + x.unknownText(s), false
	case p == ruleset.NoPurpose && s.Matched:
		return "this rule is not nftproxy's. It matches: " + s.Rule.Text(s.Table.Family), false
	case p == ruleset.NoPurpose:
		return "this rule is not nftproxy's. It does not match: " + s.Rule.Text(s.Table.Family), false
	case s.Matched:
		return x.sayMatched(p, s, w)
	}
	return x.sayPassedOver(p, s)
}

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

func (x *explainer) sayMatched(p ruleset.Purpose, s *nft.Step, w *nft.Way) (text string, minor bool) {
	dst := endText(x.question.Packet, s.Destination)
	switch p {
	case ruleset.FindFrontend, ruleset.FindRestricted, ruleset.ForOutsiders:
		return x.sayFrontend(s, dst), false
	case ruleset.FindNodePort:
		return fmt.Sprintf("%s is an address of this node that serves node ports; %s", s.Destination.Addr(),
			x.sayFrontend(s, dst)), false
	case ruleset.FindOnLoopback:
		return fmt.Sprintf("%s serves node ports to nftproxy, which connects there for clients on localhost; %s",
			s.Destination.Addr(), x.sayFrontend(s, dst)), false
	case ruleset.FindRanges:
		return fmt.Sprintf("map port-ranges has %s, %s", addressText(x.question.Packet, s.Destination), x.whoseRanges(s)),
			false
	case ruleset.FindInRanges:
		return fmt.Sprintf("the ranges have port %d; %s", s.Destination.Port(),
			x.sayFrontend(s, addressText(x.question.Packet, s.Destination))), false
	case ruleset.FindOthers:
		ranges := ""
		if x.contents.Sets["port-ranges"] != nil {
			ranges = "looks for ranges of ports, "
		}
		return "it goes through chain dispatch, which " + ranges + "refuses unknown ports of cluster IPs and looks for " +
			"node ports", true
	case ruleset.FindPing:
		return fmt.Sprintf("set ping-addresses has %s: a Service with endpoints has the address, and the node answers "+
			"pings to it", s.Destination.Addr()), false
	case ruleset.AnswerPing:
		return fmt.Sprintf("the node answers, by its address %s, if there are at most %d new pings per second",
			w.Ends[0].To.Addr(), ruleset.PingsPerSecond), false
	case ruleset.RefuseUnknownPort:
		return fmt.Sprintf("set cluster-ips has %s, of %s, but the Service does not have this port", s.Destination.Addr(),
			clean(x.clusterIPOwner(s.Destination.Addr()))), false
	case ruleset.AdmitSource:
		return fmt.Sprintf("the source ranges admit %s; it goes on in chain %s", x.question.Packet.Src.Addr(),
			s.Rule.NextChain()), false
	case ruleset.AdmitLoadBalancer:
		return "the load balancer may reach itself; it goes on in chain " + s.Rule.NextChain(), false
	case ruleset.DropSource:
		return fmt.Sprintf("no source range admits %s: it is dropped", x.question.Packet.Src.Addr()), false
	case ruleset.ForPods:
		return x.condition(s) + ", so the client is a pod: it may use the endpoints of all nodes; " + x.sayFrontend(s, dst),
			false
	case ruleset.ForNode:
		return "the client is the node itself: it may use the endpoints of all nodes, and is to be masqueraded; " +
			x.sayFrontend(s, dst), false
	case ruleset.ForOtherPods:
		return x.condition(s) + ", so the client is a pod, perhaps of another node: it may use the endpoints of all nodes, " +
			"and is to be masqueraded; " + x.sayFrontend(s, dst), false
	case ruleset.RefuseOtherPods:
		return x.condition(s) + fmt.Sprintf(", and it comes in by the interface that has the address %s, so the client is "+
			"a pod of another node, and no endpoint is on this node: it is refused", s.Destination.Addr()), false
	case ruleset.DropNotLocal:
		return "the client is outside, and no endpoint is on this node: it is dropped", false
	case ruleset.MarkAll:
		return "it is to be masqueraded: " + x.whyMarkAll(s), false
	case ruleset.MarkOutsiders:
		return x.condition(s) + ", so the client is no pod of the cluster: it is to be masqueraded", false
	case ruleset.RefuseTCP:
		return "it is refused by a TCP reset", false
	case ruleset.RefuseOthers:
		return "it is refused by ICMP port unreachable", false
	case ruleset.DropCounted:
		return "it is dropped", false
	case ruleset.NoteRecent:
		u, _ := statement[nft.Update](s.Rule)
		return fmt.Sprintf("set %s notes that this Service port has a new connection", clean(u.Map)), true
	case ruleset.CountForService:
		return fmt.Sprintf("set %s counts it for the Service", setOf(s)), true
	case ruleset.DropUnallocated:
		return fmt.Sprintf("%s is in the ServiceCIDR %s, and no Service has it: it is dropped", s.Destination.Addr(),
			rangeOf(s)), false
	case ruleset.SpareNetworks:
		return fmt.Sprintf("%s is in a network that the node is on or has routes to, or an API server's: it is let through",
			s.Destination.Addr()), false
	case ruleset.SpareServices:
		return "these rules have translated it: it is let through", false
	case ruleset.SpareDecided:
		return fmt.Sprintf("%s is in the ServiceCIDR %s, and was let through before", s.Destination.Addr(), rangeOf(s)), true
	case ruleset.SpareNothing:
		return "it is for no network that the node reaches, and these rules have not translated it", true
	case ruleset.DropUntranslated:
		return fmt.Sprintf("%s is a cluster IP, and nothing has translated it: it is dropped", s.Destination.Addr()), false
	}
	return x.sayTranslation(p, s, w)
}

// sayTranslation is sayMatched for rules that choose an endpoint, and those after them.
func (x *explainer) sayTranslation(p ruleset.Purpose, s *nft.Step, w *nft.Way) (text string, minor bool) {
	switch p {
	case ruleset.FindClient:
		return fmt.Sprintf("map %s remembers the client: it goes to %s", clean(setOf(s)), x.chosen(w)), false
	case ruleset.NewClient:
		return "the client is not remembered: it goes on to choose an endpoint", true
	case ruleset.Choose, ruleset.ChooseFirst:
		return fmt.Sprintf("map %s: it goes to %s", setOf(s), x.chosen(w)), false
	case ruleset.GiveTimeouts:
		set, _ := statement[nft.SetTimeout](s.Rule)
		switch t := service.ParseTimeouts(set.Name); t.Protocol {
		case service.UDP:
			return fmt.Sprintf("its Service asks for time-outs: connection tracking forgets the flow %s after its last "+
				"packet, or %s after it if nothing has answered", t.Replied, t.Unreplied), false
		case service.TCP:
			return fmt.Sprintf(
				"its Service asks for a time-out: connection tracking forgets the connection %s after its last packet",
				t.Established), false
		}
		return fmt.Sprintf("it gets the time-outs of the object %s", clean(set.Name)), false
	case ruleset.DropUnchosen:
		return "the map has none of the endpoints that this chain expects: it is dropped", false
	case ruleset.FindLearner:
		return "its Service port has session affinity, so the client will be remembered", true
	case ruleset.Remember:
		u, _ := statement[nft.Update](s.Rule)
		return fmt.Sprintf("map %s remembers the client for %s", clean(u.Map), u.Timeout), false
	case ruleset.MasqueradeMarked:
		if _, marked := s.Rule[0].(nft.MatchMark); marked {
			return "it carries the mark: it is masqueraded, so the endpoint sees an address of this node", false
		}
		return "it is masqueraded, so the endpoint sees an address of this node", false
	case ruleset.MasqueradeHairpin:
		return "the endpoint is the client's own pod: it is masqueraded, so that the answer comes back this way", false
	case ruleset.Unmark:
		return "the endpoint is on the node itself: the mark is cleared, and nothing is masqueraded", false
	}
	return s.Rule.Body().Text(s.Table.Family), true
}

// sayPassedOver says why a rule did not match.
func (x *explainer) sayPassedOver(p ruleset.Purpose, s *nft.Step) (text string, minor bool) {
	dst := endText(x.question.Packet, s.Destination)
	switch p {
	case ruleset.FindFrontend:
		return fmt.Sprintf("map services does not have %s", dst), false
	case ruleset.FindRanges:
		return fmt.Sprintf("map port-ranges does not have %s", addressText(x.question.Packet, s.Destination)), false
	case ruleset.FindInRanges:
		return fmt.Sprintf("the ranges %s do not have port %d", x.portRangesText(s.Chain), s.Destination.Port()), false
	case ruleset.FindPing:
		if endedAt[nft.InSet](s) {
			return fmt.Sprintf("set ping-addresses does not have %s: no Service with endpoints has the address, or it has "+
				"source ranges", s.Destination.Addr()), false
		}
	case ruleset.RefuseUnknownPort:
		if endedAt[nft.InSet](s) {
			return fmt.Sprintf("%s is no cluster IP of a Service", s.Destination.Addr()), false
		}
		return fmt.Sprintf("%s is a cluster IP, of %s, but it is also an address of this node, which keeps its other ports",
			s.Destination.Addr(), clean(x.clusterIPOwner(s.Destination.Addr()))), false
	case ruleset.FindNodePort:
		if !endedAt[nft.VMap](s) {
			return fmt.Sprintf("%s is no address of this node that serves node ports", s.Destination.Addr()), false
		}
		return fmt.Sprintf("map node-ports does not have %s", portText(x.question.Packet)), false
	case ruleset.FindOnLoopback:
		if endedAt[nft.VMap](s) {
			return fmt.Sprintf("map node-ports does not have %s", portText(x.question.Packet)), false
		}
		return "it is no connection of nftproxy to a node port, for a client on localhost", !s.Destination.Addr().IsLoopback()
	case ruleset.AdmitSource:
		return fmt.Sprintf("%s is in none of the source ranges %s", x.question.Packet.Src.Addr(), x.rangesText(s.Chain)),
			false
	case ruleset.ForPods:
		if rules := x.contents.Chains[s.Chain].Rules; s.Number < len(rules) &&
			ruleset.PurposeOf(rules[s.Number]) == ruleset.ForPods {
			return x.condition(s), false // another range may have it
		}
		if slices.ContainsFunc(x.contents.Chains[s.Chain].Rules, func(r nft.Rule) bool {
			return ruleset.PurposeOf(r) == ruleset.ForOtherPods
		}) {
			return x.condition(s) + ", so the client is not known to be a pod of this node", false
		}
		return x.condition(s) + ", so the client is no pod of the cluster", false
	case ruleset.RefuseOtherPods:
		if endedAt[nft.MatchLocal](s) {
			return fmt.Sprintf("the packet does not come in by the interface that has the address %s, so the client may be a "+
				"pod of this node", s.Destination.Addr()), false
		}
		if m, is := s.Rule[s.Last].(nft.MatchAddr); is && m.Field == nft.Daddr {
			return fmt.Sprintf("pods of this node, too, may come in by the interface that has the address %s",
				s.Destination.Addr()), false
		}
		return x.condition(s), false
	case ruleset.ForOtherPods:
		return x.condition(s), false
	case ruleset.ForNode:
		return "the client is not the node itself", false
	case ruleset.ForOutsiders:
		switch {
		case strings.HasPrefix(setOf(s), "node-port"):
			dst = portText(x.question.Packet)
		case strings.HasPrefix(setOf(s), "range-"):
			dst = addressText(x.question.Packet, s.Destination)
		}
		return fmt.Sprintf("map %s does not have %s: no endpoint is on this node", setOf(s), dst), false
	case ruleset.MasqueradeMarked:
		if endedAt[nft.MatchAddr](s) {
			return fmt.Sprintf("%s is in a range of noMasqueradeCIDRs: it is not masqueraded", s.Destination.Addr()), false
		}
	case ruleset.MarkOutsiders:
		return x.condition(s) + ", so the client is a pod, and is not to be masqueraded", false
	case ruleset.FindClient:
		if len(s.Lookups) > 0 {
			return fmt.Sprintf("map %s does not remember the client %s", clean(setOf(s)), x.question.Packet.Src.Addr()), false
		}
	case ruleset.Choose, ruleset.ChooseFirst:
		return fmt.Sprintf("map %s does not have %s, which this chain expects: another process has removed it, or the map "+
			"changes at this moment", setOf(s), x.missing(s)), false
	case ruleset.Remember:
		if len(s.Lookups) > 0 && endedAt[nft.Update](s) {
			return fmt.Sprintf("map %s is full: the client is not remembered", clean(setOf(s))), false
		}
	}
	return "it does not match: " + s.Rule.Body().Text(s.Table.Family), true
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

// portRangesText lists the ranges of a chain of port ranges.
func (x *explainer) portRangesText(chain string) string {
	set := x.contents.Sets[chain]
	if set == nil {
		return "of no set"
	}
	return x.elementsText(set)
}

// sayFrontend says what a map of frontends has for the packet.
func (x *explainer) sayFrontend(s *nft.Step, what string) string {
	for _, l := range s.Lookups {
		if !l.Found || !l.Set.Verdicts {
			continue
		}
		of := ""
		if f := ruleset.NameInComment(l.Element.Comment); f.Service != "" {
			of = ", of " + frontendText(f)
		}
		if l.Set.Key[0] != nft.Daddr {
			what = portText(x.question.Packet)
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

// rangeOf is the range of addresses that the rule is for.
func rangeOf(s *nft.Step) netip.Prefix {
	m, _ := statement[nft.MatchAddr](s.Rule)
	return m.Prefix
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
	if !hasPorts(p) {
		return fmt.Sprintf("%s/%s", a.Addr(), nft.ProtocolText(p.Protocol))
	}
	return fmt.Sprintf("%s/%s", a, nft.ProtocolText(p.Protocol))
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

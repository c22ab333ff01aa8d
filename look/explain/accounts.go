package explain

import (
	"cmp"
	"fmt"
	"strings"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// account is all that is said of rules of one purpose. In its texts a name in braces stands for a fact of the step
// (factsOf).
type account struct {
	// matched is said of a rule that matched, and otherwise of one that did not: the first whose test holds.
	matched   text
	otherwise []text
	// finds: the rule names the frontend of the packet. carriesOut: it only refuses or drops what another rule has decided
	// about.
	finds, carriesOut bool
	// masquerades says why the rule has connections masqueraded.
	masquerades string
	// ends and leads name the cause, and what helps, where the rule decides that the packet goes no further, and where it
	// is on the way to an endpoint. nil for none.
	ends, leads func(*explainer, *nft.Step)
}

// text is said where its test holds; without one, always. minor texts tell most readers nothing.
type text struct {
	says  string
	minor bool
	when  func(*nft.Step) bool
}

func always(says string) text { return text{says: says} }

func minor(says string) text { return text{says: says, minor: true} }

// endedBy is said if the evaluation of the rule ended at a statement of the type.
func endedBy[T nft.Statement](says string) text { return text{says: says, when: endedAt[T]} }

// because names a cause and what helps.
func because(cause string, remedies ...string) func(*explainer, *nft.Step) {
	return func(x *explainer, s *nft.Step) {
		x.cause("%s", x.fill(cause, s, &x.ways[0]))
		for _, r := range remedies {
			x.remedy("%s", x.fill(r, s, &x.ways[0]))
		}
	}
}

// sees begins the causes of masquerading.
const sees = "the endpoints see an address of this node, not the client's: "

// accounts has an account of each purpose that the compiler gives to rules.
func accounts() map[ruleset.Purpose]account {
	behind, outside := (*explainer).whyNotBehind, (*explainer).whyNotOutside
	nodePort := endedBy[nft.VMap]("map node-ports does not have {key}")
	choose := account{matched: always("map {set}: it goes to {chosen}"), otherwise: []text{always("map {set} does not " +
		"have {missing}, which this chain expects: another process has removed it, or the map changes at this moment")}}
	return map[ruleset.Purpose]account{
		ruleset.FindFrontend: {finds: true, ends: behind, matched: always("{frontend}"),
			otherwise: []text{always("map services does not have {key}")}},
		ruleset.FindRanges: {matched: always("map port-ranges has {key}, {whose}"),
			otherwise: []text{always("map port-ranges does not have {key}")}},
		ruleset.FindInRanges: {finds: true, ends: behind, matched: always("the ranges have port {port}; {frontend}"),
			otherwise: []text{always("the ranges {port ranges} do not have port {port}")}},
		ruleset.FindOthers: {matched: minor("it goes through chain dispatch, which {looks}refuses unknown ports of cluster " +
			"IPs and looks for node ports")},
		ruleset.FindPing: {matched: always("set ping-addresses has {to}: a Service with endpoints has the address, and the " +
			"node answers pings to it"), otherwise: []text{endedBy[nft.InSet]("set ping-addresses does not have {to}: no " +
			"Service with endpoints has the address, or it has source ranges")}},
		ruleset.AnswerPing: {matched: always(fmt.Sprintf("the node answers, by its address {end}, if there are at most %d "+
			"new pings per second", ruleset.PingsPerSecond))},
		ruleset.RefuseUnknownPort: {ends: (*explainer).whyUnknownPort,
			matched: always("set cluster-ips has {to}, of {owner}, but the Service does not have this port"),
			otherwise: []text{endedBy[nft.InSet]("{to} is no cluster IP of a Service"), always("{to} is a cluster IP, of " +
				"{owner}, but it is also an address of this node, which keeps its other ports")}},
		ruleset.FindNodePort: {finds: true, ends: behind,
			matched:   always("{to} is an address of this node that serves node ports; {frontend}"),
			otherwise: []text{nodePort, always("{to} is no address of this node that serves node ports")}},
		ruleset.FindOnLoopback: {finds: true, ends: behind, matched: always("{to} serves node ports to nftproxy, which " +
			"connects there for clients on localhost; {frontend}"),
			otherwise: []text{nodePort,
				{"it is no connection of nftproxy to a node port, for a client on localhost", true,
					func(s *nft.Step) bool { return !s.Destination.Addr().IsLoopback() }},
				always("it is no connection of nftproxy to a node port, for a client on localhost")}},
		ruleset.AdmitSource: {matched: always("the source ranges admit {client}; it goes on in chain {next}"),
			otherwise: []text{always("{client} is in none of the source ranges {source ranges}")}},
		ruleset.AdmitLoadBalancer: {matched: always("the load balancer may reach itself; it goes on in chain {next}")},
		ruleset.DropSource: {ends: (*explainer).whyNotAdmitted, matched: always("no source range admits {client}: it is " +
			"dropped")},
		ruleset.FindRestricted: {ends: behind, matched: always("{frontend}")},
		ruleset.ForPods: {ends: behind, matched: always("{condition}, so the client is a pod: it may use the endpoints of " +
			"all nodes; {frontend}"), otherwise: []text{always("{condition}{no pod}")}},
		ruleset.ForNode: {ends: behind, matched: always("the client is the node itself: it may use the endpoints of all " +
			"nodes, and is to be masqueraded; {frontend}"), otherwise: []text{always("the client is not the node itself")},
			masquerades: "the packet comes from the node itself"},
		ruleset.ForOutsiders: {ends: outside, leads: (*explainer).whyForOutsiders, matched: always("{frontend}"),
			otherwise: []text{always("map {set} does not have {key}: no endpoint is on this node")}},
		ruleset.ForOtherPods: {ends: behind, matched: always("{condition}, so the client is a pod, perhaps of another " +
			"node: it may use the endpoints of all nodes, and is to be masqueraded; {frontend}"),
			otherwise: []text{always("{condition}")},
			masquerades: "the packet comes from a pod that is not known to be on this node, and would be answered " +
				"directly",
			leads: because(sees+"the externalTrafficPolicy of Service {service} is Local, no endpoint is on this node, and the "+
				"client is a pod that is not known to be on this node: the endpoints would answer it directly",
				"if the client is a pod of this node, the Node's podCIDRs do not cover it")},
		ruleset.RefuseOtherPods: {ends: outside, matched: always("{condition}, and it comes in by the interface that " +
			"has the address {to}, so the client is a pod of another node, and no endpoint is on this node: it is refused"),
			otherwise: []text{endedBy[nft.MatchLocal]("the packet does not come in by the interface that has the address " +
				"{to}, so the client may be a pod of this node"),
				{says: "pods of this node, too, may come in by the interface that has the address {to}", when: endedAtDaddr},
				always("{condition}")}},
		ruleset.DropNotLocal: {ends: outside, matched: always("the client is outside, and no endpoint is on this node: it " +
			"is dropped")},
		ruleset.MarkAll: {matched: always("it is to be masqueraded: {why all}"), masquerades: "{why all}",
			leads: (*explainer).whyAllMarked},
		ruleset.MarkOutsiders: {matched: always("{condition}, so the client is no pod of the cluster: it is to be " +
			"masqueraded"), otherwise: []text{always("{condition}, so the client is a pod, and is not to be masqueraded")},
			masquerades: "{condition}, so the client is no pod of the cluster",
			leads: because(sees+"{condition}, so the client is no pod of the cluster",
				"if the client is a pod, --cluster-cidr or --detect-local-mode of nftproxy does not cover it")},
		ruleset.FindClient: {matched: always("map {set} remembers the client: it goes to {chosen}"),
			otherwise: []text{{says: "map {set} does not remember the client {client}", when: looked}}},
		ruleset.NewClient:    {matched: minor("the client is not remembered: it goes on to choose an endpoint")},
		ruleset.GiveTimeouts: {matched: always("{time-outs}")},
		ruleset.FollowFlow: {matched: minor("nftproxy flows shows a sample of the connections to this Service port"),
			otherwise: []text{minor("it is not in the sample of nftproxy flows")}},
		ruleset.FollowRefusal: {carriesOut: true, matched: minor("nftproxy flows shows a sample of what is refused or " +
			"dropped")},
		ruleset.Choose:      choose,
		ruleset.ChooseFirst: choose,
		ruleset.DropUnchosen: {matched: always("the map has none of the endpoints that this chain expects: it is " +
			"dropped")},
		ruleset.RefuseTCP:       {carriesOut: true, matched: always("it is refused by a TCP reset")},
		ruleset.RefuseOthers:    {carriesOut: true, matched: always("it is refused by ICMP port unreachable")},
		ruleset.DropCounted:     {carriesOut: true, matched: always("it is dropped")},
		ruleset.NoteRecent:      {matched: minor("set {fills} notes that this Service port has a new connection")},
		ruleset.CountForService: {carriesOut: true, matched: minor("set {set} counts it for the Service")},
		ruleset.RefuseMidstream: {carriesOut: true, matched: always("it opens no connection: it goes on in chain {next}"),
			otherwise: []text{minor("it opens a connection")}},
		ruleset.HoldKnown: {carriesOut: true, matched: always("the connection waits: it goes on in chain {next}"),
			otherwise: []text{minor("the connection does not wait yet")}},
		ruleset.RefuseHeld: {carriesOut: true, matched: always("the connection has waited for long: it goes on in chain " +
			"{next}"), otherwise: []text{minor("the connection has not waited before")}},
		ruleset.NoteHeld: {carriesOut: true, matched: always("it waits for an endpoint, and sets held-flows and " +
			"held-before note since when: it goes on in chain {next}"),
			otherwise: []text{always("set held-flows or held-before is full: nothing notes since when the connection waits")}},
		ruleset.HoldUnnoted: {carriesOut: true, matched: always("it waits for an endpoint: it goes on in chain {next}")},
		ruleset.DropUnallocated: {matched: always("{to} is in the ServiceCIDR {range}, and no Service has it: it is dropped"),
			ends: because("no Service has the address {to}, which is in the ServiceCIDR {range}",
				"check the address that the client uses: the Service may have been deleted and created again with another "+
					"cluster IP",
				"if a host has the address: give the node a route to the host's network that is for a part of the "+
					"ServiceCIDR only, or move network or ServiceCIDR; packets to such networks, and to API servers, are let "+
					"through")},
		ruleset.SpareNetworks: {matched: always("{to} is in a network that the node is on or has routes to, or an API " +
			"server's: it is let through")},
		ruleset.SpareServices: {matched: always("these rules have translated it: it is let through")},
		ruleset.SpareDecided:  {matched: minor("{to} is in the ServiceCIDR {range}, and was let through before")},
		ruleset.SpareNothing: {carriesOut: true, matched: minor("it is for no network that the node reaches, and these " +
			"rules have not translated it")},
		ruleset.DropUntranslated: {ends: (*explainer).whyUntranslated, matched: always("{to} is a cluster IP, and nothing " +
			"has translated it: it is dropped")},
		ruleset.FindLearner: {matched: minor("its Service port has session affinity, so the client will be remembered")},
		ruleset.Remember: {matched: always("map {fills} remembers the client for {fills for}"),
			otherwise: []text{{says: "map {set} is full: the client is not remembered", when: filled}}},
		ruleset.MasqueradeMarked: {matched: always("{marked}it is masqueraded, so the endpoint sees an address of this node"),
			otherwise: []text{endedBy[nft.MatchAddr]("{to} is in a range of noMasqueradeCIDRs: it is not masqueraded")}},
		ruleset.MasqueradeHairpin: {masquerades: "the pod reaches itself through the Service", matched: always("the " +
			"endpoint is the client's own pod: it is masqueraded, so that the answer comes back this way")},
		ruleset.Unmark: {matched: always("the endpoint is on the node itself: the mark is cleared, and nothing is " +
			"masqueraded")},
	}
}

// say puts a step into words, and tells whether they are minor.
func (x *explainer) say(s *nft.Step, w *nft.Way) (says string, minor bool) {
	p := x.purpose(s)
	a := x.accounts[p]
	switch {
	case s.Unknown:
		return "nftproxy cannot tell what happens here: " + x.unknownText(s), false
	case p == ruleset.NoPurpose && s.Matched:
		return "this rule is not nftproxy's. It matches: " + s.Rule.Text(s.Table.Family), false
	case p == ruleset.NoPurpose:
		return "this rule is not nftproxy's. It does not match: " + s.Rule.Text(s.Table.Family), false
	case s.Matched && a.matched.says == "":
		return s.Rule.Body().Text(s.Table.Family), true
	case s.Matched:
		return x.fill(a.matched.says, s, w), a.matched.minor
	}
	for _, t := range a.otherwise {
		if t.when == nil || t.when(s) {
			return x.fill(t.says, s, w), t.minor
		}
	}
	return "it does not match: " + s.Rule.Body().Text(s.Table.Family), true
}

// fill puts the facts of a step into a text.
func (x *explainer) fill(text string, s *nft.Step, w *nft.Way) string {
	var b strings.Builder
	facts := x.factsOf(s, w)
	for {
		before, rest, more := strings.Cut(text, "{")
		b.WriteString(before)
		if !more {
			return b.String()
		}
		name, after, _ := strings.Cut(rest, "}")
		b.WriteString(facts[name]())
		text = after
	}
}

// factsOf has what the names in texts stand for.
func (x *explainer) factsOf(s *nft.Step, w *nft.Way) map[string]func() string {
	update, _ := statement[nft.Update](s.Rule)
	to := s.Destination.Addr()
	return map[string]func() string{
		"to":       to.String,
		"client":   x.question.Packet.Src.Addr().String,
		"port":     func() string { return fmt.Sprint(s.Destination.Port()) },
		"service":  func() string { return x.frontend.Service },
		"owner":    func() string { return clean(x.clusterIPOwner(to)) },
		"key":      func() string { return x.keyText(s) },
		"frontend": func() string { return x.sayFrontend(s) },
		"set":      func() string { return clean(setOf(s)) },
		"missing":  func() string { return x.missing(s) },
		"whose":    func() string { return x.whoseRanges(s) },
		"source ranges": func() string {
			return cmp.Or(x.rangesText(ruleset.SourceSet(s.Chain)), "no address of this family")
		},
		"port ranges": func() string {
			if x.contents.Sets[s.Chain] == nil {
				return "of no set"
			}
			return x.rangesText(s.Chain)
		},
		"range": func() string {
			m, _ := statement[nft.MatchAddr](s.Rule)
			return m.Prefix.String()
		},
		"condition": func() string { return x.condition(s) },
		"no pod":    func() string { return x.noPod(s) },
		"why all":   func() string { return x.whyMarkAll(s) },
		"chosen":    func() string { return x.chosen(w) },
		"end":       func() string { return w.Ends[0].To.Addr().String() },
		"next":      s.Rule.NextChain,
		"fills":     func() string { return clean(update.Map) },
		"fills for": update.Timeout.String,
		"time-outs": func() string { return timeoutsText(s) },
		"looks": func() string {
			if x.contents.Sets["port-ranges"] == nil {
				return ""
			}
			return "looks for ranges of ports, "
		},
		"marked": func() string {
			if _, marked := s.Rule[0].(nft.MatchMark); !marked {
				return ""
			}
			return "it carries the mark: "
		},
	}
}

// looked says whether the rule has asked a map, and filled whether it ended when it was to fill one.
func looked(s *nft.Step) bool { return len(s.Lookups) > 0 }

func filled(s *nft.Step) bool { return looked(s) && endedAt[nft.Update](s) }

// endedAtDaddr says whether the rule ended at a match of the destination.
func endedAtDaddr(s *nft.Step) bool {
	return endedAt[nft.MatchAddr](s) && s.Rule[s.Last].(nft.MatchAddr).Field == nft.Daddr
}

// noPod says what follows if a rule for pods does not match.
func (x *explainer) noPod(s *nft.Step) string {
	pods, more := false, false
	for i, r := range x.contents.Chains[s.Chain].Rules {
		pods = pods || i == s.Number && ruleset.PurposeOf(r) == ruleset.ForPods
		more = more || ruleset.PurposeOf(r) == ruleset.ForOtherPods
	}
	switch {
	case pods:
		return "" // another range may have it
	case more:
		return ", so the client is not known to be a pod of this node"
	}
	return ", so the client is no pod of the cluster"
}

// timeoutsText says which time-outs a rule gives.
func timeoutsText(s *nft.Step) string {
	set, _ := statement[nft.SetTimeout](s.Rule)
	switch t := service.ParseTimeouts(set.Name); t.Protocol {
	case service.UDP:
		return fmt.Sprintf("its Service asks for time-outs: connection tracking forgets the flow %s after its last packet, "+
			"or %s after it if nothing has answered", t.Replied, t.Unreplied)
	case service.TCP:
		return fmt.Sprintf("its Service asks for a time-out: connection tracking forgets the connection %s after its last "+
			"packet", t.Established)
	}
	return fmt.Sprintf("it gets the time-outs of the object %s", clean(set.Name))
}

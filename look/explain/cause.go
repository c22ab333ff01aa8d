package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"nftproxy/look/basechain"
	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// mostCauses bounds the causes, and the remedies: objects and rules of others can bring many.
const mostCauses = 30

func (x *explainer) cause(format string, args ...any) {
	if len(x.causes) == mostCauses {
		x.omitted++
		return
	}
	x.causes = append(x.causes, clean(fmt.Sprintf(format, args...)))
}

func (x *explainer) remedy(format string, args ...any) {
	if text := clean(fmt.Sprintf(format, args...)); len(x.remedies) < mostCauses && !slices.Contains(x.remedies, text) {
		x.remedies = append(x.remedies, text)
	}
}

func (x *explainer) note(format string, args ...any) {
	x.notes = append(x.notes, clean(fmt.Sprintf(format, args...)))
}

// findCauses says who or what brings the outcome about. The rules come first, the objects after. It fails only
// if ctx ends before.
func (x *explainer) findCauses(ctx context.Context, e *Explanation) error {
	if x.contents == nil {
		x.cause("the kernel has no table %s %s", x.family(), x.facts.Table)
		x.remedy("start nftproxy run on this node; nftproxy check says whether the node is ready for it")
		x.follow(e)
		return nil
	}
	for i := range x.ways {
		for j := range x.ways[i].Steps {
			x.findForeignRule(&x.ways[i].Steps[j])
		}
	}
	switch e.Outcome {
	case Untouched:
		x.whyUntouched()
		x.follow(e)
	case Endpoint:
		x.whyThere(e)
	default:
		x.whyEnded()
	}
	x.findConflicts()
	if err := x.compareWithObjects(ctx, e); err != nil {
		return err
	}
	x.findDoubts()
	return nil
}

// findForeignRule is about rules in our table that are not ours.
func (x *explainer) findForeignRule(s *nft.Step) {
	switch p := x.purpose(s); {
	case s.Unknown || p == ruleset.NoPurpose && s.Matched:
	case (p == ruleset.Choose || p == ruleset.ChooseFirst) && !s.Matched, p == ruleset.DropUnchosen && s.Matched:
		if i := len(x.causes); i > 0 && strings.HasPrefix(x.causes[i-1], "map ") {
			return // said already
		}
		x.cause("map %s does not have every endpoint that chain %s expects: another process has removed elements", setOf(s),
			s.Chain)
		x.remedy("a running nftproxy restores its tables within a second; if it does not run, start it")
		return
	default:
		return
	}
	if n := ruleset.LayoutOf(x.contents); n != ruleset.Layout {
		x.cause("another version of nftproxy has written the tables (layout %d, and this command knows layout %d): what "+
			"their rules are for is not known", n, ruleset.Layout)
		x.remedy("start this version of nftproxy, which writes its rules again, or ask with the command of that version")
		return
	}
	x.cause("another process has changed nftproxy's table: rule %d of chain %s is not nftproxy's (%s)", s.Number, s.Chain,
		s.Rule.Text(s.Table.Family))
	x.remedy("nft -a list chain %s %s shows the rule; a running nftproxy restores its tables within a second, so start "+
		"it if it does not run", s.Table, s.Chain)
}

// whyEnded is about packets that are refused or dropped, at least on one way.
func (x *explainer) whyEnded() {
	for i := range x.ways {
		w := &x.ways[i]
		if len(w.Steps) == 0 || w.Ends[0].Fate == nft.DNATed || w.Ends[0].Fate == nft.Untouched {
			continue
		}
		by := x.decider(w)
		if ends := x.accounts[x.purpose(by)].ends; ends != nil {
			ends(x, by)
		}
		return
	}
}

// whyNotBehind is about a rule that asks a map of frontends or endpoints.
func (x *explainer) whyNotBehind(s *nft.Step) {
	if x.leadsToRefusal(s) {
		x.whyHeld(s)
		x.whyNoEndpoint()
		return
	}
	x.whyNoneHere(obstacle.Dropped, "set internalTrafficPolicy to Cluster, or run an endpoint on this node")
}

// whyNotOutside is about clients outside of the node.
func (x *explainer) whyNotOutside(*nft.Step) {
	x.whyNoneHere(obstacle.DroppedOutside, "send the packet to a node that has an endpoint, as load balancers do that "+
		"ask the healthCheckNodePort; or run an endpoint on this node; or set externalTrafficPolicy to Cluster, which "+
		"hides the client's address from the endpoints")
}

// whyUntranslated is about a cluster IP that nothing has translated.
func (x *explainer) whyUntranslated(s *nft.Step) {
	if s.Destination != x.question.Packet.Dst {
		x.notPod(s.Destination.String(), "the cluster IP of Service "+x.clusterIPOwner(s.Destination.Addr()), "it is dropped")
		return
	}
	x.cause("rules of another program have handled the packet first, or have sent it to the cluster IP %s",
		s.Destination.Addr())
	x.remedy("look at the chains of other programs below")
}

// decider returns the rule that decided about the packet: the last one that matched before a chain that only
// refuses or drops.
func (x *explainer) decider(w *nft.Way) *nft.Step {
	for i := len(w.Steps) - 1; i >= 0; i-- {
		s := &w.Steps[i]
		if s.Matched && !x.accounts[x.purpose(s)].carriesOut {
			return s
		}
	}
	return &w.Steps[len(w.Steps)-1]
}

// leadsToRefusal says whether the map that the rule asked answers that there is no endpoint anywhere.
func (x *explainer) leadsToRefusal(s *nft.Step) bool {
	for _, l := range s.Lookups {
		if l.Found && l.Set.Verdicts {
			return ruleset.MeansNoEndpoints(l.Element.Verdict)
		}
	}
	return false
}

// whyHeld is about connections that wait for an endpoint, if the map that the rule asked says so.
func (x *explainer) whyHeld(s *nft.Step) {
	for _, l := range s.Lookups {
		hold := ruleset.HeldFor(l.Element.Verdict)
		if !l.Found || hold == 0 {
			continue
		}
		x.cause("Service %s asks that connections wait for an endpoint (%s): for %s the client's kernel sends again what is "+
			"dropped, and after that it is refused", frontendText(x.frontend), service.OptionAnnotation(service.NoEndpointsKey),
			hold)
		if x.facts.Held == nil {
			return
		}
		if at, ok := ruleset.PlaceOf(l.Set.Name, l.Key); ok {
			x.cause("now %s", x.facts.Held(at))
		}
		return
	}
}

// whyUnknownPort is about a cluster IP without the port.
func (x *explainer) whyUnknownPort(s *nft.Step) {
	a := s.Destination.Addr()
	owner := x.clusterIPOwner(a)
	if !hasPorts(x.question.Packet) {
		x.cause("%s is the cluster IP of Service %s, and cluster IPs take connections to the Service's ports only: they do "+
			"not answer ping", a, owner)
		x.remedy(
			"try a port of the Service instead; with --nftproxy-answer-ping cluster IPs of Services with endpoints answer")
		return
	}
	x.cause("Service %s has the cluster IP %s, but not the port %d/%s", owner, a, x.question.Packet.Dst.Port(),
		nft.ProtocolText(x.question.Packet.Protocol))
	if s := x.service(owner); s != nil && len(s.Ports) > 0 {
		x.remedy("use a port of the Service: %s; or add the port to the Service", portsText(s))
		return
	}
	x.remedy("use a port of the Service, or add the port to the Service")
}

// whyNoEndpoint is about a Service port that has no endpoint for new connections.
func (x *explainer) whyNoEndpoint() {
	s, p := x.servicePort()
	if s == nil || x.facts.Objects == nil {
		x.stands(obstacle.Refused, ": none is ready, and none serves while it terminates")
		x.remedyEndpoints("its pods have to be ready, and the selector of the Service has to match their labels")
		return
	}
	all := x.endpointsOf(p)
	if len(all) == 0 && len(s.OtherPorts) > 0 && p.Endpoints.Len() == 0 {
		x.whyOtherPorts(s, p)
		return
	}
	ignored := x.ignoredSlices()
	if len(all) == 0 && p.Endpoints.Len() > 0 {
		x.cause("Service %s has no endpoint of %s: its EndpointSlices have addresses of the other family only, which do "+
			"not count for %s", frontendText(x.frontend), x.family().Name(), x.question.Packet.Dst.Addr())
		x.remedyEndpoints("addressType and spec.ipFamilies of the Service have to fit")
		return
	}
	if len(all) == 0 && ignored {
		x.remedyEndpoints("what is ignored does not count, whatever the selector is")
		return
	}
	if len(all) == 0 {
		x.cause("Service %s has no endpoint: no EndpointSlice of it has an address for the port", frontendText(x.frontend))
		hint := ""
		if f := x.facts.Problems; f != nil && len(f(s.Name)) > 0 {
			hint = "what cannot be used of its objects may be why; else "
		}
		x.remedyEndpoints(hint + "its selector has to match the labels of pods that run, and the targetPort has to be a " +
			"port of theirs")
		return
	}
	x.cause("Service %s has %s, and none may get connections", frontendText(x.frontend), plural(len(all), "endpoint"))
	for _, e := range all[:min(len(all), most)] {
		x.cause("endpoint %s is %s", e.Addr, x.conditions(&e))
	}
	if len(all) > most {
		x.cause("... and %d more", len(all)-most)
	}
	x.remedyEndpoints("find out why they are not ready (readiness probes, kubectl describe pod)")
}

// ignoredSlices names EndpointSlices of the Service's namespace that do not count.
func (x *explainer) ignoredSlices() bool {
	namespace, _ := service.Name(x.frontend.Service).Split()
	found := false
	for _, s := range x.facts.Ignored {
		if s.Namespace == namespace {
			x.cause("EndpointSlice %s/%s is ignored: %s", s.Namespace, s.Name, s.Why)
			found = true
		}
	}
	return found
}

// whyOtherPorts is about EndpointSlices that have endpoints for ports of other names or protocols only.
func (x *explainer) whyOtherPorts(s *service.Service, p *service.Port) {
	want := slicePortText(service.SlicePort{Name: p.Name, Protocol: p.Protocol})
	var have []string
	hint := ""
	for _, o := range s.OtherPorts {
		have = append(have, slicePortText(o))
		switch {
		case o.Name == p.Name:
			hint = "the name is the same, the protocol is not"
		case strings.EqualFold(o.Name, p.Name):
			hint = "the names differ in upper and lower case"
		}
	}
	x.cause("Service %s has no endpoint: the ports of its EndpointSlices have other names or protocols than the port of "+
		"the Service", frontendText(x.frontend))
	x.cause("the Service's port is %s, the EndpointSlices have %s; endpoints belong to the port with the same name and "+
		"the same protocol", want, strings.Join(have, ", "))
	if hint != "" {
		x.cause("%s", hint)
	}
	x.remedyEndpoints(fmt.Sprintf("where a controller or a manifest of yours writes them, give their port the name and "+
		"protocol of the Service's port, %s; the number may differ", want))
}

func slicePortText(p service.SlicePort) string {
	if p.Name == "" {
		return fmt.Sprintf("one without a name (%s)", p.Protocol)
	}
	return fmt.Sprintf("%q (%s)", p.Name, p.Protocol)
}

// remedyEndpoints names the command that shows the endpoints.
func (x *explainer) remedyEndpoints(what string) {
	namespace, name := service.Name(x.frontend.Service).Split()
	if x.frontend.Cut || name == "" {
		x.remedy("%s", what)
		return
	}
	x.remedy("kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s -o yaml shows its endpoints: %s",
		namespace, name, what)
}

// stands names the obstacle that a fate of the packet's frontend comes of, and more about it.
func (x *explainer) stands(fate obstacle.Fate, more string) {
	o, _ := fate.Obstacle()
	x.cause("Service %s: %s%s", frontendText(x.frontend), o.Why, more)
}

// whyNoneHere is about a traffic policy Local.
func (x *explainer) whyNoneHere(fate obstacle.Fate, remedy string) {
	elsewhere := ""
	if s, p := x.servicePort(); s != nil && x.facts.Objects != nil {
		counts := share.Count(s, p, x.snapshot().Node, x.family())
		n := cmp.Or(counts.Ready, counts.Draining)
		unnamed := min(n, len(slices.DeleteFunc(x.endpointsOf(p), func(e service.Endpoint) bool {
			return e.Node != "" || !e.TakesNew()
		})))
		if n -= unnamed; n > 0 {
			elsewhere = "; " + onOtherNodes(n)
		}
		if unnamed > 0 {
			elsewhere += "; " + plural(unnamed, "endpoint") + " without nodeName in the EndpointSlice: no node counts such an " +
				"endpoint as its own"
		}
	}
	x.stands(fate, elsewhere)
	x.remedy("%s", remedy)
}

// whyNotAdmitted is about source ranges.
func (x *explainer) whyNotAdmitted(s *nft.Step) {
	by := x.frontend.Service
	for i := range x.ways[0].Steps {
		for _, l := range x.ways[0].Steps[i].Lookups {
			if l.Found && l.Element.Verdict.Chain == s.Chain {
				if owner := ruleset.RestrictedBy(x.contents, l.Key); owner != "" {
					by = owner
				}
			}
		}
	}
	if closed := x.closedSources(by); closed != nil {
		x.cause("Service %s: %s", by, closed)
		x.remedy("let Services share equal lists of source ranges, or give run and this command a larger " +
			"--nftproxy-max-source-lists")
		return
	}
	if x.denied(by) {
		x.cause("the %s of Service %s deny %s (%s: deny)", balancerRanges, by, x.question.Packet.Src.Addr(),
			service.SourcesPolicyAnnotation)
		x.rangesOfOther(by)
		x.remedy("take the client's range out of the %s of %s, or connect from another address; the ranges do not restrict "+
			"cluster IPs and node ports", balancerRanges, by)
		return
	}
	field, ranges := x.rangesField(s, by), x.rangesText(ruleset.SourceSet(s.Chain))
	letIn := obstacle.LetIn(fmt.Sprintf("the %s of Service %s", field, by), ranges, x.family())
	if ranges != "" {
		letIn += fmt.Sprintf(", and %s is not among them", x.question.Packet.Src.Addr())
	}
	x.cause("%s", letIn)
	x.rangesOfOther(by)
	unrestricted := "cluster IPs"
	if field == balancerRanges {
		unrestricted = "cluster IPs and node ports"
	}
	x.remedy("add the client's range to the %s of %s, or connect from an admitted address; the ranges do not restrict %s",
		field, by, unrestricted)
}

// rangesOfOther says why the ranges of another Service count.
func (x *explainer) rangesOfOther(by string) {
	if by != x.frontend.Service && x.frontend.Service != "" {
		x.cause("these ranges count for Service %s too, since the address is a load balancer's address of %s",
			x.frontend.Service, by)
	}
}

// The fields of a Service that have source ranges.
const (
	balancerRanges = "loadBalancerSourceRanges"
	directRanges   = "annotation " + service.OptionPrefix + "source-ranges"
)

// denied says that the client is one of those that the loadBalancerSourceRanges of the Service keep out. Without the
// objects, nothing tells.
func (x *explainer) denied(by string) bool {
	if x.facts.Objects == nil {
		return false
	}
	svc, src := x.facts.Objects.Services.At(service.Name(by)), x.question.Packet.Src.Addr()
	return svc != nil && svc.Options.SourcesPolicy == service.DenySources && len(svc.Sources.Ranges()) > 0 &&
		!svc.Sources.Contains(src) &&
		(svc.Options.SourceRanges == nil || svc.Options.SourceRanges.Contains(src))
}

// rangesField says in which field the Service has the ranges of the step's chain. Without the objects, only node ports
// tell. A load balancer's address has what is in both fields: if that is all of the annotation, there may be nothing in
// the other one, and a range there would keep others out.
func (x *explainer) rangesField(s *nft.Step, by string) string {
	if ruleset.SourceSet(s.Chain) != s.Chain {
		return directRanges
	}
	if x.facts.Objects == nil {
		return balancerRanges + " (or the " + directRanges + ")"
	}
	switch svc := x.facts.Objects.Services.At(service.Name(by)); {
	case svc == nil || svc.Options.SourceRanges == nil:
		return balancerRanges
	case slices.Contains(svc.LoadBalancerIPs, s.Destination.Addr()) && !svc.Sources.Equal(svc.Options.SourceRanges):
		return balancerRanges + " and the " + directRanges
	}
	return directRanges
}

// whyUntouched is about packets that none of our rules changes.
func (x *explainer) whyUntouched() {
	p := x.question.Packet
	to, local := p.Dst.Addr(), x.facts.Local(p.Dst.Addr())
	if s := x.healthCheck(p); s != nil && local {
		x.cause("the port is the healthCheckNodePort of Service %s: the nftproxy process answers there", s.Name)
		return
	}
	switch passed := x.leftToRouting(); {
	case passed != "":
		x.stands(passed, ": other routers or nodes may have the address")
		x.remedy("where the packet goes is up to the routes of this node (ip route get %s)", to)
	case !hasPorts(p):
		x.cause("the packet has no port, and %s is no address of a Service", to)
	case local && x.clusterIPOwner(to) != "":
		x.cause("%s is the cluster IP of Service %s, but it is also an address of this node, which keeps the ports that "+
			"the Service does not have", to, x.clusterIPOwner(to))
	case local && to == ip.Of(to).Loopback() && p.Src.Addr().IsLoopback() && ruleset.ServesLoopback(x.contents):
		x.cause("a process of the node gets it: nftproxy listens on each node port of %s that has endpoints, that admits "+
			"this node, and that no other process has, and connects to the Service from another address of the node", to)
		x.remedy("with --from node, this command explains the connection of nftproxy")
	case local && x.servesNodePorts():
		x.cause("%s is an address of this node, and no Service has the node port %d/%s", to, p.Dst.Port(),
			nft.ProtocolText(p.Protocol))
		x.remedy("nftproxy get services lists the node ports; a process of the node may listen on this port by itself")
	case local:
		x.cause("%s is an address of this node that serves no node ports", to)
		x.remedy("use an address that serves node ports, or change --nodeport-addresses")
	case x.met(ruleset.SpareNetworks):
		x.cause("%s is an address for Services, but it is in a network that the node is on or has routes to, or an API "+
			"server's, and no Service has the port %d/%s: the packet goes to the host with the address", to, p.Dst.Port(),
			nft.ProtocolText(p.Protocol))
		x.remedy("if there is no such host, the Service may have been deleted; the node's network and the ServiceCIDR " +
			"should not overlap, since a Service may get the address of a host")
	default:
		x.cause("%s is no address of a Service with the port %d/%s, and no address of this node", to, p.Dst.Port(),
			nft.ProtocolText(p.Protocol))
		x.remedy("nftproxy get services lists the addresses and ports that the rules have")
	}
}

// leftToRouting returns the fate by which a Service leaves the packet to routing; empty if none does.
func (x *explainer) leftToRouting() obstacle.Fate {
	for i := range x.ways[0].Steps {
		s := &x.ways[0].Steps[i]
		passes := s.Matched && slices.ContainsFunc(s.Lookups, func(l nft.Lookup) bool {
			return l.Found && l.Element.Verdict.Code == nft.Accept
		})
		switch {
		case passes && x.purpose(s) == ruleset.ForOutsiders:
			return obstacle.PassedOutside
		case passes:
			return obstacle.Passed
		}
	}
	return ""
}

// failsOver says whether the map of clients outside leads to endpoints of all nodes.
func (x *explainer) failsOver() bool {
	return slices.ContainsFunc(x.ways[0].Steps, func(s nft.Step) bool {
		return x.purpose(&s) == ruleset.ForOutsiders && slices.ContainsFunc(s.Lookups, func(l nft.Lookup) bool {
			return l.Found && ruleset.ServesAnywhere(l.Element.Verdict)
		})
	})
}

// met says whether a rule of the purpose matched.
func (x *explainer) met(p ruleset.Purpose) bool {
	return slices.ContainsFunc(x.ways[0].Steps, func(s nft.Step) bool { return s.Matched && x.purpose(&s) == p })
}

// servesNodePorts says whether the rules looked for the packet's node port.
func (x *explainer) servesNodePorts() bool {
	return slices.ContainsFunc(x.ways[0].Steps, func(s nft.Step) bool {
		p := x.purpose(&s)
		return (p == ruleset.FindNodePort || p == ruleset.FindOnLoopback) && endedAt[nft.VMap](&s)
	})
}

// whyThere is about packets that reach an endpoint: why these endpoints, and why masqueraded.
func (x *explainer) whyThere(e *Explanation) {
	for i := range x.ways[0].Steps {
		s := &x.ways[0].Steps[i]
		if leads := x.accounts[x.purpose(s)].leads; s.Matched && leads != nil {
			leads(x, s)
		}
	}
	x.notPods(e)
	x.follow(e)
	for _, t := range e.Endpoints {
		if t.Way == noWay {
			x.cause("the node has no route to the endpoint %s", t.Address)
			x.remedy("the CNI plugin makes the routes to pods: look at its pods and log on this node")
			break
		}
	}
	for _, t := range e.Endpoints {
		if t.addr.Addr() == x.question.Packet.Src.Addr() && !t.Masqueraded && !x.question.Packet.FromNode &&
			!x.facts.Local(t.addr.Addr()) {
			x.cause("the endpoint %s is the client itself, and the packet keeps its source: the client answers itself without "+
				"the node, so the connection times out", t.Address)
			x.remedy("the EndpointSlice has to name this node for the endpoint: a pod reaches itself only where it runs by "+
				"nodeName, or may run since it has no nodeName or is in the Node's podCIDRs; the latter counts for ports with at "+
				"most %d such endpoints", ruleset.MaxMaybeOnNode)
		}
	}
	x.whyThese(e)
}

// whyForOutsiders is about external policy Local with endpoints for clients outside.
func (x *explainer) whyForOutsiders(*nft.Step) {
	if x.failsOver() {
		x.cause(sees+"Service %s: %s", frontendText(x.frontend), obstacle.FailedOver)
		return
	}
	x.cause("the externalTrafficPolicy of Service %s is Local: clients outside get endpoints on this node only, and keep "+
		"their address", x.frontend.Service)
}

// whyAllMarked is about connections that are masqueraded, wherever they come from.
func (x *explainer) whyAllMarked(s *nft.Step) {
	switch {
	case x.failsOver(): // said already
	case x.isExternal(s):
		x.cause(sees+"the externalTrafficPolicy of Service %s is Cluster", x.frontend.Service)
		x.remedy("to keep the client's address: set externalTrafficPolicy to Local, and let clients use nodes that have " +
			"an endpoint")
	default:
		x.cause(sees + "the proxy runs with --masquerade-all")
	}
}

// judgeOther is about a table of another nftproxy.
func (x *explainer) judgeOther(t *OtherTable) {
	switch {
	case t.Instead != "":
		x.cause("table %s takes the packet, which the kernel asks before table %s since it was made later; it is of %s", t.ID,
			t.Instead, t.Kept)
		x.remedy("%s", t.Remedy)
	case t.Has:
		x.note("table %s has rules for the packet too, but the kernel asks it later, since it was made earlier; it is of %s",
			t.ID, t.Kept)
	default:
		x.note("table %s has no rule for the packet; it is of %s", t.ID, t.Kept)
	}
}

// findDoubts says what may make the tables or the walk differ from what the reader expects.
func (x *explainer) findDoubts() {
	if !x.complete {
		x.note("there are more ways than nftproxy has followed: the chances are not exact")
	}
	if x.facts.NoOwner {
		x.note("no process owns the tables: no nftproxy keeps them up to date, and they may be stale")
	}
	if x.omitted > 0 {
		x.note("%d further causes are left out", x.omitted)
	}
	if slices.ContainsFunc(x.facts.Chains, func(c basechain.Chain) bool {
		return c.Program == "kube-proxy" && x.sees(&c)
	}) {
		x.note("the kernel has rules of kube-proxy too, and they judge the packet as well (nftproxy proxies compares both)")
	}
	for _, t := range x.facts.OtherTables {
		x.judgeOther(&t)
	}
}

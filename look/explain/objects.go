package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

const (
	// most is the greatest number of endpoints, ports or ranges in a sentence.
	most = 10
	// noWay is Target.Way without a route.
	noWay = "no route"
)

// snapshot has the Services by the objects, or else by the tables.
func (x *explainer) snapshot() *service.Snapshot {
	if x.facts.Objects != nil {
		return x.facts.Objects
	}
	if x.readBack == nil {
		s := ruleset.ReadBack(x.facts.Tables, x.facts.Table, &service.Node{Name: "this node"})
		x.readBack = &s
	}
	return x.readBack
}

// service returns the Service of that name, nil if there is none.
func (x *explainer) service(name string) *service.Service {
	return x.snapshot().Services.At(service.Name(name))
}

// servicePort returns the Service and port that the rules found; nil if the objects do not have them.
func (x *explainer) servicePort() (*service.Service, *service.Port) {
	s := x.service(x.frontend.Service)
	if s == nil {
		return nil, nil
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		if uint8(p.Protocol) == x.question.Packet.Protocol && p.Label() == x.frontend.Port {
			return s, p
		}
	}
	return nil, nil
}

// endpointsOf returns the port's endpoints in the packet's family.
func (x *explainer) endpointsOf(p *service.Port) []service.Endpoint {
	var all []service.Endpoint
	for e := range p.Endpoints.All() {
		if x.family().Has(e.Addr.Addr()) {
			all = append(all, e)
		}
	}
	return all
}

// conditions puts the conditions of an endpoint into words.
func (x *explainer) conditions(e *service.Endpoint) string {
	switch e.Node {
	case "":
		return e.State() + ", on an unknown node"
	case x.snapshot().Node.Name:
		return e.State() + ", on this node"
	}
	return e.State() + ", on node " + e.Node
}

// about adds what the objects tell of an endpoint of the port.
func (x *explainer) about(p *service.Port, t *Target) {
	e := p.Endpoints.Find(service.Endpoint{Addr: t.addr})
	if e == nil {
		t.About = clean("not among the endpoints by " + x.facts.Source)
		return
	}
	t.About, t.here = clean(x.conditions(e)), e.Node != "" && e.Node == x.snapshot().Node.Name
}

// whyThese says why the packet goes to fewer endpoints than the Service has.
func (x *explainer) whyThese(e *Explanation) {
	s, p := x.servicePort()
	if p == nil {
		return
	}
	leftOut := x.leftOut(p)
	x.growing(e, p)
	if x.facts.Objects == nil || e.Affinity != nil {
		return
	}
	all := x.endpointsOf(p)
	ready, hintedHere, hintedZone := 0, 0, 0
	node := x.snapshot().Node
	for i := range all {
		if all[i].Ready && all[i].TakesNew() {
			ready++
			if all[i].Nodes.Has(node.Name) {
				hintedHere++
			}
			if all[i].Zones.Has(node.Zone) {
				hintedZone++
			}
		}
	}
	n := len(e.Endpoints)
	switch {
	case ready == 0:
		x.cause("no endpoint of Service %s is ready: those that still serve while they terminate get the connections", s.Name)
	case n < ready && n == hintedHere:
		x.cause("topology hints of the EndpointSlices leave %d of %d ready endpoints for this node", n, ready)
	case n < ready && n == hintedZone:
		x.cause("topology hints of the EndpointSlices leave %d of %d ready endpoints for the zone %s of this node", n, ready,
			node.Zone)
	case n < ready && s.InternalPolicy == service.Local && slices.Contains(s.ClusterIPs, x.question.Packet.Dst.Addr()):
		x.cause("the internalTrafficPolicy of Service %s is Local: only the %d of %d ready endpoints on this node count",
			s.Name, n, ready)
	}
	if waiting := len(all) - ready - leftOut; waiting > 0 && ready > 0 {
		x.cause("no new connections go to %s of the Service: not ready, or terminating", plural(waiting, "other endpoint"))
	}
}

// leftOut names the endpoints of the port that the node does without because they do not answer, and counts them.
func (x *explainer) leftOut(p *service.Port) (n int) {
	for _, a := range x.facts.Adjustments.At(service.Name(x.frontend.Service)).Of(p) {
		if a.Share != service.NoShare || !x.family().Has(a.Addr.Addr()) {
			continue
		}
		if n++; n <= most {
			x.cause("endpoint %s does not answer this node: left out %s", a.Addr, a.Text())
		}
	}
	return n
}

// growing names the endpoints with a part of their weight among those that the packet may go to.
func (x *explainer) growing(e *Explanation, p *service.Port) {
	adjusted, n := x.facts.Adjustments.At(service.Name(x.frontend.Service)), 0
	for i := range e.Endpoints {
		if a := adjusted.Find(p, e.Endpoints[i].addr); a != nil && a.Share != service.NoShare && n < most {
			n++
			x.cause("endpoint %s is growing %s", a.Addr, a.Text())
		}
	}
}

// findConflicts names Services that ask for the address and port, and do not get them.
func (x *explainer) findConflicts() {
	p := x.question.Packet
	if x.frontend.Shared {
		x.cause("%s is a cluster IP of several Services: Service %s has this port of it", p.Dst.Addr(), x.frontend.Service)
	}
	if x.facts.Objects == nil || !hasPorts(p) {
		return
	}
	protocol := service.Protocol(p.Protocol)
	claims := []service.Claim{{Addr: p.Dst.Addr(), Protocol: protocol, Port: p.Dst.Port()},
		{Addr: p.Dst.Addr(), Protocol: protocol}}
	if x.facts.Local(p.Dst.Addr()) {
		claims = append(claims, service.NodePortClaim(ip.Of(p.Dst.Addr()), &service.Port{Protocol: protocol,
			NodePort: p.Dst.Port()}))
	}
	for name, conflicts := range x.facts.Objects.Conflicts.All() {
		for _, claim := range claims {
			protection, lost := conflicts.Get(claim)
			if !lost || claim.IsRange() &&
				!x.facts.Objects.Services.At(name).Options.PortRanges.Of(protocol).Has(p.Dst.Port()) {
				continue
			}
			if len(x.causes) == mostCauses {
				x.omitted++
				continue
			}
			x.sayConflict(name, claim, protection)
		}
	}
}

func (x *explainer) sayConflict(loser service.Name, claim service.Claim, protection service.Protection) {
	owner, since, or := x.facts.Objects.Owners.Over(loser, claim), "", ""
	if protection == "" {
		since, or = ", since "+x.whyOwner(owner, loser, claim), " or "+string(owner)
	}
	x.cause("Service %s asks for %s and does not get it: %s%s", loser, claim, obstacle.Lost(owner, protection).Why, since)
	x.remedy("give Service %s%s another address or port", loser, or)
}

// whyOwner says by which rule the one goes before the other (model/claims/right.go).
func (x *explainer) whyOwner(owner, loser service.Name, claim service.Claim) string {
	a, b := x.service(string(owner)), x.service(string(loser))
	if a == nil || b == nil {
		return "it goes first"
	}
	rank := func(s *service.Service) int {
		switch {
		case claim.Addr.IsUnspecified() || slices.Contains(s.ClusterIPs, claim.Addr):
			return 0
		case slices.Contains(s.LoadBalancerIPs, claim.Addr):
			return 1
		}
		return 2
	}
	names := []string{"a cluster IP", "a load balancer's address", "an external IP"}
	if ra, rb := rank(a), rank(b); ra != rb {
		return fmt.Sprintf("%s goes before %s", names[ra], names[rb])
	}
	if a.Created.Equal(b.Created) {
		return "it is as old, and its name comes first"
	}
	return "it is older"
}

// compareWithObjects says where the tables do something else with the packet than the objects ask for.
func (x *explainer) compareWithObjects(ctx context.Context, e *Explanation) error {
	if x.facts.Objects == nil {
		return nil
	}
	config := ruleset.ReadBackConfig(x.facts.Tables, x.facts.Table)
	wanted := &explainer{question: x.question, facts: &Facts{
		Tables: ruleset.Compile(config, *x.facts.Objects).Model(), Table: x.facts.Table, Local: x.facts.Local,
	}}
	if err := wanted.walk(ctx); err != nil {
		return err
	}
	want, have := reached(wanted.targets()), reached(e.Endpoints)
	outcome := overall(wanted.results())
	if outcome == e.Outcome && (slices.Equal(want, have) || e.Affinity != nil && len(have) == 1 &&
		slices.Contains(want, have[0])) {
		return nil
	}
	x.cause("the tables differ from %s: the packet should %s", x.facts.Source, shouldText(outcome, want))
	if x.facts.NoOwner {
		x.remedy("start nftproxy run on this node: no process keeps the tables up to date")
		return nil
	}
	x.remedy("look at the log and at /healthz of nftproxy on this node: it has not brought the change into the kernel, " +
		"or another process has changed the tables")
	return nil
}

func shouldText(o Outcome, targets []string) string {
	switch o {
	case Endpoint:
		return "go to " + listText(targets)
	case Refused:
		return "be refused"
	case Dropped:
		return "be dropped"
	}
	return "be left alone"
}

// reached lists the addresses of endpoints, each once.
func reached(targets []Target) []string {
	var all []string
	for _, t := range targets {
		all = append(all, t.Address)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// healthCheck returns the Service whose healthCheckNodePort is the packet's port, nil for none.
func (x *explainer) healthCheck(p nft.Packet) *service.Service {
	if x.facts.Objects == nil || p.Protocol != uint8(service.TCP) {
		return nil
	}
	for _, s := range x.facts.Objects.Services.All() {
		if s.HealthCheckNodePort == p.Dst.Port() && s.HealthCheckNodePort != 0 {
			return s
		}
	}
	return nil
}

// closedSources says why the ranges of a Service let in nobody; nil if that is not known.
func (x *explainer) closedSources(by string) *service.ClosedSources {
	if x.facts.Objects == nil {
		return nil
	}
	return x.facts.Objects.ClosedSources.At(service.Name(by))
}

// rangesText lists the ranges in a set; it is empty if there is none of this family.
func (x *explainer) rangesText(name string) string {
	set := x.contents.Sets[name]
	if set == nil {
		return ""
	}
	var texts []string
	for _, e := range set.Elements {
		texts = append(texts, set.Set.Key.FormatRange(x.family(), e.Key, e.KeyEnd))
	}
	slices.Sort(texts)
	return listText(texts)
}

// portsText lists the ports of a Service.
func portsText(s *service.Service) string {
	var texts []string
	for i := range s.Ports {
		text := fmt.Sprintf("%s/%s", s.Ports[i].Number(), s.Ports[i].Protocol)
		if s.Ports[i].Name != "" {
			text += " (" + s.Ports[i].Name + ")"
		}
		texts = append(texts, text)
	}
	return listText(texts)
}

// listText joins texts, of which it names ten.
func listText(texts []string) string {
	if len(texts) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), len(texts)-most)
	}
	return strings.Join(texts, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func onOtherNodes(n int) string {
	if n == 1 {
		return "one endpoint is on another node"
	}
	return fmt.Sprintf("%d endpoints are on other nodes", n)
}

package explain

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// explainer explains one packet.
type explainer struct {
	question Question
	facts    *Facts
	// contents is the packet's table, nil if the kernel has none.
	contents *nft.Contents
	ways     []nft.Way
	complete bool
	// frontend is the Service that the rules found for the packet.
	frontend ruleset.ServiceName
	// accounts says what is said of rules, by their purpose.
	accounts map[ruleset.Purpose]account
	// readBack has the Services by the tables, once they were read.
	readBack *service.Snapshot

	causes, remedies, notes []string
	// omitted counts the causes beyond mostCauses.
	omitted int
}

func (x *explainer) family() nft.Family {
	return ip.Of(x.question.Packet.Dst.Addr())
}

// walk sends the packet through the tables of our name only: other tables of a model have other rules.
func (x *explainer) walk(ctx context.Context) error {
	x.accounts = accounts()
	only := nft.NewModel()
	if x.contents = x.facts.Tables.Table(nft.TableID{Family: x.family(), Name: x.facts.Table}); x.contents != nil {
		only.Put(x.contents)
	}
	x.ways, x.complete = only.Ways(ctx, x.question.Packet, x.facts.Local)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("follow the packet through the rules: %w", err)
	}
	for i := range x.ways[0].Steps {
		x.findFrontend(&x.ways[0].Steps[i])
	}
	return nil
}

// findFrontend keeps what the comments say of the Service. The first frontend counts: after it, comments
// name whose source ranges restrict the address.
func (x *explainer) findFrontend(s *nft.Step) {
	if !x.accounts[x.purpose(s)].finds {
		return
	}
	for _, l := range s.Lookups {
		if l.Found && l.Set.Verdicts && x.frontend == (ruleset.ServiceName{}) {
			x.frontend = ruleset.NameInComment(l.Element.Comment)
		}
	}
}

// purpose is what the rule of a step is for.
func (x *explainer) purpose(s *nft.Step) ruleset.Purpose {
	return ruleset.PurposeOf(s.Rule)
}

// results adds up the outcomes.
func (x *explainer) results() []Result {
	var all []Result
	for _, w := range x.ways {
		for _, end := range w.Ends {
			r := resultOf(end.Fate)
			at := slices.IndexFunc(all, func(o Result) bool { return o.Outcome == r.Outcome && o.By == r.By })
			if at < 0 {
				at, all = len(all), append(all, r)
			}
			all[at].Chance += end.Chance
		}
	}
	return all
}

func resultOf(fate nft.Fate) Result {
	switch fate {
	case nft.DNATed:
		return Result{Outcome: Endpoint}
	case nft.Dropped:
		return Result{Outcome: Dropped}
	case nft.Reset:
		return Result{Outcome: Refused, By: "tcp reset"}
	case nft.Unreachable:
		return Result{Outcome: Refused, By: "icmp port unreachable"}
	case nft.Undecided:
		return Result{Outcome: Undecided}
	}
	return Result{Outcome: Untouched}
}

// targets lists the endpoints, sorted, without what describe says of them.
func (x *explainer) targets() []Target {
	type place struct {
		at          netip.AddrPort
		masqueraded bool
	}
	targets := []Target{}
	known := map[place]int{} // the indexes in targets
	for i := range x.ways {
		w := &x.ways[i]
		by := ""
		for _, end := range w.Ends {
			if end.Fate != nft.DNATed {
				continue
			}
			if end.Masqueraded && by == "" {
				by = x.masqueradedBy(w)
			}
			t := Target{Address: targetText(x.question.Packet, end.To), Chance: end.Chance, Masqueraded: end.Masqueraded,
				addr: end.To}
			if end.Masqueraded {
				t.MasqueradedBy = by
			}
			at, again := known[place{t.addr, t.Masqueraded}]
			if !again {
				known[place{t.addr, t.Masqueraded}] = len(targets)
				targets = append(targets, t)
				continue
			}
			targets[at].Chance += t.Chance
		}
	}
	slices.SortFunc(targets, func(a, b Target) int { return a.addr.Compare(b.addr) })
	return targets
}

// describe adds to endpoints how packets get to them, and what the objects tell.
func (x *explainer) describe(targets []Target) {
	if x.facts.Way != nil {
		for i := range targets[:min(len(targets), MostWays)] {
			targets[i].Way = x.wayTo(targets[i].addr.Addr())
		}
	}
	if x.facts.Objects == nil {
		return
	}
	if _, p := x.servicePort(); p != nil {
		for i := range targets {
			x.about(p, &targets[i])
		}
	}
}

func (x *explainer) wayTo(a netip.Addr) string {
	switch way := x.facts.Way(a); {
	case x.facts.Local(a):
		return "to the node itself"
	case way == "":
		return noWay
	default:
		return clean(way)
	}
}

// masqueradedBy says which rules of the way masquerade.
func (x *explainer) masqueradedBy(w *nft.Way) string {
	var reasons []string
	for i := range w.Steps {
		s := &w.Steps[i]
		if !s.Matched {
			continue
		}
		why := x.fill(x.accounts[x.purpose(s)].masquerades, s, w)
		_, masquerade := statement[nft.Masquerade](s.Rule)
		_, snat := statement[nft.SNATTo](s.Rule)
		if x.purpose(s) == ruleset.NoPurpose && max(masquerade, snat) >= 0 {
			why = "the rule is not nftproxy's"
		}
		if why != "" {
			reasons = append(reasons, fmt.Sprintf("chain %s, rule %d: %s", s.Chain, s.Number, why))
		}
	}
	return strings.Join(reasons, "; ")
}

func (x *explainer) whyMarkAll(s *nft.Step) string {
	if x.failsOver() {
		return "the Service's " + obstacle.FailedOver
	}
	if x.isExternal(s) {
		return "the Service's externalTrafficPolicy is Cluster: every connection to an external address or node port is " +
			"masqueraded"
	}
	return "the proxy runs with --masquerade-all"
}

// isExternal says whether the packet came to another address than a cluster IP, or to a node port, by the rule's chain.
func (x *explainer) isExternal(s *nft.Step) bool {
	return strings.Contains(s.Chain, "node-port-") || !x.isClusterIP(x.question.Packet.Dst.Addr())
}

// isClusterIP says whether the table has the address among the cluster IPs.
func (x *explainer) isClusterIP(a netip.Addr) bool { return x.clusterIPOwner(a) != "" }

// clusterIPOwner names the Service that has the cluster IP; empty if none has.
func (x *explainer) clusterIPOwner(a netip.Addr) string {
	if x.contents == nil {
		return ""
	}
	return ruleset.ClusterIPOwner(x.contents, a)
}

// affinity is the client's entry, if the packet follows it.
func (x *explainer) affinity() *Affinity {
	for i := range x.ways[0].Steps {
		s := &x.ways[0].Steps[i]
		if x.purpose(s) != ruleset.FindClient || !s.Matched || s.Unknown {
			continue
		}
		l := s.Lookups[len(s.Lookups)-1]
		a := &Affinity{Map: l.Set.Name}
		for _, end := range x.ways[0].Ends {
			a.Endpoint = end.To.String()
		}
		if x.facts.Expires != nil {
			a.ExpiresSeconds = int64(x.facts.Expires(l.Set.Name, l.Key) / time.Second)
		}
		return a
	}
	return nil
}

// branches are the ways but the first.
func (x *explainer) branches() []Branch {
	branches := []Branch{}
	first := x.ways[0].Steps
	for i := range x.ways[1:] {
		w := &x.ways[1+i]
		same := 0
		for same < len(w.Steps) && same < len(first) && sameStep(&first[same], &w.Steps[same]) {
			same++
		}
		branches = append(branches, Branch{Chance: w.Chance(), Steps: x.steps(w, same)})
	}
	return branches
}

// sameStep says whether two steps are the same in words.
func sameStep(a, b *nft.Step) bool {
	return a.Chain == b.Chain && a.Number == b.Number && a.Hook == b.Hook && a.Matched == b.Matched && a.Last == b.Last
}

// steps describes the steps of a way from one on.
func (x *explainer) steps(w *nft.Way, from int) []Step {
	steps := []Step{}
	for i := from; i < len(w.Steps); i++ {
		s := &w.Steps[i]
		step := Step{
			Hook: s.Hook.String(), Table: s.Table.String(), Chain: s.Chain, Number: s.Number,
			Rule: s.Rule.Body().Text(s.Table.Family), Matched: s.Matched, Elements: []string{},
		}
		for _, l := range s.Lookups {
			if l.Found {
				step.Elements = append(step.Elements, l.Set.Name+": "+l.Element.Text(s.Table.Family, l.Set))
			}
		}
		step.Says, step.minor = x.say(s, w)
		steps = append(steps, step)
	}
	return steps
}

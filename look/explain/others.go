package explain

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"nftproxy/look/basechain"
	"nftproxy/nft"
)

// passage is a hook that the packet passes, up to a priority.
type passage struct {
	hook string
	upTo int32
}

// passages are the hooks on the packet's way, on the most likely way through our rules.
func (x *explainer) passages() []passage {
	w := &x.ways[0]
	end := w.Ends[0]
	var all []passage
	whole := func(hooks ...string) {
		for _, h := range hooks {
			all = append(all, passage{h, math.MaxInt32})
		}
	}
	to := x.question.Packet.Dst.Addr()
	if end.To.IsValid() {
		to = end.To.Addr()
	}
	switch local := x.facts.Local(to); {
	case x.question.Packet.FromNode && local:
		whole("output", "postrouting", "prerouting", "input")
	case x.question.Packet.FromNode:
		whole("output", "postrouting", "egress")
	case local:
		whole("ingress", "prerouting", "input")
	default:
		whole("ingress", "prerouting", "forward", "postrouting", "egress")
	}
	if end.Fate == nft.DNATed || end.Fate == nft.Untouched || len(w.Steps) == 0 {
		return all
	}
	// The packet ends at a rule of ours.
	last := w.Steps[len(w.Steps)-1]
	at := slices.IndexFunc(all, func(p passage) bool { return p.hook == last.Hook.String() })
	if at < 0 {
		return all
	}
	all = all[:at+1]
	all[at].upTo = x.priorityAt(last.Hook)
	return all
}

// priorityAt is that of our chain at a hook.
func (x *explainer) priorityAt(hook nft.HookName) int32 {
	for _, c := range x.contents.Chains {
		if c.Hook != nil && c.Hook.Name == hook {
			return c.Hook.Priority
		}
	}
	return math.MaxInt32
}

// others are the chains of other programs on the way that may drop or change the packet, and those that may set marks
// by the addresses from before our translation, in their order.
func (x *explainer) others() []Other {
	others := []Other{}
	for _, p := range x.passages() {
		for i := range x.facts.Chains {
			c := &x.facts.Chains[i]
			if c.Hook != p.hook || c.Priority > p.upTo || c.Harmless() && !(marks(c) && x.viewOf(c) != basechain.Later) ||
				!x.sees(c) || x.isOurs(c) {
				continue
			}
			others = append(others, Other{*c, x.sayOther(c)})
		}
	}
	return others
}

// sees says whether chains of the family see the packet.
func (x *explainer) sees(c *basechain.Chain) bool {
	switch c.Family {
	case "inet", "bridge", "netdev":
		return true
	case "ip":
		return x.family() == nft.IPv4
	case "ip6":
		return x.family() == nft.IPv6
	}
	return false
}

// isOurs says whether the walk through our tables has gone through the chain, or it drops none of the packets that are
// explained: a first packet is not invalid. Another process may have put a chain of another type into our table: that
// one counts as another program's.
func (x *explainer) isOurs(c *basechain.Chain) bool {
	return c.DropsInvalid(x.facts.Table) || !c.Legacy && c.Family == x.family().String() && c.Table == x.facts.Table &&
		c.Type == "nat" && !c.PolicyDrop
}

func marks(c *basechain.Chain) bool { return c.Rules.Marks || c.Rules.MarksConnections }

// viewOf says which addresses the chain sees, if our chains translate the packet.
func (x *explainer) viewOf(c *basechain.Chain) basechain.View {
	switch {
	case x.contents == nil, x.question.Packet.FromNode && c.Hook != "output":
		return basechain.Later
	case x.question.Packet.FromNode:
		return c.ViewOf(x.priorityAt(nft.Output))
	}
	return c.ViewOf(x.priorityAt(nft.Prerouting))
}

// sayView is about a chain that goes by addresses.
func (x *explainer) sayView(c *basechain.Chain) string {
	switch x.viewOf(c) {
	case basechain.Earlier:
		return "it sees the addresses from before nftproxy's translation"
	case basechain.Unknown:
		return "it has nftproxy's priority, and sees the addresses from before nftproxy's translation if it was made after " +
			"nftproxy's chain"
	}
	return ""
}

func (x *explainer) sayOther(c *basechain.Chain) string {
	var does []string
	if c.PolicyDrop {
		does = append(does, "drops what no rule accepts")
	}
	if c.Rules.Drops {
		does = append(does, "has rules that drop or reject packets")
	}
	if c.Rules.Queues {
		does = append(does, "has rules that hand packets to another program (a queue), which decides whether they go on")
	}
	if c.Rules.Translates {
		before := ""
		if first := x.question.Packet; c.Type == "nat" && (c.Hook == "prerouting" || c.Hook == "output") &&
			x.contents != nil {
			hook := nft.Prerouting
			if first.FromNode {
				hook = nft.Output
			}
			before = ", after nftproxy's"
			if c.Priority <= x.priorityAt(hook) {
				before = ", perhaps before nftproxy's: what they translate first, nftproxy's rules do not see"
			}
		}
		does = append(does, "has rules that change addresses"+before)
	}
	if c.Rules.Untracks {
		does = append(does, "has rules that take packets out of connection tracking: nftproxy's rules do not see these")
	}
	if marks(c) && x.viewOf(c) != basechain.Later {
		does = append(does, "has rules that set marks")
	}
	if view := x.sayView(c); view != "" && (c.PolicyDrop || c.Rules.Drops || c.Rules.Queues || marks(c)) {
		does = append(does, view)
	}
	if c.Family == "bridge" || c.Family == "netdev" {
		does = append(does, "counts only if the packet passes a "+map[string]string{"bridge": "bridge",
			"netdev": "device that it names"}[c.Family])
	}
	program := ""
	if c.Program != "" {
		program = ", of " + c.Program
	}
	return clean(fmt.Sprintf("hook %s, priority %d: chain %s in table %s%s %s", c.Hook, c.Priority, c.Name, c.TableText(),
		program, strings.Join(does, "; ")))
}

package ruleset

import (
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// DefaultTable is the name of the tables, one in each family. It differs from kube-proxy's, so both
// can run beside each other during a migration.
const DefaultTable = "nftproxy"

// kubeProxyMark is kube-proxy's bit of the packet mark. Without labels the rules use it too.
const kubeProxyMark = 0x4000

// masqueradeLabel is the connection's label that says that it is to be masqueraded. Names for
// labels (connlabel.conf) begin at 0, and Open vSwitch sets labels in zones of its own.
const masqueradeLabel = 110

// Config is everything that the program depends on besides the snapshot.
type Config struct {
	// Table is the name of both tables.
	Table string
	// Settings are in force for a snapshot whose node has none.
	service.Settings
	// DNSTimeouts are those of connections to UDP port 53 of Services that ask for no time-outs for UDP; the zero value
	// for the node's.
	DNSTimeouts service.Timeouts
	// Counters gives the elements of frontends and endpoints counters of new connections
	// (CounterPlace). With another value Plan makes the sets of these elements again.
	Counters bool
	// Uncounted leaves out all counters, those of Counters too. The rules refuse and drop the
	// same packets. It is for kernels that cannot count (kernel.Conn.TryCounters).
	Uncounted bool
	// Unlabelled makes the rules use a bit of the packet mark, as kube-proxy does, instead of a
	// label of the connection. It is for kernels without labels (kernel.Conn.TryLabels).
	Unlabelled bool
	// Unlogged leaves out the rules of Settings.Flows. It is for kernels that cannot log sampled connections
	// (kernel.Conn.TryFlows).
	Unlogged bool
}

// The longest name of an interface in Linux, in bytes, and the longest prefix that
// nft can read back from its own listing.
const (
	MaxInterfaceName   = 15
	MaxInterfacePrefix = 14
)

// mark is the bit of the packet mark that says that a packet is to be masqueraded; 0 if a label of
// the connection says so.
func (c *Config) mark() uint32 {
	if c.MasqueradeMark == 0 && c.Unlabelled {
		return kubeProxyMark
	}
	return c.MasqueradeMark
}

// toMasquerade says that the connection is to be masqueraded, before it is translated.
func (c *Config) toMasquerade() nft.Statement {
	if mark := c.mark(); mark != 0 {
		return nft.SetMark{Mask: mark}
	}
	return nft.SetLabel{Bit: masqueradeLabel}
}

// masqueradeRules masquerade what toMasquerade was said of, but for what goes to the ranges of NoMasquerade, and
// connections that come back to their own pod. source is the address that they get, if it is valid.
func (c *Config) masqueradeRules(f nft.Family, source netip.Addr) []nft.Rule {
	var masquerade nft.Statement = nft.Masquerade{}
	if source.IsValid() {
		masquerade = nft.SNATTo{Addr: source}
	}
	hairpinRule := MasqueradeHairpin.rule(nft.InSet{Key: pair(), Set: hairpin}, nft.MatchDNATed{}, masquerade)
	var spared []nft.Statement
	for _, p := range c.NoMasqueradeOf(f) {
		spared = append(spared, nft.MatchAddr{Field: nft.Daddr, Not: true, Prefix: p})
	}
	mark := c.mark()
	if mark == 0 {
		marked := slices.Concat([]nft.Statement{nft.MatchLabel{Bit: masqueradeLabel}}, spared, []nft.Statement{masquerade})
		return []nft.Rule{MasqueradeMarked.rule(marked...), hairpinRule}
	}
	marked := slices.Concat([]nft.Statement{nft.MatchMark{Mask: mark}}, spared, []nft.Statement{nft.ClearMark{Mask: mark},
		masquerade})
	rules := []nft.Rule{MasqueradeMarked.rule(marked...)}
	if len(spared) > 0 {
		rules = append(rules, c.arrivedRules()...)
	}
	return append(rules, hairpinRule)
}

// arrivedRules are for packets that stay on the node, or are not masqueraded. They have no source to hide, but perhaps
// a mark to clear.
func (c *Config) arrivedRules() []nft.Rule {
	if mark := c.mark(); mark != 0 {
		return []nft.Rule{Unmark.rule(nft.MatchMark{Mask: mark}, nft.ClearMark{Mask: mark})}
	}
	return nil
}

// pods says how the rules of one family tell pods from others. By the zero value they
// cannot.
type pods struct {
	in   service.Interface
	from []netip.Prefix // disjoint and sorted
	// here has the ranges, inside of those in from, whose pods are on the node, as far as that is
	// known. It is disjoint and sorted, too.
	here []netip.Prefix
}

func (p pods) equal(o pods) bool {
	return p.in == o.in && slices.Equal(p.from, o.from) && slices.Equal(p.here, o.here)
}

func (c *Config) pods(f nft.Family, node *service.Node) pods {
	if c.PodInterface.Name != "" {
		return pods{in: c.PodInterface}
	}
	p := pods{from: c.PodRanges(node, f)}
	for _, r := range p.from {
		for _, own := range node.PodCIDRs {
			if own.Overlaps(r) {
				p.here = append(p.here, service.Smaller(own, r))
			}
		}
	}
	p.here = service.Disjoint(p.here)
	return p
}

// Pod reports whether the rules treat packets from the address as packets of a pod. If the rules
// decide by interfaces, known is false. The node's own settings override c's.
func (c *Config) Pod(node *service.Node, a netip.Addr) (pod, known bool) {
	if node.Settings != nil {
		c = &Config{Table: c.Table, Settings: *node.Settings}
	}
	p := c.pods(ip.Of(a), node)
	return slices.ContainsFunc(p.from, func(r netip.Prefix) bool { return r.Contains(a) }), p.in.Name == ""
}

// all returns statements of which exactly one matches a packet of a pod, and none another packet. There are none if
// pods cannot be told from others.
func (p pods) all() []nft.Statement {
	if p.in.Name != "" {
		return []nft.Statement{nft.MatchInput{Name: p.in.Name, Prefix: p.in.Prefix}}
	}
	return fromAny(p.from)
}

// ofNode is all for the pods that are known to be on the node. An interface of pods has those of the node.
func (p pods) ofNode() []nft.Statement {
	if p.in.Name != "" {
		return p.all()
	}
	return fromAny(p.here)
}

// ofOtherNodes returns statements of which one matches a packet of a pod that is not known to be on the
// node. They match pods of the node, too. There are none if all pods are known to be on the node.
func (p pods) ofOtherNodes() []nft.Statement {
	if slices.Equal(p.from, p.here) {
		return nil
	}
	return fromAny(p.from)
}

// arriveAt says whether packets of the node's own pods may come in by the interface that has one of the node's
// addresses: pods share its link, or it is their gateway, which has an address in their ranges that is not the Node's.
func (p pods) arriveAt(a netip.Addr, node *service.Node) bool {
	return slices.Contains(node.SharedAddresses, a) ||
		!slices.Contains(node.Addresses, a) && slices.ContainsFunc(p.from, func(r netip.Prefix) bool { return r.Contains(a) })
}

func fromAny(ranges []netip.Prefix) []nft.Statement {
	var list []nft.Statement
	for _, r := range ranges {
		list = append(list, nft.MatchAddr{Field: nft.Saddr, Prefix: r})
	}
	return list
}

// others returns statements that together match packets of clients that are no pods. There are none if
// pods cannot be told from others.
func (p pods) others() []nft.Statement {
	if p.in.Name != "" {
		return []nft.Statement{nft.MatchInput{Not: true, Name: p.in.Name, Prefix: p.in.Prefix}}
	}
	var list []nft.Statement
	for _, r := range p.from {
		list = append(list, nft.MatchAddr{Field: nft.Saddr, Not: true, Prefix: r})
	}
	return list
}

package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/ip"
)

// Packet is the first packet of a connection. One of ICMP or ICMPv6 is an echo request.
type Packet struct {
	Src, Dst netip.AddrPort
	// Protocol is the IP protocol's number.
	Protocol uint8
	// Input is the interface that the packet comes in by; empty where that does not
	// matter, and with FromNode.
	Input string
	// ToInput says that the destination is an address of that interface.
	ToInput bool
	// FromNode says that a process of the node sends the packet. Any other packet
	// comes in through an interface.
	FromNode bool
}

func (p Packet) String() string {
	from := ""
	switch {
	case p.FromNode:
		from = "node "
	case p.ToInput:
		from = "at " + p.Input + " "
	case p.Input != "":
		from = p.Input + " "
	}
	return fmt.Sprintf("%s%s -> %s/%s", from, p.Src, p.Dst, ProtocolText(p.Protocol))
}

// Host is what the interpreter needs to know about the node besides its tables.
type Host struct {
	// Local says whether the routing table calls an address local.
	Local func(netip.Addr) bool
	// Random returns a number below n, as numgen does.
	Random func(n uint32) uint32
}

// Fate is how a packet leaves the node's nat hooks.
type Fate string

// The fates of a packet.
const (
	Untouched Fate = "untouched"
	DNATed    Fate = "dnat"
	Dropped   Fate = "dropped"
	// Reset and Unreachable are refusals: by a TCP reset or by ICMP.
	Reset       Fate = "reset"
	Unreachable Fate = "unreachable"
	// Undecided packets meet a rule, set or verdict that the model does not know. Only
	// tables that were read from a kernel have such.
	Undecided Fate = "undecided"
)

// Result says where one packet went and what it left behind.
type Result struct {
	Fate Fate
	// To is the new destination of a DNATed packet.
	To netip.AddrPort
	// Masqueraded packets leave with an address of the node: Source, or if that is not valid, one that the kernel chooses.
	Masqueraded bool
	Source      netip.Addr
	// Timeout names the object whose time-outs the connection has; empty for the node's.
	Timeout string
	// Mark is what is left in the mark of a packet that leaves.
	Mark uint32
	// Learned is what the packet adds to dynamic maps.
	Learned []Learned
	// Path lists the rules that matched, "hook/chain: rule".
	Path []string
}

// Trace sends the packet through the nat hooks of the model's tables, as the kernel would:
// prerouting or output, then input or postrouting.
func (m *Model) Trace(p Packet, h Host) Result { return m.walk(&walk{packet: p, host: h, dst: p.Dst}) }

func (m *Model) walk(w *walk) Result {
	p := w.packet
	first := Prerouting
	if p.FromNode {
		first = Output
	}
	if w.runHook(m, first) {
		if w.host.Local(w.dst.Addr()) && !p.FromNode {
			w.runHook(m, Input)
		} else {
			w.runHook(m, Postrouting)
		}
	}
	switch w.result.Fate {
	case "":
		w.result.Fate = Untouched
	case Dropped, Reset, Unreachable, Undecided: // perhaps after it was translated and marked
		w.result.To, w.result.Timeout, w.mark = netip.AddrPort{}, "", 0
	}
	w.result.Mark = w.mark
	return w.result
}

// SameAs says that both are the same outcome, whatever they learned and whichever way they went.
func (r Result) SameAs(o Result) bool {
	return r.Fate == o.Fate && r.To == o.To && r.Masqueraded == o.Masqueraded && r.Source == o.Source &&
		r.Timeout == o.Timeout && r.Mark == o.Mark
}

func (r Result) String() string {
	s := string(r.Fate)
	if r.Fate == DNATed {
		s = r.To.String()
	}
	if r.Masqueraded {
		s += " masqueraded"
	}
	if r.Source.IsValid() {
		s += " as " + r.Source.String()
	}
	if r.Timeout != "" {
		s += " for " + r.Timeout
	}
	if r.Mark != 0 {
		s += fmt.Sprintf(" mark 0x%x", r.Mark)
	}
	return s
}

// walk is one packet on its way.
type walk struct {
	packet Packet
	host   Host
	dst    netip.AddrPort
	mark   uint32
	// labels has those of the connection.
	labels map[uint8]bool
	result Result
	at     HookName
	// depth is the number of chains that the packet is in, and met that of the rules it has met.
	depth, met int
	// steps notes the way; nil where nobody asks for it.
	steps *steps
}

// maxDepth is the number of chains that a packet can be in (NFT_JUMP_STACK_SIZE). The kernel lets no
// rule lead deeper, but a model of tables that changed while they were read may.
const maxDepth = 16

// maxMet is the number of rules that a packet can meet. No program of ours has such a way. But chains of
// others that jump to each other multiply: ten jumps in each of sixteen chains are 10^16 rules.
const maxMet = 1 << 14

// outcome of evaluating a rule or chain.
type outcome int

const (
	nextRule   outcome = iota // the rule did not match, or had no verdict
	toCaller                  // the evaluation returns to the calling chain
	hookDone                  // no more rules of the hook; the packet goes on
	packetGone                // the packet was dropped or refused
)

// runHook runs the base chains of one hook in the order of their priorities. It
// returns whether the packet goes on.
func (w *walk) runHook(m *Model, at HookName) bool {
	w.at = at
	family := ip.Of(w.packet.Dst.Addr())
	type base struct {
		table *Contents
		chain *Chain
	}
	var bases []base
	for id, c := range m.Tables {
		for _, chain := range c.Chains {
			if id.Family == family && chain.Hook != nil && chain.Hook.Name == at {
				bases = append(bases, base{c, chain})
			}
		}
	}
	slices.SortFunc(bases, func(a, b base) int {
		return cmp.Or(cmp.Compare(a.chain.Hook.Priority, b.chain.Hook.Priority), strings.Compare(a.chain.Name, b.chain.Name))
	})
	translated := false
	for _, b := range bases {
		// A nat hook runs no further chain once one has translated.
		if translated {
			break
		}
		before := w.result
		if w.runChain(b.table, b.chain) == packetGone {
			return false
		}
		translated = before.Fate != w.result.Fate || before.Masqueraded != w.result.Masqueraded
	}
	return true
}

func (w *walk) runChain(t *Contents, c *Chain) outcome {
	if c == nil || w.depth > maxDepth {
		return w.undecided()
	}
	w.depth++
	defer func() { w.depth-- }()
	for i, r := range c.Rules {
		switch o := w.runRule(t, c, i, r); o {
		case nextRule:
		case toCaller:
			return nextRule
		default:
			return o
		}
	}
	return nextRule
}

// undecided ends the walk: the model does not know what the kernel does next.
func (w *walk) undecided() outcome {
	w.result.Fate = Undecided
	return packetGone
}

func (w *walk) runRule(t *Contents, c *Chain, number int, r Rule) outcome {
	if w.met++; w.met > maxMet {
		return w.undecided()
	}
	step := w.steps.begin(Step{Hook: w.at, Table: t.Table, Chain: c.Name, Number: number + 1, Rule: r, Destination: w.dst})
	for i, s := range r {
		o, matched := w.runStatement(t, s)
		w.steps.ran(step, i, o, matched, w)
		if !matched {
			return nextRule
		}
		if i == len(r)-1 || o != nextRule {
			w.result.Path = append(w.result.Path, fmt.Sprintf("%s/%s: %s", w.at, c.Name, r.Text(t.Table.Family)))
		}
		if o != nextRule {
			return o
		}
	}
	return nextRule
}

func (w *walk) runStatement(t *Contents, s Statement) (o outcome, matched bool) {
	switch s := s.(type) {
	case MatchAddr:
		return nextRule, s.Prefix.Contains(w.addr(s.Field)) != s.Not
	case MatchProto:
		return nextRule, w.packet.Protocol == s.Protocol
	case MatchEcho:
		return nextRule, w.packet.Protocol == EchoProtocol(t.Table.Family)
	case MatchMidstream: // the packet is the first one of its connection
		return nextRule, false
	case Limit, Sample: // one packet is within any limit, and may be in any sample
		return nextRule, true
	case DNATTo:
		return w.translateTo(netip.AddrPortFrom(s.Addr, w.dst.Port())), true
	case MatchLocal:
		return nextRule, (w.host.Local(w.addr(s.Field)) && (!s.Input || w.packet.ToInput && w.dst == w.packet.Dst)) != s.Not
	case MatchInput:
		return nextRule, s.matches(w.packet.Input) != s.Not
	case MatchMark:
		return nextRule, w.mark&s.Mask != 0
	case MatchLabel:
		return nextRule, w.labels[s.Bit]
	case MatchDNATed:
		// The kernel does not set the status for a translation to where the packet goes anyway (nf_nat_setup_info).
		return nextRule, w.result.Fate == DNATed && w.dst != w.packet.Dst
	case InSet:
		_, found, known := w.look(t, s.Set, s.Key, w.key(s.Key))
		if !known {
			return w.undecided(), true
		}
		return nextRule, found
	case VMap:
		e, found, known := w.look(t, s.Map, s.Key, w.key(s.Key))
		switch {
		case !known:
			return w.undecided(), true
		case !found:
			return nextRule, false
		}
		return w.runVerdict(t, e.Verdict), true
	case DNAT:
		return w.translate(t, s)
	case Update:
		if !t.known(s.Map) {
			return w.undecided(), true
		}
		return nextRule, w.update(t, s)
	case Unknown:
		return w.undecided(), true
	}
	return w.runAction(t, s), true
}

func (w *walk) translate(t *Contents, s DNAT) (o outcome, matched bool) {
	key, fields := w.key(s.Key), s.Key
	if s.Mod > 0 {
		key = key.WithIndex(int(w.index(s)))
	}
	if s.Mod > 0 && w.steps != nil {
		fields = append(slices.Clip(s.Key), Index)
	}
	e, found, known := w.look(t, s.Map, fields, key)
	addrLen := t.Table.Family.AddrLen()
	switch {
	case !known, found && len(e.Data) < addrLen, found && !s.KeepPort && len(e.Data) < addrLen+2:
		return w.undecided(), true
	case !found:
		return nextRule, false
	}
	to, _ := netip.AddrFromSlice([]byte(e.Data[:addrLen]))
	port := w.dst.Port()
	if !s.KeepPort {
		port = binary.BigEndian.Uint16([]byte(e.Data[addrLen:]))
	}
	return w.translateTo(netip.AddrPortFrom(to, port)), true
}

func (w *walk) translateTo(to netip.AddrPort) outcome {
	w.dst = to
	w.result.Fate, w.result.To = DNATed, w.dst
	return hookDone
}

// index is the index that the statement appends to its key. The hash of a flow without a source port is unknown: any
// index may be meant.
func (w *walk) index(s DNAT) uint32 {
	if len(s.Hash) == 0 || slices.Contains(s.Hash, Sport) && w.packet.Src.Port() == 0 {
		return w.host.Random(s.Mod)
	}
	return hashIndex([]byte(w.key(s.Hash)), s.Mod)
}

// look looks a key up in a set or map. known says that the model knows the set's elements.
func (w *walk) look(t *Contents, set string, fields Fields, key Value) (e Element, found, known bool) {
	if !t.known(set) {
		return e, false, false
	}
	if e, found = t.Sets[set].find(t.Table.Family, key); !found {
		e, found = w.learned(t.Table, set, key)
	}
	w.steps.looked(Lookup{Set: t.Sets[set].Set, Fields: fields, Key: key, Found: found, Element: e})
	return e, found, true
}

// known says that the table has the set or map, and that a reader recognised it.
func (c *Contents) known(set string) bool { return c.Sets[set] != nil && len(c.Sets[set].Set.Key) > 0 }

// runAction carries out a statement that always holds.
func (w *walk) runAction(t *Contents, s Statement) outcome {
	switch s := s.(type) {
	case SetMark:
		w.mark |= s.Mask
	case ClearMark:
		w.mark &^= s.Mask
	case SetLabel:
		if w.labels == nil {
			w.labels = map[uint8]bool{}
		}
		w.labels[s.Bit] = true
	case SetTimeout:
		if timeout, ok := t.Timeouts[s.Name]; !ok {
			return w.undecided()
		} else if timeout.Protocol == w.packet.Protocol {
			w.result.Timeout = s.Name
		}
	case Counter, Comment, Log: // they change nothing of the packet
	case Masquerade:
		w.result.Masqueraded = true
		return hookDone
	case SNATTo:
		w.result.Masqueraded, w.result.Source = true, s.Addr
		return hookDone
	case Reject:
		w.result.Fate = Unreachable
		if s.TCPReset {
			w.result.Fate = Reset
		}
		return packetGone
	case Verdict:
		return w.runVerdict(t, s)
	default:
		panic(fmt.Sprintf("statement %T has no evaluation", s))
	}
	return nextRule
}

func (w *walk) runVerdict(t *Contents, v Verdict) outcome {
	switch v.Code {
	case Drop:
		w.result.Fate = Dropped
		return packetGone
	case Accept:
		return hookDone
	case Return:
		return toCaller
	case Jump:
		return w.runChain(t, t.Chains[v.Chain])
	case Goto:
		// The rules behind a goto are not evaluated: it returns to the caller's
		// caller, or ends the base chain.
		if o := w.runChain(t, t.Chains[v.Chain]); o != nextRule {
			return o
		}
		return toCaller
	}
	return w.undecided() // a verdict that no program has
}

func (s MatchInput) matches(name string) bool {
	return name == s.Name || s.Prefix && strings.HasPrefix(name, s.Name)
}

func (w *walk) addr(f Field) netip.Addr {
	if f == Saddr {
		return w.packet.Src.Addr()
	}
	return w.dst.Addr()
}

// key builds the concatenation from the packet's fields.
func (w *walk) key(fields Fields) Value {
	var b []byte
	for _, f := range fields {
		switch f {
		case Saddr, Daddr:
			b = AppendAddr(b, w.addr(f))
		case L4Proto:
			b = AppendProto(b, w.packet.Protocol)
		case Dport:
			b = AppendPort(b, w.dst.Port())
		case OrigSaddr:
			b = AppendAddr(b, w.packet.Src.Addr())
		case OrigDaddr:
			b = AppendAddr(b, w.packet.Dst.Addr())
		case OrigDport:
			b = AppendPort(b, w.packet.Dst.Port())
		case Sport:
			b = AppendPort(b, w.packet.Src.Port())
		}
	}
	return Value(b)
}

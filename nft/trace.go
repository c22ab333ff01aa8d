package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is the first packet of a connection, as conntrack sees it new.
type Packet struct {
	Src, Dst netip.AddrPort
	// Protocol is the IP protocol's number.
	Protocol uint8
	// Input is the interface that it comes in by; empty where that does not
	// matter, and for FromNode.
	Input string
	// FromNode is a packet that a process of the node itself sends; any other
	// comes in through an interface.
	FromNode bool
}

func (p Packet) String() string {
	from := ""
	switch {
	case p.FromNode:
		from = "node "
	case p.Input != "":
		from = p.Input + " "
	}
	return fmt.Sprintf("%s%s -> %s/%s", from, p.Src, p.Dst, ProtocolText(p.Protocol))
}

// Host is what the interpreter must know about the node beside its tables.
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
)

// Result is what became of one packet.
type Result struct {
	Fate Fate
	// To is the new destination of a DNATed packet.
	To netip.AddrPort
	// Masqueraded packets leave with an address of the node.
	Masqueraded bool
	// Mark is what is left in the mark of a packet that leaves.
	Mark uint32
	// Learned is what it added to dynamic maps; Model.Learn keeps it there.
	Learned []Learned
	// Path lists the rules that matched, "hook/chain: rule".
	Path []string
}

// Trace sends the packet through the nat hooks of the model's tables: those of
// prerouting or output, then input or postrouting, as the kernel would.
func (m *Model) Trace(p Packet, h Host) Result {
	w := &walk{packet: p, host: h, dst: p.Dst}
	first := Prerouting
	if p.FromNode {
		first = Output
	}
	if w.hook(m, first) {
		if w.host.Local(w.dst.Addr()) && !p.FromNode {
			w.hook(m, Input)
		} else {
			w.hook(m, Postrouting)
		}
	}
	switch w.result.Fate {
	case "":
		w.result.Fate = Untouched
	case Dropped, Reset, Unreachable: // perhaps after it was translated and marked
		w.result.To, w.mark = netip.AddrPort{}, 0
	}
	w.result.Mark = w.mark
	return w.result
}

// Outcomes traces the packet with every number that numgen can give and
// returns the distinct results, without paths, sorted by destination.
func (m *Model) Outcomes(p Packet, local func(netip.Addr) bool) []Result {
	var all []Result
	bound := uint32(1)
	for i := uint32(0); i < bound; i++ {
		r := m.Trace(p, Host{Local: local, Random: func(n uint32) uint32 {
			bound = max(bound, n)
			return i % n
		}})
		r.Path, r.Learned = nil, nil
		if !slices.ContainsFunc(all, r.same) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b Result) int {
		return cmp.Or(a.To.Compare(b.To), strings.Compare(string(a.Fate), string(b.Fate)))
	})
	return all
}

func (r Result) same(o Result) bool {
	return r.Fate == o.Fate && r.To == o.To && r.Masqueraded == o.Masqueraded && r.Mark == o.Mark
}

func (r Result) String() string {
	s := string(r.Fate)
	if r.Fate == DNATed {
		s = r.To.String()
	}
	if r.Masqueraded {
		s += " masqueraded"
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
	result Result
	at     HookName
}

// outcome of evaluating a rule or chain.
type outcome int

const (
	next outcome = iota // the rule did not match, or had no verdict
	back                // return to the calling chain
	done                // the hook is through, the packet goes on
	stop                // the packet is gone
)

// hook runs the base chains of one hook in the order of their priorities; it
// reports whether the packet goes on.
func (w *walk) hook(m *Model, at HookName) bool {
	w.at = at
	family := IPv4
	if w.packet.Dst.Addr().Is6() {
		family = IPv6
	}
	type base struct {
		table *Contents
		chain *Chain
	}
	var bases []base
	for id, c := range m.tables {
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
		// A nat hook asks no further chain once one has translated.
		if translated {
			break
		}
		before := w.result
		if w.chain(b.table, b.chain) == stop {
			return false
		}
		translated = before.Fate != w.result.Fate || before.Masqueraded != w.result.Masqueraded
	}
	return true
}

func (w *walk) chain(t *Contents, c *Chain) outcome {
	for _, r := range c.Rules {
		switch o := w.rule(t, c, r); o {
		case next:
		case back:
			return next
		default:
			return o
		}
	}
	return next
}

func (w *walk) rule(t *Contents, c *Chain, r Rule) outcome {
	for i, s := range r {
		o, matched := w.statement(t, c, s)
		if !matched {
			return next
		}
		if i == len(r)-1 || o != next {
			w.result.Path = append(w.result.Path, fmt.Sprintf("%s/%s: %s", w.at, c.Name, r.Text(t.Table.Family)))
		}
		if o != next {
			return o
		}
	}
	return next
}

func (w *walk) statement(t *Contents, c *Chain, s Statement) (o outcome, matched bool) {
	switch s := s.(type) {
	case MatchAddr:
		return next, s.Prefix.Contains(w.addr(s.Field)) != s.Not
	case MatchProto:
		return next, w.packet.Protocol == s.Protocol
	case MatchLocal:
		return next, w.host.Local(w.addr(s.Field)) != s.Not
	case MatchInput:
		return next, s.matches(w.packet.Input) != s.Not
	case MatchMark:
		return next, w.mark&s.Mask != 0
	case MatchDNATed:
		return next, w.result.Fate == DNATed
	case InSet:
		_, found := t.Sets[s.Set].find(t.Table.Family, w.key(s.Key))
		return next, found
	case VMap:
		e, found := t.Sets[s.Map].find(t.Table.Family, w.key(s.Key))
		if !found {
			return next, false
		}
		return w.verdict(t, e.Verdict), true
	case DNAT:
		key := w.key(s.Key)
		if s.Mod > 0 {
			key = key.WithIndex(int(w.host.Random(s.Mod)))
		}
		e, found := t.Sets[s.Map].find(t.Table.Family, key)
		if !found {
			return next, false
		}
		w.dst = addrPort(e.Data, t.Table.Family)
		w.result.Fate, w.result.To = DNATed, w.dst
		return done, true
	case Update:
		return next, w.update(t, s)
	}
	return w.action(t, s), true
}

// action carries out a statement that always holds.
func (w *walk) action(t *Contents, s Statement) outcome {
	switch s := s.(type) {
	case SetMark:
		w.mark |= s.Mask
	case ClearMark:
		w.mark &^= s.Mask
	case Masquerade:
		w.result.Masqueraded = true
		return done
	case Reject:
		w.result.Fate = Unreachable
		if s.TCPReset {
			w.result.Fate = Reset
		}
		return stop
	case Verdict:
		return w.verdict(t, s)
	default:
		panic(fmt.Sprintf("statement %T has no evaluation", s))
	}
	return next
}

func (w *walk) verdict(t *Contents, v Verdict) outcome {
	switch v.Code {
	case Drop:
		w.result.Fate = Dropped
		return stop
	case Accept:
		return done
	case Return:
		return back
	case Jump:
		return w.chain(t, t.Chains[v.Chain])
	case Goto:
		// The rules behind a goto are not evaluated: it returns to the caller's
		// caller, or ends the base chain.
		if o := w.chain(t, t.Chains[v.Chain]); o != next {
			return o
		}
		return back
	}
	panic(fmt.Sprintf("verdict %d has no evaluation", v.Code))
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
		}
	}
	return Value(b)
}

func addrPort(v Value, f Family) netip.AddrPort {
	a, _ := netip.AddrFromSlice([]byte(v[:f.AddrLen()]))
	port := v[f.AddrLen():]
	return netip.AddrPortFrom(a, uint16(port[0])<<8|uint16(port[1]))
}

// ParsePacket reads what Packet.String writes.
func ParsePacket(s string) (Packet, error) {
	var p Packet
	src, rest, ok := strings.Cut(s, " -> ")
	dst, protocol, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		return p, fmt.Errorf("packet %q: want [node | INTERFACE] SOURCE:PORT -> DESTINATION:PORT/PROTOCOL", s)
	}
	if from, rest, found := strings.Cut(src, " "); found {
		src = rest
		if p.FromNode = from == "node"; !p.FromNode {
			p.Input = from
		}
	}
	var err error
	if p.Src, err = netip.ParseAddrPort(src); err != nil {
		return p, fmt.Errorf("packet %q: %w", s, err)
	}
	if p.Dst, err = netip.ParseAddrPort(dst); err != nil {
		return p, fmt.Errorf("packet %q: %w", s, err)
	}
	for n := range 256 {
		if ProtocolText(uint8(n)) == protocol {
			p.Protocol = uint8(n)
			return p, nil
		}
	}
	return p, fmt.Errorf("packet %q: unknown protocol %q", s, protocol)
}

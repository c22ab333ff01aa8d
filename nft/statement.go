package nft

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Statement is one step of a rule: a match, which ends the rule when it does
// not hold, or an action. The set of statements is closed, since each has a
// text form, an evaluation (Trace) and an encoding (nft/kernel).
type Statement interface {
	// Text is the statement in nft syntax for a table of the family.
	Text(Family) string
	statement()
}

// MatchAddr matches an address against a prefix of the table's family.
type MatchAddr struct {
	Field  Field // Saddr or Daddr
	Not    bool
	Prefix netip.Prefix
}

// MatchProto matches the transport protocol by its number.
type MatchProto struct{ Protocol uint8 }

// MatchEcho matches an echo request of the table's family: ICMP or ICMPv6.
type MatchEcho struct{}

// MatchMidstream matches a packet of TCP that opens no connection: of the flags FIN, SYN, RST and ACK it has others
// than SYN alone.
type MatchMidstream struct{}

// MatchLocal matches an address that the node's routing table calls local (with
// Not: one that it does not). With Input it has to be an address of the interface that
// the packet came in by; the field is Daddr then, and no packet of the node may meet the chain (nft_fib_validate).
type MatchLocal struct {
	Field Field // Saddr or Daddr
	Not   bool
	Input bool
}

// MatchInput matches the interface that the packet came in by: by its name, or
// with Prefix by how its name begins. A packet that the node sends has none.
type MatchInput struct {
	Not    bool
	Name   string // 1 to 15 bytes; with Prefix to 14, since nft cannot read more back
	Prefix bool
}

// MatchMark matches when any bit of the mask is set in the packet's mark.
type MatchMark struct{ Mask uint32 }

// MatchLabel matches when the connection has the label (SetLabel).
type MatchLabel struct{ Bit uint8 }

// MatchDNATed matches packets of connections whose destination was translated.
type MatchDNATed struct{}

// InSet matches when the key is in the set.
type InSet struct {
	Key Fields
	Set string
}

// VMap looks up the key in a verdict map and executes the verdict that it finds.
type VMap struct {
	Key Fields
	Map string
}

// DNAT sends the connection to the address and port that a data map has for the key. Unless Mod is
// 0, an index below Mod is appended to the key: a random one or, with Hash, the hash of these fields. If the map has
// no such element, the rule ends. With KeepPort the map has addresses, and the port stays.
type DNAT struct {
	Key      Fields
	KeepPort bool
	Mod      uint32
	// Hash is the packet's Saddr, or Saddr and Sport; empty for a random index. Needs Mod.
	Hash Fields
	Map  string
}

// DNATTo sends the connection to an address of the table's family. The port stays.
type DNATTo struct{ Addr netip.Addr }

// Limit matches as long as packets come at no more than a rate, and Burst packets beyond it. The rule's packets count
// together, whoever sends them.
type Limit struct{ PerSecond, Burst uint32 }

// Update adds the key with the data to a dynamic map, or the key alone to a dynamic set. If the key
// exists, its data stays, and only its time-out restarts. A full map (Set.Size) accepts no new key,
// and the rule ends there; its elements stay. Key and data together fit the 64 bytes of a rule's
// registers. Needs Linux 4.1.
type Update struct {
	// Map is the name of the map or set.
	Map string
	// Data is empty for a set.
	Key, Data Fields
	// Timeout is in whole seconds, at least one.
	Timeout time.Duration
}

// Sample matches one of so many connections, by a hash of the packet's addresses and ports: a packet that is repeated
// has the same lot. The kernel draws the seed when the rule is made, and tells it nobody, so that no client can choose
// its lot. Statements behind it in its rule only label and log: they decide nothing about the packet.
type Sample struct{ Of uint32 }

// Hash is what is hashed.
func (Sample) Hash() Fields { return Fields{Saddr, Sport, Daddr, Dport} }

// Log sends the beginning of the packet to the program that listens to a group of nfnetlink_log, if there is one, with
// the prefix. Needs a kernel with CONFIG_NETFILTER_NETLINK_LOG.
type Log struct {
	// Prefix has at most 127 bytes, none of them a control character or a quotation mark.
	Prefix string
	Group  uint16
	// Bytes is how many of the packet's first bytes are sent, from its network header on.
	Bytes uint32
}

// SetMark sets the bits of the mask in the packet's mark.
type SetMark struct{ Mask uint32 }

// ClearMark clears the bits of the mask in the packet's mark.
type ClearMark struct{ Mask uint32 }

// SetLabel gives the connection a label: it sets one of the 128 bits that connection tracking keeps
// for labels, and leaves the others. The label stays for the connection's life, whatever becomes of
// the packet's mark. Needs a kernel with CONFIG_NF_CONNTRACK_LABELS. A connection that was tracked
// before any rule in the network namespace set labels has no room for one.
type SetLabel struct{ Bit uint8 } // 0 to 127

// Masquerade gives the connection the outgoing interface's address as source
// and a fully random port.
type Masquerade struct{}

// SNATTo gives the connection an address of the table's family as source, and a fully random port.
type SNATTo struct{ Addr netip.Addr }

// Counter counts the packets that reach it. A program does not contain the counts.
type Counter struct{}

// Comment says what a rule is for. It is the last statement of its rule, and does nothing: the kernel keeps it beside
// the rule's expressions, so that packets do not come to it. At most MaxComment bytes, none of them a control
// character or a quotation mark.
type Comment string

// Comment returns the text of the rule's comment, empty if it has none.
func (r Rule) Comment() string {
	if len(r) > 0 {
		if c, ok := r[len(r)-1].(Comment); ok {
			return string(c)
		}
	}
	return ""
}

// Body returns the rule without its comment.
func (r Rule) Body() Rule {
	if r.Comment() != "" {
		return r[:len(r)-1]
	}
	return r
}

// NextChain returns the chain that the rule's verdict leads to; empty if there is none.
func (r Rule) NextChain() string {
	for _, s := range r {
		if v, ok := s.(Verdict); ok {
			return v.Chain
		}
	}
	return ""
}

// Reject refuses: with a TCP reset (the rule must have matched TCP), else with
// ICMP port unreachable.
type Reject struct{ TCPReset bool }

// Verdict ends the evaluation or continues in another chain. It is a statement and also the data of
// a verdict map.
type Verdict struct {
	Code  VerdictCode
	Chain string
}

// VerdictCode says what a verdict does, by the kernel's number where it has
// one (NF_DROP 0, NF_ACCEPT 1, NFT_JUMP -3, NFT_GOTO -4, NFT_RETURN -5).
type VerdictCode int32

// The verdicts. The zero Verdict is none of them.
const (
	Drop   VerdictCode = 100
	Accept VerdictCode = 1
	Jump   VerdictCode = -3
	Goto   VerdictCode = -4
	Return VerdictCode = -5
)

func (MatchAddr) statement()      {}
func (MatchProto) statement()     {}
func (MatchEcho) statement()      {}
func (MatchMidstream) statement() {}
func (MatchLocal) statement()     {}
func (MatchInput) statement()     {}
func (MatchMark) statement()      {}
func (MatchLabel) statement()     {}
func (MatchDNATed) statement()    {}
func (InSet) statement()          {}
func (VMap) statement()           {}
func (DNAT) statement()           {}
func (DNATTo) statement()         {}
func (Limit) statement()          {}
func (Update) statement()         {}
func (Sample) statement()         {}
func (Log) statement()            {}
func (SetMark) statement()        {}
func (ClearMark) statement()      {}
func (SetLabel) statement()       {}
func (Masquerade) statement()     {}
func (SNATTo) statement()         {}
func (Counter) statement()        {}
func (Comment) statement()        {}
func (Reject) statement()         {}
func (Verdict) statement()        {}

// Text is, for example, "ip saddr != 10.0.0.0/8".
func (s MatchAddr) Text(f Family) string {
	return fmt.Sprintf("%s %s%s", s.Field.Text(f), negation(s.Not), s.Prefix)
}

func negation(n bool) string {
	if n {
		return "!= "
	}
	return ""
}

// Text is, for example, "meta l4proto tcp".
func (s MatchProto) Text(Family) string { return "meta l4proto " + ProtocolText(s.Protocol) }

// Text is "icmp type echo-request" or "icmpv6 type echo-request".
func (MatchEcho) Text(f Family) string {
	if f == IPv6 {
		return "icmpv6 type echo-request"
	}
	return "icmp type echo-request"
}

// Text is "tcp flags != syn / fin,syn,rst,ack".
func (MatchMidstream) Text(Family) string { return "tcp flags != syn / fin,syn,rst,ack" }

// Text is, for example, "fib daddr type != local".
func (s MatchLocal) Text(Family) string {
	side := "daddr"
	if s.Field == Saddr {
		side = "saddr"
	}
	if s.Input {
		side += " . iif"
	}
	return fmt.Sprintf("fib %s type %slocal", side, negation(s.Not))
}

// Text is, for example, `iifname != "veth*"`.
func (s MatchInput) Text(Family) string {
	wildcard := ""
	if s.Prefix {
		wildcard = "*"
	}
	return fmt.Sprintf("iifname %s\"%s%s\"", negation(s.Not), s.Name, wildcard)
}

// Text is, for example, "meta mark & 0x00004000 != 0x00000000".
func (s MatchMark) Text(Family) string {
	return fmt.Sprintf("meta mark & 0x%08x != 0x00000000", s.Mask)
}

// Text is, for example, "ct label 110".
func (s MatchLabel) Text(Family) string { return fmt.Sprintf("ct label %d", s.Bit) }

// Text returns "ct status dnat".
func (MatchDNATed) Text(Family) string { return "ct status dnat" }

// Text is, for example, "ip daddr @cluster-ips".
func (s InSet) Text(f Family) string { return fmt.Sprintf("%s @%s", s.Key.Text(f), s.Set) }

// Text is, for example, "ip daddr . meta l4proto . th dport vmap @services".
func (s VMap) Text(f Family) string { return fmt.Sprintf("%s vmap @%s", s.Key.Text(f), s.Map) }

// Text is, for example, "dnat to ip daddr . meta l4proto . th dport . numgen
// random mod 3 map @endpoints".
func (s DNAT) Text(f Family) string {
	if s.Mod == 0 {
		return fmt.Sprintf("dnat to %s map @%s", s.Key.Text(f), s.Map)
	}
	if len(s.Hash) > 0 {
		return fmt.Sprintf("dnat to %s . jhash %s mod %d seed 0x%x map @%s", s.Key.Text(f), s.Hash.Text(f), s.Mod, HashSeed,
			s.Map)
	}
	return fmt.Sprintf("dnat to %s . numgen random mod %d map @%s", s.Key.Text(f), s.Mod, s.Map)
}

// Text is, for example, "dnat to 192.168.0.2".
func (s DNATTo) Text(Family) string { return "dnat to " + s.Addr.String() }

// Text is, for example, "limit rate 1000/second burst 1000 packets".
func (s Limit) Text(Family) string {
	return fmt.Sprintf("limit rate %d/second burst %d packets", s.PerSecond, s.Burst)
}

// Text is, for example, "jhash ip saddr . th sport . ip daddr . th dport mod 16 0".
func (s Sample) Text(f Family) string {
	return fmt.Sprintf("jhash %s mod %d 0", s.Hash().Text(f), s.Of)
}

// Text is, for example, `log prefix "1/16" group 28000 snaplen 64`.
func (s Log) Text(Family) string {
	return fmt.Sprintf("log prefix %q group %d snaplen %d", s.Prefix, s.Group, s.Bytes)
}

// Text is, for example, "update @affinity { ct original ip saddr timeout 3h :
// ip daddr }", and for a set "update @recent { ip daddr timeout 20m }".
func (s Update) Text(f Family) string {
	if len(s.Data) == 0 {
		return fmt.Sprintf("update @%s { %s timeout %s }", s.Map, s.Key.Text(f), secondsText(s.Timeout))
	}
	return fmt.Sprintf("update @%s { %s timeout %s : %s }", s.Map, s.Key.Text(f), secondsText(s.Timeout), s.Data.Text(f))
}

// Check returns an error for a statement that no kernel accepts, or that nft prints differently
// from Text.
func (s Update) Check(f Family) error {
	const registers = 64 // bytes
	if n := s.Key.Len(f) + s.Data.Len(f); n > registers {
		return fmt.Errorf("key and data take %d bytes: the registers have %d", n, registers)
	}
	if s.Timeout < time.Second || s.Timeout%time.Second != 0 {
		return fmt.Errorf("time-out of %v: want whole seconds", s.Timeout)
	}
	return nil
}

// secondsText is a time as nft prints it: 1d2h3m4s without what is zero.
func secondsText(d time.Duration) string {
	var b strings.Builder
	for _, unit := range []struct {
		length time.Duration
		letter string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if n := d / unit.length; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, unit.letter)
			d %= unit.length
		}
	}
	return b.String()
}

// Text is, for example, "meta mark set meta mark | 0x00004000".
func (s SetMark) Text(Family) string { return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.Mask) }

// Text is, for example, "meta mark set meta mark & 0xffffbfff".
func (s ClearMark) Text(Family) string {
	return fmt.Sprintf("meta mark set meta mark & 0x%08x", ^s.Mask)
}

// Text is, for example, "ct label set 110".
func (s SetLabel) Text(Family) string { return fmt.Sprintf("ct label set %d", s.Bit) }

// Text returns "masquerade fully-random".
func (Masquerade) Text(Family) string { return "masquerade fully-random" }

// Text is, for example, "snat to 192.168.0.2 fully-random".
func (s SNATTo) Text(Family) string { return "snat to " + s.Addr.String() + " fully-random" }

// Text returns "counter". nft prints the numbers behind it.
func (Counter) Text(Family) string { return "counter" }

// Text is, for example, `comment "choose an endpoint"`.
func (s Comment) Text(Family) string { return fmt.Sprintf("comment %q", string(s)) }

// Text returns "reject with tcp reset" or, for example, "reject with icmp
// port-unreachable".
func (s Reject) Text(f Family) string {
	switch {
	case s.TCPReset:
		return "reject with tcp reset"
	case f == IPv6:
		return "reject with icmpv6 port-unreachable"
	}
	return "reject with icmp port-unreachable"
}

// Text is, for example, "goto endpoints-3".
func (v Verdict) Text(Family) string { return v.String() }

func (v Verdict) String() string {
	switch v.Code {
	case Drop:
		return "drop"
	case Accept:
		return "accept"
	case Jump:
		return "jump " + v.Chain
	case Goto:
		return "goto " + v.Chain
	case Return:
		return "return"
	}
	return fmt.Sprintf("verdict-%d", v.Code)
}

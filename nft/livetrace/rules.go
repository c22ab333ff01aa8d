package livetrace

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// TablePrefix begins the names of the tables that mark packets. The time when the trace ends
// follows, in seconds since 1970, and a random text.
const TablePrefix = "nftproxy-trace-"

const (
	// priority is behind connection tracking (-200), which says which packets are the first of
	// their connections, and before all translation (-100).
	priority = -190
	// marksPerSecond bounds how many packets a second are marked at each of the two hooks.
	marksPerSecond = 10
	// untilSet holds the destination until the trace's time is over.
	untilSet = "until"
)

// The bits of a packet's connection state (include/uapi/linux/netfilter/nf_conntrack_common.h):
// the first packet of a connection, and one that is not tracked.
const (
	stateNew       = 1 << 3
	stateUntracked = 1 << 6
)

// tableName is the name of a table for a trace that ends then.
func tableName(end time.Time) string {
	const enough = 8
	return fmt.Sprintf("%s%d-%s", TablePrefix, end.Unix(), strings.ToLower(rand.Text()[:enough]))
}

// endOf reads the end of a trace from its table's name.
func endOf(table string) (end time.Time, ok bool) {
	rest, ours := strings.CutPrefix(table, TablePrefix)
	seconds, _, dashed := strings.Cut(rest, "-")
	n, err := strconv.ParseInt(seconds, 10, 64)
	return time.Unix(n, 0), ours && dashed && err == nil
}

// addTable makes the table. A kernel without owners gets a table without one.
func (t *Tracer) addTable(flags nftables.TableFlags) error {
	flow := t.config.Flow
	table := t.conn.AddTable(&nftables.Table{Family: nftables.TableFamily(flow.Family()), Name: t.name, Flags: flags})
	key := nftables.TypeIPAddr
	if flow.Family() == nft.IPv6 {
		key = nftables.TypeIP6Addr
	}
	until := &nftables.Set{Table: table, Name: untilSet, KeyType: key, HasTimeout: true}
	if err := t.conn.AddSet(until, []nftables.SetElement{{Key: flow.Destination.Addr().AsSlice(),
		Timeout: t.config.Lifetime}}); err != nil {
		return err
	}
	at := nftables.ChainPriority(priority)
	for name, hook := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting,
		"output": nftables.ChainHookOutput} {
		chain := t.conn.AddChain(&nftables.Chain{Table: table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook,
			Priority: &at})
		t.conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: t.markRule(until)})
	}
	return t.conn.Flush()
}

// markRule matches the first packets of the flow's connections, and marks as many of them as the
// limit lets pass.
func (t *Tracer) markRule(until *nftables.Set) []expr.Any {
	const register = 1
	compare := func(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data} }
	network := func(v4, v6 uint32) expr.Any {
		offset := v4
		if t.config.Flow.Family() == nft.IPv6 {
			offset = v6
		}
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
			Len: uint32(t.config.Flow.Family().AddrLen())}
	}
	port := func(offset uint32, port uint16) []expr.Any {
		return []expr.Any{
			&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
			compare(binary.BigEndian.AppendUint16(nil, port)),
		}
	}
	const saddr4, saddr6, daddr4, daddr6, sport, dport = 12, 8, 16, 24, 0, 2 // offsets in the headers, in bytes
	rule := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, compare([]byte{t.config.Flow.Protocol}),
		network(daddr4, daddr6), &expr.Lookup{SourceRegister: register, SetName: until.Name, SetID: until.ID},
	}
	rule = append(rule, port(dport, t.config.Flow.Destination.Port())...)
	if source := t.config.Flow.Source; source.Addr().IsValid() {
		rule = append(rule, network(saddr4, saddr6), compare(source.Addr().AsSlice()))
		if source.Port() != 0 {
			rule = append(rule, port(sport, source.Port())...)
		}
	}
	return append(rule,
		&expr.Ct{Key: expr.CtKeySTATE, Register: register},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4,
			Mask: nfnetlink.HostOrder(stateNew | stateUntracked), Xor: nfnetlink.HostOrder(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: nfnetlink.HostOrder(0)},
		&expr.Limit{Type: expr.LimitTypePkts, Rate: marksPerSecond, Unit: expr.LimitTimeSecond,
			Burst: uint32(t.config.Packets)},
		&expr.Immediate{Register: register, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: register},
	)
}

// Chain names a chain.
type Chain struct {
	// Family is that of the table, by the kernel's NFPROTO number.
	Family      uint8
	Table, Name string
}

// Hooks returns the hooks of all base chains of all programs, in nft's words.
func (t *Tracer) Hooks() (map[Chain]string, error) {
	list, err := t.conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	hooks := map[Chain]string{}
	for _, c := range list {
		if c.Hooknum != nil {
			hooks[Chain{uint8(c.Table.Family), c.Table.Name, c.Name}] = nft.HookText(uint8(c.Table.Family), uint32(*c.Hooknum))
		}
	}
	return hooks, nil
}

// Package flowtable keeps the table whose rules tell of the first answer of each connection that the program of the
// Services (nft/ruleset) has labelled for it. Each packet of the node meets its first comparison. The table stays when
// the process ends, until Remove.
//
// It has nothing to do with the flow tables of nftables, which offload connections.
package flowtable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

// Name is the name of the table, of the family inet, beside the tables of Services with that name.
func Name(services string) string { return services + "-flows" }

// Bytes is how much of a packet is sent: what an ICMP error says about the packet that it is for.
const Bytes = 128

// AnswerPrefix is the prefix of the messages about answers.
const AnswerPrefix = "answer"

const (
	// priority is behind the first half of the translation back (-100): packets have the endpoint's address as source, and
	// the client's own address as destination, whether it was masqueraded or not.
	priority = -90
	// The kernel's bit of a related packet (NF_CT_STATE_BIT of IP_CT_RELATED).
	stateRelated = 1 << 2
	// errorsPerSecond bounds the messages about ICMP errors of each chain: a connection can have any number of them.
	errorsPerSecond = 1000
)

// Keep does what Replace does, unless the table is there with these rules, by their comments.
func Keep(services string, label uint8, group uint16, netns int) (made bool, err error) {
	conn, err := dial(netns)
	if err != nil {
		return false, err
	}
	t := table(services)
	there := true
	for name := range hooks() {
		list, err := conn.GetRules(t, &nftables.Chain{Table: t, Name: name})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("read table %s: %w", t.Name, err)
		}
		there = there && slices.EqualFunc(list, rules(label, group), func(have *nftables.Rule, want rule) bool {
			comment, _ := userdata.GetString(have.UserData, userdata.TypeComment)
			return comment == want.comment
		})
	}
	if there {
		return false, nil
	}
	return true, Replace(services, label, group, netns)
}

// Replace makes the table beside the tables of Services with that name, in place of one that is there. Its rules tell
// the group of nfnetlink_log of connections with the label. It also switches the counters of connection tracking on
// (net.netfilter.nf_conntrack_acct), which the kernel does for a rule that reads them. netns is a file descriptor of a
// network namespace, or 0 for that of the calling thread.
func Replace(services string, label uint8, group uint16, netns int) error {
	conn, err := dial(netns)
	if err != nil {
		return err
	}
	t := table(services)
	conn.AddTable(t)
	conn.DelTable(t)
	conn.AddTable(t)
	for name, hook := range hooks() {
		at := nftables.ChainPriority(priority)
		c := conn.AddChain(&nftables.Chain{Table: t, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook,
			Priority: &at})
		for _, r := range rules(label, group) {
			conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: r.exprs, UserData: userdata.AppendString(nil,
				userdata.TypeComment, r.comment)})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("make table %s: %w", t.Name, err)
	}
	return nil
}

// hooks are where answers of endpoints come in, and where those of endpoints on the node itself go out.
func hooks() map[string]*nftables.ChainHook {
	return map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting,
		"output": nftables.ChainHookOutput}
}

// rule is a rule with what it is for.
type rule struct {
	exprs   []expr.Any
	comment string
}

// rules tell of the first packet of an answer, and of ICMP errors. Packets of clients leave at the first comparison,
// and those of connections without the label at the second one.
func rules(label uint8, group uint16) []rule {
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	bit, none := make([]byte, labelBytes), make([]byte, labelBytes)
	// The labels are one number in the byte order of the host, as in nft/kernel.
	at := int(label / 8)
	if nfnetlink.HostOrder(1)[0] == 0 {
		at = labelBytes - 1 - at
	}
	bit[at] = 1 << (label % 8)
	return []rule{
		{[]expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: register}, equal([]byte{original}), accept},
			"packets of clients"},
		{[]expr.Any{&expr.Ct{Key: expr.CtKeyLABELS, Register: register},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: labelBytes, Mask: bit, Xor: none},
			equal(none), accept}, fmt.Sprintf("answers of connections without label %d", label)},
		{[]expr.Any{&expr.Ct{Key: expr.CtKeyPKTS, Register: register, OptDirection: true, Direction: reply},
			equal(binary.NativeEndian.AppendUint64(nil, 1)), log(group)},
			fmt.Sprintf("tell group %d of the first answer", group)},
		{[]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: register}, equal(nfnetlink.HostOrder(stateRelated)),
			&expr.Limit{Type: expr.LimitTypePkts, Rate: errorsPerSecond, Unit: expr.LimitTimeSecond,
				Burst: errorsPerSecond},
			log(group)}, fmt.Sprintf("tell group %d of an ICMP error", group)},
	}
}

const (
	register = 1
	// original and reply are IP_CT_DIR_ORIGINAL and IP_CT_DIR_REPLY.
	original, reply = 0, 1
	// labelBytes is how long the labels of a connection are.
	labelBytes = 16
)

func equal(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data} }

func log(group uint16) expr.Any {
	return &expr.Log{Key: 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN,
		Data: []byte(AnswerPrefix), Group: group, Snaplen: Bytes}
}

// Remove removes the table beside the tables of Services with that name, and says whether there was one. netns is that
// of Keep.
func Remove(services string, netns int) (removed bool, err error) {
	conn, err := dial(netns)
	if err != nil {
		return false, err
	}
	conn.DelTable(table(services))
	if err := conn.Flush(); errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("remove table %s: %w", Name(services), err)
	}
	return true, nil
}

func dial(netns int) (*nftables.Conn, error) {
	var options []nftables.ConnOption
	if netns != 0 {
		options = append(options, nftables.WithNetNSFd(netns))
	}
	conn, err := nftables.New(options...)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return conn, nil
}

func table(services string) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: Name(services)}
}

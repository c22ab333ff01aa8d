// Package invalidtable keeps the table whose only rule drops forwarded packets that belong to no connection, as a rule
// of kube-proxy's iptables mode does (v1.37: writeIPTablesRules in pkg/proxy/iptables/proxier.go). A segment of an
// endpoint that is out of the window would reach the client untranslated, and the client would reset the connection
// (https://github.com/kubernetes/kubernetes/issues/74839).
//
// The program of the Services (nft/ruleset) has no chain that later packets of a connection meet, so the rule has a
// table of its own.
package invalidtable

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

const (
	suffix = "-invalid"
	chain  = "forward"
	// purpose is the comment of the rule.
	purpose = "belongs to no connection: it would reach the client untranslated"
	// stateInvalid is the kernel's bit (NF_CT_STATE_INVALID_BIT).
	stateInvalid = 1
)

// Name is the name of the table, of the family inet, beside the tables of Services with that name.
func Name(services string) string { return services + suffix }

// Keep makes the table beside the tables of Services with that name, unless it is there, and returns how many packets
// its rule has dropped. netns is a file descriptor of a network namespace, or 0 for that of the calling thread. Keep
// needs CAP_NET_ADMIN.
func Keep(services string, netns int) (dropped uint64, err error) {
	conn, err := dial(netns)
	if err != nil {
		return 0, err
	}
	table := table(services)
	rules, err := conn.GetRules(table, &nftables.Chain{Table: table, Name: chain})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("read table %s: %w", table.Name, err)
	}
	if counter := counterOf(rules); counter != nil {
		return counter.Packets, nil
	}
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	c := conn.AddChain(&nftables.Chain{
		Table: table, Name: chain, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: drop(), UserData: userdata.AppendString(nil,
		userdata.TypeComment, purpose)})
	if err := conn.Flush(); err != nil {
		return 0, fmt.Errorf("make table %s: %w", table.Name, err)
	}
	return 0, nil
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

// drop drops and counts packets of the state invalid. All others leave at the comparison.
func drop() []expr.Any {
	const register = 1
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: register},
		&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: 4,
			Mask: nfnetlink.HostOrder(stateInvalid), Xor: nfnetlink.HostOrder(0),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: nfnetlink.HostOrder(0)},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// counterOf returns the counter of the table's rules, or nil unless they are ours.
func counterOf(rules []*nftables.Rule) *expr.Counter {
	if len(rules) != 1 || len(rules[0].Exprs) != len(drop()) {
		return nil
	}
	i := slices.IndexFunc(rules[0].Exprs, func(x expr.Any) bool { _, is := x.(*expr.Counter); return is })
	if i < 0 {
		return nil
	}
	return rules[0].Exprs[i].(*expr.Counter)
}

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
	"reflect"
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
	if state, dropped, err := look(conn, table); err != nil || state == Same {
		return dropped, err
	}
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	c := conn.AddChain(forward(table))
	conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: drop(), UserData: userdata.AppendString(nil,
		userdata.TypeComment, purpose)})
	if err := conn.Flush(); err != nil {
		return 0, fmt.Errorf("make table %s: %w", table.Name, err)
	}
	return 0, nil
}

// State says how a table is beside the one that Keep makes.
type State int

// The states.
const (
	Absent State = iota
	Same
	Different
)

// Look returns the state of the table beside the tables of Services with that name. netns is that of Keep.
func Look(services string, netns int) (State, error) {
	conn, err := dial(netns)
	if err != nil {
		return Absent, err
	}
	state, _, err := look(conn, table(services))
	return state, err
}

// look also returns how many packets the rule has dropped.
func look(conn *nftables.Conn, table *nftables.Table) (state State, dropped uint64, err error) {
	failed := func(err error) (State, uint64, error) {
		return Absent, 0, fmt.Errorf("read table %s: %w", table.Name, err)
	}
	tables, err := conn.ListTablesOfFamily(table.Family)
	if err != nil {
		return failed(err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == table.Name })
	if i < 0 {
		return Absent, 0, nil
	}
	if tables[i].Flags != 0 {
		return Different, 0, nil // A dormant table has its rules, but no packet meets them.
	}
	chains, err := conn.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return failed(err)
	}
	chains = slices.DeleteFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name != table.Name })
	if len(chains) != 1 || !isForward(chains[0]) {
		return Different, 0, nil
	}
	rules, err := conn.GetRules(table, chains[0])
	if errors.Is(err, unix.ENOENT) {
		return Different, 0, nil // Another program has just removed it.
	} else if err != nil {
		return failed(err)
	}
	counter := counterOf(rules)
	if counter == nil {
		return Different, 0, nil
	}
	return Same, counter.Packets, nil
}

// forward is the table's only chain.
func forward(table *nftables.Table) *nftables.Chain {
	return &nftables.Chain{Table: table, Name: chain, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter}
}

func isForward(c *nftables.Chain) bool {
	want := forward(c.Table)
	return c.Name == want.Name && c.Type == want.Type && c.Hooknum != nil && *c.Hooknum == *want.Hooknum &&
		c.Priority != nil && *c.Priority == *want.Priority && (c.Policy == nil || *c.Policy == nftables.ChainPolicyAccept)
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
	want := drop()
	if len(rules) != 1 || len(rules[0].Exprs) != len(want) {
		return nil
	}
	var counter *expr.Counter
	for i, x := range rules[0].Exprs {
		if c, counts := x.(*expr.Counter); counts {
			counter, x = c, &expr.Counter{}
		}
		if !reflect.DeepEqual(x, want[i]) {
			return nil
		}
	}
	return counter
}

// Package ejecttable keeps the table by which ejection hears from the kernel that connections have no answer, and tells
// other processes which endpoints the node does without and which are growing: a rule counts the first packets that
// clients repeat, and a set has a comment for each endpoint. The program of the Services (nft/ruleset) has none of
// them, so that neither is changed with the other. Its only chain accepts all packets.
package ejecttable

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nfnetlink"
)

// Name is the name of the table, of the family inet, beside the tables of Services with that name.
func Name(services string) string { return services + "-eject" }

const (
	chain   = "repeats"
	counter = "repeats"
	// purpose is the comment of the rule.
	purpose = "a first packet again: its connection has no answer"
)

// The kernel's numbers of the state of a connection and of its bits of status (nf_conntrack_common.h).
const (
	stateNew                      = 1 << 3
	statusConfirmed, statusDstNAT = 1 << 3, 1 << 5
)

// Table is the table of one process.
type Table struct {
	mu    sync.Mutex
	conn  *nftables.Conn // lasts
	table *nftables.Table
	made  bool
	// hears says that the table has the rule.
	hears bool
	// told is what the set has: what is left out, and what is growing.
	told service.Adjustments
}

// Open returns the table beside the tables of Services with that name, which is made when it is first used. netns is a
// file descriptor of a network namespace, or 0 for that of the calling thread. hears says that the table has the rule
// that Repeats needs. Use needs CAP_NET_ADMIN.
func Open(services string, netns int, hears bool) (*Table, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(netns))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &Table{conn: conn, table: tableOf(services), hears: hears}, nil
}

// Close ends the work with the table, and leaves it there.
func (t *Table) Close() error { return t.conn.CloseLasting() }

func tableOf(services string) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: Name(services)}
}

func (t *Table) counter() *nftables.NamedObj {
	return &nftables.NamedObj{Table: t.table, Name: counter, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}}
}

// make replaces the table, also that of an earlier process.
func (t *Table) make() error {
	t.conn.AddTable(t.table)
	t.conn.DelTable(t.table)
	t.conn.AddTable(t.table)
	if err := t.conn.AddSet(setOf(t.table), nil); err != nil {
		return fmt.Errorf("make table %s: %w", t.table.Name, err)
	}
	if t.hears {
		t.conn.AddObj(t.counter())
		// All clients' packets to endpoints in pods leave by this hook: those of pods, of the node, and of others.
		c := t.conn.AddChain(&nftables.Chain{Table: t.table, Name: chain, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter})
		t.conn.AddRule(&nftables.Rule{Table: t.table, Chain: c, Exprs: repeats(), UserData: userdata.AppendString(nil,
			userdata.TypeComment, purpose)})
	}
	if err := t.conn.Flush(); err != nil {
		return fmt.Errorf("make table %s: %w", t.table.Name, err)
	}
	t.made = true
	list := elements(differences(service.Adjustments{}, t.told))
	return t.write(list[:min(len(list), mostElements)], t.conn.SetAddElements)
}

// repeats counts the packets of TCP connections with DNAT that have had no answer, all but the first one. The kernel
// confirms an entry of connection tracking behind this hook, so the first packet's is not confirmed, and the second
// one's is. Packets of connections with an answer leave at the first comparison.
func repeats() []expr.Any {
	const register = 1
	equal := func(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data} }
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: register}, equal(nfnetlink.HostOrder(stateNew)),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal([]byte{unix.IPPROTO_TCP}),
		&expr.Ct{Key: expr.CtKeySTATUS, Register: register},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4,
			Mask: nfnetlink.HostOrder(statusConfirmed | statusDstNAT), Xor: nfnetlink.HostOrder(0)},
		equal(nfnetlink.HostOrder(statusConfirmed | statusDstNAT)),
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter},
	}
}

// Repeats returns how many first packets have been repeated since the table was made. If another program has removed
// the table, it makes the table anew.
func (t *Table) Repeats() (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	object, err := t.conn.GetObject(t.counter())
	if !t.made || errors.Is(err, unix.ENOENT) {
		return 0, t.make()
	}
	counted, ok := object.(*nftables.NamedObj)
	if err != nil || !ok {
		return 0, fmt.Errorf("read the counter of table %s: %w", t.table.Name, err)
	}
	return counted.Obj.(*expr.Counter).Packets, nil
}

// Remove removes the table beside the tables of Services with that name, in the network namespace of the calling
// thread, and says whether there was one.
func Remove(services string) (removed bool, err error) {
	var conn nftables.Conn
	conn.DelTable(tableOf(services))
	if err := conn.Flush(); errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("remove table %s: %w", Name(services), err)
	}
	return true, nil
}

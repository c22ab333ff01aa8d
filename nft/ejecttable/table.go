// Package ejecttable keeps the table by which ejection hears from the kernel that connections have no answer, and tells
// other processes which endpoints the node does without and which are growing: a rule counts the first packets that
// clients repeat, and a set has a comment for each endpoint. The program of the Services (nft/ruleset) has none of
// them, so that neither is changed with the other.
//
// The package does not decide what is done about it, and changes no packet: its only chain accepts all.
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
	name  string
	netns int
	// hears says that the table has the rule.
	hears bool
	// told is what the set has: what is left out, and what is growing.
	told service.Adjustments
	// conn is nil until the table is made.
	conn   *nftables.Conn
	counts nfnetlink.Requester
	// request is that for the counter.
	request nfnetlink.Encoder
}

// New returns the table beside the tables of Services with that name, which is made when it is first used. netns is a
// file descriptor of a network namespace, or 0 for that of the threads that use the table. hears says that the table
// has the rule that Repeats needs. Use needs CAP_NET_ADMIN.
func New(services string, netns int, hears bool) *Table {
	t := &Table{name: Name(services), netns: netns, hears: hears}
	t.request.Text(unix.NFTA_OBJ_TABLE, t.name).Text(unix.NFTA_OBJ_NAME, counter).Uint32(unix.NFTA_OBJ_TYPE,
		unix.NFT_OBJECT_COUNTER)
	return t
}

// open opens the kernel and makes the table, unless that is done.
func (t *Table) open() error {
	if t.conn != nil {
		return nil
	}
	options := []nftables.ConnOption{nftables.AsLasting()}
	if t.netns != 0 {
		options = append(options, nftables.WithNetNSFd(t.netns))
	}
	socket, err := nfnetlink.Dial(nfnetlink.Config{NetNS: t.netns})
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	t.counts.Socket, t.counts.Subsystem = socket, unix.NFNL_SUBSYS_NFTABLES
	if t.conn, err = nftables.New(options...); err != nil {
		return errors.Join(fmt.Errorf("open nftables: %w", err), socket.Close())
	}
	if err := t.make(); err != nil {
		return errors.Join(err, t.letGo())
	}
	return nil
}

// Close ends the work with the table, and leaves it there.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.letGo()
}

func (t *Table) letGo() error {
	if t.conn == nil {
		return nil
	}
	defer func() { t.conn = nil }()
	return errors.Join(t.conn.CloseLasting(), t.counts.Socket.Close())
}

// table is the table by its name.
func (t *Table) table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: t.name}
}

// make replaces the table.
func (t *Table) make() error {
	table := t.table()
	t.conn.AddTable(table)
	t.conn.DelTable(table)
	t.conn.AddTable(table)
	if err := t.conn.AddSet(setOf(table), nil); err != nil {
		return fmt.Errorf("make table %s: %w", t.name, err)
	}
	if t.hears {
		t.conn.AddObj(&nftables.NamedObj{Table: table, Name: counter, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
		// All clients' packets to endpoints in pods leave by this hook: those of pods, of the node, and of others.
		c := t.conn.AddChain(&nftables.Chain{Table: table, Name: chain, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter})
		t.conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: repeats(), UserData: userdata.AppendString(nil,
			userdata.TypeComment, purpose)})
	}
	if err := t.conn.Flush(); err != nil {
		return fmt.Errorf("make table %s: %w", t.name, err)
	}
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
	if err := t.open(); err != nil {
		return 0, err
	}
	t.counts.Lock()
	attributes, err := t.counts.Get(unix.NFT_MSG_GETOBJ, unix.NFPROTO_INET, t.request.B)
	packets := attributes.Get(unix.NFTA_OBJ_DATA).Uint64(unix.NFTA_COUNTER_PACKETS)
	t.counts.Unlock()
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, t.make()
	case err != nil:
		return 0, fmt.Errorf("read the counter of table %s: %w", t.name, err)
	}
	return packets, nil
}

// Remove removes the table beside the tables of Services with that name, in the network namespace of the calling
// thread, and says whether there was one.
func Remove(services string) (removed bool, err error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: Name(services)})
	if err := conn.Flush(); errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("remove table %s: %w", Name(services), err)
	}
	return true, nil
}

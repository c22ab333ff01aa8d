package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/cmd/soak/script"
)

// damaging does something to the tables as another process. What clients lose from now
// until the tables are right again is the other process's doing, unless the kernel refuses
// it, which it does for tables with an owner.
func (w *world) damaging(cause string, do func() error) error {
	w.book.Damage(cause, time.Now())
	err := do()
	switch {
	case err == nil:
		w.count.add("done to the tables: " + cause)
		return nil
	case errors.Is(err, unix.EPERM) || strings.Contains(err.Error(), "not permitted"):
		w.count.add("refused by the kernel, for the tables have an owner: " + cause)
	case errors.Is(err, errNothingThere) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBUSY) ||
		strings.Contains(err.Error(), "No such file"),
		// nft before 1.1 does not know the flag "persist", and the kernel (6.9 and newer) lets nobody
		// take it from a table whose owner has ended: here, one whose next owner is only starting.
		strings.Contains(err.Error(), "Operation not supported"):
		w.count.add("not possible: " + cause)
	default:
		return fmt.Errorf("%s: %w", cause, err)
	}
	w.book.NoDamage()
	return nil
}

var errNothingThere = errors.New("nothing there to change")

// flush empties nftables. Tables with an owner stay.
func (w *world) flush() error {
	w.book.Damage("nft flush ruleset", time.Now())
	before, err := w.conn.Tables(ruleset.DefaultTable)
	if err == nil {
		_, err = w.nft.Run(w.Node, "", "flush", "ruleset")
	}
	if err != nil {
		return err
	}
	clear(w.others)
	// Those that had an owner all the time are the same.
	owned := !slices.ContainsFunc(before, func(t kernel.TableInfo) bool { return t.Owner == 0 })
	const both = 2 // families
	if owned && len(before) == both {
		w.count.add("nft flush ruleset left the tables, for they have an owner")
		w.book.NoDamage()
		return nil
	}
	w.count.add("done to the tables: nft flush ruleset")
	return nil
}

// tamper changes the tables as another process, in one of many ways.
func (w *world) tamper(e script.Event) error {
	const stream = 15
	rng := rand.New(rand.NewPCG(uint64(e.Int("seed")), stream))
	how := e.Get("how")
	return w.damaging(how, func() error {
		families := nft.Families()
		family := families[rng.IntN(len(families))]
		id := nft.TableID{Family: family, Name: ruleset.DefaultTable}
		switch how {
		case script.DeleteTable:
			return w.conn.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteTable{Table: id}}})
		case script.Dormant:
			return w.nft.Load(w.Node, fmt.Sprintf("add table %s { flags dormant; }\n", id))
		case script.AddChain:
			return w.nft.Load(w.Node, fmt.Sprintf("add chain %s stranger%d { type filter hook forward priority %d; }\n", id,
				rng.IntN(3), rng.IntN(50)))
		}
		have, err := w.tables()
		if err != nil {
			return err
		}
		contents := have.Table(id)
		if contents == nil {
			return errNothingThere
		}
		if how == script.FlushChain || how == script.AddRule {
			return w.tamperWithChain(contents, how, rng)
		}
		return w.tamperWithElements(contents, how, rng)
	})
}

// tables are the kernel's, read by the declarations of the program that should be there.
func (w *world) tables() (*nft.Model, error) {
	want, err := w.want()
	if err != nil {
		return nil, err
	}
	return w.conn.Read(want)
}

func (w *world) tamperWithChain(c *nft.Contents, how string, rng *rand.Rand) error {
	var names []string
	for name := range c.Chains {
		names = append(names, name)
	}
	if len(names) == 0 {
		return errNothingThere
	}
	slices.Sort(names)
	name := names[rng.IntN(len(names))]
	if how == script.FlushChain {
		return w.conn.Apply(nft.Batch{Ops: []nft.Op{nft.FlushChain{Table: c.Table, Chain: name}}})
	}
	rule := []string{"counter", "drop", "meta l4proto udp drop", "tcp dport 80 reject with tcp reset"}[rng.IntN(4)]
	return w.nft.Load(w.Node, fmt.Sprintf("insert rule %s %s %s\n", c.Table, name, rule))
}

// tamperWithElements deletes elements of one of the maps, gives some of them each other's
// data, or adds some that no Service has.
func (w *world) tamperWithElements(c *nft.Contents, how string, rng *rand.Rand) error {
	var sets []*nft.SetContents
	for _, s := range c.Sets {
		if len(s.Elements) > 1 && !s.Set.Dynamic && !s.Set.Interval {
			sets = append(sets, s)
		}
	}
	if len(sets) == 0 {
		return errNothingThere
	}
	slices.SortFunc(sets, func(a, b *nft.SetContents) int { return strings.Compare(a.Set.Name, b.Set.Name) })
	s := sets[rng.IntN(len(sets))]
	var all []nft.OwnedElement
	for _, e := range s.Elements {
		all = append(all, nft.OwnedElement{Element: e})
	}
	slices.SortFunc(all, func(a, b nft.OwnedElement) int { return strings.Compare(string(a.Key), string(b.Key)) })
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	some := all[:1+rng.IntN(len(all))]
	remove := nft.DeleteElements{Table: c.Table, Set: s.Set, Elements: some}
	add := nft.AddElements{Table: c.Table, Set: s.Set, Elements: slices.Clone(some)}
	switch how {
	case script.DeleteElements:
		return w.conn.Apply(nft.Batch{Ops: []nft.Op{remove}})
	case script.ChangeElements:
		for i := range some {
			next := some[(i+1)%len(some)]
			add.Elements[i].Data, add.Elements[i].Verdict = next.Data, next.Verdict
		}
		return w.conn.Apply(nft.Batch{Ops: []nft.Op{remove, add}})
	}
	for i := range some {
		add.Elements[i].Key = stranger(some[i].Key)
	}
	return w.conn.Apply(nft.Batch{Ops: []nft.Op{add}})
}

// stranger is a key that no Service has: another first byte of its address.
func stranger(key nft.Value) nft.Value { return nft.Value([]byte{byte(key[0]) ^ 0x40}) + key[1:] }

// disown puts empty tables without an owner in place of the tables, while no proxy runs. A
// table that was made without an owner never gets one: from then on others can change it,
// as on a kernel before Linux 6.9.
func (w *world) disown() error {
	running := w.proxy != nil
	if err := w.end(true); err != nil {
		return err
	}
	err := w.damaging("empty tables without an owner in their place", func() error {
		if err := w.conn.DeleteTables(ruleset.DefaultTable); err != nil {
			return err
		}
		return w.nft.Load(w.Node, plainTables())
	})
	if err == nil && running {
		err = w.start(w.opts.nftproxy)
	}
	return err
}

// plainTables are empty tables without an owner.
func plainTables() string {
	return fmt.Sprintf("table ip %[1]s {}\ntable ip6 %[1]s {}\n", ruleset.DefaultTable)
}

// other makes a table of another program, or changes it.
func (w *world) other(e script.Event) error {
	const stream = 15
	rng := rand.New(rand.NewPCG(uint64(e.Int("seed")), stream))
	table := fmt.Sprintf("inet other%d", rng.IntN(3))
	var elements []string
	for range 1 + rng.IntN(20) {
		elements = append(elements, fmt.Sprint(1+rng.IntN(60000)))
	}
	text := fmt.Sprintf("add table %[1]s\ndelete table %[1]s\ntable %[1]s {\nset ports { type inet_service; elements = "+
		"{ %[2]s }; }\n"+
		"chain seen { type filter hook forward priority %[3]d; tcp dport @ports accept; }\n}\n", table,
		strings.Join(elements, ", "), rng.IntN(40))
	if err := w.nft.Load(w.Node, text); err != nil {
		return err
	}
	listed, err := w.nft.Run(w.Node, "", append([]string{"list", "table"}, strings.Fields(table)...)...)
	w.others[table] = listed
	return err
}

// othersStay returns a failure if the proxy has touched another program's table.
func (w *world) othersStay() error {
	for table, text := range w.others {
		listed, err := w.nft.Run(w.Node, "", append([]string{"list", "table"}, strings.Fields(table)...)...)
		if err != nil || listed != text {
			return failed("the table %s of another program has changed (error: %v):\n%s\nit was:\n%s", table, err, listed, text)
		}
	}
	return nil
}

// churn has another program commit many transactions, each to a table of its own.
func (w *world) churn(commits int) error {
	table := nft.TableID{Family: nft.IPv4, Name: "churn"}
	for range commits / 2 {
		for _, op := range []nft.Op{nft.AddTable{Table: table}, nft.DeleteTable{Table: table}} {
			if err := w.conn.Apply(nft.Batch{Ops: []nft.Op{op}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// overflow changes the node's addresses so often that the notices of it are too many for
// the socket of a process that does not read them (ENOBUFS).
func (w *world) overflow(times int) error {
	if times == 0 {
		return nil
	}
	before, err := w.overflows()
	for i := 0; i < times && err == nil; i++ {
		address := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, 255, byte(i)}), 32)
		if err = w.Node.AddAddr("lo", address); err == nil {
			err = w.Node.DelAddr("lo", address)
		}
	}
	if err != nil {
		return fmt.Errorf("change addresses: %w", err)
	}
	after, err := w.overflows()
	if after > before {
		w.count.add("times a socket of the process overflowed")
	}
	return err
}

// overflows is how many messages the kernel could not give to netlink sockets of the node.
func (w *world) overflows() (drops int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/netlink", w.proxy.PID()))
	if err != nil {
		return 0, err
	}
	const column = 8 // sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > column {
			n, _ := strconv.Atoi(words[column]) // the first line has names
			drops += n
		}
	}
	return drops, nil
}

// pause stops the process for a while, as a busy machine may.
func (w *world) pause(e script.Event) error {
	if w.proxy == nil {
		return nil
	}
	if err := w.alive(); err != nil {
		return err
	}
	process, err := os.FindProcess(w.proxy.PID())
	if err != nil {
		return err
	}
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err = errors.Join(w.churn(e.Int("commits")), w.overflow(e.Int("commits")))
	select {
	case <-time.After(time.Duration(e.Int("ms")) * time.Millisecond):
	case <-w.ctx.Done():
	}
	return errors.Join(err, process.Signal(syscall.SIGCONT))
}

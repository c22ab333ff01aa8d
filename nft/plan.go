package nft

import (
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/treap"
)

// IdleLife is how long a chain or set stays after its last user has gone: for users that come back, packets that still
// follow older rules, and kernels before 6.2, which release a chain some time after the map element that pointed to it.
const IdleLife = 10 * time.Second

// State is what the kernel holds as far as the proxy knows. The zero State is a kernel without the
// proxy's tables; Adopt makes a State of tables that were read. A State never changes: Plan returns
// the next State, which is true when the kernel has committed the batch.
type State struct {
	tables ip.PerFamily[tableState]
}

type tableState struct {
	// applied is the table's contents with each pool in its order; nil where
	// there is no table.
	applied *Table
	// wanted is the table of the program that applied was planned for. Plan skips what
	// has the same pointer there and in the next program. Nil after Adopt.
	wanted *Table
	// replace says that the kernel's table cannot become the wanted one.
	replace bool
	// idle and idleSets are the chains and sets that the program does not want any
	// more, with the time since when. idleRules are the chains with rules that it does not want.
	idle, idleSets, idleRules map[string]time.Time
	// counts is how many elements each set with MinSize has.
	counts treap.Map[string, int]
}

// Plan returns the batch that turns the state into the wanted program, and the state after it. The
// batch has only the differences, and is empty if there are none. The cost depends on the changes,
// not on the program's size.
func (s State) Plan(want *Program, now time.Time) (Batch, State) {
	var batches ip.PerFamily[Batch]
	for i, f := range Families() {
		batches[i], s = s.PlanTable(want.Table(f), now)
	}
	return Join(batches[:]...), s
}

// PlanTable does what Plan does for one family's table, and leaves the other as it is.
func (s State) PlanTable(want *Table, now time.Time) (Batch, State) {
	table := s.tables.Of(want.Family)
	p := tablePlan{have: *table, want: want, now: now}
	p.run()
	*table = p.next
	return p.phases.batch(), s
}

// Due returns when to plan again although nothing has changed: an idle chain, set or rule can
// then be deleted. The zero time means never.
func (s State) Due() time.Time {
	var due time.Time
	for _, t := range s.tables {
		for _, idle := range []map[string]time.Time{t.idle, t.idleSets, t.idleRules} {
			for _, since := range idle {
				if at := since.Add(IdleLife); due.IsZero() || at.Before(due) {
					due = at
				}
			}
		}
	}
	return due
}

// Applied returns the program that the state holds, with each pool in the order
// that it has in the kernel. Tables that are not there are empty.
func (s State) Applied() *Program {
	p := &Program{IPv4: s.tables[0].applied, IPv6: s.tables[1].applied}
	if p.IPv4 == nil {
		p.IPv4 = &Table{Family: IPv4}
	}
	if p.IPv6 == nil {
		p.IPv6 = &Table{Family: IPv6}
	}
	return p
}

// tablePlan finds the operations for one table, and the table's state after them.
type tablePlan struct {
	have tableState
	want *Table
	now  time.Time

	phases phases
	next   tableState
	// elements are the changes of each set's elements.
	elements map[string]*elementChanges
	// emptied are the chains of a table in use that have no rules until phaseRules.
	emptied map[string]bool
}

func (p *tablePlan) run() {
	p.elements, p.emptied = map[string]*elementChanges{}, map[string]bool{}
	p.planTable()
	p.planTimeouts()
	p.planChains()
	p.planParts()
	p.countElements()
	p.planSets()
	p.planIdleSets()
	p.planElements()
}

// planTable makes the table where there is none, or none that can stay.
func (p *tablePlan) planTable() {
	id := p.want.ID()
	if p.have.replace || p.otherTimeouts() {
		p.have.replace = true
		p.phases.addOp(phaseDeleteTable, DeleteTable{id})
	}
	if p.have.applied == nil || p.have.replace {
		p.phases.addOp(phaseAddTable, AddTable{id})
		p.have = tableState{applied: &Table{Family: id.Family, Name: id.Name}}
	}
	applied := *p.have.applied
	p.next = tableState{applied: &applied, wanted: p.want}
}

// inUse says that packets can be in the table before the batch.
func (p *tablePlan) inUse() bool { return len(p.phases[phaseAddTable]) == 0 }

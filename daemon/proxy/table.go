package proxy

import (
	"sync"

	"nftproxy/model/ip"
	"nftproxy/nft"
)

// knowledge is how the applier knows one family's table. Its transitions are the methods of familyTable:
//
//	unread ──wasRead──▶ read ──wasWritten──▶ written
//	   ▲                  │                     │
//	   └────mustBeRead────┴─────mustBeRead──────┘
type knowledge uint8

const (
	// unread: the table has to be read before the next plan.
	unread knowledge = iota
	// read: the table was read in this sync, and the loop has not written since.
	read
	// written: the loop wrote the table last, and knows its contents as long as no other program writes to it.
	written
)

// familyTable is the table of one family, as far as the applier knows it.
type familyTable struct {
	family nft.Family
	known  knowledge
	// state is what the kernel holds of the family. It may be out of date while the table is unread.
	state nft.State
	// inForce is the table that went in last. Before the first one it has no sets.
	inForce *nft.Table
	// everRead says that the table was read at least once since the start.
	everRead bool
	// ours says whether no other program can change the table since the last read. It asks the kernel once.
	ours func() bool
}

func newFamilyTables() ip.PerFamily[*familyTable] {
	var tables ip.PerFamily[*familyTable]
	for i, f := range nft.Families() {
		tables[i] = &familyTable{family: f, inForce: &nft.Table{Family: f}}
	}
	return tables
}

// wasRead keeps the state that was read.
func (t *familyTable) wasRead(state nft.State, ours func() bool) {
	t.known, t.state, t.everRead, t.ours = read, state, true, sync.OnceValue(ours)
}

// wasWritten keeps the state after a batch that went in, and the table that the batch put in force.
func (t *familyTable) wasWritten(state nft.State, inForce *nft.Table) {
	t.known, t.state, t.inForce = written, state, inForce
}

// mustBeRead has the table read before the next plan.
func (t *familyTable) mustBeRead() { t.known = unread }

// adoptedBy says whether a batch adopts contents that the loop did not write: the table was read, and the batch changes
// something or is the first one. A batch for both families counts as a whole.
func (t *familyTable) adoptedBy(b nft.Batch) bool {
	return t.known == read && (!b.Empty() || t.inForce.Sets.Len() == 0)
}

// exists says whether the kernel had the table when it was last read or written.
func (t *familyTable) exists() bool { return t.inKernel().Name != "" }

// inKernel is the table that the kernel holds, without a name if there is none.
func (t *familyTable) inKernel() *nft.Table { return t.state.Applied().Table(t.family) }

// tablesThatAre lists the tables that are known in this way.
func tablesThatAre(known knowledge, tables []*familyTable) []*familyTable {
	var list []*familyTable
	for _, t := range tables {
		if t.known == known {
			list = append(list, t)
		}
	}
	return list
}

func allMustBeRead(tables []*familyTable) {
	for _, t := range tables {
		t.mustBeRead()
	}
}

// inForce is the program that went in last, family by family.
func inForce(tables ip.PerFamily[*familyTable]) *nft.Program {
	return &nft.Program{IPv4: tables[0].inForce, IPv6: tables[1].inForce}
}

package nft

import "slices"

// phase is a step of a batch. Plan puts each operation on a table into its phase, and
// the batch has the phases in the order of these constants. An operation needs only
// what earlier phases did. So the operations of one phase may stand in any order among
// themselves; only one set's deletions come before its additions. And the kernel takes
// the batch in several transactions too, wherever it is cut. But packets then meet the
// tables as they are between two of them.
//
// The phases from phaseNewTimeouts to phaseNewElements go ahead: they have a transaction
// of their own before the rest (Batch.Transactions). Nothing leads a packet to what they
// make. A packet keeps the rules that were in force when it came to the hook, but
// its lookups see the elements of the moment. With all in one transaction, a packet
// could follow a new element into a chain that is still empty for it, and leave
// untranslated. (Linux 6.18, a flood of 220,000 packets a second: 8 packets got through in 553
// changes in one transaction, none in 194 changes in two.)
type phase int

const (
	// phaseDeleteTable deletes a table that cannot become the wanted one.
	phaseDeleteTable phase = iota
	// phaseAddTable adds the table that all the rest is in. All of a new table stands
	// in the phases up to phaseNewElements, its base chains too. None of it goes ahead: base
	// chains would send packets into a table that is not whole.
	phaseAddTable

	// phaseNewTimeouts adds objects of time-outs, for the rules that name them.
	phaseNewTimeouts
	// phaseNewSets declares new sets, for the rules and elements that name them.
	phaseNewSets
	// phaseNewChains adds new chains, for the rules and elements that point to them.
	phaseNewChains
	// phaseIdleFlushes empties idle chains that are wanted again with other rules.
	phaseIdleFlushes
	// phaseNewRules fills new chains, and those that phaseIdleFlushes emptied.
	phaseNewRules
	// phaseNewElements fills the new sets. Their verdicts may point to new chains.
	phaseNewElements

	// phaseBaseChains adds base chains to a table in use. They do not go ahead, since packets
	// meet them at once.
	phaseBaseChains
	// phaseFlushes empties chains: those that get other rules, those that look into a
	// set which is replaced, and those that will be deleted. Chains that will be deleted
	// may still jump to each other.
	phaseFlushes
	// phaseDeleteRemade deletes the sets that are replaced. No rule refers to them any more.
	phaseDeleteRemade
	// phaseAddRemade declares them again, for the rules that follow.
	phaseAddRemade
	// phaseOldVerdicts deletes elements of verdict maps, if phaseRules has anything to do. Another
	// process may have added one that leads to a chain whose rules are wrong behind a base chain that
	// will look into the map. Linux 5.10 refuses the base chain's rule while the element is there.
	phaseOldVerdicts
	// phaseRules fills base chains, and the chains that phaseFlushes emptied.
	phaseRules
	// phaseElements deletes and adds the other elements, set by set. Every chain that a verdict
	// points to has its rules now. In each set deletions come first: a key can
	// move from one part to another.
	phaseElements
	// phaseDeleteSets deletes idle sets. The chains that looked into them are empty.
	phaseDeleteSets
	// phaseDeleteChains deletes idle chains, and base chains of others. Elements that
	// pointed to them have gone, with their sets or before.
	phaseDeleteChains

	phaseCount
)

// phases are the operations on one table by phase.
type phases [phaseCount][]Op

func (p *phases) addOp(at phase, op Op) { p[at] = append(p[at], op) }

// batch is the operations in the order of the phases. Only chains need to go
// ahead. Where none is new or wanted again, all is one transaction.
func (p *phases) batch() Batch {
	b := Batch{Ops: slices.Concat(p[:]...)}
	if len(p[phaseAddTable]) == 0 && len(p[phaseNewChains])+len(p[phaseIdleFlushes]) > 0 {
		for at := phaseNewTimeouts; at <= phaseNewElements; at++ {
			b.ahead += len(p[at])
		}
	}
	return b
}

// Transactions returns the batch as it is to be carried out, one transaction after the
// other. There are two where operations go ahead, and otherwise one.
func (b Batch) Transactions() []Batch {
	if b.ahead == 0 || b.ahead == len(b.Ops) {
		return []Batch{b}
	}
	return []Batch{{Ops: slices.Clip(b.Ops[:b.ahead])}, {Ops: b.Ops[b.ahead:]}}
}

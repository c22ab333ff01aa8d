package nft

import (
	"fmt"
	"slices"
	"strings"
)

// Batch is the operations that turn a State into a Program, in order. Usually they are one
// transaction: all of them take effect, or none (see Transactions).
type Batch struct {
	Ops []Op
	// ahead is how many of the operations, from the first, have a transaction of
	// their own before the rest.
	ahead int
}

// Empty reports whether there is nothing to do.
func (b Batch) Empty() bool { return len(b.Ops) == 0 }

// Op is one operation of a batch on one table. The set of operations is closed.
type Op interface {
	// Text is the operation as one or more nft commands, each on a line.
	Text() string
	// table is the table that the operation is about.
	table() TableID
}

// TableOf returns the table that the operation changes.
func TableOf(o Op) TableID { return o.table() }

// TableID names a table.
type TableID struct {
	Family Family
	Name   string
}

func (t TableID) String() string { return t.Family.String() + " " + t.Name }

// ID names the table.
func (t *Table) ID() TableID { return TableID{t.Family, t.Name} }

// AddTable creates the table. It does nothing if the table exists.
type AddTable struct{ Table TableID }

// DeleteTable deletes the table with all that is in it. A missing table is an
// error.
type DeleteTable struct{ Table TableID }

// AddSet declares a set or map.
type AddSet struct {
	Table TableID
	Set   *Set
}

// DeleteSet deletes a set or map that no rule refers to, with its elements.
type DeleteSet struct {
	Table TableID
	Set   string
}

// AddChain creates the chain, without its rules.
type AddChain struct {
	Table TableID
	Chain *Chain
}

// FlushTable removes all rules of all chains of the table.
type FlushTable struct{ Table TableID }

// FlushChain removes all rules of the chain. Its name may be empty: the kernel (Linux 6.18)
// lets another process create such a chain.
type FlushChain struct {
	Table TableID
	Chain string
}

// DeleteChain deletes a chain that nothing points to.
type DeleteChain struct {
	Table TableID
	Chain string
}

// AddRules appends the chain's rules to it.
type AddRules struct {
	Table TableID
	Chain *Chain
}

// OwnedElement is an element and the part that it belongs to. The part is at fault if
// the kernel refuses the element.
type OwnedElement struct {
	Element
	Part string
}

// AddElements adds elements to one set. An existing key with other data is an error. An existing
// key with the same data is not.
type AddElements struct {
	Table    TableID
	Set      *Set
	Elements []OwnedElement
}

// DeleteElements deletes elements of one set by their keys. A missing key is an
// error.
type DeleteElements struct {
	Table    TableID
	Set      *Set
	Elements []OwnedElement
}

// String returns the batch as an nft script.
func (b Batch) String() string {
	var s strings.Builder
	for _, op := range b.Ops {
		s.WriteString(op.Text())
	}
	return s.String()
}

// Text is, for example, "add table ip nftproxy".
func (o AddTable) Text() string { return fmt.Sprintf("add table %s\n", o.Table) }

// Text is, for example, "delete table ip nftproxy".
func (o DeleteTable) Text() string { return fmt.Sprintf("delete table %s\n", o.Table) }

// Text is, for example, "add set ip nftproxy cluster-ips { typeof ip daddr; }".
func (o AddSet) Text() string {
	return fmt.Sprintf("add %s %s %s { %s; }\n", o.Set.keyword(), o.Table, o.Set.Name, o.Set.declaration(o.Table.Family))
}

// Text is, for example, "delete set ip nftproxy services", which nft takes for
// maps as well.
func (o DeleteSet) Text() string { return fmt.Sprintf("delete set %s %s\n", o.Table, o.Set) }

// Text is, for example, "add chain ip nftproxy refuse".
func (o AddChain) Text() string {
	hook := ""
	if h := o.Chain.Hook; h != nil {
		hook = fmt.Sprintf(" { %s; }", h)
	}
	return fmt.Sprintf("add chain %s %s%s\n", o.Table, o.Chain.Name, hook)
}

// Text is, for example, "flush table ip nftproxy".
func (o FlushTable) Text() string { return fmt.Sprintf("flush table %s\n", o.Table) }

// Text is, for example, "flush chain ip nftproxy refuse".
func (o FlushChain) Text() string { return fmt.Sprintf("flush chain %s %s\n", o.Table, o.Chain) }

// Text is, for example, "delete chain ip nftproxy endpoints-3".
func (o DeleteChain) Text() string { return fmt.Sprintf("delete chain %s %s\n", o.Table, o.Chain) }

// Text returns an "add rule" command for each rule.
func (o AddRules) Text() string {
	var s strings.Builder
	for _, r := range o.Chain.Rules {
		fmt.Fprintf(&s, "add rule %s %s %s\n", o.Table, o.Chain.Name, r.Text(o.Table.Family))
	}
	return s.String()
}

// Text returns an "add element" command with one element a line.
func (o AddElements) Text() string {
	return elementsText("add", o.Table, o.Set, o.Elements, Element.Text)
}

// Text returns a "delete element" command with one key a line.
func (o DeleteElements) Text() string {
	return elementsText("delete", o.Table, o.Set, o.Elements, Element.keyText)
}

func elementsText(verb string, t TableID, set *Set, list []OwnedElement,
	text func(Element, Family, *Set) string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s element %s %s {\n", verb, t, set.Name)
	for _, e := range list {
		fmt.Fprintf(&s, "\t%s,\n", text(e.Element, t.Family, set))
	}
	return s.String() + "}\n"
}

// ElementsOf returns the elements that the operation adds or deletes.
func ElementsOf(o Op) []OwnedElement {
	switch o := o.(type) {
	case AddElements:
		return o.Elements
	case DeleteElements:
		return o.Elements
	}
	return nil
}

// Size returns the number of objects that the batch touches: tables, sets, chains,
// rules and elements.
func (b Batch) Size() int {
	n := 0
	for _, op := range b.Ops {
		switch op := op.(type) {
		case AddRules:
			n += len(op.Chain.Rules)
		case AddElements, DeleteElements:
			n += len(ElementsOf(op))
		default:
			n++
		}
	}
	return n
}

// Parts returns how many elements of each part the batch touches.
func (b Batch) Parts() map[string]int {
	parts := map[string]int{}
	for _, op := range b.Ops {
		elements := ElementsOf(op)
		for from := 0; from < len(elements); { // Those of a part mostly follow each other.
			to := from + 1
			for to < len(elements) && elements[to].Part == elements[from].Part {
				to++
			}
			parts[elements[from].Part] += to - from
			from = to
		}
	}
	return parts
}

// Join returns several batches as one. Operations that go ahead in one of them go ahead of
// all.
func Join(batches ...Batch) Batch {
	var ahead, rest []Op
	for _, b := range batches {
		ahead = append(ahead, b.Ops[:b.ahead]...)
		rest = append(rest, b.Ops[b.ahead:]...)
	}
	return Batch{slices.Concat(ahead, rest), len(ahead)}
}

func (o AddTable) table() TableID       { return o.Table }
func (o DeleteTable) table() TableID    { return o.Table }
func (o AddSet) table() TableID         { return o.Table }
func (o DeleteSet) table() TableID      { return o.Table }
func (o AddChain) table() TableID       { return o.Table }
func (o FlushTable) table() TableID     { return o.Table }
func (o FlushChain) table() TableID     { return o.Table }
func (o DeleteChain) table() TableID    { return o.Table }
func (o AddRules) table() TableID       { return o.Table }
func (o AddElements) table() TableID    { return o.Table }
func (o DeleteElements) table() TableID { return o.Table }

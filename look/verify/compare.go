package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"nftproxy/nft"
)

// Compare finds how the tables differ from the program. These may differ without a
// difference:
//   - the clients that dynamic maps remember, which no program has;
//   - the sizes of sets, which the proxy chooses by their contents;
//   - the order of the endpoints of one Service port;
//   - objects of time-outs that the program does not have: the proxy deletes none;
//   - sets and chains that nothing in the program leads to, and rules for packets that met the rules of an
//     earlier program (Differences.Idle).
//
// If a table is missing, or the proxy would make it again, its rules and elements are not
// compared. The cost is that of a first sync, and grows with the program.
func Compare(want *nft.Program, have *nft.Model) *Differences {
	result := &Differences{}
	state := nft.Adopt(have, want)
	for _, f := range nft.Families() {
		// The plan uses the time only to tell how long something has been idle.
		batch, _ := state.PlanTable(want.Table(f), time.Time{})
		c := comparison{family: f, want: want.Table(f), have: have.Table(want.Table(f).ID()), result: result}
		c.compareBatch(batch)
		c.addIdle()
	}
	result.sort()
	return result
}

// comparison compares one family's table.
type comparison struct {
	family nft.Family
	want   *nft.Table
	have   *nft.Contents
	result *Differences
	// owners has the Services of keys in verdict maps, once it is needed.
	owners map[nft.Value]string
}

// compareBatch makes differences of the operations that the proxy would carry out.
func (c *comparison) compareBatch(b nft.Batch) {
	if slices.ContainsFunc(b.Ops, func(op nft.Op) bool { _, adds := op.(nft.AddTable); return adds }) {
		c.compareDeclarations()
		return
	}
	remade := map[string]bool{}
	gone, added := map[string][]nft.OwnedElement{}, map[string][]nft.OwnedElement{}
	sets, chains := map[string]*nft.Set{}, map[string]bool{}
	for _, op := range b.Ops {
		switch op := op.(type) {
		case nft.DeleteSet:
			remade[op.Set] = true
		case nft.AddSet:
			if !remade[op.Set.Name] {
				c.add(difference{kind: Set, name: op.Set.Name, is: Missing, wantText: declaration(op, op.Table)})
			}
		case nft.AddTimeout:
			c.add(difference{kind: Timeout, name: op.Timeout.Name, is: Missing, wantText: timeoutText(op.Timeout, c.family)})
		case nft.AddChain:
			c.add(difference{kind: Chain, name: op.Chain.Name, is: Missing, wantText: hookText(op.Chain)})
		case nft.DeleteChain:
			c.add(difference{kind: Chain, name: op.Chain, is: Extra, haveText: hookText(c.have.Chains[op.Chain])})
		case nft.FlushChain:
			chains[op.Chain] = true
		case nft.AddRules:
			chains[op.Chain.Name] = true
		case nft.DeleteElements:
			sets[op.Set.Name], gone[op.Set.Name] = op.Set, op.Elements
		case nft.AddElements:
			sets[op.Set.Name], added[op.Set.Name] = op.Set, op.Elements
		default:
			c.add(difference{kind: Table, name: c.want.Name, is: Changed, wantText: strings.TrimSpace(op.Text())})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		c.compareRules(name)
	}
	for name := range remade {
		// The batch makes such a set again and adds all its elements: for its size, or because
		// only one of the two has counters.
		if set := c.want.Set(name); set != nil {
			c.compareDeclaration(set)
			c.compareElements(set, c.contents(name), added[name])
		}
		delete(sets, name)
	}
	for name, set := range sets {
		c.compareElements(set, gone[name], added[name])
	}
}

func (c *comparison) add(d difference) {
	d.family = c.family
	c.result.list = append(c.result.list, d)
}

// contents are the elements that the kernel has in a set.
func (c *comparison) contents(set string) []nft.OwnedElement {
	var all []nft.OwnedElement
	for _, e := range c.have.Sets[set].Elements {
		all = append(all, nft.OwnedElement{Element: e, Part: nft.Unowned})
	}
	return all
}

// compareElements compares the elements of one set that go with those that come. A key that
// is among both has changed, or is the same.
func (c *comparison) compareElements(set *nft.Set, gone, added []nft.OwnedElement) {
	left := make(map[nft.Value]nft.OwnedElement, len(gone))
	for _, e := range gone {
		left[e.Key] = e
	}
	for _, e := range added {
		have, found := left[e.Key]
		delete(left, e.Key)
		switch {
		case !found:
			c.add(difference{service: c.serviceOf(e), kind: Element, name: set.Name, is: Missing, set: set, want: e.Element})
		case have.Element != e.Element:
			c.add(difference{service: c.serviceOf(e), kind: Element, name: set.Name, is: Changed, set: set, want: e.Element,
				have: have.Element})
		}
	}
	for _, e := range left {
		c.add(difference{service: c.serviceOf(e), kind: Element, name: set.Name, is: Extra, set: set, have: e.Element})
	}
}

// compareRules compares the rules of a chain that is there and wanted.
func (c *comparison) compareRules(chain string) {
	have, found := c.have.Chains[chain]
	want, wanted := c.want.Chains.Get(chain)
	if !wanted || !found {
		return // The chain is extra or missing, and said to be.
	}
	wantRules, haveRules := ruleTexts(want, c.family), ruleTexts(have, c.family)
	for len(wantRules) > 0 && len(haveRules) > 0 && wantRules[0] == haveRules[0] {
		wantRules, haveRules = wantRules[1:], haveRules[1:]
	}
	for len(wantRules) > 0 && len(haveRules) > 0 && wantRules[len(wantRules)-1] == haveRules[len(haveRules)-1] {
		wantRules, haveRules = wantRules[:len(wantRules)-1], haveRules[:len(haveRules)-1]
	}
	for _, text := range wantRules {
		c.add(difference{kind: Rule, name: chain, is: Missing, wantText: text})
	}
	for _, text := range haveRules {
		c.add(difference{kind: Rule, name: chain, is: Extra, haveText: text})
	}
}

// compareDeclarations says why the proxy would make the table again: it is missing, or the
// kernel cannot change it into the wanted one.
func (c *comparison) compareDeclarations() {
	if c.have == nil {
		c.add(difference{kind: Table, name: c.want.Name, is: Missing, wantText: "table " + c.want.Name})
		return
	}
	for _, set := range c.want.Sets.All() {
		c.compareDeclaration(set)
	}
	for name, timeout := range c.want.Timeouts.All() {
		if have, there := c.have.Timeouts[name]; there && have != timeout {
			c.add(difference{kind: Timeout, name: name, is: Changed, wantText: timeoutText(timeout, c.family),
				haveText: timeoutText(have, c.family)})
		}
	}
	for name, chain := range c.want.Chains.All() {
		if have := c.have.Chains[name]; have != nil && hookText(have) != hookText(chain) {
			c.add(difference{kind: Chain, name: name, is: Changed, wantText: hookText(chain), haveText: hookText(have)})
		}
	}
	c.add(difference{
		kind: Table, name: c.want.Name, is: Changed, wantText: "table " + c.want.Name,
		haveText: fmt.Sprintf("table %s: nftproxy has to make it again, so its rules and elements are not compared",
			c.want.Name),
	})
}

// compareDeclaration compares the declaration of a wanted set, if the kernel has the set.
func (c *comparison) compareDeclaration(set *nft.Set) {
	have := c.have.Sets[set.Name]
	if have == nil {
		return
	}
	if want, is := c.declared(set, set), c.declared(set, have.Set); want != is {
		c.add(difference{kind: Set, name: set.Name, is: Changed, wantText: want, haveText: is})
	}
}

// declared is the text of a set's declaration without the size if that is free.
func (c *comparison) declared(want, set *nft.Set) string {
	if len(set.Key) == 0 {
		return fmt.Sprintf("set %s: nftproxy does not write its declaration, or one of its elements", set.Name)
	}
	s := *set
	if want.MinSize > 0 {
		s.Size = 0
	}
	return declaration(nft.AddSet{Table: c.want.ID(), Set: &s}, c.want.ID())
}

// declaration is the text of an operation on a table without "add" and the table.
func declaration(op nft.Op, table nft.TableID) string {
	text := strings.TrimPrefix(op.Text(), "add ")
	return strings.TrimSpace(strings.Replace(text, table.String()+" ", "", 1))
}

// timeoutText is the text of an object of time-outs without "add" and the table.
func timeoutText(t nft.Timeout, f nft.Family) string {
	table := nft.TableID{Family: f, Name: "-"}
	return declaration(nft.AddTimeout{Table: table, Timeout: t}, table)
}

func hookText(chain *nft.Chain) string {
	if chain.Hook == nil {
		return "chain " + chain.Name
	}
	return fmt.Sprintf("chain %s { %s; }", chain.Name, chain.Hook)
}

// ruleTexts is the chain's rules in nft's syntax.
func ruleTexts(chain *nft.Chain, f nft.Family) []string {
	var texts []string
	for _, r := range chain.Rules {
		var words []string
		for _, s := range r {
			if s == (nft.Unknown{}) {
				words = append(words, "(more, which nftproxy does not write)")
				continue
			}
			words = append(words, s.Text(f))
		}
		texts = append(texts, strings.Join(words, " "))
	}
	return texts
}

// addIdle notes the sets and the chains without a hook that the program does not have, and the chains with
// rules that it does not have any more.
func (c *comparison) addIdle() {
	if c.have == nil {
		return
	}
	for name, chain := range c.have.Chains {
		switch want, wanted := c.want.Chains.Get(name); {
		case !wanted && chain.Hook == nil:
			c.result.Idle = append(c.result.Idle, nameInFamily(c.family, Chain, name))
		case wanted && len(chain.Rules) > len(want.Rules) && !c.differs(name):
			c.result.Idle = append(c.result.Idle, nameInFamily(c.family, Rule, name))
		}
	}
	for name := range c.have.Sets {
		if c.want.Set(name) == nil {
			c.result.Idle = append(c.result.Idle, nameInFamily(c.family, Set, name))
		}
	}
}

// differs says whether the rules of a chain are among the differences.
func (c *comparison) differs(chain string) bool {
	return slices.ContainsFunc(c.result.list, func(d difference) bool {
		return d.family == c.family && d.kind == Rule && d.name == chain
	})
}

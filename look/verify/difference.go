package verify

import (
	"cmp"
	"fmt"
	"slices"

	"nftproxy/look/inspect"
	"nftproxy/look/othertables"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/invalidtable"
)

// Kind is the kind of object that differs, by nft's word, and Is how it differs.
type (
	Kind string
	Is   string
)

// The kinds of objects.
const (
	Table   Kind = "table"
	Timeout Kind = "ct timeout"
	Set     Kind = "set"
	Chain   Kind = "chain"
	Rule    Kind = "rule"
	Element Kind = "element"
)

// How an object differs.
const (
	// Missing: it should be in the kernel and is not.
	Missing Is = "missing"
	// Extra: it is in the kernel and should not be.
	Extra Is = "extra"
	// Changed: it is in the kernel otherwise than it should be.
	Changed Is = "changed"
)

// Difference is one object that the kernel has otherwise than it should.
type Difference struct {
	// Service is the namespace/name of the Service that the object belongs to. It is empty for
	// what Services share and for what no Service is known of.
	Service string `json:"service"`
	// Family is that of the table, "ip" or "ip6", or "inet" for one of both.
	Family string `json:"family"`
	Kind   Kind   `json:"kind"`
	// Name is that of the table, set or chain. For a rule it is its chain's, for an element that
	// of its set or map.
	Name string `json:"name"`
	Is   Is     `json:"is"`
	// Want is the object as it should be, and Have as it is, in nft's syntax. One of them is
	// empty for a missing and for an extra object.
	Want string `json:"want"`
	Have string `json:"have"`
}

// Differences are all differences of two tables from a program.
type Differences struct {
	list []difference
	// Idle are chains and sets that nothing in the program leads to, as "ip chain
	// endpoints-3", sorted, and chains with rules for packets that met the rules of an earlier program,
	// as "ip rule postrouting". The proxy keeps such for ten seconds, so they are no differences.
	Idle []string
}

// difference is a Difference before its text is made. There may be hundreds of thousands of
// them, and few of them are shown.
type difference struct {
	service string
	// family does not count if the table is one of both.
	family nft.Family
	both   bool
	kind   Kind
	name   string
	is     Is
	// wantText and haveText are the object's forms, but not of an element.
	wantText, haveText string
	// set is the declaration of an element's set. want and have are the element's forms, with an
	// empty key for none.
	set        *nft.Set
	want, have nft.Element
}

// identity is the same for a difference that is found twice. What is wanted does not count, but for a missing object
// and the key of an element: it follows the objects while the kernel may stay behind.
func (d *difference) identity() difference {
	i := *d
	i.service, i.set, i.want = "", nil, nft.Element{Key: d.key()}
	if d.kind == Table && d.is == Extra {
		i.haveText = "" // it counts the Services of the moment
	}
	if d.is != Missing {
		i.wantText = ""
	}
	return i
}

// key is the key of an element; empty for other objects.
func (d *difference) key() nft.Value { return cmp.Or(d.have.Key, d.want.Key) }

// Len is the number of differences.
func (d *Differences) Len() int { return len(d.list) }

// Lasting returns those of the differences that an earlier comparison found too. The kernel
// has held the same in their place meanwhile. So changes that were in flight at one of the
// two comparisons are not among them.
func (d *Differences) Lasting(earlier *Differences) *Differences {
	before := make(map[difference]bool, len(earlier.list))
	for i := range earlier.list {
		before[earlier.list[i].identity()] = true
	}
	lasting := slices.Clone(d.list)
	lasting = slices.DeleteFunc(lasting, func(one difference) bool { return !before[one.identity()] })
	idle := slices.DeleteFunc(slices.Clone(d.Idle), func(name string) bool { return !slices.Contains(earlier.Idle, name) })
	return &Differences{list: lasting, Idle: idle}
}

// limit removes the differences of Services that are not selected. The error is about a selected Service that neither
// the objects nor the tables have.
func (d *Differences) limit(selected inspect.Selection, objects service.Snapshot, source string) error {
	err := selected.Unknown(func(yield func(service.Name) bool) {
		for i := range d.list {
			if !yield(service.Name(d.list[i].service)) {
				return
			}
		}
		inspect.NamesOf(&objects)(yield)
	}, source+" or the tables")
	d.list = slices.DeleteFunc(d.list, func(one difference) bool {
		return one.service != "" && !selected.Has(service.Name(one.service))
	})
	return err
}

// addTables adds the tables of other nftproxies that should not be there beside ours.
func (d *Differences) addTables(ours string, others []othertables.Tables) {
	for i := range others {
		if text := others[i].Problem(ours); text != "" {
			for _, info := range others[i].Infos {
				d.list = append(d.list, difference{family: info.ID.Family, kind: Table, name: others[i].Name, is: Extra,
					haveText: text})
			}
		}
	}
	d.sort()
}

// addInvalid adds the table whose rule drops invalid packets, if it is not as wanted.
func (d *Differences) addInvalid(services string, wanted bool, state invalidtable.State) {
	name := invalidtable.Name(services)
	text := "table " + name + ", which drops packets that belong to no connection"
	one := difference{both: true, kind: Table, name: name}
	switch {
	case wanted && state == invalidtable.Absent:
		one.is, one.wantText = Missing, text
	case wanted && state == invalidtable.Different:
		one.is, one.wantText, one.haveText = Changed, text, "table "+name+", with other chains or rules"
	case !wanted && state != invalidtable.Absent:
		one.is, one.haveText = Extra, text
	default:
		return
	}
	d.list = append(d.list, one)
	d.sort()
}

// sort gives the differences their order: what Services share, then Service by Service, and
// in each the families, kinds, names and keys.
func (d *Differences) sort() {
	slices.SortStableFunc(d.list, func(a, b difference) int {
		return cmp.Or(
			cmp.Compare(a.service, b.service), cmp.Compare(a.family, b.family), cmp.Compare(a.kind.rank(), b.kind.rank()),
			cmp.Compare(a.name, b.name), cmp.Compare(a.key(), b.key()),
		)
	})
	slices.Sort(d.Idle)
}

// rank orders the kinds from the whole to its parts.
func (k Kind) rank() int { return slices.Index([]Kind{Table, Timeout, Set, Chain, Rule, Element}, k) }

// public is the difference with its text.
func (d *difference) public() Difference {
	p := Difference{Service: d.service, Family: d.family.String(), Kind: d.kind, Name: d.name, Is: d.is, Want: d.wantText,
		Have: d.haveText}
	if d.both {
		p.Family = "inet"
	}
	if d.kind == Element {
		if d.want.Key != "" {
			p.Want = d.want.Text(d.family, d.set)
		}
		if d.have.Key != "" {
			p.Have = d.have.Text(d.family, d.set)
		}
	}
	return p
}

// nameInFamily is, for example, "ip chain endpoints-3".
func nameInFamily(f nft.Family, kind Kind, name string) string {
	return fmt.Sprintf("%s %s %s", f, kind, name)
}

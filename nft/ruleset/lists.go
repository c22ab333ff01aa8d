package ruleset

import (
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/sorted"
	"nftproxy/nft"
)

// endpointLists is a share.Choice in the form of the program.
type endpointLists struct {
	cluster, local targetList
	anywhere       bool
}

// targetList is a list of targets. row, if not nil, has the slots of each, and balance says how packets draw one.
type targetList struct {
	nft.Targets
	row     *nft.Row
	balance service.Balance
}

// slots is the number of slots.
func (l targetList) slots() int {
	if l.row != nil {
		return len(l.row.Slots)
	}
	return l.Len()
}

// portLists are the lists of a port and the choice that they come from. A compiler
// keeps them for ports with many endpoints: then the next lists cost what differs.
type portLists struct {
	endpointLists
	choice share.Choice
}

// listsAfter returns the lists of a port; last has its previous lists, nil if unknown.
func (c *serviceCompiler) listsAfter(last *portLists, p *service.Port) portLists {
	if last == nil {
		last = &portLists{}
	}
	choice := share.ChooseAfter(c.svc, &last.choice, p, c.node, c.family)
	return portLists{endpointLists{
		c.list(p, &choice, false, c.targetsAfter(last.cluster.Targets, last.choice.Cluster, choice.Cluster)),
		c.list(p, &choice, true, c.targetsAfter(last.local.Targets, last.choice.Local, choice.Local)),
		choice.Anywhere,
	}, choice}
}

// list returns a list of the choice, with a row if one slot for each is not enough. Other rows than
// those by least connections take no history, so that all nodes make the same ones of the same endpoints.
func (c *serviceCompiler) list(p *service.Port, choice *share.Choice, local bool, targets nft.Targets) targetList {
	list, addrs := targetList{Targets: targets}, choice.List(local)
	if least := share.NewLeastRow(c.svc, p, c.node, choice, local); least != nil {
		list.row, list.balance = c.leastRow(least), service.ByLeastConnections
		return list
	}
	size := 0
	if c.svc.Options.Balance.Hashes() {
		size = share.TableSize(targets.Len(), share.SlotLimit(c.svc))
	}
	if size == 0 && !choice.Weighted || targets.Len() < 2 {
		return list
	}
	weights := make([]uint32, 0, targets.Len())
	for a := range addrs.All() {
		weights = append(weights, p.Endpoints.Find(service.Endpoint{Addr: a}).Quarters())
	}
	values := slices.Collect(targets.All())
	if size > 0 {
		list.row, list.balance = &nft.Row{Slots: make([]nft.Value, size), Fixed: true}, c.svc.Options.Balance
		for slot, i := range share.Table(values, weights, size) {
			list.row.Slots[slot] = values[i]
		}
		return list
	}
	counts := share.Drawn(weights, share.SlotLimit(c.svc))
	if counts == nil {
		return list
	}
	list.row = &nft.Row{}
	for i, n := range counts {
		list.row.Slots = append(list.row.Slots, slices.Repeat(values[i:i+1], n)...)
	}
	return list
}

// leastRow returns a row by least connections, sorted.
func (c *serviceCompiler) leastRow(least *share.LeastRow) *nft.Row {
	row := &nft.Row{Slots: make([]nft.Value, 0, least.Len())}
	for i, load := range least.Loads {
		row.Slots = append(row.Slots, slices.Repeat([]nft.Value{nft.Value(c.appendTarget(nil, least.Addrs[i]))},
			load.Slots)...)
	}
	slices.Sort(row.Slots)
	return row
}

// targetsAfter returns the targets of the addresses. known has the targets of the
// previous addresses.
func (c *serviceCompiler) targetsAfter(known nft.Targets, previous, addrs share.Addresses) nft.Targets {
	if !previous.Long() || !addrs.Long() {
		return sorted.Of(c.targets(addrs))
	}
	var edits []sorted.Edit[nft.Value]
	for change := range sorted.Diff(previous, addrs) {
		if !sorted.Few(len(edits), addrs.Len()) {
			return sorted.Of(c.targets(addrs))
		}
		a := change.New
		if a == nil {
			a = change.Old
		}
		edits = append(edits, sorted.Edit[nft.Value]{Item: nft.Value(c.appendTarget(nil, *a)), Gone: change.New == nil})
	}
	return known.Edit(edits)
}

// targets returns the addresses in the form of the program. They are cut from one
// string, so that a service of many endpoints costs one allocation.
func (c *serviceCompiler) targets(addrs share.Addresses) []nft.Value {
	if addrs.Len() == 0 {
		return nil
	}
	size := c.family.AddrLen() + 4
	if c.ranged {
		size = c.family.AddrLen()
	}
	all := make([]byte, 0, size*addrs.Len())
	for chunk := range addrs.Chunks() {
		for _, a := range chunk {
			all = c.appendTarget(all, a)
		}
	}
	text, targets := nft.Value(all), make([]nft.Value, addrs.Len())
	for i := range targets {
		targets[i] = text[i*size : (i+1)*size]
	}
	return targets
}

// appendTarget appends address and port, or the address alone for ranges of ports.
func (c *serviceCompiler) appendTarget(b []byte, a netip.AddrPort) []byte {
	if c.ranged {
		return nft.AppendAddr(b, a.Addr())
	}
	return nft.AppendPort(nft.AppendAddr(b, a.Addr()), a.Port())
}

// keepPort keeps what the table needs of the i-th port: the endpoints on the node, to
// count them, and long lists, for the next compilation.
func (c *compiledService) keepPort(i int, svc *service.Service, p *portLists) {
	on := portOnNode{p.choice.OnNode, p.choice.MaybeOnNode}
	if on.maybe.Len() > MaxMaybeOnNode {
		on.maybe = share.Addresses{}
	}
	if on.here.Len()+on.maybe.Len() > 0 {
		c.local = append(c.local, on)
	}
	if !svc.Ports[i].Endpoints.Long() {
		return
	}
	if c.ports == nil {
		c.ports = make([]portLists, len(svc.Ports))
	}
	c.ports[i] = *p
}

// MaxMaybeOnNode limits the endpoints of a port that perhaps run on the node. If there are more,
// none of these can reach itself. Each address costs an element that belongs to no Service, and
// anybody may write slices without nodeName. A slice has 1,000 endpoints at most.
const MaxMaybeOnNode = 1000

// portOnNode has the endpoints of a port that run on the node, and those that may do so.
type portOnNode struct{ here, maybe share.Addresses }

// setLocal sets the lists of a service's endpoints on the node. The table has one
// hairpin element for each address in any such list.
func (t *tableCompiler) setLocal(name service.Name, lists []portOnNode) {
	old := t.local[name]
	var touched []netip.Addr
	count := func(kind needKind, before, after share.Addresses) {
		for c := range sorted.Diff(before, after) {
			a, by := c.New, 1
			if a == nil {
				a, by = c.Old, -1
			}
			t.needs.count(need{kind, string(addrValue(a.Addr()))}, by)
			touched = append(touched, a.Addr())
		}
	}
	for i := range max(len(old), len(lists)) {
		var before, after portOnNode
		if i < len(old) {
			before = old[i]
		}
		if i < len(lists) {
			after = lists[i]
		}
		count(needHere, before.here, after.here)
		count(needMaybeHere, before.maybe, after.maybe)
	}
	for _, a := range slices.Compact(touched) {
		t.setHairpin(a)
	}
	if len(lists) == 0 {
		delete(t.local, name)
		return
	}
	t.local[name] = lists
}

// setHairpin sets or removes the element of a local endpoint's address, by the services
// that have it.
func (t *tableCompiler) setHairpin(a netip.Addr) {
	value := addrValue(a)
	element := nft.Element{Set: hairpin, Key: value + value}
	var elements []nft.Element
	switch {
	case t.needs.has(need{needHere, string(value)}):
		elements = []nft.Element{element}
	case t.needs.has(need{needMaybeHere, string(value)}):
		element.Comment = maybeHere
		elements = []nft.Element{element}
	}
	t.editElements("endpoint "+a.String(), elements)
}

// maybeHere is the comment on hairpin elements of endpoints of which it is not certain
// that they run on the node.
const maybeHere = "perhaps on this node"

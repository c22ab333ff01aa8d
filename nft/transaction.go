package nft

// Transactions is the batch as it is to be carried out, one transaction after
// the other. Mostly it is one. Chains that come new to a table which is in use
// are made and filled first, in a transaction of their own: a packet keeps the
// generation of rules that it found when it came to the hook, but its lookups
// see the elements of the moment. With both in one transaction, a packet in
// between would follow a new element into a chain that is still empty for it,
// and leave as it came. (Linux 6.18, a flood of 220,000 packets a second: 8 got
// through in 553 changes in one transaction, none in 194 in two.)
func (b Batch) Transactions() []Batch {
	fresh := map[TableID]bool{}
	type id struct {
		table TableID
		chain string
	}
	shared := map[id]bool{}
	for _, op := range b.Ops {
		switch op := op.(type) {
		case AddTable:
			fresh[op.Table] = true
		case AddChain:
			if op.Chain.Hook == nil && !fresh[op.Table] {
				shared[id{op.Table, op.Chain.Name}] = true
			}
		}
	}
	var first, rest Batch
	for _, op := range b.Ops {
		ahead := false
		switch op := op.(type) {
		case AddSet:
			ahead = !fresh[op.Table]
		case AddChain:
			ahead = shared[id{op.Table, op.Chain.Name}]
		case AddRules:
			ahead = shared[id{op.Table, op.Chain.Name}]
		}
		if ahead {
			first.Ops = append(first.Ops, op)
		} else {
			rest.Ops = append(rest.Ops, op)
		}
	}
	if len(shared) == 0 || rest.Empty() {
		return []Batch{b}
	}
	return []Batch{first, rest}
}

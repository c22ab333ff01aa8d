package nft

import "slices"

// Only returns the batch's operations on the tables of one family.
func (b Batch) Only(f Family) Batch {
	ofFamily := func(ops []Op) []Op {
		return slices.DeleteFunc(slices.Clone(ops), func(op Op) bool { return op.table().Family != f })
	}
	ahead := ofFamily(b.Ops[:b.ahead])
	return Batch{append(ahead, ofFamily(b.Ops[b.ahead:])...), len(ahead)}
}

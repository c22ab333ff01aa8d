package nft

import "nftproxy/model/treap"

// declared is the set with the size that Plan declares: for half as many elements again as the set gets at first, and
// for MinSize at least.
//
// With a size and no time-outs, the kernel has a hash with a fixed number of buckets. Without, it has one that grows:
// each use costs more (BenchmarkApply in nft/kernel loads 110,000 elements in 124 ms with sizes and in 233 ms without),
// and a dump is incomplete if the hash grows meanwhile.
func (s *Set) declared(elements int) *Set {
	if s.MinSize == 0 {
		return s
	}
	d := *s
	// The kernel takes 4/3 of the size in buckets, rounded up to a power of two
	// (nft_hash_buckets): at 3 * 2^k nothing is rounded up.
	d.Size, d.MinSize = 3, 0
	for int(d.Size) < elements+elements/2 || d.Size < s.MinSize {
		d.Size *= 2
	}
	return &d
}

// outgrown says that so many elements do not fit the declared size of a set that is
// wanted with MinSize.
func (s *Set) outgrown(wanted *Set, elements int) bool {
	return wanted.MinSize > 0 && elements > int(s.Size)
}

// sameAs says that the kernel's set is declared as the wanted one, s. With MinSize any
// size is right: planSets compares it with the number of elements.
func (s *Set) sameAs(have *Set, f Family) bool {
	if s == have {
		return true
	}
	h := *have
	if s.MinSize > 0 {
		h.Size = s.Size
	}
	return s.keyword() == h.keyword() && s.declaration(f) == h.declaration(f)
}

// differsInCounter says that the kernel's set is declared as the wanted one, s, but that only one
// of them counts.
func (s *Set) differsInCounter(have *Set, f Family) bool {
	h := *have
	h.Counter = s.Counter
	return s.Counter != have.Counter && s.sameAs(&h, f)
}

// countElements finds how many elements each set with MinSize has after the batch.
func (p *tablePlan) countElements() {
	have := p.have.counts
	changes := map[string]int{}
	for name, c := range p.elements {
		switch wanted := p.want.Set(name); {
		case wanted == nil:
			changes[name] = 0 // all of them are deleted
		case wanted.MinSize > 0:
			changes[name] = have.At(name) + len(c.added) - len(c.gone)
		}
	}
	p.next.counts = have.Apply(treap.Edits(changes))
}

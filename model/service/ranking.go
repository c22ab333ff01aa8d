package service

// ranking is a heap of rights, the best first. A right that is not valid any more stays
// in it until it comes first, or until most of the heap is not valid.
type ranking []right

// valid says whether a claimant still has the right.
func (r right) valid(rights map[Name]right) bool { return rights[r.name()] == r }

// first returns the best valid right, empty for none. It also returns the ranking
// without the rights that stood before it.
func (h ranking) first(rights map[Name]right) (right, ranking) {
	for len(h) > 0 && !h[0].valid(rights) {
		last := len(h) - 1
		h[0], h[last] = h[last], ""
		h = h[:last]
		h.down(0)
	}
	if len(h) == 0 {
		return "", h
	}
	return h[0], h
}

// push adds a right.
func (h ranking) push(r right, rights map[Name]right) ranking {
	const small = 16
	if len(h) > small && len(h) > 2*len(rights) {
		h = h.validOnly(rights)
	}
	h = append(h, r)
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if h[parent] <= h[i] {
			break
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
	return h
}

// validOnly returns a ranking with each valid right once and no others.
func (h ranking) validOnly(rights map[Name]right) ranking {
	seen, list := make(map[right]bool, len(rights)), make(ranking, 0, len(rights)+1)
	for _, r := range h {
		if r.valid(rights) && !seen[r] {
			seen[r] = true
			list = append(list, r)
		}
	}
	for i := len(list)/2 - 1; i >= 0; i-- {
		list.down(i)
	}
	return list
}

// down moves the right at i down to its place in the heap.
func (h ranking) down(i int) {
	for {
		least := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < len(h) && h[child] < h[least] {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

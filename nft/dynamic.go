package nft

// Learned is an element that a rule (Update) added to a dynamic map, or whose
// time it started anew.
type Learned struct {
	Table   TableID
	Element Element
}

// Learn carries out what a packet's trace would have left in the dynamic maps.
// As in the kernel, an element that is there keeps its data, and a full map
// takes no other.
func (m *Model) Learn(r Result) {
	for _, l := range r.Learned {
		s := m.tables[l.Table].Sets[l.Element.Set]
		if _, found := s.Elements[l.Element.Key]; !found && !s.full() {
			s.Elements[l.Element.Key] = l.Element
		}
	}
}

func (s *SetContents) full() bool {
	return s.Set.Size > 0 && len(s.Elements) >= int(s.Set.Size)
}

// covers says whether the key is in the set: in an interval set if each of its
// fields lies within the same element's.
func (s *SetContents) covers(f Family, key Value) bool {
	if !s.Set.Interval {
		_, found := s.Elements[key]
		return found
	}
	for _, e := range s.Elements {
		if s.Set.Key.eachField(f, func(at, end int) bool { return e.Key[at:end] <= key[at:end] && key[at:end] <= e.KeyEnd[at:end] }) {
			return true
		}
	}
	return false
}

// overlaps says whether an element of an interval set has keys in common with
// one that is there.
func (s *SetContents) overlaps(f Family, e Element) bool {
	if !s.Set.Interval {
		return false
	}
	for _, o := range s.Elements {
		if s.Set.Key.eachField(f, func(at, end int) bool { return o.Key[at:end] <= e.KeyEnd[at:end] && e.Key[at:end] <= o.KeyEnd[at:end] }) {
			return true
		}
	}
	return false
}

// eachField says whether something holds for every field of a concatenation,
// given where its bytes are.
func (fs Fields) eachField(family Family, holds func(at, end int) bool) bool {
	at := 0
	for _, f := range fs {
		n := f.Len(family)
		if !holds(at, at+n) {
			return false
		}
		at += (n + 3) &^ 3
	}
	return true
}

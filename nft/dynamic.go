package nft

// Learned is an element that a rule (Update) added to a dynamic map, or whose
// time it started anew.
type Learned struct {
	Table   TableID
	Element Element
}

// Learn carries out what a packet's trace would have left in the dynamic maps.
// As in the kernel, an element that is there keeps its data, and a full map
// takes no other. A Model has no clock: nothing leaves.
func (m *Model) Learn(r Result) {
	for _, l := range r.Learned {
		s := m.tables[l.Table].Sets[l.Element.Set]
		if _, found := s.Elements[l.Element.Key]; !found && !s.full(0) {
			s.Elements[l.Element.Key] = l.Element
		}
	}
}

// full says that the set takes no element besides those that it has and as many
// more.
func (s *SetContents) full(more int) bool {
	return s.Set.Size > 0 && len(s.Elements)+more >= int(s.Set.Size)
}

// update notes what the statement adds; false if the map is full.
func (w *walk) update(t *Contents, s Update) bool {
	l := Learned{t.Table, Element{Set: s.Map, Key: w.key(s.Key), Data: w.key(s.Data)}}
	set := t.Sets[s.Map]
	if _, found := set.Elements[l.Element.Key]; !found {
		// The same packet may have added others before.
		added := map[Value]bool{}
		for _, o := range w.result.Learned {
			if _, old := set.Elements[o.Element.Key]; !old && o.Table == l.Table && o.Element.Set == s.Map {
				added[o.Element.Key] = true
			}
		}
		if !added[l.Element.Key] && set.full(len(added)) {
			return false
		}
	}
	w.result.Learned = append(w.result.Learned, l)
	return true
}

// find returns the element that has the key: in an interval set the one that
// covers each of its fields.
func (s *SetContents) find(f Family, key Value) (Element, bool) {
	if !s.Set.Interval {
		e, found := s.Elements[key]
		return e, found
	}
	for _, e := range s.Elements {
		if s.Set.Key.eachField(f, func(at, end int) bool { return e.Key[at:end] <= key[at:end] && key[at:end] <= e.KeyEnd[at:end] }) {
			return e, true
		}
	}
	return Element{}, false
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

package nft

// Learned is an element that a rule (Update) added to a dynamic map, or whose
// time-out it restarted.
type Learned struct {
	Table   TableID
	Element Element
}

// Full says that the set has no room for another element once it has so many more.
func (s *SetContents) Full(more int) bool {
	limited := s.Set.Dynamic || s.Set.Size > 0
	return limited && len(s.Elements)+more >= s.Set.Limit()
}

// update notes what the statement adds to its map; false if the map is full.
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
		if !added[l.Element.Key] && set.Full(len(added)) {
			return false
		}
	}
	w.result.Learned = append(w.result.Learned, l)
	return true
}

// learned returns the element that the packet itself has added before.
func (w *walk) learned(t TableID, set string, key Value) (Element, bool) {
	for _, l := range w.result.Learned {
		if l.Table == t && l.Element.Set == set && l.Element.Key == key {
			return l.Element, true
		}
	}
	return Element{}, false
}

// find returns the element that has the key: in an interval set the one that
// covers each of its fields.
func (s *SetContents) find(f Family, key Value) (Element, bool) {
	if !s.Set.Interval {
		e, found := s.Elements[key]
		return e, found
	}
	for _, e := range s.Elements {
		if s.Set.Key.EachField(f, func(at, end int) bool {
			return e.Key[at:end] <= key[at:end] && key[at:end] <= e.KeyEnd[at:end]
		}) {
			return e, true
		}
	}
	return Element{}, false
}

// EachField says whether holds is true of every field of a concatenation. It is told
// where the field's bytes start and end.
func (fs Fields) EachField(family Family, holds func(at, end int) bool) bool {
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

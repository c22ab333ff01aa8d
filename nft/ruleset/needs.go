package ruleset

import (
	"nftproxy/model/treap"
	"nftproxy/nft"
)

// need names something that parts share. The program has it while a part needs it, or something else that is shared.
// What a part needs follows from its elements and pools (countPart), or is said by what its Service compiles to.
type need struct {
	kind needKind
	// name is that of the chain, set or object, or the address as a key. It is empty for what a table has once.
	name string
}

type needKind uint8

const (
	// needChain: elements or chains lead to the chain.
	needChain needKind = iota
	needSet
	needTimeouts
	// needRanges: there is a list of ranges of ports. needNodePortSources: source ranges are in front of a node port.
	needRanges
	needNodePortSources
	// needPing: the address answers echo requests.
	needPing
	// needHeld: a frontend of the access with that map of verdicts holds connections. needHeldFlows: any does.
	needHeld
	needHeldFlows

	// The others are facts that base or setHairpin goes by; nothing is made for them.

	// needHere: an endpoint of the address is on the node; needMaybeHere: it may be.
	needHere
	needMaybeHere
	// needUnlisted: a cluster IP is in no ServiceCIDR. needTranslated: an endpoint is in one.
	needUnlisted
	needTranslated
	// needRefusal: a node port with policy Local has no endpoint on this node.
	needRefusal
	// needLearning: clients of the access with that map of verdicts are remembered. needIdentity: one of its endpoints
	// that may be remembered is where the client goes anyway.
	needLearning
	needIdentity
)

// shared makes what the program has for a need. The same value always makes the same.
type shared interface {
	make(cfg *Config, p pods) made
}

// made is what the program has for a need.
type made struct {
	chains   []*nft.Chain
	sets     []*nft.Set
	timeouts []nft.Timeout
	// part has elements that belong to no single Service, under the name in the program.
	name string
	part *nft.Part
	// needs are what the chains need in turn.
	needs []wanted
}

// wanted is a need, and what makes what the program has for it; nil for a fact.
type wanted struct {
	need
	shared
}

// needs counts the users of each need.
type needs struct {
	of map[need]*use
	// touched has the needs that got their first user or lost their last one since the last settle, some of them
	// several times.
	touched []need
}

// use has the number of users of a need. there says that the program has it.
type use struct {
	shared
	users int
	there bool
}

// has says whether anything has the need.
func (n *needs) has(x need) bool { u := n.of[x]; return u != nil && u.users > 0 }

// count adds users of a need, or takes them away.
func (n *needs) count(x need, by int) {
	u := n.of[x]
	if u == nil {
		u = &use{}
		n.of[x] = u
	}
	if u.users += by; u.users == 0 || u.users == by {
		n.touched = append(n.touched, x)
	}
}

// define says what makes what the program has for a need.
func (n *needs) define(w wanted) {
	if n.of[w.need] == nil {
		n.of[w.need] = &use{shared: w.shared}
	}
}

// settle makes what the program needs and does not have. Then it removes what nothing needs any more: so what is there
// stays if only its users change.
func (t *tableCompiler) settle() {
	for _, there := range []bool{true, false} {
		for i := 0; i < len(t.needs.touched); i++ { // grows in the loop
			x := t.needs.touched[i]
			u := t.needs.of[x]
			if u == nil || (u.users > 0) != there {
				continue
			}
			if u.there != there && u.shared != nil {
				t.putMade(u.make(&t.cfg, t.pods), there)
			}
			if u.there = there; !there {
				delete(t.needs.of, x)
			}
		}
	}
	t.needs.touched = nil
}

// putMade adds something shared to the program, or removes it.
func (t *tableCompiler) putMade(m made, there bool) {
	by := 1
	if !there {
		by = -1
	}
	for _, c := range m.chains {
		t.chains = put(t.chains, c.Name, c, there)
	}
	for _, s := range m.sets {
		t.sets = put(t.sets, s.Name, s, there)
	}
	for _, o := range m.timeouts {
		t.timeouts = put(t.timeouts, o.Name, o, there)
	}
	switch {
	case m.part == nil:
	case there:
		t.edit(m.name, m.part)
	default:
		t.edit(m.name, nil)
	}
	for _, w := range m.needs {
		t.needs.define(w)
		t.needs.count(w.need, by)
	}
}

// put adds the value to the map, or removes it.
func put[V comparable](m treap.Map[string, V], name string, v V, there bool) treap.Map[string, V] {
	if there {
		return m.Set(name, v)
	}
	return m.Delete(name)
}

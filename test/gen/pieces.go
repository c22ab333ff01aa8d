package gen

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/nft"
)

// tempting are names that look like ours, and some that do not.
func tempting() []string {
	return []string{
		"source-ranges-", "source-ranges-1", "affinity-", "affinity-ns/svc:80", "learn-",
		"learn-10800-affinity-ns/svc/80-local",
		"endpoints-0", "endpoints-1", "endpoints-99999999999999999999", "local-endpoints-2", "node-port-endpoints-3",
		"node-port-learn-1-",
		"endpoints-2-affinity-x", "refuse", "unknown-port", "no-local-endpoints", "services", "services-restricted",
		"hairpin", "foreign",
	}
}

// comments are what others may write into comments.
func comments() []string {
	return []string{"", "ns/svc", "ns/svc:80", "ns/svc:", ":", "/", "/:", "ns/", "/svc:1", "cluster IP also of ns/svc:80",
		"cluster IP also of", "...", "ns/s...", "a/b/c:d:e", "\x00\xff\x1b[2J", "ns/svc:99999"}
}

// purposes are comments of rules: those of our own rules, of which other rules may have a copy, and one of another
// program.
func purposes() []string {
	return []string{
		"find the address and port", "refuse unknown ports of cluster IPs", "find the node port",
		"let in sources of the ranges",
		"drop sources outside the ranges", "find the restricted address and port", "give pods the endpoints of all nodes",
		"give pods of other nodes the endpoints of all nodes, and have them masqueraded",
		"refuse pods of other nodes: no endpoint is on this node",
		"give the node the endpoints of all nodes", "give clients outside the endpoints of this node",
		"drop packets of clients outside: no endpoint is on this node", "have clients that are no pods masqueraded",
		"have all clients masqueraded", "send a remembered client to its endpoint", "choose an endpoint for a new client",
		"choose an endpoint", "drop what has no endpoint, if the map changes at this moment",
		"count the packet for its Service",
		"drop packets to service addresses that no Service has", "note that the Service port has a new connection",
		"find the map that remembers the client", "remember the client's endpoint", "a comment",
	}
}

// put puts an element with the key into the set. It is one that a kernel takes, if the set
// had no other.
func (v *vandal) put(s *nft.SetContents, key nft.Value) {
	if len(s.Set.Key) == 0 || s.Set.Dynamic {
		return // a reader returns no elements of such a set
	}
	e := nft.Element{Set: s.Set.Name, Key: key, Comment: comments()[v.rng.IntN(len(comments()))]}
	if s.Set.Interval {
		e.KeyEnd = max(key, v.bytes(len(key)))
		if v.rng.IntN(2) == 0 {
			e.KeyEnd = key
		}
	}
	if s.Set.Verdicts {
		e.Verdict = v.verdict()
	}
	if len(s.Set.Data) > 0 {
		e.Data = v.bytes(s.Set.Data.Len(v.family))
	}
	s.Elements[key] = e
}

// key is a key for the set: one of another set now and then, and often one that is near
// another one of the same set.
func (v *vandal) key(s *nft.SetContents) nft.Value {
	n := s.Set.Key.Len(v.family)
	var known []nft.Value
	for _, name := range slices.Sorted(maps.Keys(v.c.Sets)) {
		for key := range v.c.Sets[name].Elements {
			if len(key) >= n {
				known = append(known, key[:n])
			}
		}
	}
	if len(known) == 0 || v.rng.IntN(4) == 0 {
		return v.bytes(n)
	}
	slices.Sort(known)
	b := []byte(known[v.rng.IntN(len(known))])
	if v.rng.IntN(2) == 0 && n > 0 {
		b[v.rng.IntN(n)] ^= 1 << v.rng.IntN(8)
	}
	return nft.Value(b)
}

func (v *vandal) bytes(n int) nft.Value {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, v.rng.Uint64())
	}
	return nft.Value(b[:n])
}

// set is a declaration that some program could have.
func (v *vandal) set() *nft.Set {
	s := &nft.Set{Name: v.someName(tempting(), slices.Sorted(maps.Keys(v.c.Sets))), Key: v.fields()}
	switch v.rng.IntN(4) {
	case 0:
		s.Verdicts = true
	case 1:
		s.Data = v.fields()
	case 2:
		s.Interval = true
	case 3:
		s.Data, s.Dynamic = v.fields(), true
	}
	if s.Check() != nil {
		s.Interval, s.Dynamic = false, false
	}
	return s
}

func (v *vandal) fields() nft.Fields {
	var list nft.Fields
	for range 1 + v.rng.IntN(4) {
		list = append(list, []nft.Field{nft.Daddr, nft.Saddr, nft.L4Proto, nft.Dport, nft.Index}[v.rng.IntN(5)])
	}
	return list
}

// hook is one that a chain of type nat can have, or one as a reader reports others.
func (v *vandal) hook() *nft.Hook {
	return &nft.Hook{
		Name:     []nft.HookName{nft.Prerouting, nft.Input, nft.Output, nft.Postrouting, 0xff}[v.rng.IntN(5)],
		Priority: []int32{-190, -100, 0, 100}[v.rng.IntN(4)],
	}
}

func (v *vandal) verdict() nft.Verdict {
	chain := v.someName(v.chainNames(), append(tempting(), ""))
	switch v.rng.IntN(8) {
	case 0:
		return nft.Verdict{Code: nft.Accept}
	case 1:
		return nft.Verdict{Code: nft.Drop}
	case 2:
		return nft.Verdict{Code: nft.Return}
	case 3:
		return nft.Verdict{Code: []nft.VerdictCode{2, 3, 4, -1, -2, 1 << 16}[v.rng.IntN(6)]} // queues and others
	case 4:
		return nft.Verdict{Code: nft.Jump, Chain: chain}
	}
	return nft.Verdict{Code: nft.Goto, Chain: chain}
}

// rule is a few statements. Now and then a reader does not recognise its end.
func (v *vandal) rule() nft.Rule {
	var r nft.Rule
	for range 1 + v.rng.IntN(3) {
		r = append(r, v.statement())
	}
	switch v.rng.IntN(6) {
	case 0:
		r = append(r, nft.Unknown{})
	case 1:
		r = append(r, nft.Comment(purposes()[v.rng.IntN(len(purposes()))]))
	}
	return r
}

func (v *vandal) statement() nft.Statement {
	set := v.someName(slices.Sorted(maps.Keys(v.c.Sets)), tempting())
	not, field := v.rng.IntN(2) == 0, []nft.Field{nft.Saddr, nft.Daddr}[v.rng.IntN(2)]
	key := v.fields()
	if s := v.c.Sets[set]; s != nil && v.rng.IntN(4) > 0 {
		key = s.Set.Key
	}
	switch v.rng.IntN(15) {
	case 0:
		a, _ := netip.AddrFromSlice([]byte(v.bytes(v.family.AddrLen())))
		return nft.MatchAddr{Field: field, Not: not, Prefix: netip.PrefixFrom(a, v.rng.IntN(a.BitLen()+1)).Masked()}
	case 1:
		return nft.MatchProto{Protocol: uint8(v.rng.Uint32())}
	case 2:
		return nft.MatchLocal{Field: field, Not: not, Input: field == nft.Daddr && v.rng.IntN(4) == 0}
	case 3:
		return nft.MatchInput{Not: not, Name: []string{"eth0", "cni", "veth"}[v.rng.IntN(3)], Prefix: v.rng.IntN(2) == 0}
	case 4:
		return []nft.Statement{nft.MatchMark{Mask: v.rng.Uint32()},
			nft.MatchLabel{Bit: uint8(v.rng.IntN(128))}}[v.rng.IntN(2)]
	case 5:
		return nft.MatchDNATed{}
	case 6:
		return nft.InSet{Key: key, Set: set}
	case 7, 8:
		return nft.VMap{Key: key, Map: set}
	case 9:
		mods := []uint32{0, 1, 2, 3, 200}
		if v.rng.IntN(16) == 0 {
			mods = []uint32{1 << 31} // a second of the processor for an explanation
		}
		key = slices.DeleteFunc(slices.Clone(key), func(f nft.Field) bool { return f == nft.Index })
		hashes := []nft.Fields{nil, nil, {nft.Saddr}, {nft.Saddr, nft.Sport}}
		return nft.DNAT{Key: key, Mod: mods[v.rng.IntN(len(mods))], Hash: hashes[v.rng.IntN(len(hashes))], Map: set}
	case 10:
		return nft.Update{Map: set, Key: key, Data: v.fields(), Timeout: time.Duration(1+v.rng.IntN(1<<20)) * time.Second}
	case 11:
		return []nft.Statement{nft.SetMark{Mask: v.rng.Uint32()}, nft.ClearMark{Mask: v.rng.Uint32()},
			nft.SetLabel{Bit: uint8(v.rng.IntN(128))}}[v.rng.IntN(3)]
	case 12:
		return []nft.Statement{nft.Masquerade{}, nft.Counter{}}[v.rng.IntN(2)]
	case 13:
		return nft.Reject{TCPReset: not}
	}
	return v.verdict()
}

package nft

import "slices"

// withIdleRules returns the wanted chain together with the rules of the old one that packets may still need. Rules at
// an earlier hook leave word for a later one that a connection is to be masqueraded: by the packet's mark, or by a
// label of the connection. A packet between the two hooks has the word of the old rules, and meets the new ones. So
// where the word changes, the rule that understands the old one stays for IdleLife, also one that an earlier process
// left. (Linux 6.18, 200 changes in a flood of first packets: without it one of 81,540 connections was not masqueraded.
// But a program that judges first packets in user space holds them for milliseconds between the hooks.)
func (p *tablePlan) withIdleRules(old, want *Chain) *Chain {
	if old.Hook == nil {
		return want
	}
	f := p.want.Family
	both := &Chain{Name: want.Name, Hook: want.Hook, Rules: slices.Clip(want.Rules)}
	for _, r := range old.Rules {
		if r.obeysWord() && !want.obeys(r, f) {
			both.Rules = append(both.Rules, r)
		}
	}
	since, known := p.have.idleRules[want.Name]
	if !known {
		since = p.now
	}
	changes := !slices.ContainsFunc(want.Rules, func(r Rule) bool { return r.obeysWord() && old.obeys(r, f) })
	switch {
	case len(both.Rules) == len(want.Rules), p.now.Sub(since) >= IdleLife:
		return want
	case !known && !changes && !old.sameRules(both, f):
		return want // They are not where Plan puts them: they are another program's.
	}
	p.next.idleRules[want.Name] = since
	return both
}

// obeysWord says whether the rule masquerades by what an earlier rule has left on the packet or connection.
func (r Rule) obeysWord() bool {
	if r = r.Body(); len(r) == 0 {
		return false
	}
	switch r[len(r)-1].(type) {
	case Masquerade, SNATTo:
	default:
		return false
	}
	switch r[0].(type) {
	case MatchMark, MatchLabel:
		return true
	}
	return false
}

// obeys says whether a rule of the chain obeys the same word as r, whatever destinations it spares and whatever source
// it gives.
func (c *Chain) obeys(r Rule, f Family) bool {
	word := r.Body()[0].Text(f)
	return slices.ContainsFunc(c.Rules, func(o Rule) bool { return o.obeysWord() && o.Body()[0].Text(f) == word })
}

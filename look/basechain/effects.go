package basechain

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/node/otherproxy"
)

// maxVisits bounds the chains that effectsOf reads for one base chain. A kube-proxy has tens of thousands.
const maxVisits = 200

// effectsOf reads the chain and the chains to which it leads. closes says that a rule drops packets that is neither
// kube-proxy's nor the kubelet's, and endsClosed is that of Chain.
func effectsOf(conn *nftables.Conn, base *nftables.Chain) (all otherproxy.Effects, closes, endsClosed bool, err error) {
	seen, next := map[string]bool{base.Name: true}, []string{base.Name}
	for len(next) > 0 {
		if len(seen) > maxVisits {
			all.Add(otherproxy.Effects{Drops: true, Queues: true, Translates: true, Untracks: true}) // whatever a chain may do
			return all, base.Type != nftables.ChainTypeNAT, endsClosed, nil
		}
		name := next[0]
		next = next[1:]
		rules, err := conn.GetRules(base.Table, &nftables.Chain{Name: name, Table: base.Table})
		if err != nil {
			return all, closes, endsClosed, err
		}
		if name == base.Name && len(rules) > 0 {
			endsClosed = takesAll(rules[len(rules)-1])
		}
		for _, r := range rules {
			effects, chains, err := effectsOfRule(r)
			if err != nil {
				return all, closes, endsClosed, err
			}
			all.Add(effects)
			closes = closes || (effects.Drops || effects.Queues) && !otherproxy.OfKubernetes(base.Table.Name, name)
			for _, c := range chains {
				if !seen[c] {
					seen[c], next = true, append(next, c)
				}
			}
		}
	}
	return all, closes, endsClosed, nil
}

// takesAll says that a rule drops or rejects packets, and compares nothing before.
func takesAll(r *nftables.Rule) bool {
	for _, x := range r.Exprs {
		switch x := x.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Verdict:
			return x.Kind == expr.VerdictDrop
		case *expr.Reject:
			return true
		case *expr.Target:
			return otherproxy.EffectsOfTarget(x.Name).Drops
		default:
			return false
		}
	}
	return false
}

// effectsOfRule also returns the chains to which the rule leads.
func effectsOfRule(r *nftables.Rule) (effects otherproxy.Effects, chains []string, err error) {
	for _, x := range r.Exprs {
		switch x := x.(type) {
		case *expr.Verdict:
			effects.Add(effectsOfVerdict(x.Kind))
			if x.Chain != "" {
				chains = append(chains, x.Chain)
			}
		case *expr.Reject, *expr.SynProxy:
			effects.Drops = true
		case *expr.Queue:
			effects.Queues = true
		case *expr.NAT, *expr.Redir, *expr.Masq:
			effects.Translates = true
		case *expr.Notrack:
			effects.Untracks = true
		case *expr.Meta:
			effects.Marks = effects.Marks || x.SourceRegister && x.Key == expr.MetaKeyMARK
		case *expr.Ct:
			effects.MarksConnections = effects.MarksConnections || x.SourceRegister && x.Key == expr.CtKeyMARK
		case *expr.Target:
			effects.Add(otherproxy.EffectsOfTarget(x.Name))
		case *expr.Lookup:
			if x.IsDestRegSet && x.DestRegister == unix.NFT_REG_VERDICT {
				more, to, err := effectsOfMap(r.Table, x.SetName)
				if err != nil {
					return effects, nil, err
				}
				effects.Add(more)
				chains = append(chains, to...)
			}
		}
	}
	return effects, chains, nil
}

func effectsOfVerdict(kind expr.VerdictKind) otherproxy.Effects {
	return otherproxy.Effects{Drops: kind == expr.VerdictDrop || kind == expr.VerdictStolen,
		Queues: kind == expr.VerdictQueue}
}

// effectsOfMap reads the verdicts in a map, which the library that reads rules does not. It also returns the chains to
// which they lead.
func effectsOfMap(table *nftables.Table, name string) (effects otherproxy.Effects, chains []string, err error) {
	socket, err := nfnetlink.Dial(nfnetlink.Config{})
	if err != nil {
		return effects, nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer socket.Close()
	r := nfnetlink.Requester{Socket: socket, Subsystem: unix.NFNL_SUBSYS_NFTABLES}
	request := new(nfnetlink.Encoder).Text(unix.NFTA_SET_ELEM_LIST_TABLE, table.Name).Text(unix.NFTA_SET_ELEM_LIST_SET,
		name)
	err = r.Receive(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, uint8(table.Family), request.B,
		func(m nfnetlink.Message) error {
			for _, element := range m.Attributes().Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS).All() {
				v := element.Get(unix.NFTA_SET_ELEM_DATA).Get(unix.NFTA_DATA_VERDICT)
				if v.Get(unix.NFTA_VERDICT_CODE) == nil {
					continue
				}
				effects.Add(effectsOfVerdict(expr.VerdictKind(int32(v.Uint32(unix.NFTA_VERDICT_CODE)))))
				if chain := v.Text(unix.NFTA_VERDICT_CHAIN); chain != "" {
					chains = append(chains, chain)
				}
			}
			return nil
		})
	if err != nil {
		return effects, nil, fmt.Errorf("read map %s: %w", name, err)
	}
	return effects, chains, nil
}

package otherproxy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/nfnetlink"
)

// kubeProxyTable is the name of kube-proxy's tables in nftables mode, and tableComment their
// comment (k8s.io/kubernetes/pkg/proxy/nftables).
const (
	kubeProxyTable = "kube-proxy"
	tableComment   = "rules for kube-proxy"
)

// NFTA_TABLE_HANDLE and NFTA_TABLE_USERDATA, which x/sys/unix lacks.
const (
	attrTableHandle   = 4
	attrTableUserdata = 6
)

// ErrUnknownTable says that a table has kube-proxy's name but was made by another program.
var ErrUnknownTable = errors.New("the table has the name of kube-proxy's table, but not its comment")

func (c *conn) readTable(f ip.Family) (Rules, error) {
	r := rulesIn(NFTables, f, kubeProxyTable)
	var err error
	if r.ruleset, err = c.generation(); err != nil {
		return r, err
	}
	var use uint32
	err = c.ask(unix.NFT_MSG_GETTABLE, 0, f, named(unix.NFTA_TABLE_NAME, kubeProxyTable),
		func(a nfnetlink.Attributes) error {
			use = a.Uint32(unix.NFTA_TABLE_USE)
			r.mark = fmt.Sprint(a.Uint64(attrTableHandle), use)
			// Kernels before 5.10 keep no comment.
			if comment, has := userdata.GetString(a.Get(attrTableUserdata), userdata.TypeComment); has &&
				comment != tableComment {
				r.Keep = ErrUnknownTable
			}
			return nil
		})
	if err == nil && use == 1 {
		r.sign, err = c.isSign(f)
	}
	if err != nil {
		return r, fmt.Errorf("look up table %s: %w", r.Table, err)
	}
	return r, nil
}

// signChain is the chain that stays in a table by which another program goes. It is one of kube-proxy's, which fills it
// again.
const signChain = "services"

// isSign says whether the chain of the table is what removeTable leaves: on no hook, without a rule and without a jump
// to it.
func (c *conn) isSign(f ip.Family) (is bool, err error) {
	of := named(unix.NFTA_CHAIN_TABLE, kubeProxyTable).Text(unix.NFTA_CHAIN_NAME, signChain)
	err = c.ask(unix.NFT_MSG_GETCHAIN, 0, f, of, func(a nfnetlink.Attributes) error {
		is = a.Uint32(unix.NFTA_CHAIN_USE) == 0 && a.Get(unix.NFTA_CHAIN_HOOK) == nil
		return nil
	})
	return is, err
}

// partOfTable splits a table of the kind NFTables: where it is a sign for another program, all but an empty chain goes.
func (r Rules) partOfTable(keepSign func() error) (gone, stays Rules, err error) {
	if keepSign == nil {
		return r, Rules{}, nil
	}
	why := keepSign()
	if why == nil {
		return r, Rules{}, nil
	}
	gone, stays = r, r
	gone.leavesSign, stays.sign = true, true
	if r.sign {
		gone = Rules{} // It has gone before.
	}
	return gone, stays, fmt.Errorf("%s keeps an empty chain: %w", r.Table, why)
}

// removeTable removes the table, and makes it again in the same transaction if it is to leave the sign: whoever looks
// for a chain in it finds one at any time.
func removeTable(r Rules) error {
	b := newBatch(r.ruleset)
	b.delete(unix.NFT_MSG_DELTABLE, r.family, named(unix.NFTA_TABLE_NAME, kubeProxyTable))
	if r.leavesSign {
		b.create(unix.NFT_MSG_NEWTABLE, r.family, named(unix.NFTA_TABLE_NAME, kubeProxyTable).Bytes(attrTableUserdata,
			userdata.AppendString(nil, userdata.TypeComment, tableComment)))
		b.create(unix.NFT_MSG_NEWCHAIN, r.family, named(unix.NFTA_CHAIN_TABLE, kubeProxyTable).Text(unix.NFTA_CHAIN_NAME,
			signChain))
	}
	return b.commit()
}

// jump is a rule of a chain that is not kube-proxy's, and leads to one that is.
type jump struct {
	chain, target string
	handle        uint64
}

// readNFTChains finds kube-proxy's chains in a table of iptables-nft.
func (c *conn) readNFTChains(f ip.Family, table string) (Rules, error) {
	r := rulesIn(IPTablesNFT, f, table)
	if err := r.findChains(c); err != nil {
		return r, fmt.Errorf("look for chains of kube-proxy in table %s: %w", r.Table, err)
	}
	return r, nil
}

func (r *Rules) findChains(c *conn) (err error) {
	if r.ruleset, err = c.generation(); err != nil {
		return err
	}
	var others []string
	err = c.ask(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, r.family, named(unix.NFTA_CHAIN_TABLE, r.name),
		func(a nfnetlink.Attributes) error {
			name := a.Text(unix.NFTA_CHAIN_NAME)
			switch {
			case a.Text(unix.NFTA_CHAIN_TABLE) != r.name: // the dump is of all tables
			case isChain(r.name, name):
				r.chains = append(r.chains, name)
			default:
				others = append(others, name)
			}
			return nil
		})
	if err != nil || len(r.chains) == 0 {
		return err
	}
	slices.Sort(r.chains)
	for _, chain := range others {
		if err := r.findJumps(c, chain); err != nil {
			return err
		}
	}
	return r.findOpenings(c)
}

// findJumps looks at the rules of a chain that is not kube-proxy's.
func (r *Rules) findJumps(c *conn, chain string) error {
	return c.rules(r.family, r.name, chain, func(a nfnetlink.Attributes) error {
		verdict, err := verdictOf(a)
		switch {
		case err != nil:
			return err
		case !isChain(r.name, verdict.chain):
		case isBuiltin(chain) && isJumpComment(verdict.comment):
			r.jumps = append(r.jumps, jump{chain, verdict.chain, a.Uint64(unix.NFTA_RULE_HANDLE)})
		case r.Keep == nil:
			r.Keep = fmt.Errorf("%w: a rule in chain %s leads to %s", ErrForeign, chain, verdict.chain)
		}
		return nil
	})
}

// NFTA_MATCH_NAME and NFTA_MATCH_INFO, which x/sys/unix lacks.
const (
	attrMatchName = 1
	attrMatchInfo = 3
)

// verdict is where a rule of iptables-nft leads packets.
type verdict struct {
	// chain is the one to which the rule jumps or goes, or empty.
	chain string
	// accepts says that the verdict is accept.
	accepts bool
	// comment is the rule's: iptables-nft keeps it as userdata, or as a match of iptables.
	comment string
}

func verdictOf(rule nfnetlink.Attributes) (v verdict, err error) {
	v.comment, _ = userdata.GetString(rule.Get(unix.NFTA_RULE_USERDATA), userdata.TypeComment)
	for _, expression := range rule.Get(unix.NFTA_RULE_EXPRESSIONS).Strict(&err) {
		data := expression.Get(unix.NFTA_EXPR_DATA)
		switch expression.Text(unix.NFTA_EXPR_NAME) {
		case "match":
			if data.Text(attrMatchName) == "comment" {
				v.comment = unix.ByteSliceToString(data.Get(attrMatchInfo))
			}
		case "immediate":
			// It may load another value than a verdict.
			if to := data.Get(unix.NFTA_IMMEDIATE_DATA).Get(unix.NFTA_DATA_VERDICT); to != nil {
				const accept = 1 // NF_ACCEPT
				v.chain, v.accepts = to.Text(unix.NFTA_VERDICT_CHAIN), to.Uint32(unix.NFTA_VERDICT_CODE) == accept
			}
		}
	}
	return v, err
}

// removeNFTChains removes the rules that lead to the chains, and the chains. The tables and the
// chains of iptables itself stay: other programs use them.
func removeNFTChains(r Rules) error {
	b := newBatch(r.ruleset)
	for _, j := range r.jumps {
		b.delete(unix.NFT_MSG_DELRULE, r.family, named(unix.NFTA_RULE_TABLE, r.name).Text(unix.NFTA_RULE_CHAIN,
			j.chain).Uint64(unix.NFTA_RULE_HANDLE, j.handle))
	}
	// Chains lead to each other, so all are emptied first.
	for _, chain := range r.chains {
		b.delete(unix.NFT_MSG_DELRULE, r.family, named(unix.NFTA_RULE_TABLE, r.name).Text(unix.NFTA_RULE_CHAIN, chain))
	}
	for _, chain := range r.chains {
		b.delete(unix.NFT_MSG_DELCHAIN, r.family, named(unix.NFTA_CHAIN_TABLE, r.name).Text(unix.NFTA_CHAIN_NAME, chain))
	}
	return b.commit()
}

package otherproxy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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

func findTables(c *conn) ([]Rules, error) {
	var found []Rules
	for _, f := range families() {
		r, there, err := findTable(c, f)
		if err != nil {
			return nil, err
		}
		if there {
			found = append(found, r)
		}
	}
	return found, nil
}

func findTable(c *conn, f family) (r Rules, there bool, err error) {
	generation, err := c.generation()
	if err != nil {
		return r, false, err
	}
	r = Rules{Kind: NFTables, Table: tableName(f, kubeProxyTable), family: f, ruleset: generation}
	err = c.ask(unix.NFT_MSG_GETTABLE, 0, f, func(a attributes) error {
		there = true
		r.mark = fmt.Sprint(a.uint64(attrTableHandle), a.uint32(unix.NFTA_TABLE_USE))
		// Kernels before 5.10 keep no comment.
		if comment, has := userdata.GetString(a[attrTableUserdata], userdata.TypeComment); has && comment != tableComment {
			r.Keep = ErrUnknownTable
		}
		return nil
	}, textAttribute(unix.NFTA_TABLE_NAME, kubeProxyTable))
	if err != nil {
		return r, false, fmt.Errorf("look up table %s: %w", r.Table, err)
	}
	return r, there, nil
}

func removeTable(r Rules) error {
	return commit(r.ruleset, []netlink.Message{
		message(unix.NFT_MSG_DELTABLE, 0, r.family, textAttribute(unix.NFTA_TABLE_NAME, kubeProxyTable)),
	})
}

// jump is a rule of a chain that is not kube-proxy's, and leads to one that is.
type jump struct {
	chain, target string
	handle        uint64
}

// findNFTChains finds kube-proxy's chains in the tables of iptables-nft.
func findNFTChains(c *conn) ([]Rules, error) {
	var found []Rules
	for _, f := range families() {
		for _, table := range iptablesTables() {
			r, err := findNFTChainsIn(c, f, table)
			if err != nil {
				return nil, fmt.Errorf("look for chains of kube-proxy in table %s %s: %w", f, table, err)
			}
			if r.Chains > 0 {
				found = append(found, r)
			}
		}
	}
	return found, nil
}

func findNFTChainsIn(c *conn, f family, table string) (Rules, error) {
	r := Rules{Kind: IPTablesNFT, Table: tableName(f, table), family: f}
	generation, err := c.generation()
	if err != nil {
		return r, err
	}
	var others []string
	err = c.ask(unix.NFT_MSG_GETCHAIN, netlink.Dump, f, func(a attributes) error {
		name := a.text(unix.NFTA_CHAIN_NAME)
		switch {
		case a.text(unix.NFTA_CHAIN_TABLE) != table: // the dump is of all tables
		case isChain(table, name):
			r.chains = append(r.chains, name)
		default:
			others = append(others, name)
		}
		return nil
	}, textAttribute(unix.NFTA_CHAIN_TABLE, table))
	if err != nil || len(r.chains) == 0 {
		return r, err
	}
	r.Chains, r.ruleset = len(r.chains), generation
	slices.Sort(r.chains)
	for _, chain := range others {
		if err := r.findJumps(c, table, chain); err != nil {
			return r, err
		}
	}
	return r, r.findOpenings(c, table)
}

// findJumps looks at the rules of a chain that is not kube-proxy's.
func (r *Rules) findJumps(c *conn, table, chain string) error {
	return c.ask(unix.NFT_MSG_GETRULE, netlink.Dump, r.family, func(a attributes) error {
		if a.text(unix.NFTA_RULE_TABLE) != table || a.text(unix.NFTA_RULE_CHAIN) != chain {
			return nil
		}
		verdict, err := verdictOf(a)
		switch {
		case err != nil:
			return err
		case !isChain(table, verdict.chain):
		case isBuiltin(chain) && isJumpComment(verdict.comment):
			r.jumps = append(r.jumps, jump{chain, verdict.chain, a.uint64(unix.NFTA_RULE_HANDLE)})
		case r.Keep == nil:
			r.Keep = fmt.Errorf("%w: a rule in chain %s leads to %s", ErrForeign, chain, verdict.chain)
		}
		return nil
	}, textAttribute(unix.NFTA_RULE_TABLE, table), textAttribute(unix.NFTA_RULE_CHAIN, chain))
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

func verdictOf(rule attributes) (v verdict, err error) {
	v.comment, _ = userdata.GetString(rule[unix.NFTA_RULE_USERDATA], userdata.TypeComment)
	list, err := netlink.UnmarshalAttributes(rule[unix.NFTA_RULE_EXPRESSIONS])
	if err != nil {
		return v, fmt.Errorf("read the expressions of a rule: %w", err)
	}
	for _, item := range list {
		expression, err := parse(item.Data)
		if err != nil {
			return v, err
		}
		data, err := expression.nest(unix.NFTA_EXPR_DATA)
		if err != nil {
			return v, err
		}
		switch expression.text(unix.NFTA_EXPR_NAME) {
		case "match":
			if data.text(attrMatchName) == "comment" {
				v.comment = textOf(data[attrMatchInfo])
			}
		case "immediate":
			if err := v.read(data); err != nil {
				return v, err
			}
		}
	}
	return v, nil
}

// read reads an immediate expression, which may load another value than a verdict.
func (v *verdict) read(immediate attributes) error {
	value, err := immediate.nest(unix.NFTA_IMMEDIATE_DATA)
	if err != nil {
		return err
	}
	if _, is := value[unix.NFTA_DATA_VERDICT]; !is {
		return nil
	}
	data, err := value.nest(unix.NFTA_DATA_VERDICT)
	if err != nil {
		return err
	}
	const accept = 1 // NF_ACCEPT
	v.chain, v.accepts = data.text(unix.NFTA_VERDICT_CHAIN), data.uint32(unix.NFTA_VERDICT_CODE) == accept
	return nil
}

// removeNFTChains removes the rules that lead to the chains, and the chains. The tables and the
// chains of iptables itself stay: other programs use them.
func removeNFTChains(r Rules) error {
	_, table, _ := cutTable(r.Table)
	var batch []netlink.Message
	for _, j := range r.jumps {
		batch = append(batch, message(unix.NFT_MSG_DELRULE, 0, r.family, textAttribute(unix.NFTA_RULE_TABLE, table),
			textAttribute(unix.NFTA_RULE_CHAIN, j.chain), uint64Attribute(unix.NFTA_RULE_HANDLE, j.handle)))
	}
	// Chains lead to each other, so all are emptied first.
	for _, chain := range r.chains {
		batch = append(batch, message(unix.NFT_MSG_DELRULE, 0, r.family, textAttribute(unix.NFTA_RULE_TABLE, table), textAttribute(unix.NFTA_RULE_CHAIN, chain)))
	}
	for _, chain := range r.chains {
		batch = append(batch, message(unix.NFT_MSG_DELCHAIN, 0, r.family, textAttribute(unix.NFTA_CHAIN_TABLE, table), textAttribute(unix.NFTA_CHAIN_NAME, chain)))
	}
	return commit(r.ruleset, batch)
}

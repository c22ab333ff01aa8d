package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"nftproxy/look/inspect"
)

// chainList is the JSON that get chains prints.
type chainList struct {
	Chains []inspect.ChainRow `json:"chains"`
}

func newGetChainsCommand() *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:     "chains [NAME ...]",
		Aliases: []string{"chain"},
		Args:    cobra.ArbitraryArgs,
		Short:   "Show the chains of the tables, their rules, and what leads to them",
		Long: `chains shows the chains of both tables:

  TABLE  the family and name of the table
  CHAIN  the name
  KIND   base            it has a hook: packets begin there
         dispatch        refuses unknown ports of cluster IPs, and looks up node ports
         refuse          answers by a TCP reset or ICMP, and counts
         drop            drops, and counts
         external-local  chooses the endpoints of externalTrafficPolicy Local
         source-ranges   lets in the clients of loadBalancerSourceRanges
         endpoints       sends connections to one of a number of endpoints
         affinity        sends remembered clients to their endpoint
         learn           remembers the endpoint of a client
         foreign         no version of nftproxy makes such a chain
  RULES  the number of its rules
  USERS  the number of map elements and chains that lead to it. Services with the same
         number of endpoints share a chain. A chain without users stays for ten seconds

-o wide adds HOOK, ELEMENTS (the number of elements of each map that lead there) and
FROM (the chains with rules that lead there). -o yaml and -o json have the rules as nft
prints them.

-n, --address and --port select the chains that connections to such Services can come
to behind the base chains.

-o json prints an object with chains. Each has table, name, kind, hook, rules, elements
(numbers by the name of the map) and fromChains. Later versions may add fields; they do
not change these. Exit statuses: see nftproxy get --help.`,
		Example: `  nftproxy get chains
  nftproxy get chains refuse -o yaml               the rules as text
  nftproxy get chains -n kube-system -o wide       chains that a namespace's Services use
  nftproxy get chains --address 10.96.0.10 --port 53`,
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := o.selection(nil)
			if err != nil {
				return usageError{err}
			}
			s.Chains = names
			return getChains(cmd, &o, s)
		},
	}
	o.addFlags(cmd, "chains of Services with this address", "chains of Services with this port or node port")
	cmd.ValidArgsFunction = o.completeChains
	return cmd
}

func getChains(cmd *cobra.Command, o *getOptions, s inspect.Selection) error {
	r, err := o.read(cmd.Context())
	if err != nil {
		return err
	}
	defer r.conn.Close()
	rows := r.ChainRows(s)
	if err := printRows(cmd.OutOrStdout(), o.printOptions, chainColumns(), rows, chainList{rows}); err != nil {
		return err
	}
	return r.finish(cmd, o, s, len(rows), "chains")
}

func chainColumns() []column[inspect.ChainRow] {
	type row = inspect.ChainRow
	return []column[row]{
		{header: "TABLE", text: func(r *row) string { return r.Table }},
		{header: "CHAIN", text: func(r *row) string { return r.Name }},
		{header: "KIND", text: func(r *row) string { return r.Kind }},
		{header: "RULES", text: func(r *row) string { return strconv.Itoa(len(r.Rules)) }},
		{header: "USERS", text: func(r *row) string { return strconv.Itoa(r.Users()) }},
		{header: "HOOK", wide: true, text: func(r *row) string { return r.Hook }},
		{header: "ELEMENTS", wide: true, text: func(r *row) string {
			var of []string
			for _, name := range slices.Sorted(maps.Keys(r.Elements)) {
				of = append(of, fmt.Sprintf("%s:%d", name, r.Elements[name]))
			}
			return strings.Join(of, ",")
		}},
		{header: "FROM", wide: true, text: func(r *row) string { return fewOf(r.FromChains) }},
	}
}
